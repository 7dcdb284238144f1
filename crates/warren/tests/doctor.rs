//! Tests `warren doctor` on this machine, as the present user and as an ordinary user.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The uid of the user `nobody` on every Linux.
const ORDINARY: &str = "65534";

fn findings(output: &Output) -> Vec<Value> {
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON on standard output");
    let findings = report["findings"].as_array().expect("findings").clone();
    let problems = findings.iter().filter(|finding| finding["verdict"] == "problem").count();
    assert_eq!(report["ok"], problems == 0, "{report}");
    assert_eq!(output.status.code(), Some(i32::from(problems > 0)), "{report}");
    for finding in findings.iter().filter(|finding| finding["verdict"] != "ok") {
        assert!(finding["meaning"].is_string() && finding["remedy"].is_string(), "{finding}");
    }
    findings
}

fn finding<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    findings.iter().find(|finding| finding["check"] == check).expect(check)
}

#[test]
fn it_says_what_it_found_and_changes_nothing() {
    let directory = tempfile::tempdir().expect("make a directory");
    let home = directory.path().join("home");
    let doctor = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warren"));
        command.arg("doctor").args(arguments).env("WARREN_HOME", &home);
        command.output().expect("run warren")
    };
    let output = doctor(&["--output", "json"]);
    let found = findings(&output);
    assert!(finding(&found, "kernel")["found"].as_str().is_some_and(|text| text.starts_with("Linux ")));
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(finding(&found, "privileges")["verdict"], if is_root { "ok" } else { "problem" });
    assert!(!home.exists(), "looking for a home does not make it");
    let text = String::from_utf8(doctor(&[]).stdout).expect("text");
    let last = text.lines().last().expect("a line");
    assert!(last.starts_with("All is well") || last.starts_with("Sandboxes can"), "{text}");
}

#[test]
fn an_ordinary_user_is_told_what_sandboxes_lack_without_root() {
    if !rustix::process::geteuid().is_root() || !Path::new("/usr/bin/setpriv").exists() {
        eprintln!("skipped: only root can become somebody else, by `setpriv`");
        return;
    }
    // A place that this user can reach.
    let directory = tempfile::tempdir().expect("make a directory");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open.clone()).expect("open the directory");
    let binary = directory.path().join("warren");
    std::fs::copy(env!("CARGO_BIN_EXE_warren"), &binary).expect("copy the binary");
    std::fs::set_permissions(&binary, open).expect("open the binary");
    let output = Command::new("/usr/bin/setpriv")
        .args(["--reuid", ORDINARY, "--regid", ORDINARY, "--clear-groups"])
        .arg(&binary)
        .args(["doctor", "--output", "json"])
        .env("WARREN_HOME", directory.path().join("home"))
        .current_dir("/")
        .output()
        .expect("run setpriv");
    let found = findings(&output);
    let privileges = finding(&found, "privileges");
    // The machine may forbid user namespaces to ordinary users. If not, this user still has no
    // further ids.
    let expected = match privileges["verdict"].as_str() {
        Some("problem") => "`sudo warren up`",
        Some("warning") => "usermod --add-subuids",
        other => panic!("an ordinary user lacks nothing: {other:?}"),
    };
    let remedy = privileges["remedy"].as_str().expect("a remedy");
    assert!(remedy.contains(expected), "{remedy}");
    // Their sandboxes have no devices, so there are no packets to filter.
    assert_eq!(finding(&found, "nftables")["verdict"], "ok");
}
