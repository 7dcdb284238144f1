//! Information from cargo about this workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Returns the checkout that this xtask was built from.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_owned)
}

/// Returns a command for the cargo that runs us, in the checkout.
pub fn cargo() -> Command {
    let mut command = warren_testkit::cargo::cargo(|name| std::env::var_os(name));
    command.current_dir(root());
    command
}

/// Builds with these arguments of cargo, and returns the programs.
pub fn build(arguments: &[&str]) -> Result<Vec<(Target, PathBuf)>> {
    let text = output(
        cargo()
            .args(arguments)
            .args(["--message-format", "json-render-diagnostics"])
            .stderr(Stdio::inherit()),
    )?;
    programs(&text)
}

/// Returns the programs in cargo's JSON output of a build.
fn programs(account: &str) -> Result<Vec<(Target, PathBuf)>> {
    let mut found = Vec::new();
    for line in account.lines() {
        let message: Message = serde_json::from_str(line).context("read what cargo says it built")?;
        if let (Some(target), Some(executable)) = (message.target, message.executable) {
            found.push((target, executable));
        }
    }
    Ok(found)
}

/// Builds `warren` for a release and returns its path. The binary does not contain the paths of the
/// checkout and of the user.
pub fn release_binary() -> Result<PathBuf> {
    let built = build(&["build", "--release", "--locked", "--package", "warren", "--bin", "warren"])?;
    let (_, binary) = built.into_iter().next().context("cargo did not say where it put `warren`")?;
    Ok(binary)
}

/// Returns the time of archives in seconds: `SOURCE_DATE_EPOCH`, else the time of the commit.
pub fn source_date() -> Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(given) => given,
        Err(_) => output(Command::new("git").current_dir(root()).args(["log", "-1", "--format=%ct"]))
            .context("read the commit's time; outside a git checkout set SOURCE_DATE_EPOCH")?,
    };
    text.trim().parse().with_context(|| format!("read `{}` as seconds", text.trim()))
}

/// Formats seconds since 1970 as a time.
pub fn rfc3339(seconds: u64) -> Result<String> {
    let seconds = i64::try_from(seconds).context("the time is out of range")?;
    Ok(jiff::Timestamp::from_second(seconds).context("the time is out of range")?.to_string())
}

/// Returns the crates of the workspace, from `cargo metadata`.
pub fn packages() -> Result<Vec<Package>> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("read the answer of `cargo metadata`")?;
    Ok(metadata.packages)
}

/// Runs a command and returns its output.
pub fn output(command: &mut Command) -> Result<String> {
    let words = format!("{command:?}");
    let output = command.output().with_context(|| format!("run {words}"))?;
    if !output.status.success() {
        bail!("{words} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("read what {words} printed"))
}

#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// One of our crates.
#[derive(Deserialize)]
pub struct Package {
    pub name: String,
    pub dependencies: Vec<Dependency>,
    pub targets: Vec<Target>,
}

/// A dependency in its `Cargo.toml`.
#[derive(Deserialize)]
pub struct Dependency {
    pub name: String,
    /// `None` for a normal one, else `dev` or `build`.
    pub kind: Option<String>,
}

/// One of its libraries, programs or tests.
#[derive(Deserialize)]
pub struct Target {
    pub name: String,
    pub kind: Vec<String>,
    #[serde(default, rename = "required-features")]
    pub required_features: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_cargos_messages() {
        let account = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"libc","kind":["lib"]},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"warren","kind":["bin"]},"executable":"/t/release/warren"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let found = programs(account).unwrap();
        let found: Vec<_> =
            found.iter().map(|(target, path)| (target.name.as_str(), path.as_path())).collect();
        assert_eq!(found, [("warren", Path::new("/t/release/warren"))]);
        assert!(programs("not json").is_err());
    }
}
