//! `cargo xtask oci-conformance`: runs the validation suite of opencontainers/runtime-tools against
//! `warren oci`.
//!
//! The suite is built once from the Go module proxy into a cache outside the checkout. Each of its
//! programs reports several cases. A case is passed, failed, or not applicable for a reason in
//! [`NOT_APPLICABLE`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use warren_testkit::kube::Cache;

use crate::workspace;

/// The release of the suite, which is its last one.
const VERSION: &str = "v0.9.0";
const MODULE: &str = "github.com/opencontainers/runtime-tools";

/// The versions of its requirements. The suite was released before Go had modules.
const REQUIREMENTS: &[(&str, &str)] = &[
    ("github.com/blang/semver", "v3.5.1+incompatible"),
    ("github.com/hashicorp/go-multierror", "v1.1.1"),
    ("github.com/mndrix/tap-go", "v0.0.0-20171203230836-629fa407e90b"),
    ("github.com/mrunalp/fileutils", "v0.5.1"),
    ("github.com/opencontainers/runtime-spec", "v1.0.2"),
    ("github.com/opencontainers/runtime-tools", VERSION),
    ("github.com/opencontainers/selinux", "v1.8.2"),
    ("github.com/satori/go.uuid", "v1.2.0"),
    ("github.com/sirupsen/logrus", "v1.10.2"),
    ("github.com/syndtr/gocapability", "v0.0.0-20200815063812-42c35b437635"),
    ("github.com/urfave/cli", "v1.22.17"),
    ("github.com/xeipuuv/gojsonschema", "v1.2.0"),
];

/// Cases that cannot pass: the program, words that identify the case (none: all cases of the
/// program), and the reason.
const NOT_APPLICABLE: &[(&str, &str, &str)] = &[
    (
        "linux_cgroups_blkio",
        "",
        "the kernel has no weights of block I/O (its scheduler CFQ is gone since Linux 5.0)",
    ),
    (
        "linux_cgroups_relative_blkio",
        "",
        "the kernel has no weights of block I/O (its scheduler CFQ is gone since Linux 5.0)",
    ),
    ("linux_cgroups_memory", "memory kernel is set", "the kernel has no limit of its own memory any more"),
    (
        "linux_cgroups_relative_memory",
        "memory kernel is set",
        "the kernel has no limit of its own memory any more",
    ),
    ("linux_mount_label", "", "SELinux labels are refused, not left out"),
    ("linux_process_apparmor_profile", "", "AppArmor profiles are refused, not left out"),
    (
        "linux_ns_itype",
        "",
        "a container without a mount namespace is refused: its mounts would be the host's",
    ),
    ("start", "timeout in waiting", "the suite waits for the end of what it could not start"),
    (
        "start",
        "MUST generate an error if `process` was not set",
        "the suite's check is the opposite of its own sentence",
    ),
    ("hooks", "", "the suite compares with other words than its hooks write"),
    ("hooks_stdin", "", "the suite asks for the process of a container that has ended by then"),
    ("pidfile", "", "the suite kills a container that has ended by then, which has to fail"),
    ("misc_props", "unknown annotation key", "the suite forgets to put its program into this bundle"),
    (
        "process_rlimits",
        "soft RLIMIT_NOFILE",
        "the suite's program is written in Go, which raises this limit of its own when it starts",
    ),
];

/// Cases with requirements on the machine.
const NEEDS: &[(&str, Need)] = &[
    ("linux_cgroups_hugetlb", Need::Controller("hugetlb")),
    ("linux_cgroups_relative_hugetlb", Need::Controller("hugetlb")),
    ("linux_cgroups_network", Need::Controller("net_cls")),
    ("linux_cgroups_relative_network", Need::Controller("net_cls")),
    ("process_capabilities", Need::AllCapabilities),
    ("linux_rootfs_propagation", Need::AllCapabilities),
];

