//! `cargo xtask bench`: builds Warren and the benchmarks, both optimised, and runs a benchmark.
//!
//! The benchmarks are in `crates/warren-bench`. They get all arguments.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::workspace;

#[derive(Args)]
pub struct Arguments {
    /// The benchmark and its options, for example `run --rounds 20`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    benchmark: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let built =
        workspace::build(&["build", "--release", "--package", "warren", "--package", "warren-bench"])?;
    let program = |name: &str| {
        let found = built.iter().find(|(target, _)| target.name == name).map(|(_, path)| path);
        found.with_context(|| format!("cargo did not say where it put `{name}`"))
    };
    let status = std::process::Command::new(program("warren-bench")?)
        .args(&arguments.benchmark)
        .env("WARREN_BENCH_BINARY", program("warren")?)
        // Lets a control plane be started by this program, which is already built.
        .env("WARREN_XTASK", format!("/proc/{}/exe", std::process::id()))
        .status()
        .context("run warren-bench")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
