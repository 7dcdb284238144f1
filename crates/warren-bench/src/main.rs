//! Measures Warren beside what a user would pick instead.
//!
//! Every number that SPECIFICATION.md promises comes from here. Contenders take turns within each round, so that whatever else the
//! machine does falls on all of them alike, and what is compared is a ratio from one run, never a time from another day. A benchmark
//! measures; it asserts nothing about seconds. Start reading at [`cold_run`].

mod bundle;
mod cold_run;
mod contender;
mod docker;
mod home;
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
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().benchmark {
        Benchmark::Run { warren, rounds, json } => cold_run::measure(&warren, rounds, json),
    }
}
