//! Tests `warren up` as a process: its addresses, and its shutdown.

use std::ffi::OsString;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpriority_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use warren_e2e::embedded::connect;
use warren_e2e::foreground::{Foreground, zygote_of};
use warren_e2e::local_home::LocalHome;
use warren_testkit::privileges::skip_without_root;

const DEADLINE: Duration = Duration::from_secs(60);
/// The promised seconds, with time for a busy machine. An open watch would otherwise delay the end
/// by half an hour.
const SECONDS: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_ends_it_in_seconds_whatever_its_clients_do() {
    if skip_without_root() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT] {
        let directory = tempfile::tempdir().expect("make a data directory");
        let (log, socket) = (directory.path().join("log"), directory.path().join("api.sock"));
        let mut daemon = Foreground::spawn(directory.path(), &[], &[], &log);
        assert!(daemon.expect_ready().started);
        let mut clients = Vec::new();
        // A watch, a body that does not come, an idle connection.
        for words in [
            "GET /api/v1/pods?watch=true HTTP/1.1\r\nHost: x\r\n\r\n",
            "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
            "",
        ] {
            let mut client = connect(&socket).await;
            client.write_all(words.as_bytes()).await.expect("write");
            clients.push(client);
        }
        let mut head = [0; 12];
        clients[0].read_exact(&mut head).await.expect("the watch is on");
        assert_eq!(&head, b"HTTP/1.1 200");
        daemon.signal(signal);
        let status = tokio::task::block_in_place(|| daemon.wait(SECONDS));
        let words = std::fs::read_to_string(&log).expect("read the log");
        assert!(status.is_some_and(|status| status.success()), "{status:?}\n{words}");
        assert!(words.contains("stopped"), "{words}");
        assert!(!socket.exists(), "the socket is gone with it");
    }
}

#[test]
fn a_second_one_says_that_there_is_one() {
    if skip_without_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("make a data directory");
    let log = directory.path().join("log");
    let mut first = Foreground::spawn(directory.path(), &[], &[], &log);
    let ready = first.expect_ready();
    assert_eq!((ready.pid, ready.started), (first.pid(), true));
    let mut second = Foreground::spawn(directory.path(), &[], &[], &log);
    let ready = second.expect_ready();
    assert_eq!((ready.pid, ready.started), (first.pid(), false));
    assert!(second.wait(DEADLINE).is_some_and(|status| status.success()));
}

