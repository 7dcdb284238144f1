//! `cargo xtask check-dependencies`: checks foreign crates.
//!
//! Refuses a licence that is not on the list, a denied crate, a source other than the registry, a
//! dependency that no source file of its crate names, and a line of the workspace's manifest that
//! no crate refers to.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::workspace;

const LICENSES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Denied crates, each with the reason.
const DENIED: &[(&str, &str)] = &[
    ("openssl", "the binary has one TLS stack: rustls on ring"),
    ("aws-lc-rs", "the binary has one crypto provider: ring"),
    ("serde_yaml", "it is unmaintained: use serde-saphyr"),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    license: Option<String>,
    license_file: Option<String>,
    source: Option<String>,
    manifest_path: std::path::PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    rename: Option<String>,
}

pub fn run() -> Result<ExitCode> {
    let text = workspace::output(workspace::cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("read the answer of `cargo metadata`")?;
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        if metadata.workspace_members.contains(&package.id) {
            let sources = sources(package.manifest_path.parent().context("a manifest has a directory")?)?;
            wrong.extend(unused(package, &sources));
        } else {
            wrong.extend(foreign(package));
        }
    }
    let manifest = fs::read_to_string(workspace::root().join("Cargo.toml")).context("read Cargo.toml")?;
    let used: BTreeSet<&str> = metadata
        .packages
        .iter()
        .filter(|package| metadata.workspace_members.contains(&package.id))
        .flat_map(|package| package.dependencies.iter().map(|dependency| dependency.name.as_str()))
        .collect();
    wrong.extend(
        workspace_lines(&manifest)
            .into_iter()
            .filter(|name| !used.contains(name))
            .map(|name| format!("`{name}` is in the workspace's manifest, and no crate depends on it")),
    );
    for line in &wrong {
        println!("{line}");
    }
    println!("{} packages looked at, {} complaints", metadata.packages.len(), wrong.len());
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the complaints about a foreign crate.
fn foreign(package: &Package) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = &package.name;
    match &package.license {
        Some(license) if allowed(license) => {}
        Some(license) => wrong.push(format!("`{name}`: the licence `{license}` is not on the list")),
        // A licence in a separate file is reviewed by a person, once.
        None if package.license_file.is_some() => {}
        None => wrong.push(format!("`{name}` has no licence")),
    }
    if let Some((_, reason)) = DENIED.iter().find(|(denied, _)| denied == name) {
        wrong.push(format!("`{name}` must not be built: {reason}"));
    }
    if !package.source.as_deref().is_some_and(|source| source.starts_with("registry+")) {
        wrong.push(format!("`{name}` does not come from the registry: {:?}", package.source));
    }
    wrong
}

/// Returns true if the licences of the list satisfy an SPDX expression.
fn allowed(expression: &str) -> bool {
    // Before SPDX, crates wrote `MIT/Apache-2.0`.
    let expression = expression.replace('/', " OR ");
    let expression = expression.trim();
    let alternatives = split_outside_parentheses(expression, " OR ");
    if alternatives.len() > 1 {
        return alternatives.into_iter().any(allowed);
    }
    let parts = split_outside_parentheses(expression, " AND ");
    if parts.len() > 1 {
        return parts.into_iter().all(allowed);
    }
    match expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inner) => allowed(inner),
        None => LICENSES.contains(&expression),
    }
}

/// Splits at operators outside of all parentheses.
fn split_outside_parentheses<'a>(expression: &'a str, operator: &str) -> Vec<&'a str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, character) in expression.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ' ' if depth == 0 && expression[at..].starts_with(operator) => {
                parts.push(&expression[begin..at]);
                begin = at + operator.len();
            }
            _ => {}
        }
    }
    parts.push(&expression[begin..]);
    parts
}

/// Returns the complaints about dependencies that the source files of our crate do not name.
fn unused(package: &Package, sources: &str) -> Vec<String> {
    package
        .dependencies
        .iter()
        .filter(|dependency| {
            let name = dependency.rename.as_deref().unwrap_or(&dependency.name).replace('-', "_");
            !names(sources, &name)
        })
        .map(|dependency| {
            format!(
                "`{}` depends on `{}`, and no source file of it names that",
                package.name, dependency.name
            )
        })
        .collect()
}

/// Returns true if the text contains the identifier as a whole word.
fn names(text: &str, identifier: &str) -> bool {
    let part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.match_indices(identifier).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(part)
            && !text[at + identifier.len()..].chars().next().is_some_and(part)
    })
}

/// Returns all Rust source of a crate as one text.
fn sources(directory: &Path) -> Result<String> {
    let mut text = String::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).with_context(|| format!("read {}", directory.display()))? {
            let path = entry.with_context(|| format!("read {}", directory.display()))?.path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target" && name != "node_modules") {
                    left.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text += &fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            }
        }
    }
    Ok(text)
}

/// Returns the names in the section `[workspace.dependencies]`.
fn workspace_lines(manifest: &str) -> Vec<&str> {
    manifest
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('=').map(|(name, _)| name.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_licences_are_judged_by_their_alternatives() {
        for good in ["MIT", "MIT OR GPL-3.0", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
            assert!(allowed(good), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "", "AGPL-3.0 OR SSPL-1.0"] {
            assert!(!allowed(bad), "{bad}");
        }
    }

    #[test]
    fn identifiers_are_found_as_whole_words() {
        assert!(names("use serde::Serialize;", "serde"));
        assert!(!names("use serde_json::Value;", "serde"));
        assert!(!names("let base = my_tar;", "tar"));
    }

    #[test]
    fn lines_of_the_workspace_are_read_to_the_end_of_their_section() {
        let manifest = "[workspace]\nresolver = \"3\"\n[workspace.dependencies]\n# a word\nanyhow = \"1\"\ntar = { version = \"0.4\" }\n\n[profile.dev]\ndebug = 1\n";
        assert_eq!(workspace_lines(manifest), ["anyhow", "tar"]);
    }
}
