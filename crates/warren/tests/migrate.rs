//! Tests `warren migrate` as a program: its output, its errors and its exit code.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use expect_test::{Expect, expect};

/// Runs `warren migrate` in a folder with the file `old.yaml` and this text on standard input, and
/// compares exit code, output and errors.
fn check(arguments: &[&str], text: &str, expected: Expect) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("old.yaml"), text).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_warren"))
        .arg("migrate")
        .args(arguments)
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that does not read its input may end before it is written.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    let shown = format!(
        "exit code {}\n{}{}",
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    expected.assert_eq(&shown);
}

const POOL: &str = "\
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxWarmPool
metadata:
  name: go-runner-pool
spec:
  templateName: go-runner
  minReady: 3
  maxReady: 10
";

#[test]
fn from_a_file() {
    check(
        &["old.yaml"],
        POOL,
        expect![[r#"
        exit code 0
        # spec.maxReady: a pool has one size; let a HorizontalPodAutoscaler set it: SandboxWarmPool has the scale subresource
        apiVersion: extensions.agents.x-k8s.io/v1beta1
        kind: SandboxWarmPool
        metadata:
          name: go-runner-pool
        spec:
          replicas: 3
          sandboxTemplateRef:
            name: go-runner
    "#]],
    );
}

#[test]
fn from_standard_input() {
    check(
        &["-"],
        POOL,
        expect![[r#"
        exit code 0
        # spec.maxReady: a pool has one size; let a HorizontalPodAutoscaler set it: SandboxWarmPool has the scale subresource
        apiVersion: extensions.agents.x-k8s.io/v1beta1
        kind: SandboxWarmPool
        metadata:
          name: go-runner-pool
        spec:
          replicas: 3
          sandboxTemplateRef:
            name: go-runner
    "#]],
    );
}

#[test]
fn a_fault_prints_nothing_but_itself() {
    check(
        &["old.yaml"],
        &format!("{POOL}---\n{}", POOL.replace("minReady: 3", "minReady: three")),
        expect![[r#"
            exit code 1
            error: old.yaml, document 2: `spec.minReady`: not a count
        "#]],
    );
    check(
        &["absent.yaml"],
        "",
        expect![[r#"
        exit code 1
        error: read `absent.yaml`: No such file or directory (os error 2)
    "#]],
    );
}
