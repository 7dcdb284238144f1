//! Tests the promises of the README and of issue 3 for the local home, with the real binary.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use warren_e2e::local_home::{Ended, LocalHome, warren_binary};

fn ended(code: i32, stdout: &str, stderr: &str) -> Ended {
    Ended { code: Some(code), stdout: stdout.to_owned(), stderr: stderr.to_owned() }
}

#[test]
fn streams_stay_apart_and_the_exit_code_is_passed_on() {
    let Some(home) = LocalHome::new() else { return };
    // The first command starts the home by itself, and prints nothing about it.
    assert_eq!(home.shell("echo out; echo err >&2; exit 7"), ended(7, "out\n", "err\n"));
    assert_eq!(home.warren(&["run", "--", "true"]), ended(0, "", ""));
    home.assert_nothing_left();
}

#[test]
fn input_reaches_the_command_and_its_end_does_too() {
    let Some(home) = LocalHome::new() else { return };
    let data: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 253) as u8).collect();
    let output = home.warren_with_input(&["run", "--", "cat"], &data);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == data, "{} bytes of {} came back", output.stdout.len(), data.len());
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let Some(home) = LocalHome::new() else { return };
    for (signal, code) in [(rustix::process::Signal::INT, 130), (rustix::process::Signal::TERM, 143)] {
        let mut child = home.spawn(&["run", "--", "sh", "-c", "echo started; sleep 1000"]);
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("read");
        assert_eq!(line, "started\n");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).expect("send the signal");
        assert_eq!(child.wait().expect("wait").code(), Some(code));
        home.assert_nothing_left();
    }
}

#[test]
fn fifty_runs_at_once_all_succeed() {
    let Some(home) = LocalHome::new() else { return };
    // The home was never started: fifty commands notice at once that it does not run.
    let children: Vec<_> = (0..50)
        .map(|number| home.spawn(&["run", "--", "sh", "-c", &format!("cat; exit {number}")]))
        .collect();
    for (number, mut child) in children.into_iter().enumerate() {
        drop(child.stdin.take());
        let ended_ = Ended::from(child.wait_with_output().expect("wait"));
        assert_eq!(ended_, ended(i32::try_from(number).expect("small"), "", ""), "run {number}");
    }
    home.assert_nothing_left();
}

#[test]
fn a_command_that_does_not_exist_is_said_to_be_so() {
    let Some(home) = LocalHome::new() else { return };
    let ended = home.warren(&["run", "--", "no-such-command"]);
    assert_eq!(ended.code, Some(127), "{ended:?}");
    assert!(ended.stderr.contains("no-such-command"), "{ended:?}");
    home.assert_nothing_left();
}

#[test]
fn environment_directory_and_limits_are_what_was_asked_for() {
    let Some(home) = LocalHome::new() else { return };
    let script = "echo $GREETING; pwd; cat /sys/fs/cgroup/memory.max 2>/dev/null || true";
    let flags = ["run", "--env", "GREETING=hello there", "--workdir", "/tmp", "--memory", "64Mi"];
    let ended = home.warren(&[&flags[..], &["--", "sh", "-c", script]].concat());
    assert!(ended.stdout.starts_with("hello there\n/tmp\n"), "{ended:?}");
}

#[test]
fn a_terminal_is_passed_through() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    // `script` gives the command a terminal of its own.
    let command = format!("{} run -- sh -c 'tty && stty size'", warren_binary().display());
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("WARREN_HOME", home.path())
        .current_dir("/")
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: no `script` on this machine");
        return;
    };
    let ended = Ended::from(output);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("/dev/pts/") || ended.stdout.contains("/dev/console"), "{ended:?}");
}

#[test]
fn up_and_down_can_be_said_twice() {
    let Some(home) = LocalHome::new() else { return };
    let first = home.up();
    let again = home.warren(&["up", "--detach"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.stderr.contains(&format!("is already running (process {first})")), "{again:?}");
    let here = home.warren(&["up"]);
    assert_eq!(here.code, Some(0), "{here:?}");
    assert!(here.stderr.contains("is already running"), "{here:?}");

    let kubeconfig = home.warren(&["kubeconfig"]);
    assert_eq!(std::path::Path::new(kubeconfig.stdout.trim()).file_name(), Some("kubeconfig".as_ref()));

    assert_eq!(home.warren(&["down"]).code, Some(0));
    let again = home.warren(&["down"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.stderr.starts_with("No local home was running"), "{again:?}");
    home.assert_nothing_left();
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let Some(home) = LocalHome::new() else { return };
    let mut child = home.spawn(&["run", "--", "yes"]);
    let mut first = [0; 2];
    child.stdout.take().expect("piped").read_exact(&mut first).expect("read");
    let ended = Ended::from(child.wait_with_output().expect("wait"));
    assert_eq!(ended, self::ended(141, "", ""));
    home.assert_nothing_left();
}

#[test]
fn the_binary_needs_nothing_but_itself() {
    let Some(home) = LocalHome::new() else { return };
    let root = home.path().join("root");
    std::fs::create_dir(&root).expect("make a directory");
    std::fs::copy(warren_binary(), root.join("warren")).expect("copy the binary");
    let output = Command::new("chroot").arg(&root).args(["/warren", "version"]).output().expect("run chroot");
    let ended = Ended::from(output);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.starts_with("warren "), "{ended:?}");
}

#[tokio::test]
async fn metrics_of_the_controllers_are_served_by_the_api() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    assert_eq!(home.warren(&["run", "--", "true"]), ended(0, "", ""));
    let client = home.client().await;
    let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
    let page = client.request_text(request).await.expect("ask for metrics");
    for wanted in [
        "# TYPE agent_sandbox_build_info gauge",
        "# TYPE controller_runtime_reconcile_total counter",
        "rest_client_requests_total{code=\"201\",host=\"in-process\",method=\"POST\"} ",
        "process_resident_memory_bytes",
    ] {
        assert!(page.contains(wanted), "{wanted} is not in:\n{page}");
    }
}
