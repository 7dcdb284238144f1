//! `cargo xtask simulate`: runs seeds of the simulation with the program that the tests have built.
//!
//! A release build runs a seed ten times faster but takes minutes to make. So `--release` pays from
//! about ten thousand seeds.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::workspace;

#[derive(Args)]
pub struct Arguments {
    /// The number of seeds
    #[arg(long, default_value_t = 3000)]
    pub seeds: u64,
    /// Build with optimisations first
    #[arg(long)]
    pub release: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    // Build from the whole workspace, so that dependencies have the same features as in the tests.
    let mut build = vec!["build", "--workspace", "--bin", "warren-sim"];
    if arguments.release {
        build.push("--release");
    }
    let built = workspace::build(&build)?;
    let (_, binary) = built
        .iter()
        .find(|(target, _)| target.name == "warren-sim")
        .context("cargo did not say where it put `warren-sim`")?;
    let status = std::process::Command::new(binary)
        .arg("--seeds")
        .arg(arguments.seeds.to_string())
        .status()
        .with_context(|| format!("run {}", binary.display()))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
