//! Tests the init of containers, in the place of a shell that has a child. The tests of containers
//! run it as a first process.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use warren_sys::init;

const DEADLINE: Duration = Duration::from_secs(30);

#[expect(clippy::disallowed_methods, reason = "a condition is polled, with a deadline")]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start(directory: &std::path::Path, command: &str) -> Child {
    let program = directory.join("init");
    fs::write(&program, init::PROGRAM).expect("write the program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("make it a program");
    Command::new("sh").args(["-c", command]).current_dir(directory).spawn().expect("start a shell")
}

/// Returns the state of a process from `/proc`: one letter.
fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[test]
fn it_waits_reaps_its_children_and_ends_when_asked() {
    for signal in [Signal::TERM, Signal::INT] {
        let directory = tempfile::tempdir().expect("make a directory");
        // The shell becomes init, which then has a child that it did not start.
        let mut init = start(directory.path(), "sleep 0.2 & echo $! > child; exec ./init");
        let pid = init.id().cast_signed();
        let child = directory.path().join("child");
        wait_until("the shell has a child", || {
            fs::read_to_string(&child).is_ok_and(|text| text.ends_with('\n'))
        });
        let child: i32 = fs::read_to_string(&child).expect("read").trim().parse().expect("a number");
        wait_until("the child is gone, not only dead", || state(child).is_none());
        assert_eq!(state(pid), Some('S'), "it waits");
        kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("send a signal");
        let status = init.wait().expect("wait");
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{signal:?}");
    }
}

#[test]
fn it_is_one_page() {
    assert!(init::PROGRAM.starts_with(b"\x7fELF") && init::PROGRAM.len() <= 4096, "{}", init::PROGRAM.len());
}
