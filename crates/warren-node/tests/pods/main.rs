//! A node with real shims and containers, on a real API server.
//!
//! There is no test harness: a zygote must be forked before the process has any thread, and a harness is threads.
//! `cargo test -p warren-node --test pods -- NAME` runs the scenarios whose name has NAME in it.

mod scenarios;
mod support;

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt as _;
use support::Machine;
use warren_oci::zygote::Zygote;

type Scenario = fn(Machine) -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        &[$((stringify!($name), |machine| Box::pin(scenarios::$name(machine)))),*]
    };
}

const SCENARIOS: &[(&str, Scenario)] = scenarios![
    a_pod_becomes_ready_and_leaves_nothing,
    exec_carries_streams_and_exit_codes,
    exec_with_a_terminal,
    exec_ends_with_its_client,
    an_endless_writer_waits_for_its_reader,
    logs_can_be_cut_followed_and_of_the_run_before,
    a_finished_pod_says_how_it_ended,
    a_pod_is_started_as_its_spec_says,
    a_node_finds_its_pods_again,
    pods_that_vanished_while_no_node_ran_are_removed,
    limits_show_in_the_status,
    what_cannot_be_run_says_why,
    fifty_pods_at_once,
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next();
    if wanted.as_deref() == Some(warren_oci::host_image::INIT_ARGUMENT) {
        // We are the first process of a container.
        return match warren_oci::init::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let zygote = Arc::new(Zygote::start().expect("no thread yet"));
    let wanted = wanted.filter(|name| !name.starts_with('-')).unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let failed = runtime.block_on(run(zygote, &wanted));
    runtime.shutdown_background();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn run(zygote: Arc<Zygote>, wanted: &str) -> usize {
    if std::env::var_os("WARREN_LOG").is_some() {
        tracing_subscriber::fmt().with_env_filter("warren_node=debug").init();
    }
    let executable = std::env::current_exe().expect("a path of our own");
    let machine = Machine { client: api_server().await, zygote, executable };
    let mut failed = 0;
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| name.contains(wanted)) {
        let start = Instant::now();
        let outcome = std::panic::AssertUnwindSafe(scenario(machine.clone())).catch_unwind().await;
        failed += usize::from(outcome.is_err());
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {verdict} ({} ms)", start.elapsed().as_millis());
    }
    failed
}

/// A real control plane.
async fn api_server() -> kube::Client {
    let control_plane = tokio::task::spawn_blocking(warren_testkit::kube::ControlPlane::start)
        .await
        .expect("a control plane");
    let config = kube::config::Kubeconfig::read_from(control_plane.kubeconfig()).expect("a kubeconfig");
    let config =
        kube::Config::from_custom_kubeconfig(config, &Default::default()).await.expect("a usable kubeconfig");
    kube::Client::try_from(config).expect("a client")
}
