//! Builds Kubernetes and etcd from the Go module proxy.
//!
//! `go install` does not work for Kubernetes. Its module requires its own staging modules at
//! `v0.0.0` and replaces them by folders of its repository, and Go ignores the replacements of a
//! dependency. Each release also publishes the staging modules under the matching `v0.` version. So
//! a small module of ours requires Kubernetes and replaces each staging module by its published
//! form.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::files::{FileError, create_private_directory, failed, remove_directory, write_private};
use crate::kube::cache::Cache;
use crate::kube::{ETCD_VERSION, KUBERNETES_VERSION};

/// An error of a build.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Go is not installed.
    #[error(
        "not built yet, and Go is neither on PATH nor in /usr/local/go: install Go 1.26, or name a directory with ready programs in WARREN_KUBE_BIN"
    )]
    NoGo,
    /// Go could not be started.
    #[error("start `{command}`")]
    Start {
        /// The command line.
        command: String,
        /// The underlying I/O error.
        #[source]
        source: std::io::Error,
    },
    /// Go failed. Its messages went to stderr.
    #[error("`{command}` failed with {status}")]
    Go {
        /// The command line.
        command: String,
        /// The exit status.
        status: std::process::ExitStatus,
    },
    /// The output of `go mod download` was unexpected.
    #[error("`go mod download` of Kubernetes did not name its go.mod")]
    NoModuleFile,
    /// A file could not be read, written or moved.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Builds the named programs into the cache. The caller holds the cache's lock.
pub(crate) fn build(programs: &[&'static str], cache: &Cache) -> Result<(), BuildError> {
    let go = find_go()?;
    let work = cache.build();
    remove_directory(&work)?;
    create_private_directory(&work)?;
    create_private_directory(&cache.programs())?;

    let (etcd, kubernetes): (Vec<&str>, Vec<&str>) =
        programs.iter().copied().partition(|name| *name == "etcd");
    if !kubernetes.is_empty() {
        build_kubernetes(&go, &work.join("kubernetes"), &kubernetes, &cache.programs())?;
    }
    if !etcd.is_empty() {
        build_etcd(&go, &work.join("etcd"), &cache.programs())?;
    }
    Ok(remove_directory(&work)?)
}

fn build_kubernetes(go: &Path, work: &Path, programs: &[&str], into: &Path) -> Result<(), BuildError> {
    let started = Instant::now();
    eprintln!(
        "building {} {KUBERNETES_VERSION}: once, several minutes on a machine that has never built them",
        programs.join(", ")
    );
    create_private_directory(work)?;
    let module_file = download_module_file(go, work)?;
    let module_file = fs::read_to_string(&module_file).map_err(failed("read", &module_file))?;
    write_private(&work.join("go.mod"), kubernetes_module(&module_file, KUBERNETES_VERSION))?;

    let packages: Vec<String> = programs.iter().map(|name| format!("k8s.io/kubernetes/cmd/{name}")).collect();
    let output = work.join("bin");
    create_private_directory(&output)?;
    run(go_command(go, work)
        .args(["build", "-trimpath", "-ldflags", &version_flags(KUBERNETES_VERSION), "-o"])
        .arg(&output)
        .args(&packages))?;
    for name in programs {
        publish(&output.join(name), &into.join(name))?;
    }
    eprintln!("built {} in {} s", programs.join(", "), started.elapsed().as_secs());
    Ok(())
}

fn build_etcd(go: &Path, work: &Path, into: &Path) -> Result<(), BuildError> {
    let started = Instant::now();
    eprintln!("building etcd {ETCD_VERSION}: once");
    create_private_directory(work)?;
    let module =
        format!("module warren.dev/etcd\n\ngo 1.24.0\n\nrequire go.etcd.io/etcd/server/v3 {ETCD_VERSION}\n");
    write_private(&work.join("go.mod"), module)?;
    let output = work.join("etcd");
    run(go_command(go, work)
        .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
        .arg(&output)
        .arg("go.etcd.io/etcd/server/v3"))?;
    publish(&output, &into.join("etcd"))?;
    eprintln!("built etcd in {} s", started.elapsed().as_secs());
    Ok(())
}

/// Moves a finished program to its place. The rename is atomic, so the place never has a partial
/// program.
pub(crate) fn publish(built: &Path, place: &Path) -> Result<(), BuildError> {
    Ok(fs::rename(built, place).map_err(failed("move into place", place))?)
}

/// Downloads Kubernetes' module and returns the path of its `go.mod`.
fn download_module_file(go: &Path, work: &Path) -> Result<PathBuf, BuildError> {
    let mut command = go_command(go, work);
    command.args(["mod", "download", "-json"]).arg(format!("k8s.io/kubernetes@{KUBERNETES_VERSION}"));
    let words = format!("{command:?}");
    let output = command
        .stdout(Stdio::piped())
        .output()
        .map_err(|source| BuildError::Start { command: words.clone(), source })?;
    if !output.status.success() {
        return Err(BuildError::Go { command: words, status: output.status });
    }
    let answer: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|_| BuildError::NoModuleFile)?;
    answer["GoMod"].as_str().map(PathBuf::from).ok_or(BuildError::NoModuleFile)
}

