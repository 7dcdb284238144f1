//! Pseudo-terminals of a given `devpts` instance.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// A terminal.
#[derive(Debug)]
pub struct Pty {
    /// The user's end.
    pub master: OwnedFd,
    /// The program's end.
    pub slave: OwnedFd,
}

/// Opens a terminal of the `devpts` instance mounted at `devpts`. It is opened through the mount's
/// descriptor, so no name that a container can replace is looked up.
pub fn open(devpts: BorrowedFd<'_>, columns: u16, rows: u16) -> io::Result<Pty> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::openat(devpts, "ptmx", flags, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(
        &master,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )?;
    resize(master.as_fd(), columns, rows)?;
    Ok(Pty { master, slave })
}

/// Sets the size of a terminal and notifies its programs.
pub fn resize(terminal: BorrowedFd<'_>, columns: u16, rows: u16) -> io::Result<()> {
    Ok(rustix::termios::tcsetwinsize(
        terminal,
        Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 },
    )?)
}

/// Makes `terminal` the controlling terminal of the calling process, which must lead a session.
pub fn take_control(terminal: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::process::ioctl_tiocsctty(terminal)?)
}

/// Returns the number of a terminal in its `devpts` instance, given its master.
pub fn number(master: BorrowedFd<'_>) -> io::Result<u32> {
    let name = rustix::pty::ptsname(master, Vec::new())?;
    name.to_str()
        .ok()
        .and_then(|name| name.rsplit('/').next()?.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the terminal has no number"))
}
