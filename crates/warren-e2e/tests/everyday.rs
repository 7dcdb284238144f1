//! Tests everyday commands with the real binary: `pool`, `template`, `run --mount`, `diff`, `apply`,
//! `top`, `suspend`, `resume`, `history`, `doctor` for a cluster, help.

use serde_json::Value;
use warren_e2e::faulty_proxy::FaultyProxy;
use warren_e2e::local_home::{Ended, LocalHome};

fn said(code: i32, stdout: &str) -> Ended {
    Ended { code: Some(code), stdout: stdout.to_owned(), stderr: String::new() }
}

fn json(home: &LocalHome, arguments: &[&str]) -> Value {
    let seen = home.warren(&[arguments, &["--output", "json"]].concat());
    serde_json::from_str(&seen.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {seen:?}"))
}

/// Waits for a condition with a generous deadline.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("{what}: not within a minute");
}

#[tokio::test]
async fn pools_and_templates_are_made_used_scaled_and_deleted() {
    let Some(home) = LocalHome::new() else { return };
    let words = ["template", "create", "tools", "--memory", "256Mi", "--network", "none"];
    assert_eq!(home.warren(&words), said(0, "tools\n"));
    let seen = home.warren(&["pool", "create", "tools", "--template", "none"]);
    assert_eq!(seen.code, Some(1));
    assert!(seen.stderr.contains("there is no SandboxTemplate `none`"), "{seen:?}");
    assert_eq!(
        home.warren(&["pool", "create", "tools", "--template", "tools", "--replicas", "0"]).code,
        Some(0)
    );
    assert_eq!(home.warren(&["pool", "scale", "tools", "--replicas", "2"]), said(0, "tools\n"));
    until("two sandboxes are ready", || home.warren(&["pool", "status", "tools"]).code == Some(0)).await;
    let pools = json(&home, &["pool", "list"]);
    assert_eq!((&pools["pools"][0]["wanted"], &pools["pools"][0]["ready"]), (&2.into(), &2.into()));
    assert_eq!(home.warren(&["run", "--pool", "tools", "--no-sync", "echo", "in"]), said(0, "in\n"));

    // Both wait, and use next to nothing.
    until("two sandboxes have been measured", || {
        json(&home, &["top"])["sandboxes"].as_array().is_some_and(|rows| {
            rows.len() >= 2 && rows.iter().all(|row| row["memoryBytes"].as_u64().is_some_and(|used| used > 0))
        })
    })
    .await;
    let seen = home.warren(&["template", "delete", "tools"]);
    assert!(seen.code == Some(1) && seen.stderr.contains("pool `tools` makes its sandboxes"), "{seen:?}");
    assert_eq!(home.warren(&["pool", "delete", "tools"]), said(0, "tools\n"));
    assert_eq!(home.warren(&["template", "delete", "tools"]), said(0, "tools\n"));
    assert_eq!(json(&home, &["pool", "list"])["pools"], Value::Array(Vec::new()));
}

#[test]
fn suspended_sandbox_has_no_pod_and_is_ready_again_when_it_is_resumed() {
    let Some(home) = LocalHome::new() else { return };
    assert_eq!(home.warren(&["warmup", "--id", "mine"]).code, Some(0));
    assert_eq!(home.warren(&["suspend", "mine"]), said(0, "mine\n"));
    let seen = home.warren(&["run", "--id", "mine", "--no-sync", "true"]);
    assert!(seen.code == Some(125) && seen.stderr.contains("SandboxSuspended"), "{seen:?}");
    assert_eq!(home.warren(&["resume", "mine"]), said(0, "mine\n"));
    let seen = home.warren(&["run", "--id", "mine", "--no-sync", "echo back; exit 2"]);
    assert_eq!((seen.code, seen.stdout.as_str()), (Some(2), "back\n"), "{seen:?}");
    assert!(seen.stderr.contains("lease `mine` has a new pod"), "{seen:?}");

    let history = json(&home, &["history"]);
    let last = history["commands"].as_array().expect("commands").last().expect("one");
    assert_eq!((&last["code"], &last["lease"]), (&2.into(), &"mine".into()));
    assert_eq!(last["command"], "echo back; exit 2");
    assert!(home.warren(&["history", "--last", "1"]).stdout.ends_with("echo back; exit 2\n"));
    assert_eq!(home.warren(&["stop", "mine"]).code, Some(0));
    home.assert_nothing_left();
}

