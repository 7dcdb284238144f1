//! `cargo xtask bench`: builds what is measured and what measures, both optimised, and runs the latter.
//!
//! The measurements themselves are in `crates/warren-bench`; whatever follows the name of a benchmark goes to it.

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
    let build = [
        "build",
        "--release",
        "--package",
        "warren",
        "--package",
        "warren-bench",
        "--message-format",
        "json-render-diagnostics",
    ];
    let programs = executables(&workspace::output(workspace::cargo().args(build))?);
    let program = |name: &str| {
        let found = programs.iter().find(|(package, _)| package == name).map(|(_, path)| path);
        found.with_context(|| format!("cargo did not say where it put `{name}`"))
    };
    let status = std::process::Command::new(program("warren-bench")?)
        .args(&arguments.benchmark)
        .env("WARREN_BENCH_BINARY", program("warren")?)
        .status()
        .context("run warren-bench")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The programs that cargo built, by name, from its machine-readable messages.
fn executables(messages: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for message in messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()) {
        if let (Some(name), Some(path)) = (message["target"]["name"].as_str(), message["executable"].as_str())
        {
            found.push((name.to_owned(), path.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"libc"},"executable":null}"#,
            "\nnot json\n",
            r#"{"reason":"compiler-artifact","target":{"name":"warren"},"executable":"/t/release/warren"}"#,
        );
        assert_eq!(executables(messages), [("warren".to_owned(), "/t/release/warren".to_owned())]);
    }
}