#[derive(Clone, Copy)]
enum Need {
    /// A cgroup controller of version 1.
    Controller(&'static str),
    /// Root itself has every capability.
    AllCapabilities,
}

#[derive(Args)]
pub struct Arguments {
    /// Only programs of the suite with these words in their names
    names: Vec<String>,
    /// Another runtime to look at, such as `runc`
    #[arg(long, value_name = "PROGRAM")]
    runtime: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    NotApplicable(&'static str),
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ensure!(rustix::process::geteuid().is_root(), "the suite makes real containers and needs root");
    let suite = build()?;
    let place = Directory::new()?;
    let runtime = match &arguments.runtime {
        Some(runtime) => runtime.clone(),
        None => place.wrapper()?,
    };
    let mut counts = [0; 3];
    for name in programs(&suite)?.iter().filter(|name| {
        arguments.names.is_empty() || arguments.names.iter().any(|word| name.contains(word.as_str()))
    }) {
        let output = Command::new(suite.join(name))
            .current_dir(&suite)
            .env("RUNTIME", &runtime)
            .env("WARREN_OCI_ROOT", place.0.join("root"))
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run {name}"))?;
        let cases = cases(&String::from_utf8_lossy(&output.stdout), output.status.success());
        // Many programs repeat the same sentence.
        let mut told: BTreeMap<String, usize> = BTreeMap::new();
        for (case, passed) in cases {
            let line = match judge(name, &case, passed) {
                Outcome::Passed => {
                    counts[0] += 1;
                    format!("passed          {name}")
                }
                Outcome::Failed => {
                    counts[1] += 1;
                    format!("FAILED          {name}: {case}")
                }
                Outcome::NotApplicable(why) => {
                    counts[2] += 1;
                    format!("not applicable  {name}: {case}: {why}")
                }
            };
            *told.entry(line).or_default() += 1;
        }
        for (line, count) in &told {
            println!("{line}{}", if *count > 1 { format!(" ({count} cases)") } else { String::new() });
        }
        if told.keys().any(|line| line.starts_with("FAILED")) {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    println!("{} not applicable", counts[2]);
    println!("{} passed, {} failed", counts[0], counts[1]);
    Ok(if counts[1] == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Parses a program's TAP output into cases: the text, and true if it passed.
fn cases(output: &str, success: bool) -> Vec<(String, bool)> {
    let mut cases = Vec::new();
    for line in output.lines() {
        let (rest, holds) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) => (rest, true),
            (_, Some(rest)) => (rest, false),
            _ => continue,
        };
        let said = rest.split_once(" - ").map_or(rest, |(_, said)| said);
        // A case that the suite skips inside a container is skipped for every runtime.
        if !said.to_lowercase().contains("# skip") {
            cases.push((said.to_owned(), holds));
        }
    }
    // Some programs only report failures, in a diagnostic beside the plan.
    if cases.is_empty() || !success {
        let trouble = output.lines().find_map(|line| line.trim().strip_prefix("\"error\": "));
        match (trouble, success) {
            (Some(trouble), _) if cases.iter().all(|(_, holds)| *holds) => {
                cases.push((trouble.to_owned(), false))
            }
            (None, false) => cases.push(("the program ended with an error".to_owned(), false)),
            (None, true) => cases.push(("it had nothing to complain of".to_owned(), true)),
            _ => {}
        }
    }
    cases
}

fn judge(program: &str, case: &str, passed: bool) -> Outcome {
    if passed {
        return Outcome::Passed;
    }
    let known = NOT_APPLICABLE.iter().find(|(name, words, _)| *name == program && case.contains(words));
    if let Some((.., why)) = known {
        return Outcome::NotApplicable(why);
    }
    let need = NEEDS.iter().find(|(name, _)| *name == program).map(|(_, need)| *need);
    match need.and_then(missing) {
        Some(why) => Outcome::NotApplicable(why),
        None => Outcome::Failed,
    }
}

/// Returns the reason why a case cannot run on this machine, if any.
fn missing(need: Need) -> Option<&'static str> {
    match need {
        Need::Controller(name) => {
            let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let has = table.lines().filter_map(|line| line.split_once(" - cgroup ")).any(|(_, right)| {
                right
                    .rsplit(' ')
                    .next()
                    .is_some_and(|options| options.split(',').any(|option| option == name))
            });
            (!has).then_some("the machine has no such cgroup controller")
        }
        Need::AllCapabilities => {
            let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
            let field = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).map(str::trim);
            let bounding = field.and_then(|field| u64::from_str_radix(field, 16).ok()).unwrap_or_default();
            (bounding.count_ones() != bounding.trailing_ones())
                .then_some("root on this machine does not have all capabilities itself")
        }
    }
}

/// Returns the programs of the suite, sorted.
fn programs(suite: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(suite).context("list the suite")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "runtimetest" && !name.ends_with(".gz") && !name.starts_with("go.") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the directory of the suite, and builds it if needed.
fn build() -> Result<PathBuf> {
    let named = std::env::var_os("WARREN_KUBE_CACHE").map(PathBuf::from);
    let cache = Cache::locate(named, |name| std::env::var_os(name))?;
    let programs = cache.programs();
    let place =
        programs.parent().context("the cache has a root")?.join(format!("oci-runtime-tools-{VERSION}"));
    if place.join("runtimetest").exists() {
        return Ok(place);
    }
    eprintln!("building the validation suite of {MODULE} {VERSION}: once");
    let unfinished = place.with_extension("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).context("remove an unfinished build")?;
    }
    fs::create_dir_all(&unfinished).context("make a directory for the suite")?;
    let requirements: String =
        REQUIREMENTS.iter().map(|(module, version)| format!("require {module} {version}\n")).collect();
    fs::write(
        unfinished.join("go.mod"),
        format!("module warren.dev/oci-conformance\n\ngo 1.24.0\n\n{requirements}"),
    )?;
    let go = ["go", "/usr/local/go/bin/go"]
        .into_iter()
        .find(|go| Command::new(go).arg("version").output().is_ok_and(|output| output.status.success()))
        .context("Go is neither on PATH nor in /usr/local/go")?;
    let command = || {
        let mut command = Command::new(go);
        command.current_dir(&unfinished).env("CGO_ENABLED", "0").env("GOWORK", "off");
        command.env("GOFLAGS", "-mod=mod -buildvcs=false");
        command
    };
    let source = workspace::output(command().args(["list", "-m", "-f", "{{.Dir}}", MODULE]))?;
    let source = match source.trim() {
        // Not downloaded yet.
        "" => {
            workspace::output(command().args(["mod", "download", MODULE]))?;
            workspace::output(command().args(["list", "-m", "-f", "{{.Dir}}", MODULE]))?.trim().to_owned()
        }
        source => source.to_owned(),
    };
    let mut packages = vec![format!("{MODULE}/cmd/runtimetest")];
    for entry in fs::read_dir(Path::new(&source).join("validation")).context("find the suite's programs")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() && name != "util" {
            packages.push(format!("{MODULE}/validation/{name}"));
        }
    }
    let output = unfinished.join("bin");
    fs::create_dir(&output)?;
    let status = command().args(["build", "-trimpath", "-o"]).arg(&output).args(&packages).status()?;
    if !status.success() {
        bail!("`go build` failed with {status}");
    }
    for entry in fs::read_dir(&source)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "gz") {
            fs::copy(&path, output.join(path.file_name().unwrap_or_default()))?;
        }
    }
    fs::rename(&output, &place).context("move the suite into place")?;
    fs::remove_dir_all(&unfinished).context("remove what was built with")?;
    Ok(place)
}