#[test]
fn doctor_examines_the_cluster_of_a_context_and_creates_nothing() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let proxy = FaultyProxy::start(home.path().join("api.sock"));
    let kubeconfig = home.path().join("proxy-kubeconfig");
    proxy.write_kubeconfig(&kubeconfig);
    let kubeconfig = kubeconfig.to_str().expect("UTF-8");
    let doctor = |context: &str, more: &[&str]| {
        let words = ["doctor", "--kubeconfig", kubeconfig, "--context", context];
        json(&home, &[&words, more].concat())
    };
    let verdicts = |report: &Value| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let findings = report["findings"].as_array().expect("findings");
        findings.iter().map(|finding| (text(&finding["check"]), text(&finding["verdict"]))).collect()
    };
    let report = doctor("test", &[]);
    assert_eq!(report["ok"], true, "{report}");
    let checks = [
        "api-server",
        "sandboxes",
        "sandboxclaims",
        "sandboxwarmpools",
        "sandboxtemplates",
        "claims-access",
        "pools-access",
        "sandboxes-access",
        "pods-access",
        "exec-access",
    ];
    assert_eq!(verdicts(&report), checks.map(|check| (check.to_owned(), "ok".to_owned())));
    let report = doctor("test", &["--pool", "none"]);
    assert_eq!(verdicts(&report).last(), Some(&("pool".to_owned(), "problem".to_owned())), "{report}");
    let report = doctor("nowhere", &[]);
    assert_eq!(verdicts(&report), [("api-server".to_owned(), "problem".to_owned())], "{report}");
    let listed = json(&home, &["list"]);
    assert_eq!(listed["sandboxes"], Value::Array(Vec::new()));
}

#[test]
fn tools_of_the_home_directory_are_shown_read_only_where_the_home_allows_it() {
    let Some(home) = LocalHome::new() else { return };
    let tools = tempfile::tempdir().expect("make a directory");
    for directory in ["cargo/bin", "rustup"] {
        std::fs::create_dir_all(tools.path().join(directory)).expect("make a directory");
    }
    std::fs::write(tools.path().join("cargo/credentials.toml"), "secret").expect("write");
    let tool = tools.path().join("cargo/bin/mytool");
    std::fs::write(&tool, "#!/bin/sh\necho $RUSTUP_HOME; touch $0.new 2>/dev/null || echo read-only\n")
        .expect("write");
    std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("make it executable");
    let run = |words: &[&str]| {
        let mut command = home.command();
        command.env("CARGO_HOME", tools.path().join("cargo")).env("RUSTUP_HOME", tools.path().join("rustup"));
        command.env("PATH", format!("{}/cargo/bin:/usr/bin:/bin", tools.path().display()));
        Ended::from(command.args([&["run", "--toolchain", "cargo"], words].concat()).output().expect("run"))
    };
    let seen = run(&["mytool"]);
    assert!(seen.code == Some(125) && seen.stderr.contains("--allow-host-path"), "{seen:?}");
    assert_eq!(home.warren(&["down"]).code, Some(0));
    let allowed = tools.path().to_str().expect("UTF-8");
    assert_eq!(home.warren(&["up", "--detach", "--allow-host-path", allowed]).code, Some(0));
    assert_eq!(run(&["mytool"]), said(0, &format!("{allowed}/rustup\nread-only\n")));
    assert_eq!(run(&["sh", "-c", "ls -A \"$RUSTUP_HOME/../cargo\""]), said(0, "bin\n"), "no credentials");
    home.assert_nothing_left();
}

/// Makes a checkout that belongs to the user of a home.
fn checkout(home: &LocalHome) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("make a directory");
    if let Some(user) = home.user() {
        user.give(directory.path()).expect("give the directory to the user");
    }
    let script = "git init --quiet . && mkdir deep && printf old > changed && printf x > gone && printf y > deep/file \
        && echo built > .gitignore";
    let mut command = std::process::Command::new("sh");
    let made = home.as_its_user(command.args(["-c", script]).current_dir(directory.path())).status();
    assert!(made.expect("run sh").success(), "make a checkout");
    directory
}

/// What a sandbox does in the checkout.
const WORK: &str = "pwd; cat changed; printf new > changed; rm gone; rm -r deep; mkdir deep; printf z > deep/other; \
    printf + > added; printf b > built; echo evil >> .git/config";

