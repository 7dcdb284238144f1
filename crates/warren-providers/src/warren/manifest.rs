//! The objects that are made for a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use warren_api::blueprint::PodMetadata;
use warren_api::{NameHash, Sandbox, annotations, labels};
use warren_client::launch::{self, Launch, Source};
use warren_client::sandbox::SandboxKey;

use super::Options;
use crate::error::{Code, ProviderError};
use crate::limits::Wanted;

/// The image of the local home for which nothing has to be fetched: this machine's own `/usr`.
const HOST_IMAGE: &str = "warren.dev/host";

/// The life of a claim. A launch needs an end, and these are not renewed.
const CLAIM_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the name of a sandbox. That of a project is the same each time, so that the server refuses a second one.
pub(super) fn name(project: Option<&str>) -> String {
    match project {
        Some(project) => {
            let letters = project.to_ascii_lowercase();
            let letters: String = letters
                .chars()
                .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
                .take(20)
                .collect();
            format!("{}-{}", letters.trim_matches('-'), NameHash::of(project))
        }
        None => {
            let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
            format!("sandbox-{}", random.to_ascii_lowercase())
        }
    }
}

fn pod_metadata(wanted: &Wanted) -> PodMetadata {
    let mut keys = BTreeMap::new();
    if let Some(network) = wanted.network {
        keys.insert(annotations::NETWORK.to_owned(), network.name().to_owned());
    }
    if let Some(hosts) = &wanted.allowed_hosts {
        keys.insert(annotations::NETWORK_ALLOWED_HOSTS.to_owned(), hosts.join(","));
    }
    if let Some(ports) = &wanted.allowed_ports {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        keys.insert(annotations::NETWORK_ALLOWED_PORTS.to_owned(), ports.join(","));
    }
    if let Some(pids) = wanted.pids_limit {
        keys.insert(annotations::PIDS_LIMIT.to_owned(), pids.to_string());
    }
    PodMetadata { labels: BTreeMap::new(), annotations: keys }
}

fn own_labels(wanted: &Wanted) -> BTreeMap<String, String> {
    wanted.project_id.iter().map(|project| (labels::PROJECT.to_owned(), project.clone())).collect()
}

/// Returns the claim to make, if the sandbox comes from a pool or a template.
pub(super) fn launch(wanted: &Wanted, namespace: &str, name: &str, now: Timestamp) -> Option<Launch> {
    let source = match (&wanted.pool, &wanted.template) {
        (Some(pool), _) => Source::Pool(pool.clone()),
        (None, Some(template)) => Source::Template(template.clone()),
        (None, None) => return None,
    };
    Some(Launch {
        key: SandboxKey { namespace: namespace.to_owned(), name: name.to_owned() },
        source,
        labels: own_labels(wanted),
        annotations: BTreeMap::new(),
        pod_metadata: pod_metadata(wanted),
        kept_directory: None,
        env: wanted.env.clone(),
        limits: BTreeMap::new(),
        until: now + CLAIM_LIFE,
    })
}

/// Returns the sandbox to make from an image. It stays until it is removed.
pub(super) fn sandbox(wanted: &Wanted, options: &Options, name: &str) -> Result<Sandbox, ProviderError> {
    let default = || options.image.clone().or_else(|| options.local_home.then(|| HOST_IMAGE.to_owned()));
    let image = wanted.image.clone().or_else(default).ok_or_else(|| {
        ProviderError::invalid(
            "image",
            "is needed: this cluster has no default; or name a `pool` or a `template`",
        )
    })?;
    let mut limits = serde_json::Map::new();
    if let Some(memory) = wanted.memory_mb {
        limits.insert("memory".to_owned(), json!(format!("{memory}Mi")));
    }
    if let Some(cpus) = wanted.cpu_cores {
        limits.insert("cpu".to_owned(), json!(format!("{:.0}m", cpus * 1000.0)));
    }
    if let Some(disk) = wanted.disk_mb {
        limits.insert("ephemeral-storage".to_owned(), json!(format!("{disk}Mi")));
    }
    let env: Vec<Value> =
        wanted.env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    let metadata = pod_metadata(wanted);
    let mut pod = json!({
        "containers": [{
            "name": "sandbox",
            "image": image,
            "command": launch::idle_command(options.local_home),
            "env": env,
            "resources": { "limits": limits },
        }],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
    });
    if let Some(class) = &options.runtime_class {
        pod["runtimeClassName"] = json!(class);
    }
    let sandbox = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": { "name": name, "labels": own_labels(wanted) },
        "spec": {
            "podTemplate": { "metadata": { "annotations": metadata.annotations }, "spec": pod },
            "shutdownPolicy": "Delete",
        },
    });
    serde_json::from_value(sandbox).map_err(|error| {
        ProviderError::new(Code::SandboxCreationFailed, format!("make the sandbox: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Network;

    #[test]
    fn sandbox_has_limits_network_and_project_and_no_end() {
        let wanted = Wanted {
            project_id: Some("Web.App".to_owned()),
            memory_mb: Some(1024),
            cpu_cores: Some(0.5),
            disk_mb: Some(2048),
            pids_limit: Some(64),
            network: Some(Network::Restricted),
            allowed_hosts: Some(vec!["a.example".to_owned(), "b.example".to_owned()]),
            ..Wanted::default()
        };
        let options =
            Options { local_home: true, runtime_class: Some("gvisor".to_owned()), ..Options::default() };
        let name = name(wanted.project_id.as_deref());
        assert!(name.starts_with("web-app-") && super::name(Some("Web.App")) == name, "{name}");
        assert_ne!(super::name(Some("web.app")), name, "names differ where projects do");
        let value = serde_json::to_value(sandbox(&wanted, &options, &name).expect("made")).expect("JSON");
        assert_eq!(value["metadata"]["labels"], json!({ "warren.dev/project": "Web.App" }));
        assert_eq!(value["spec"].get("shutdownTime"), None);
        let pod = &value["spec"]["podTemplate"];
        assert_eq!(
            pod["metadata"]["annotations"],
            json!({
                "warren.dev/network": "restricted",
                "warren.dev/network-allowed-hosts": "a.example,b.example",
                "warren.dev/pids-limit": "64",
            })
        );
        assert_eq!(pod["spec"]["runtimeClassName"], "gvisor");
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["image"], HOST_IMAGE);
        assert_eq!(
            container["resources"]["limits"],
            json!({ "memory": "1024Mi", "cpu": "500m", "ephemeral-storage": "2048Mi" })
        );
    }

    #[test]
    fn cluster_without_a_default_image_asks_for_one() {
        let error = sandbox(&Wanted::default(), &Options::default(), "s").expect_err("no image");
        assert_eq!(error.code, Code::ValidationError);
    }
}
