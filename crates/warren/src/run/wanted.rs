//! The sandbox that the arguments of `run` ask for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use warren_api::annotations;
use warren_api::blueprint::{PodMetadata, PodTemplate, SandboxBlueprint};
use warren_api::{Sandbox, SandboxSpec};

use crate::cli;

/// The one container of the pod.
const CONTAINER: &str = "sandbox";

/// Names of images that are never fetched.
const BUILT_IN: &str = "warren.dev/";

/// Returns true if the image is one that the local home has to fetch.
pub fn brings_image(arguments: &cli::Run) -> bool {
    let new = arguments.pool.is_none() && arguments.template.is_none();
    new && arguments.place.kubeconfig.is_none() && !arguments.image.starts_with(BUILT_IN)
}

/// Returns the sandbox that the arguments ask for.
pub fn wanted(arguments: &cli::Run, name: &str, workdir: Option<&str>) -> anyhow::Result<Sandbox> {
    let limits =
        [("memory", &arguments.memory), ("cpu", &arguments.cpus), ("ephemeral-storage", &arguments.disk)];
    let limits: BTreeMap<String, Quantity> = limits
        .into_iter()
        .filter_map(|(resource, quantity)| Some((resource.to_owned(), Quantity(quantity.clone()?))))
        .collect();
    let told = [("IS_SANDBOXED", "true"), ("SANDBOX_VERSION", env!("CARGO_PKG_VERSION"))];
    let env = told.map(|(name, value)| EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        value_from: None,
    });
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(arguments.image.clone()),
        // An image runs what it likes and ends when it likes. Here it has to wait for the command, as the built-in image does.
        command: brings_image(arguments).then(warren_local::init_command),
        image_pull_policy: brings_image(arguments).then(|| "IfNotPresent".to_owned()),
        env: Some(env.to_vec()),
        working_dir: workdir.map(str::to_owned),
        resources: (!limits.is_empty())
            .then(|| ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() }),
        ..Container::default()
    };
    let pod = PodSpec {
        containers: vec![container],
        runtime_class_name: arguments.runtime.clone(),
        restart_policy: Some("Never".to_owned()),
        // What runs here is over when the command is; nothing is left to say goodbye to.
        termination_grace_period_seconds: Some(0),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        ..PodSpec::default()
    };
    Ok(Sandbox::new(
        name,
        SandboxSpec {
            blueprint: SandboxBlueprint {
                pod_template: PodTemplate { metadata: metadata(arguments)?, spec: pod.into() },
                ..SandboxBlueprint::default()
            },
            ..SandboxSpec::default()
        },
    ))
}

/// Returns the annotations that describe the pod's network.
fn metadata(arguments: &cli::Run) -> anyhow::Result<PodMetadata> {
    let hosts = arguments.allow_host.join(",");
    let ports = arguments.allow_port.join(",");
    let narrowed = !hosts.is_empty() || !ports.is_empty();
    if let Some(mode) = arguments.network.filter(|mode| narrowed && *mode != cli::Network::Restricted) {
        anyhow::bail!(
            "`--allow-host` and `--allow-port` are for `--network restricted`; `{}` has no list",
            mode.name()
        );
    }
    let said = [
        (annotations::NETWORK, arguments.network.map(|mode| mode.name().to_owned()).unwrap_or_default()),
        (annotations::NETWORK_ALLOWED_HOSTS, hosts),
        (annotations::NETWORK_ALLOWED_PORTS, ports),
    ];
    let said = said.into_iter().filter(|(_, value)| !value.is_empty());
    let annotations = said.map(|(key, value)| (key.to_owned(), value)).collect();
    Ok(PodMetadata { annotations, ..PodMetadata::default() })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn sandbox(arguments: &[&str]) -> serde_json::Value {
        let cli = cli::Cli::parse_from([&["warren", "run"], arguments].concat());
        let cli::Command::Run(run) = cli.command else { panic!("not a run") };
        let wanted = wanted(&run, "name", run.workdir.as_deref()).expect("valid arguments");
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
        wanted(&run, "name", None).unwrap_err();
    }

    #[test]
    fn an_image_of_ones_own_waits_for_the_command() {
        let container =
            |arguments: &[&str]| sandbox(arguments)["spec"]["podTemplate"]["spec"]["containers"][0].clone();
        let own = container(&["--image", "busybox", "true"]);
        assert_eq!(own["command"], serde_json::json!(["/.warren/init"]));
        assert_eq!(own["imagePullPolicy"], "IfNotPresent");
        assert!(container(&["true"]).get("command").is_none());
        assert!(container(&["--kubeconfig", "x", "--image", "busybox", "true"]).get("command").is_none());
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