#[test]
fn view_of_a_directory_keeps_changes_until_they_are_applied() {
    for home in [LocalHome::new(), LocalHome::of_an_ordinary_user()].into_iter().flatten() {
        let checkout = checkout(&home);
        let directory = checkout.path().to_str().expect("UTF-8");
        let run = |words: &[&str]| {
            let mut command = home.command();
            command.current_dir(checkout.path()).arg("run").args(words);
            Ended::from(command.output().expect("run"))
        };
        let read = |name: &str| std::fs::read_to_string(checkout.path().join(name)).ok();
        let seen = run(&["--mount", ".", "--", "true"]);
        let hint = format!("--allow-host-path {directory}`");
        assert!(seen.code == Some(125) && seen.stderr.contains(&hint), "{seen:?}");
        assert_eq!(home.warren(&["down"]).code, Some(0));
        assert_eq!(home.warren(&["up", "--detach", "--allow-host-path", directory]).code, Some(0));

        let seen = run(&["--mount", ".", "--name", "view", "--keep", "--", "sh", "-c", WORK]);
        assert_eq!((seen.code, seen.stdout), (Some(0), format!("{directory}\nold")), "{}", seen.stderr);
        assert!(seen.stderr.contains("warren diff view"), "{}", seen.stderr);
        assert_eq!(read("changed").as_deref(), Some("old"), "nothing is written here");
        assert_eq!((read("gone").as_deref(), read("added")), (Some("x"), None), "nothing is written here");

        let told = |rows: &[(&str, &str)]| -> String {
            rows.iter().map(|(change, path)| format!("{change} {directory}/{path}\n")).collect()
        };
        let all =
            told(&[("A", "added"), ("M", "changed"), ("D", "deep/file"), ("A", "deep/other"), ("D", "gone")]);
        let seen = home.warren(&["diff", "view"]);
        assert_eq!((seen.code, seen.stdout.as_str()), (Some(0), all.as_str()), "{}", seen.stderr);
        assert!(seen.stderr.contains("`.git`"), "{}", seen.stderr);
        let with_ignored = json(&home, &["diff", "view", "--all"]);
        assert_eq!(with_ignored["changes"].as_array().map(Vec::len), Some(6), "{with_ignored}");

        std::fs::write(checkout.path().join("changed"), "mine").expect("write");
        let seen = home.warren(&["apply", "view"]);
        assert!(
            seen.code == Some(1) && seen.stderr.contains("changed here and in the sandbox: `changed`"),
            "{seen:?}"
        );
        assert_eq!(read("added"), None, "nothing is written if one file is in conflict");
        let seen = home.warren(&["apply", "view", "deep"]);
        assert_eq!(seen.stdout, told(&[("D", "deep/file"), ("A", "deep/other")]), "{seen:?}");
        let seen = home.warren(&["apply", "view", "--overwrite"]);
        assert_eq!(
            (seen.code, seen.stdout),
            (Some(0), told(&[("A", "added"), ("M", "changed"), ("D", "gone")]))
        );
        assert_eq!(home.warren(&["diff", "view"]).stdout, "");
        assert_eq!((read("changed").as_deref(), read("deep/other").as_deref()), (Some("new"), Some("z")));
        assert_eq!((read("gone"), read("deep/file"), read("built")), (None, None, None));
        assert!(!read(".git/config").expect("a checkout").contains("evil"));
        assert_eq!(home.warren(&["delete", "view"]).code, Some(0));

        let seen =
            run(&["--mount", ".:ro", "--", "sh", "-c", "cat changed; touch x 2>/dev/null || echo ' no'"]);
        assert_eq!((seen.code, seen.stdout.as_str()), (Some(0), "new no\n"), "{}", seen.stderr);
        let seen = run(&["--mount", ".:rw", "--", "true"]);
        assert!(seen.code == Some(125) && seen.stderr.contains("for reading only"), "{seen:?}");
        assert_eq!(home.warren(&["down"]).code, Some(0));
        home.assert_nothing_left();
    }
}

#[test]
fn help_of_each_command_is_there_and_says_how_it_is_used() {
    let Some(home) = LocalHome::new() else { return };
    let help = home.warren(&["--help"]).stdout;
    for command in [
        "run",
        "warmup",
        "status",
        "stop",
        "cleanup",
        "list",
        "top",
        "diff",
        "apply",
        "man",
        "suspend",
        "resume",
        "pool",
        "template",
        "history",
        "config",
        "doctor",
        "completion",
        "version",
    ] {
        assert!(help.contains(&format!("  {command} ")), "{command}: {help}");
        let own = home.warren(&[command, "--help"]);
        assert!(own.code == Some(0) && own.stdout.contains("Usage: warren"), "{command}: {own:?}");
    }
    assert!(home.warren(&["warmup", "--help"]).stdout.contains("Examples:"));
}
