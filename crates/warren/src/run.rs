//! `warren run`: a sandbox for one command.
//!
//! The sandbox is created with a lease (`shutdownTime` with the policy `Delete`), so one whose `run` was killed
//! ends by itself; renewing it is the only write besides the create and the delete, and a short command never
//! comes to it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::io::{AsyncRead, Empty};
use tokio::sync::mpsc;
use warren_api::annotations;
use warren_api::blueprint::{PodMetadata, PodTemplate, SandboxBlueprint};
use warren_api::sandbox::ShutdownPolicy;
use warren_api::{Sandbox, SandboxSpec};
use warren_client::exec::{Exec, ExecError, ExecRequest, Streams};
use warren_client::kube::Client;
use warren_client::sandbox::{self, SandboxKey};

use crate::cli;
use crate::home;
use crate::image;
use crate::interrupt::{self, Interrupt};
use crate::progress;
use crate::terminal::{self, RawMode};
use crate::timings::Timings;

/// How long a sandbox outlives a `run` that was killed. Long enough that a laptop's short sleep or a busy
/// machine does not end a command that still runs; renewed at a third of it.
const LEASE: Duration = Duration::from_secs(300);

/// The one container of the pod.
const CONTAINER: &str = "sandbox";

/// Names of images that are never fetched.
const BUILT_IN: &str = "warren.dev/";

/// How a shell reports a command that a closed pipe ended.
const BROKEN_PIPE: i32 = 128 + 13;

/// Runs the command and returns its exit code.
pub fn run(arguments: &cli::Run) -> anyhow::Result<i32> {
    let mut timings = Timings::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    let code = runtime.block_on(session(arguments, &mut timings));
    // A read of standard input may still be going on in a thread; nobody waits for it.
    runtime.shutdown_background();
    if arguments.timings {
        eprint!("{}", timings.table());
    }
    code
}

async fn session(arguments: &cli::Run, timings: &mut Timings) -> anyhow::Result<i32> {
    let tty = terminal::interactive();
    let wanted = wanted(arguments)?;
    let mut interrupt = Interrupt::listen().context("listen for signals")?;
    timings.mark("prepare");
    let client = tokio::select! {
        signal = interrupt.wait() => return Ok(interrupt::exit_code(signal)),
        client = connect(arguments) => client?,
    };
    timings.mark("connect");
    if brings_image(arguments) {
        // Now, and not while the sandbox waits for it: a person sees how far it is, and no deadline runs.
        tokio::select! {
            signal = interrupt.wait() => return Ok(interrupt::exit_code(signal)),
            pulled = image::pull(&client, &arguments.image, true) => pulled?,
        };
        timings.mark("image");
    }

    // Not given up at a signal: whether the server has made the sandbox is known only when it answers.
    let created = sandbox::create(&client, &arguments.namespace, &wanted).await?;
    timings.mark("create");
    let key = SandboxKey::of(&created);

    let result = tokio::select! {
        signal = interrupt.wait() => Ok(interrupt::exit_code(signal)),
        result = serve(&client, created.clone(), arguments, tty, timings) => result,
        never = sandbox::keep(&client, &key, LEASE) => match never {},
    };
    timings.mark("command");

    if let Err(error) = sandbox::delete(&client, &created).await {
        let error = anyhow::Error::from(error)
            .context(format!("the sandbox is left to end by itself within {} s", LEASE.as_secs()));
        // The command's own result matters more than this one.
        eprintln!("warning: {error:#}");
    }
    timings.mark("delete");
    result
}

async fn connect(arguments: &cli::Run) -> anyhow::Result<Client> {
    match &arguments.kubeconfig {
        Some(path) => Ok(warren_client::connect::from_kubeconfig(path).await?),
        None => home::connect(&arguments.home).await,
    }
}

/// Whether the image is one that the local home has to have fetched.
fn brings_image(arguments: &cli::Run) -> bool {
    arguments.kubeconfig.is_none() && !arguments.image.starts_with(BUILT_IN)
}

