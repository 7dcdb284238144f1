//! Builds the sandbox that the arguments of `run` describe.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use warren_api::annotations;
use warren_api::blueprint::{PodMetadata, PodTemplate, SandboxBlueprint};
use warren_api::{Sandbox, SandboxSpec};
use warren_client::launch;

use crate::cli;

/// The name of the pod's only container.
const CONTAINER: &str = "sandbox";

/// The prefix of images that are never pulled.
const BUILT_IN: &str = "warren.dev/";

/// The image made of this machine's own `/usr`.
pub const HOST_IMAGE: &str = "warren.dev/host";

/// The error of a missing workload: a cluster has no default one.
#[derive(Debug, thiserror::Error)]
#[error("on a cluster, say what to run in: `--pool`, `--template` or `--image`")]
pub struct NoWorkload;

/// Returns true for an image that has to be pulled.
pub fn is_fetched(image: &str) -> bool {
    !image.starts_with(BUILT_IN)
}

/// Returns the image, if the local home has to pull it.
pub fn brings_image(arguments: &cli::Run, local: bool) -> Option<&str> {
    let new = arguments.pool.is_none() && arguments.template.is_none() && arguments.id.is_none();
    arguments.image.as_deref().filter(|image| new && local && is_fetched(image))
}

/// Returns the program and pull policy of a container that waits for commands; `None` for the
/// built-in image, which waits by itself.
fn waiting(image: &str, local: bool) -> (Option<Vec<String>>, Option<String>) {
    match is_fetched(image) {
        true => (Some(launch::idle_command(local)), local.then(|| "IfNotPresent".to_owned())),
        false => (None, None),
    }
}

fn pod(container: Container, runtime: Option<String>) -> PodSpec {
    PodSpec {
        containers: vec![container],
        runtime_class_name: runtime,
        restart_policy: Some("Never".to_owned()),
        // Once the command has ended, nothing in the pod needs time to shut down.
        termination_grace_period_seconds: Some(0),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        ..PodSpec::default()
    }
}

fn of_pod(pod: PodSpec, metadata: PodMetadata) -> Sandbox {
    let blueprint = SandboxBlueprint {
        pod_template: PodTemplate { metadata, spec: pod.into() },
        ..SandboxBlueprint::default()
    };
    Sandbox::new("", SandboxSpec { blueprint, ..SandboxSpec::default() })
}

/// The description of a new sandbox.
#[derive(Clone, Copy, Debug, Default)]
pub struct Description<'a> {
    /// The image.
    pub image: &'a str,
    /// Most memory, as a quantity.
    pub memory: Option<&'a str>,
    /// Most processor time.
    pub cpus: Option<&'a str>,
    /// Most on the disk.
    pub disk: Option<&'a str>,
    /// The RuntimeClass.
    pub runtime: Option<&'a str>,
    /// The network that it reaches.
    pub network: Option<cli::Network>,
    /// Hosts that it may reach.
    pub hosts: &'a [String],
    /// Their ports.
    pub ports: &'a [String],
    /// The directory that its container starts in.
    pub workdir: Option<&'a str>,
}

/// Returns the sandbox that the arguments describe.
pub fn wanted(
    arguments: &cli::Run,
    name: &str,
    workdir: Option<&str>,
    local: bool,
) -> anyhow::Result<Sandbox> {
    let description = Description {
        image: arguments.image.as_deref().unwrap_or(HOST_IMAGE),
        memory: arguments.memory.as_deref(),
        cpus: arguments.cpus.as_deref(),
        disk: arguments.disk.as_deref(),
        runtime: arguments.runtime.as_deref(),
        network: arguments.network,
        hosts: &arguments.allow_host,
        ports: &arguments.allow_port,
        workdir,
    };
    let mut sandbox = description.sandbox(local)?;
    sandbox.metadata.name = Some(name.to_owned());
    Ok(sandbox)
}

