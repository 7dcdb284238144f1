//! Refuses fields that this node does not support, by the field's name. `tests/every_field.rs` says
//! of every field of a pod whether it is honoured, refused or without effect here.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, ContainerPort, Pod, PodSpec, SELinuxOptions, SeccompProfile, Volume,
    VolumeMount, VolumeProjection, WindowsSecurityContextOptions,
};

use super::refusal::{Refusal, not_isolated, shorten, unsupported};
use super::{NodeFacts, sysctls};

/// Checks the pod's fields except containers and volumes.
pub(super) fn of_pod(pod: &Pod, node: &NodeFacts) -> Option<Refusal> {
    let spec = pod.spec.as_ref()?;
    if let Some(os) = spec.os.as_ref().filter(|os| os.name != "linux") {
        return Some(Refusal {
            reason: "PodOSNotSupported",
            message: format!("spec.os.name is \"{}\", and this node runs linux", shorten(&os.name)),
        });
    }
    let asked = [
        (spec.set_hostname_as_fqdn == Some(true), "setHostnameAsFQDN"),
        (is_some(spec.resource_claims.as_ref()), "resourceClaims"),
        (has_limits(spec), "resources.limits"),
        // On a cluster the scheduler has honoured it before the node sees the pod.
        (spec.scheduling_group.is_some() && node.bind_unassigned, "schedulingGroup"),
    ];
    if let Some((_, field)) = asked.into_iter().find(|(asked, _)| *asked) {
        return Some(unsupported(format!("spec.{field}")));
    }
    let security = spec.security_context.as_ref()?;
    let profiles = Profiles {
        app_armor: security.app_armor_profile.as_ref(),
        seccomp: security.seccomp_profile.as_ref(),
        selinux: security.se_linux_options.as_ref(),
        windows: security.windows_options.as_ref(),
    };
    profiles.refused(|field| format!("spec.securityContext.{field}")).or_else(|| {
        let own_kernel = spec.runtime_class_name.as_ref().and_then(|class| node.runtimes.get(class));
        match is_some(security.sysctls.as_ref()) && own_kernel.is_some_and(|facts| facts.one_at_a_time) {
            // They would be set in a kernel that the pod's programs do not run on.
            true => Some(unsupported("spec.securityContext.sysctls with this runtime class".to_owned())),
            false => sysctls::refused(pod),
        }
    })
}

/// Checks one container. `at` writes the path of one of its fields.
pub(super) fn of_container(container: &Container, at: impl Fn(&str) -> String) -> Option<Refusal> {
    if let Some(security) = &container.security_context {
        if security.proc_mount.as_deref().is_some_and(|kind| !matches!(kind, "" | "Default")) {
            return Some(not_isolated(at("securityContext.procMount")));
        }
        let profiles = Profiles {
            app_armor: security.app_armor_profile.as_ref(),
            seccomp: security.seccomp_profile.as_ref(),
            selinux: security.se_linux_options.as_ref(),
            windows: security.windows_options.as_ref(),
        };
        if let Some(refusal) = profiles.refused(|field| at(&format!("securityContext.{field}"))) {
            return Some(refusal);
        }
    }
    let signal = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    let claims = container.resources.as_ref().and_then(|resources| resources.claims.as_ref());
    let ports = container.ports.as_deref().unwrap_or_default();
    let on_host = |port: &ContainerPort| port.host_port.is_some_and(|port| port != 0);
    let from_file = container
        .env
        .iter()
        .flatten()
        .any(|variable| variable.value_from.as_ref().is_some_and(|from| from.file_key_ref.is_some()));
    let asked = [
        (signal.is_some_and(|signal| signal != "SIGTERM"), "lifecycle.stopSignal"),
        (is_some(claims), "resources.claims"),
        (ports.iter().any(on_host), "ports.hostPort"),
        (from_file, "env.valueFrom.fileKeyRef"),
    ];
    if let Some((_, field)) = asked.into_iter().find(|(asked, _)| *asked) {
        return Some(unsupported(at(field)));
    }
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    other_protocol(container)
        .map(|field| unsupported(at(&field)))
        .or_else(|| mounts.iter().find_map(|mount| of_mount(mount, &at)))
}

/// Returns the field of a probe or hook that asks for a protocol that this node does not support.
fn other_protocol(container: &Container) -> Option<String> {
    let probes = [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    let lifecycle = container.lifecycle.as_ref();
    let hooks = [
        ("lifecycle.postStart", lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref())),
        ("lifecycle.preStop", lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref())),
    ];
    let mut gets = probes
        .iter()
        .filter_map(|(field, probe)| Some((*field, probe.as_ref()?.http_get.as_ref()?)))
        .chain(hooks.into_iter().filter_map(|(field, hook)| Some((field, hook?.http_get.as_ref()?))));
    let mut calls = probes.iter().filter_map(|(field, probe)| Some((*field, probe.as_ref()?.grpc.as_ref()?)));
    let get = gets.find_map(|(field, get)| {
        if get.scheme.as_deref() == Some("HTTPS") {
            return Some(format!("{field}.httpGet.scheme HTTPS"));
        }
        let other = get.protocol.as_deref().is_some_and(|protocol| protocol != "HTTP1");
        other.then(|| format!("{field}.httpGet.protocol"))
    });
    get.or_else(|| {
        let (field, _) =
            calls.find(|(_, call)| call.mode.as_deref().is_some_and(|mode| mode != "Plaintext"))?;
        Some(format!("{field}.grpc.mode"))
    })
}

