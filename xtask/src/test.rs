//! `cargo xtask test`: runs the tests and adds up the results of the test binaries.
//!
//! There are two tiers. The first needs nothing but the checkout. The second, `--kube`, needs a
//! real control plane. A test target joins it by this feature in its `Cargo.toml`, so that plain
//! `cargo test` neither builds nor skips it:
//!
//! ```toml
//! [features]
//! kube-tests = []
//!
//! [[test]]
//! name = "corpus"
//! required-features = ["kube-tests"]
//! ```

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use clap::Args;

use crate::workspace::{self, Package};

/// The feature that marks the tests of the second tier.
const KUBE_TESTS: &str = "kube-tests";

#[derive(Args)]
pub struct Arguments {
    /// Run the tests against a real control plane as well
    #[arg(long)]
    kube: bool,
    /// Run only the tests against a real control plane
    #[arg(long, conflicts_with = "kube")]
    only_kube: bool,
    /// Run everything at its full size: also on a real control plane, 20,000 seeds of the
    /// simulation, the crash suites in hundreds of rounds, the OCI validation suite and the virtual
    /// machine. Takes about two hours
    #[arg(long, conflicts_with = "only_kube")]
    full: bool,
}

/// The numbers of rounds of suites that CI runs with fewer.
const FULL_ROUNDS: &[(&str, &str)] = &[
    ("WARREN_CRASH_ROUNDS", "200"),
    ("WARREN_FULL_DISK_ROUNDS", "50"),
    ("WARREN_SESSION_CRASH_ROUNDS", "100"),
    ("WARREN_STORM_ROUNDS", "100"),
];

/// Tasks that `--full` runs after the tests. Each counts as one test.
const FULL_TASKS: &[&[&str]] =
    &[&["simulate", "--release", "--seeds", "20000"], &["oci-conformance"], &["vm"]];

/// The results of tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    // Build these once here: otherwise each end-to-end test binary would call cargo for them, one
    // after the other. Build from the whole workspace, so that dependencies are built once with the
    // features of the tests.
    let built = workspace::build(&["build", "--workspace", "--bin", "warren", "--bin", "warren-service"])?;
    let (_, binary) = built
        .iter()
        .find(|(target, _)| target.name == "warren")
        .context("cargo did not say where it put `warren`")?;
    let mut counts = Counts::default();
    if !arguments.only_kube {
        let mut command = workspace::cargo();
        // Skip doc tests. There are none, and searching for them takes a minute.
        command.args(["test", "--workspace", "--all-targets"]).env("WARREN_BIN", binary);
        if arguments.full {
            command.envs(FULL_ROUNDS.iter().copied());
        }
        run_cargo(command, &mut counts)?;
    }
    if (arguments.kube || arguments.only_kube || arguments.full)
        && let Some(mut command) = kube_tier(&workspace::packages()?)
    {
        command.env("WARREN_BIN", binary);
        run_cargo(command, &mut counts)?;
    }
    if arguments.full {
        for task in FULL_TASKS {
            println!("     Running cargo xtask {}", task.join(" "));
            let status = Command::new(std::env::current_exe().context("find this program")?)
                .args(*task)
                .status()
                .with_context(|| format!("run cargo xtask {}", task.join(" ")))?;
            if status.success() {
                counts.passed += 1;
            } else {
                counts.failed += 1;
            }
        }
    }
    println!("{} passed, {} failed", counts.passed, counts.failed);
    Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the command for the test targets that need a real control plane, if any.
fn kube_tier(packages: &[Package]) -> Option<Command> {
    let arguments = kube_arguments(packages);
    if arguments.is_empty() {
        eprintln!("no crate has tests that ask for `{KUBE_TESTS}`");
        return None;
    }
    let mut command = workspace::cargo();
    // From the whole workspace, as in the first tier: selecting packages would build dependencies
    // with other features.
    command.args(["test", "--workspace"]).args(arguments);
    // With this, the guard in each test binary does not call cargo, which would wait for any
    // running build. Name the process and not the path: the build of the tests may replace our
    // file.
    command.env("WARREN_XTASK", format!("/proc/{}/exe", std::process::id()));
    Some(command)
}

fn kube_arguments(packages: &[Package]) -> Vec<String> {
    let mut arguments = Vec::new();
    for package in packages {
        let asking: Vec<&str> = package
            .targets
            .iter()
            .filter(|target| target.kind.iter().any(|kind| kind == "test"))
            .filter(|target| target.required_features.iter().any(|feature| feature == KUBE_TESTS))
            .map(|target| target.name.as_str())
            .collect();
        if !asking.is_empty() {
            let name = &package.name;
            arguments.extend(["--features".to_owned(), format!("{name}/{KUBE_TESTS}")]);
            for target in asking {
                arguments.extend(["--test".to_owned(), target.to_owned()]);
            }
        }
    }
    arguments
}

/// Runs cargo, prints its output and adds up the results.
fn run_cargo(mut command: Command, counts: &mut Counts) -> Result<()> {
    let mut child = command
        .arg("--no-fail-fast")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {command:?}"))?;
    let failed_before = counts.failed;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.context("read what the tests print")?;
            // A test may print anything, also invalid text.
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            if let Some(found) = parse_result(&line) {
                counts.passed += found.passed;
                counts.failed += found.failed;
            }
        }
    }
    let status = child.wait().context("wait for cargo")?;
    if !status.success() && counts.failed == failed_before {
        eprintln!(
            "cargo ended with {status} although no test failed: something did not build, or ended half way"
        );
        counts.failed += 1;
    }
    Ok(())
}

/// Parses the line that ends the output of a test binary.
pub fn parse_result(line: &str) -> Option<Counts> {
    let (_, results) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    for part in results.split("; ") {
        match part.split_once(' ') {
            Some((number, "passed")) => counts.passed = number.parse().ok()?,
            Some((number, "failed")) => counts.failed = number.parse().ok()?,
            _ => {}
        }
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Target;

    #[test]
    fn results_of_test_binaries_are_read() {
        let read = |line| parse_result(line).map(|counts| (counts.passed, counts.failed));
        assert_eq!(
            read(
                "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s"
            ),
            Some((12, 0))
        );
        assert_eq!(
            read(
                "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s"
            ),
            Some((3, 2))
        );
        assert_eq!(read("test some::test ... ok"), None);
        assert_eq!(read("test result: nonsense"), None);
    }

    #[test]
    fn the_second_tier_is_what_asks_for_it() {
        let target = |name: &str, kind: &str, features: &[&str]| Target {
            name: name.to_owned(),
            kind: vec![kind.to_owned()],
            required_features: features.iter().map(|feature| (*feature).to_owned()).collect(),
        };
        let package =
            |name: &str, targets| Package { name: name.to_owned(), dependencies: Vec::new(), targets };
        let packages = [
            package("a", vec![target("a", "lib", &[]), target("plain", "test", &[])]),
            package(
                "b",
                vec![target("corpus", "test", &["kube-tests"]), target("tool", "bin", &["kube-tests"])],
            ),
        ];
        assert_eq!(kube_arguments(&packages), ["--features", "b/kube-tests", "--test", "corpus"]);
        assert!(kube_arguments(&packages[..1]).is_empty());
    }
}
