//! `cargo xtask ui`: builds the web page into `warren-service`, or checks that the committed page
//! is up to date.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::workspace;

/// The directory of the built page, which the program contains.
const COMMITTED: &str = "crates/warren-service/ui";

#[derive(Args)]
pub struct Arguments {
    /// Write nothing; fail if the committed page differs from what would be built
    #[arg(long)]
    check: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = workspace::root();
    let source = root.join("ui");
    let committed = root.join(COMMITTED);
    npm(&source, &["ci", "--no-audit", "--no-fund"], &committed)?;
    if !arguments.check {
        npm(&source, &["run", "build"], &committed)?;
        return Ok(ExitCode::SUCCESS);
    }
    // This is below the sources, because the bundler warns about an output folder elsewhere. git
    // ignores it.
    let built = source.join("node_modules/.built");
    npm(&source, &["run", "build"], &built)?;
    let differences = differences(&files(&committed)?, &files(&built)?);
    for difference in &differences {
        eprintln!("{COMMITTED}/{difference}");
    }
    if differences.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("hint: run `cargo xtask ui` and commit what it wrote");
    Ok(ExitCode::FAILURE)
}

fn npm(directory: &Path, arguments: &[&str], output: &Path) -> Result<()> {
    let mut command = Command::new("npm");
    command.args(arguments).current_dir(directory).env("WARREN_UI_OUT", output);
    let status = command.status().context("run npm; the page is built with Node.js 20.19 or newer")?;
    ensure!(status.success(), "npm {} ended with {status}", arguments.join(" "));
    Ok(())
}

/// Returns the files below a directory by their relative paths.
fn files(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(current) = directories.pop() {
        let entries = fs::read_dir(&current).with_context(|| format!("read {}", current.display()))?;
        for entry in entries {
            let path = entry.with_context(|| format!("read {}", current.display()))?.path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let name = path.strip_prefix(directory).unwrap_or(&path).display().to_string();
            found.insert(name, fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        }
    }
    Ok(found)
}

/// Returns a line for each file that differs between two sets.
fn differences(committed: &BTreeMap<String, Vec<u8>>, built: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, content) in committed {
        match built.get(name) {
            None => found.push(format!("{name}: is not built any more")),
            Some(other) if other != content => found.push(format!("{name}: differs from what is built")),
            Some(_) => {}
        }
    }
    found.extend(
        built.keys().filter(|name| !committed.contains_key(*name)).map(|name| format!("{name}: is missing")),
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_difference_is_named() {
        let set = |files: &[(&str, &str)]| -> BTreeMap<String, Vec<u8>> {
            files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
        };
        let committed = set(&[("same", "1"), ("changed", "1"), ("old", "1")]);
        let built = set(&[("same", "1"), ("changed", "2"), ("new", "1")]);
        assert_eq!(
            differences(&committed, &built),
            ["changed: differs from what is built", "old: is not built any more", "new: is missing"]
        );
        assert_eq!(differences(&committed, &committed), Vec::<String>::new());
    }
}