impl Description<'_> {
    /// Returns an unnamed sandbox that waits for commands.
    pub fn sandbox(&self, local: bool) -> anyhow::Result<Sandbox> {
        let limits = [("memory", self.memory), ("cpu", self.cpus), ("ephemeral-storage", self.disk)];
        let limits: BTreeMap<String, Quantity> = limits
            .into_iter()
            .filter_map(|(resource, quantity)| Some((resource.to_owned(), Quantity(quantity?.to_owned()))))
            .collect();
        let told = [("IS_SANDBOXED", "true"), ("SANDBOX_VERSION", env!("CARGO_PKG_VERSION"))];
        let env = told.map(|(name, value)| EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            value_from: None,
        });
        // An image's own program may end at any time. Here it has to wait for the command, as the
        // built-in image does.
        let (command, image_pull_policy) = waiting(self.image, local);
        let container = Container {
            name: CONTAINER.to_owned(),
            image: Some(self.image.to_owned()),
            command,
            image_pull_policy,
            env: Some(env.to_vec()),
            working_dir: self.workdir.map(str::to_owned),
            resources: (!limits.is_empty())
                .then(|| ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() }),
            ..Container::default()
        };
        Ok(of_pod(pod(container, self.runtime.map(str::to_owned)), self.metadata()?))
    }

    /// Returns the annotations of the pod's network.
    fn metadata(&self) -> anyhow::Result<PodMetadata> {
        let hosts = self.hosts.join(",");
        let ports = self.ports.join(",");
        let narrowed = !hosts.is_empty() || !ports.is_empty();
        if let Some(mode) = self.network.filter(|mode| narrowed && *mode != cli::Network::Restricted) {
            anyhow::bail!(
                "`--allow-host` and `--allow-port` are for `--network restricted`; `{}` has no list",
                mode.name()
            );
        }
        let said = [
            (annotations::NETWORK, self.network.map(|mode| mode.name().to_owned()).unwrap_or_default()),
            (annotations::NETWORK_ALLOWED_HOSTS, hosts),
            (annotations::NETWORK_ALLOWED_PORTS, ports),
        ];
        let said = said.into_iter().filter(|(_, value)| !value.is_empty());
        let annotations = said.map(|(key, value)| (key.to_owned(), value)).collect();
        Ok(PodMetadata { annotations, ..PodMetadata::default() })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn sandbox(arguments: &[&str]) -> serde_json::Value {
        let cli = cli::Cli::parse_from([&["warren", "run"], arguments].concat());
        let cli::Command::Run(run) = cli.command else { panic!("not a run") };
        let wanted = wanted(&run, "name", run.workdir.as_deref(), run.place.context.is_none())
            .expect("valid arguments");
        serde_json::to_value(wanted).expect("serialize")
    }

    #[test]
    fn flags_reach_the_container() {
        let arguments = [
            "--memory",
            "64Mi",
            "--cpus",
            "500m",
            "-e",
            "A=secret",
            "-w",
            "/w",
            "--runtime",
            "gvisor",
            "true",
            "--help",
        ];
        let sandbox = sandbox(&arguments);
        let container = &sandbox["spec"]["podTemplate"]["spec"]["containers"][0];
        assert_eq!(container["resources"]["limits"], serde_json::json!({ "memory": "64Mi", "cpu": "500m" }));
        assert_eq!(container["workingDir"], "/w");
        assert_eq!(sandbox["spec"]["podTemplate"]["spec"]["runtimeClassName"], "gvisor");
        assert!(!sandbox.to_string().contains("secret"), "values are not for objects: {sandbox}");
    }

    #[test]
    fn the_network_and_the_disk_are_said_to_the_pod() {
        let words = [
            "--network",
            "restricted",
            "--allow-host",
            "a.example,*.b.example",
            "--allow-port",
            "8443",
            "--disk",
            "1Gi",
            "true",
        ];
        let template = &sandbox(&words)["spec"]["podTemplate"];
        assert_eq!(
            template["metadata"]["annotations"],
            serde_json::json!({
                "warren.dev/network": "restricted",
                "warren.dev/network-allowed-hosts": "a.example,*.b.example",
                "warren.dev/network-allowed-ports": "8443",
            })
        );
        let limits = &template["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(*limits, serde_json::json!({ "ephemeral-storage": "1Gi" }));
        let cli =
            cli::Cli::parse_from(["warren", "run", "--network", "full", "--allow-host", "a.example", "true"]);
        let cli::Command::Run(run) = cli.command else { panic!("not a run") };
        wanted(&run, "name", None, true).unwrap_err();
    }

    #[test]
    fn an_image_of_ones_own_waits_for_the_command() {
        let container =
            |arguments: &[&str]| sandbox(arguments)["spec"]["podTemplate"]["spec"]["containers"][0].clone();
        let own = container(&["--image", "busybox", "true"]);
        assert_eq!(own["command"], serde_json::json!(["/.warren/init"]));
        assert_eq!(own["imagePullPolicy"], "IfNotPresent");
        assert!(container(&["true"]).get("command").is_none());
        let on_a_cluster = container(&["--context", "x", "--image", "busybox", "true"]);
        assert_eq!(on_a_cluster["command"][0], "tail", "our own program is on our nodes alone");
    }

    #[test]
    fn unknown_options_are_errors_and_those_of_the_command_are_not() {
        let parse = |words: &[&str]| cli::Cli::try_parse_from([&["warren", "run"], words].concat());
        for words in [&["--bogus", "true"][..], &["-v", "/a:/b", "--", "true"], &["--memori", "1Gi", "true"]]
        {
            let error = parse(words).expect_err("an unknown option").to_string();
            assert!(error.contains("unexpected argument"), "{error}");
        }
        let cli::Command::Run(run) = parse(&["-it", "ls", "-la", "--keep"]).expect("valid").command else {
            panic!("not a run")
        };
        assert_eq!(run.command, ["ls", "-la", "--keep"]);
        assert!(run.tty && run.interactive && !run.keep);
        parse(&["--pool", "p", "--memory", "1Gi", "true"]).expect_err("a pool's sandboxes are as they are");
    }
}
