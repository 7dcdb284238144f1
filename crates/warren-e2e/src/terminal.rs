//! Runs commands on a terminal, as a user would.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::pty::OpenptFlags;
use rustix::termios::{Winsize, tcsetwinsize};

/// A command on a terminal of the test's.
#[derive(Debug)]
pub struct OnTerminal {
    child: Child,
    terminal: File,
    seen: String,
}

impl OnTerminal {
    /// Starts it on a terminal of this size.
    pub fn start(mut command: Command, rows: u16, columns: u16) -> Self {
        let terminal = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("open a terminal");
        rustix::pty::grantpt(&terminal).expect("grant");
        rustix::pty::unlockpt(&terminal).expect("unlock");
        let name = rustix::pty::ptsname(&terminal, Vec::new()).expect("a name");
        let other: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().expect("plain text"))
            .expect("open its other side")
            .into();
        resize(&terminal, rows, columns);
        let stream = || Stdio::from(other.try_clone().expect("duplicate"));
        let child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().expect("run kubectl");
        Self { child, terminal: terminal.into(), seen: String::new() }
    }

    /// Resizes the terminal.
    pub fn resize(&self, rows: u16, columns: u16) {
        resize(&self.terminal, rows, columns);
        // It is not the command's controlling terminal, so the signal is sent from here.
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::WINCH).expect("tell of the size");
    }

    /// Types a text.
    pub fn type_in(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).expect("type");
    }

    /// Reads until this text has come, and forgets the text before it.
    pub fn read_until(&mut self, wanted: &str) -> String {
        while !self.seen.contains(wanted) {
            let mut buffer = [0; 4096];
            let length = self.terminal.read(&mut buffer).unwrap_or(0);
            assert!(length > 0, "ended before {wanted:?}: {:?}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
        std::mem::take(&mut self.seen)
    }

    /// Waits for its end, and returns its exit code.
    pub fn end(mut self) -> Option<i32> {
        // Its output must be read, or it would block.
        let mut rest = Vec::new();
        let _ = self.terminal.read_to_end(&mut rest);
        self.child.wait().expect("wait").code()
    }
}

fn resize(terminal: impl std::os::fd::AsFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("set the size");
}