/// Waits for the sandbox and runs the command in it.
async fn serve(
    client: &Client,
    created: Sandbox,
    arguments: &cli::Run,
    tty: bool,
    timings: &mut Timings,
) -> anyhow::Result<i32> {
    let key = SandboxKey::of(&created);
    let within = Duration::from_secs(arguments.ready_timeout);
    let ready = progress::show_if_slow(
        || format!("waiting for sandbox `{key}` to become Ready"),
        sandbox::wait_ready(client, created, within),
    )
    .await?;
    timings.mark("ready");

    let request = ExecRequest {
        namespace: key.namespace,
        pod: sandbox::pod_name(&ready),
        container: Some(CONTAINER.to_owned()),
        command: arguments.command.clone(),
        stdin: tty || !terminal::stdin_is_null(),
        tty,
    };
    let exec = Exec::start(client, request.clone()).await?;
    timings.mark("exec");
    let ended = if request.stdin {
        pump(exec, tty, tokio::io::stdin()).await
    } else {
        let nothing: Empty = tokio::io::empty();
        pump(exec, tty, nothing).await
    };
    match ended {
        // `warren run -- yes | head` is a success of `head`; it ends like `yes` would have.
        Err(ExecError::Output { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe => {
            Ok(BROKEN_PIPE)
        }
        ended => Ok(ended?),
    }
}

/// Connects the command's streams with this process's own.
async fn pump<I: AsyncRead + Unpin>(exec: Exec, tty: bool, stdin: I) -> Result<i32, ExecError> {
    // Without a terminal there are no sizes: the sender is dropped at once.
    let (_, never) = mpsc::channel(1);
    let (raw, resize) = match tty {
        true => (RawMode::enter().ok(), terminal::sizes().unwrap_or(never)),
        false => (None, never),
    };
    let ended =
        exec.run(Streams { stdin, stdout: tokio::io::stdout(), stderr: tokio::io::stderr(), resize }).await;
    drop(raw);
    ended
}

/// The sandbox that the arguments ask for.
fn wanted(arguments: &cli::Run) -> anyhow::Result<Sandbox> {
    let limits =
        [("memory", &arguments.memory), ("cpu", &arguments.cpus), ("ephemeral-storage", &arguments.disk)];
    let limits: BTreeMap<String, Quantity> = limits
        .into_iter()
        .filter_map(|(resource, quantity)| Some((resource.to_owned(), Quantity(quantity.clone()?))))
        .collect();
    let env = arguments.env.iter().map(|text| variable(text)).collect::<anyhow::Result<Vec<_>>>()?;
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(arguments.image.clone()),
        // An image runs what it likes and ends when it likes. Here it has to wait for the command, as the built-in image does.
        command: brings_image(arguments).then(warren_local::init_command),
        image_pull_policy: brings_image(arguments).then(|| "IfNotPresent".to_owned()),
        env: (!env.is_empty()).then_some(env),
        working_dir: arguments.workdir.clone(),
        resources: (!limits.is_empty())
            .then(|| ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() }),
        ..Container::default()
    };
    let pod = PodSpec {
        containers: vec![container],
        restart_policy: Some("Never".to_owned()),
        // What runs here is over when the command is; nothing is left to say goodbye to.
        termination_grace_period_seconds: Some(0),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        ..PodSpec::default()
    };
    let name = arguments.name.clone().unwrap_or_else(random_name);
    Ok(Sandbox::new(
        &name,
        SandboxSpec {
            blueprint: SandboxBlueprint {
                pod_template: PodTemplate { metadata: metadata(arguments)?, spec: pod.into() },
                ..SandboxBlueprint::default()
            },
            shutdown_time: Some(Time(sandbox::lease_end(Timestamp::now(), LEASE))),
            shutdown_policy: ShutdownPolicy::Delete,
            ..SandboxSpec::default()
        },
    ))
}

/// What the pod says of its network.
fn metadata(arguments: &cli::Run) -> anyhow::Result<PodMetadata> {
    let hosts = arguments.allow.join(",");
    let ports = arguments.allow_port.join(",");
    let narrowed = !hosts.is_empty() || !ports.is_empty();
    if let Some(mode) = arguments.network.filter(|mode| narrowed && *mode != cli::Network::Restricted) {
        anyhow::bail!(
            "`--allow` and `--allow-port` are for `--network restricted`; `{}` has no list",
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

/// Chosen here and not by `generateName`: then it is known before the request is sent.
fn random_name() -> String {
    let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(10).collect();
    format!("run-{}", random.to_ascii_lowercase())
}

/// `NAME=VALUE`, or `NAME` for the value it has here.
fn variable(text: &str) -> anyhow::Result<EnvVar> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => {
            let value = std::env::var(text).with_context(|| format!("pass on `{text}` with `--env`"))?;
            (text, value)
        }
    };
    anyhow::ensure!(!name.is_empty(), "`--env {text}` names no variable");
    Ok(EnvVar { name: name.to_owned(), value: Some(value), value_from: None })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn sandbox(arguments: &[&str]) -> serde_json::Value {
        let cli = cli::Cli::parse_from([&["warren", "run"], arguments].concat());
        let cli::Command::Run(run) = cli.command else { panic!("not a run") };
        serde_json::to_value(wanted(&run).expect("valid arguments")).expect("serialize")
    }

    #[test]
    fn flags_reach_the_container() {
        let arguments =
            ["--memory", "64Mi", "--cpus", "500m", "-e", "A=b=c", "-w", "/tmp", "--", "true", "--help"];
        let sandbox = sandbox(&arguments);
        let container = &sandbox["spec"]["podTemplate"]["spec"]["containers"][0];
        assert_eq!(container["resources"]["limits"], serde_json::json!({ "memory": "64Mi", "cpu": "500m" }));
        assert_eq!(container["env"], serde_json::json!([{ "name": "A", "value": "b=c" }]));
        assert_eq!(container["workingDir"], "/tmp");
    }

    #[test]
    fn the_network_and_the_disk_are_said_to_the_pod() {
        let words = [
            "--network",
            "restricted",
            "--allow",
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
            cli::Cli::parse_from(["warren", "run", "--network", "full", "--allow", "a.example", "true"]);
        let cli::Command::Run(run) = cli.command else { panic!("not a run") };
        wanted(&run).unwrap_err();
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
    fn a_run_that_is_killed_leaves_a_sandbox_that_expires() {
        let sandbox = sandbox(&["true"]);
        assert_eq!(sandbox["spec"]["shutdownPolicy"], "Delete");
        assert!(sandbox["spec"]["shutdownTime"].is_string());
    }

    #[test]
    fn names_differ_and_are_valid() {
        let (one, other) = (random_name(), random_name());
        assert_ne!(one, other);
        assert!(one.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit()));
    }
}