#[test]
fn flags_that_a_running_home_does_not_have_are_an_error_that_says_how_to_apply_them() {
    let Some(home) = LocalHome::new() else { return };
    let flags = ["up", "--detach", "--allow-host-path", "/usr/share"];
    let pid = home.up();
    let refused = home.warren(&flags);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for words in [
        "is already running",
        "these flags were not applied: `--allow-host-path /usr/share` (it runs without)",
        "hint: stop it with `warren down --keep`",
    ] {
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    let refused = home.warren(&[&flags[..], &["--output", "json"]].concat());
    let report: serde_json::Value = serde_json::from_str(&refused.stdout).expect("JSON");
    assert_eq!(report["notApplied"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(home.up(), pid, "without flags there is nothing to apply");

    assert_eq!(home.warren(&["down", "--keep"]).code, Some(0));
    for _ in 0..2 {
        let applied = home.warren(&flags);
        assert_eq!(applied.code, Some(0), "{applied:?}");
    }
}

#[test]
fn an_open_data_directory_is_closed_to_other_users_with_the_files_of_an_older_version() {
    use std::fs::{Permissions, metadata, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;
    for home in [LocalHome::new(), LocalHome::of_an_ordinary_user()].into_iter().flatten() {
        let mode = |name: &str| {
            let path = home.path().join(name);
            metadata(&path).unwrap_or_else(|error| panic!("{name}: {error}")).permissions().mode() & 0o777
        };
        let set = |name: &str, mode| {
            set_permissions(home.path().join(name), Permissions::from_mode(mode)).expect("set the mode");
        };
        let secrets = [
            "api.sock",
            "audit.log",
            "daemon.log",
            "kubeconfig",
            "lock",
            "pki/admin.key",
            "pki/ca.key",
            "start.lock",
            "store.db",
            "store.db-wal",
        ];
        set("", 0o755);
        home.up();
        for name in secrets {
            assert_eq!(mode(name), 0o600, "{name} of a new home");
        }
        // A kill leaves the store's log.
        let pid = Pid::from_raw(home.up().cast_signed()).expect("a pid");
        rustix::process::kill_process(pid, Signal::KILL).expect("kill the daemon");
        for name in secrets {
            set(name, 0o644);
        }
        set("pki", 0o755);
        set("", 0o755);
        home.up();
        assert_eq!((mode(""), mode("pki")), (0o700, 0o700));
        for name in secrets {
            assert_eq!(mode(name), 0o600, "{name} of an older home");
        }
    }
}

#[test]
fn it_listens_where_it_is_told_and_says_when_it_cannot() {
    if skip_without_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("make a data directory");
    let log = directory.path().join("log");
    // Another loopback address than the default one, to show that it is used.
    let taken = std::net::TcpListener::bind("127.0.0.2:0").expect("listen");
    let address = taken.local_addr().expect("an address").to_string();
    let mut daemon = Foreground::spawn(directory.path(), &[], &["--listen", &address], &log);
    assert_eq!(daemon.wait_ready(), None);
    assert!(daemon.wait(DEADLINE).is_some_and(|status| !status.success()));
    let words = std::fs::read_to_string(&log).expect("read the log");
    assert!(words.contains(&format!("listen on `{address}`")) && words.contains("in use"), "{words}");
    drop(taken);

    let mut daemon = Foreground::spawn(directory.path(), &[], &["--listen", &address], &log);
    daemon.expect_ready();
    let kubeconfig =
        std::fs::read_to_string(directory.path().join("kubeconfig")).expect("read the kubeconfig");
    assert!(kubeconfig.contains(&format!("https://{address}")), "{kubeconfig}");
    std::net::TcpStream::connect(&address).expect("somebody listens");
    daemon.kill();

    // By default it is reachable on loopback only.
    let mut daemon = Foreground::spawn(directory.path(), &[], &[], &log);
    daemon.expect_ready();
    let kubeconfig =
        std::fs::read_to_string(directory.path().join("kubeconfig")).expect("read the kubeconfig");
    assert!(kubeconfig.contains("https://127.0.0.1:"), "{kubeconfig}");
}

#[test]
fn it_goes_ahead_of_what_runs_in_sandboxes() {
    if skip_without_root() {
        return;
    }
    // On a thread, which ends with the attempt. In some containers root may not do this.
    let may = std::thread::spawn(|| rustix::process::nice(-1).is_ok()).join().expect("the thread");
    let ahead = if may { 10 } else { 0 };
    let directory = tempfile::tempdir().expect("make a data directory");
    let log = directory.path().join("log");
    let mut daemon = Foreground::spawn(directory.path(), &[], &[], &log);
    let pid = daemon.expect_ready().pid;
    let usual = priority_of(std::process::id());
    assert_eq!(priority_of(pid), usual - ahead);
    let writer = threads_of(pid).into_iter().find(|(_, name)| name == "store-writer");
    let (writer, _) = writer.expect("it has a store");
    assert_eq!(priority_of(writer), (usual - 2 * ahead).max(-20), "everybody waits for the disk");
    assert_eq!(is_first_at_disks(writer), may);
    if let (Some(turn), Some(usual)) = (turn_of(writer), turn_of(std::process::id())) {
        assert!(turn < usual, "a turn of {turn} ns beside {usual} ns");
    }
    let of_node: Vec<u32> =
        threads_of(pid).into_iter().filter(|(_, name)| name == "node").map(|(thread, _)| thread).collect();
    assert!(!of_node.is_empty());
    for of_sandboxes in of_node.into_iter().chain([zygote_of(pid)]) {
        assert_eq!(priority_of(of_sandboxes), usual);
        assert!(!is_first_at_disks(of_sandboxes));
    }
}

/// Returns true if disks serve a thread before others.
fn is_first_at_disks(thread: u32) -> bool {
    let output = std::process::Command::new("ionice")
        .args(["-p", &thread.to_string()])
        .output()
        .expect("run `ionice`");
    String::from_utf8_lossy(&output.stdout).starts_with("realtime")
}

/// If the kernel first shares the processors among sessions, the priorities of threads have no
/// effect on other sessions.
#[test]
fn its_session_goes_ahead_of_those_of_sandboxes_but_never_the_terminal_it_was_started_from() {
    let (Some(home), Some(usual)) = (LocalHome::new(), session_of(std::process::id())) else { return };
    let may = std::thread::spawn(|| rustix::process::nice(-1).is_ok()).join().expect("the thread");
    let pid = home.up();
    let ahead = if may { "nice -10" } else { "nice 0" };
    let session = session_of(pid).expect("it has a session");
    assert!(session.ends_with(ahead), "{session}");
    let of_sandboxes = session_of(zygote_of(pid)).expect("it has a session");
    assert!(of_sandboxes.ends_with("nice 0"), "{of_sandboxes}");

    let directory = tempfile::tempdir().expect("make a data directory");
    let log = directory.path().join("log");
    Foreground::spawn(directory.path(), &[], &[], &log).expect_ready();
    assert_eq!(session_of(std::process::id()), Some(usual));
}

/// In some containers a process's session began outside, and its leader has no number there.
#[test]
fn it_starts_where_its_session_cannot_be_seen() {
    if skip_without_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("make a data directory");
    let log = directory.path().join("log");
    let wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"].map(OsString::from);
    let mut daemon = Foreground::spawn(directory.path(), &wrapper, &[], &log);
    assert_eq!(daemon.expect_ready().pid, 1, "the first of its process namespace");
}

/// Returns a process's session as the scheduler sees it, with its priority; `None` if it schedules
/// processes alone.
fn session_of(process: u32) -> Option<String> {
    let session = std::fs::read_to_string(format!("/proc/{process}/autogroup")).ok()?;
    Some(session.trim().to_owned()).filter(|session| !session.is_empty())
}

fn priority_of(thread: u32) -> i32 {
    let thread = Pid::from_raw(thread.cast_signed());
    getpriority_process(thread).expect("it runs")
}

/// Returns a thread's time slice in nanoseconds, if the kernel reports it.
fn turn_of(thread: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/sched")).ok()?;
    let line = text.lines().find(|line| line.starts_with("se.slice"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

fn threads_of(pid: u32) -> Vec<(u32, String)> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let threads = threads.map(|thread| thread.expect("it runs").path());
    let named = threads.filter_map(|thread| {
        let name = std::fs::read_to_string(thread.join("comm")).ok()?;
        Some((thread.file_name()?.to_str()?.parse().ok()?, name.trim().to_owned()))
    });
    named.collect()
}