/// Returns the `go.mod` of a module that can build Kubernetes' commands, made from Kubernetes' own.
fn kubernetes_module(kubernetes: &str, version: &str) -> String {
    let go = kubernetes.lines().find(|line| line.starts_with("go ")).unwrap_or("go 1.26.0");
    let staging_version = version.replacen("v1.", "v0.", 1);
    let mut module =
        format!("module warren.dev/kubernetes\n\n{go}\n\nrequire k8s.io/kubernetes {version}\n\n");
    for line in kubernetes.lines() {
        let mut words = line.trim_start_matches("require").split_whitespace();
        if let (Some(name), Some("v0.0.0")) = (words.next(), words.next())
            && name.starts_with("k8s.io/")
        {
            module.push_str(&format!("replace {name} => {name} {staging_version}\n"));
        }
    }
    module
}

/// Returns linker flags that set the programs' version, as Kubernetes' own build does. `kubectl
/// version`, the API server's `/version` and the emulated version of feature gates use it.
fn version_flags(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let package = "k8s.io/component-base/version";
    format!(
        "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor} \
         -X {package}.gitCommit=unknown -X {package}.gitTreeState=archive"
    )
}

pub(crate) fn find_go() -> Result<PathBuf, BuildError> {
    // Go's own installer uses the second path, which is not in the PATH of every shell.
    [PathBuf::from("go"), PathBuf::from("/usr/local/go/bin/go")]
        .into_iter()
        .find(|go| Command::new(go).arg("version").output().is_ok_and(|output| output.status.success()))
        .ok_or(BuildError::NoGo)
}

/// Returns a command for Go, without the effects of a surrounding workspace or the user's build
/// flags.
pub(crate) fn go_command(go: &Path, work: &Path) -> Command {
    let mut command = Command::new(go);
    command
        .current_dir(work)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        // `mod`: our go.mod names only the root. Go completes it and writes go.sum.
        .env("GOFLAGS", "-mod=mod -buildvcs=false")
        .stdin(Stdio::null());
    command
}

/// Runs Go. Its progress goes to our stderr.
pub(crate) fn run(command: &mut Command) -> Result<(), BuildError> {
    let words = format!("{command:?}");
    let status = command
        .stdout(Stdio::null())
        .status()
        .map_err(|source| BuildError::Start { command: words.clone(), source })?;
    if status.success() { Ok(()) } else { Err(BuildError::Go { command: words, status }) }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn staging_modules_are_replaced_by_their_published_form() {
        let kubernetes = "module k8s.io/kubernetes\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/api v0.0.0\n\tk8s.io/klog/v2 v2.140.0\n\
                          \tgithub.com/x/y v0.0.0 // indirect\n)\n\nrequire k8s.io/kms v0.0.0 // indirect\n\n\
                          replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n";
        expect![[r#"
            module warren.dev/kubernetes

            go 1.26.0

            require k8s.io/kubernetes v1.36.3

            replace k8s.io/api => k8s.io/api v0.36.3
            replace k8s.io/kms => k8s.io/kms v0.36.3
        "#]]
        .assert_eq(&kubernetes_module(kubernetes, "v1.36.3"));
    }

    #[test]
    fn programs_are_told_their_version() {
        let flags = version_flags("v1.36.3");
        for part in ["gitVersion=v1.36.3 ", "gitMajor=1 ", "gitMinor=36 "] {
            assert!(flags.contains(part), "{flags}");
        }
    }
}
