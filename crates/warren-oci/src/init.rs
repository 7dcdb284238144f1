//! The first process of a container that has nothing better to run: it keeps the container alive, reaps what is orphaned
//! inside, and goes when asked to.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{Signal, WaitOptions};
use warren_sys::process;

const SIGCHLD: i32 = Signal::CHILD.as_raw();
const SIGTERM: i32 = Signal::TERM.as_raw();
const SIGINT: i32 = Signal::INT.as_raw();

/// Runs until `SIGTERM` or `SIGINT`. Ending pid 1 ends every other process of the container, so nothing is forwarded.
pub fn run() -> io::Result<()> {
    let signals = process::signal_descriptor(&[SIGCHLD, SIGTERM, SIGINT])?;
    loop {
        match process::read_signal(signals.as_fd()) {
            Ok(SIGTERM | SIGINT) => return Ok(()),
            Ok(_) => reap(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// One SIGCHLD may stand for many children.
fn reap() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}