/// Options that may be added to a mount. Every volume has the last two anyway.
pub const BIND_MOUNT_OPTIONS: [&str; 3] = ["noexec", "nodev", "nosuid"];

fn of_mount(mount: &VolumeMount, at: impl Fn(&str) -> String) -> Option<Refusal> {
    let field = |name: &str| at(&format!("volumeMounts[{}].{name}", shorten(&mount.name)));
    let parts = || mount.mount_path.split('/').filter(|part| !matches!(*part, "" | "."));
    let problem = if parts().next().is_none() {
        Some("would hide the container's own files; name a directory below it".to_owned())
    } else if parts().any(|part| part == "..") {
        Some("must not contain \"..\"".to_owned())
    } else {
        None
    };
    if let Some(problem) = problem {
        let path = shorten(&mount.mount_path);
        let message = format!("{} \"{path}\" {problem}", field("mountPath"));
        return Some(Refusal { reason: "InvalidVolumeMount", message });
    }
    let mut options = mount.bind_mount_options.iter().flatten();
    let unknown = options.find(|option| !BIND_MOUNT_OPTIONS.contains(&option.as_str()))?;
    Some(unsupported(format!("{} `{}`", field("bindMountOptions"), shorten(unknown))))
}

/// Returns the field of a volume that cannot be honoured. The volume's kind is known to be
/// supported.
pub(super) fn of_volume(volume: &Volume) -> Option<&'static str> {
    if let Some(empty) = &volume.empty_dir {
        return empty.mode.map(|_| "emptyDir.mode");
    }
    if let Some(source) = &volume.config_map {
        let items = source.items.iter().flatten().any(|item| item.user.is_some());
        let fields =
            [(source.default_user.is_some(), "configMap.defaultUser"), (items, "configMap.items.user")];
        return first(fields);
    }
    if let Some(source) = &volume.secret {
        let items = source.items.iter().flatten().any(|item| item.user.is_some());
        let fields = [(source.default_user.is_some(), "secret.defaultUser"), (items, "secret.items.user")];
        return first(fields);
    }
    if let Some(source) = &volume.downward_api {
        let items = source.items.iter().flatten().any(|item| item.user.is_some());
        return first([
            (source.default_user.is_some(), "downwardAPI.defaultUser"),
            (items, "downwardAPI.items.user"),
        ]);
    }
    let projected = volume.projected.as_ref()?;
    if projected.default_user.is_some() {
        return Some("projected.defaultUser");
    }
    projected.sources.iter().flatten().find_map(of_projection)
}

fn of_projection(source: &VolumeProjection) -> Option<&'static str> {
    let mut secret = source.secret.iter().flat_map(|source| source.items.iter().flatten());
    let mut config_map = source.config_map.iter().flat_map(|source| source.items.iter().flatten());
    let mut downward = source.downward_api.iter().flat_map(|source| source.items.iter().flatten());
    let token = source.service_account_token.as_ref();
    first([
        (source.cluster_trust_bundle.is_some(), "projected.sources.clusterTrustBundle"),
        (source.pod_certificate.is_some(), "projected.sources.podCertificate"),
        (secret.any(|item| item.user.is_some()), "projected.sources.secret.items.user"),
        (config_map.any(|item| item.user.is_some()), "projected.sources.configMap.items.user"),
        (downward.any(|item| item.user.is_some()), "projected.sources.downwardAPI.items.user"),
        (token.is_some_and(|token| token.user.is_some()), "projected.sources.serviceAccountToken.user"),
    ])
}

fn first<const N: usize>(fields: [(bool, &'static str); N]) -> Option<&'static str> {
    fields.into_iter().find_map(|(asked, field)| asked.then_some(field))
}

/// Profiles of security modules. Containers have a seccomp filter of their own and no other
/// profile.
struct Profiles<'a> {
    app_armor: Option<&'a AppArmorProfile>,
    seccomp: Option<&'a SeccompProfile>,
    selinux: Option<&'a SELinuxOptions>,
    windows: Option<&'a WindowsSecurityContextOptions>,
}

impl Profiles<'_> {
    fn refused(&self, at: impl Fn(&str) -> String) -> Option<Refusal> {
        match self.seccomp.map(|profile| profile.type_.as_str()) {
            None | Some("" | "RuntimeDefault") => {}
            Some("Unconfined") => return Some(not_isolated(at("seccompProfile.type Unconfined"))),
            Some(other) => {
                return Some(unsupported(at(&format!("seccompProfile.type {}", shorten(other)))));
            }
        }
        // No profile is active here, which is what `Unconfined` asks for.
        if let Some(profile) = self.app_armor.filter(|profile| profile.type_ != "Unconfined") {
            return Some(unsupported(at(&format!("appArmorProfile.type {}", shorten(&profile.type_)))));
        }
        if self.selinux.is_some_and(|options| *options != SELinuxOptions::default()) {
            return Some(unsupported(at("seLinuxOptions")));
        }
        self.windows.is_some().then(|| unsupported(at("windowsOptions")))
    }
}

fn has_limits(spec: &PodSpec) -> bool {
    let limits = spec.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    limits.is_some_and(|limits| !limits.is_empty())
}

fn is_some<T>(list: Option<&Vec<T>>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}