/// The state of the suite's containers, and the program that it calls.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("warren-oci-conformance-{}", std::process::id()));
        fs::create_dir(&path).context("make a directory")?;
        Ok(Self(path))
    }

    /// Writes a wrapper: the suite calls a program with the command as its first argument.
    fn wrapper(&self) -> Result<PathBuf> {
        use std::os::unix::fs::PermissionsExt as _;
        let built = workspace::build(&["build", "--package", "warren", "--bin", "warren"])?;
        let (_, binary) = built.first().context("cargo did not say where it put `warren`")?;
        let path = self.0.join("warren-oci");
        fs::write(&path, format!("#!/bin/sh\nexec {} oci \"$@\"\n", binary.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // The suite leaves containers behind if a case fails part-way.
        let root = self.0.join("root");
        for entry in fs::read_dir(&root).into_iter().flatten().flatten() {
            let mut command = Command::new(self.0.join("warren-oci"));
            let _ = command
                .env("WARREN_OCI_ROOT", &root)
                .args(["delete", "--force"])
                .arg(entry.file_name())
                .status();
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_from_what_the_suite_prints() {
        let said = |text: &str, holds| (text.to_owned(), holds);
        assert_eq!(
            cases("TAP version 13\nok 1 - one\nnot ok 2 - two\n  ---\nok 3 # SKIP none\n1..3\n", true),
            [said("one", true), said("two", false)]
        );
        // A plan alone is a pass. A diagnostic alone is a failure.
        assert!(cases("TAP version 13\n1..0\n", true)[0].1);
        assert!(!cases("TAP version 13\n  {\n    \"error\": \"x\"\n  }\n1..0\n", true)[0].1);
        assert_eq!(cases("", false).len(), 1);
        assert!(!cases("ok 1 - one\n", false)[1].1);
    }

    #[test]
    fn only_named_cases_are_excused() {
        assert_eq!(judge("create", "x", false), Outcome::Failed);
        assert_eq!(judge("start", "something else", false), Outcome::Failed);
        assert!(matches!(judge("linux_mount_label", "x", false), Outcome::NotApplicable(_)));
        assert_eq!(judge("linux_mount_label", "x", true), Outcome::Passed);
    }
}
