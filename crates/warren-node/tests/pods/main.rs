//! Tests a node with real shims and containers, on the embedded API server and, with the feature
//! `kube-tests`, on a real one.
//!
//! There is no test harness: a zygote must be forked before the process has any thread, and a
//! harness has threads. `cargo test -p warren-node --test pods -- NAME` runs the scenarios with
//! NAME in their name.

#![expect(
    clippy::unwrap_used,
    reason = "this is all test, though no harness says so: what cannot go on fails"
)]

mod api_servers;
mod scenarios;
mod support;

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use api_servers::Nodes;
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
    a_node_that_keeps_dying_loses_and_leaks_nothing,
    limits_show_in_the_status,
    what_cannot_be_run_says_why,
    fifty_pods_at_once,
    pods_that_nobody_placed_are_taken_and_used_through_the_api,
    a_scheduler_places_pods_on_the_node,
];

const MEASURE: &[(&str, Scenario)] = scenarios![measure];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next();
    let zygote = Arc::new(warren_node::start_zygote().expect("start a zygote"));
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
    let nodes = Arc::new(Nodes::default());
    let mut servers = vec![("embedded", api_servers::embedded(nodes.clone()).await)];
    if cfg!(feature = "kube-tests") {
        servers.push(("real", api_servers::real().await));
    }
    let mut failed = 0;
    for (server, client) in servers {
        let machine =
            Machine { client, zygote: zygote.clone(), nodes: nodes.clone(), embedded: server == "embedded" };
        let chosen = if wanted == "measure" { MEASURE } else { SCENARIOS };
        for (name, scenario) in chosen.iter().filter(|(name, _)| name.contains(wanted)) {
            let start = Instant::now();
            let outcome = std::panic::AssertUnwindSafe(scenario(machine.clone())).catch_unwind().await;
            failed += usize::from(outcome.is_err());
            let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
            println!("test {server}::{name} ... {verdict} ({} ms)", start.elapsed().as_millis());
        }
    }
    failed
}
