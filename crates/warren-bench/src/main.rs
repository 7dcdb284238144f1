//! Compares Warren with the tools that a user could use instead.
//!
//! Every number that SPECIFICATION.md promises is measured here. Contenders take turns within each
//! round, so that other activity of the machine affects all of them. Results are ratios within one
//! run, never compared with times of another day. A benchmark measures; it asserts nothing about
//! times. Start reading at [`cold_run`], [`node`], [`claims`] or [`apiserver`].

mod apiserver;
mod bundle;
mod claims;
mod cold_run;
mod connection;
mod contender;
mod definitions;
mod home;
mod legacy_cgroups;
mod node;
mod process;
mod router;
mod serve;
mod summary;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Measures Warren beside what a user would pick instead.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// A command in a fresh sandbox, from the shell's point of view: start to exit.
    Run {
        /// The `warren` binary to measure.
        #[arg(long, env = "WARREN_BENCH_BINARY")]
        warren: PathBuf,
        /// How often each contender runs.
        #[arg(long, default_value_t = 100)]
        rounds: usize,
        /// Print the summary as JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// The local node beside docker and OCI runtimes: sandboxes, commands, pulls, memory.
    Node(node::Options),
    /// Claims on a warm pool, from create to Ready: on a real kube-apiserver, and on the local
    /// home.
    Claims(claims::Options),
    /// Our API server beside kube-apiserver with etcd: creates, reads, watches, memory.
    Apiserver(apiserver::Options),
    /// The home's router beside nginx, and the guest daemon behind it.
    Router(router::Options),
    /// Be the API server that is measured; `apiserver` starts it.
    #[command(name = serve::SUBCOMMAND, hide = true)]
    ServeApi {
        /// Where it keeps its objects.
        directory: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    // Clients that wait for a processor notice their answers late. On a separate machine they would
    // not.
    let on_time =
        || tokio::runtime::Builder::new_multi_thread().enable_all().on_thread_start(go_first).build();
    match Arguments::parse().benchmark {
        Benchmark::Run { warren, rounds, json } => cold_run::measure(&warren, rounds, json),
        Benchmark::Node(options) => runtime()?.block_on(node::measure(&options)),
        Benchmark::Claims(options) => on_time()?.block_on(claims::measure(&options)),
        Benchmark::Apiserver(options) => runtime()?.block_on(apiserver::measure(&options)),
        Benchmark::Router(options) => runtime()?.block_on(router::measure(&options)),
        Benchmark::ServeApi { directory } => runtime()?.block_on(serve::serve(&directory)),
    }
}

/// Gives this thread priority, if permitted: its own waiting would add to the measured times.
fn go_first() {
    static SAID: std::sync::Once = std::sync::Once::new();
    if let Err(error) = warren_sys::process::first_at_processors() {
        SAID.call_once(|| eprintln!("the clients wait for processors like everybody: {error}"));
    }
}
