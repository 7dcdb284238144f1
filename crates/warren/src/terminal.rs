//! Manages the terminal that `run` connects to the command in the sandbox: raw mode, its size, and
//! the way back.

use std::io::IsTerminal as _;
use std::sync::Mutex;

use rustix::fs::FileType;
use rustix::termios::{self, OptionalActions, Termios};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use warren_client::exec::TerminalSize;

/// The terminal's mode before it became raw. Global, because a second signal ends the process from
/// any place, and must leave a usable terminal behind.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Returns true if standard input and output are terminals.
pub fn interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Returns true if standard input is `/dev/null`: such a command needs no stream for it.
pub fn stdin_is_null() -> bool {
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::fstat(rustix::stdio::stdin()).is_ok_and(|status| {
        FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice && status.st_rdev == null
    })
}

/// A guard for raw mode; the terminal is restored when it is dropped.
#[derive(Debug)]
pub struct RawMode(());

impl RawMode {
    /// Makes the terminal on standard input raw: every key goes to the command, including Ctrl-C.
    pub fn enter() -> std::io::Result<Self> {
        let before = termios::tcgetattr(rustix::stdio::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw)?;
        if let Ok(mut slot) = BEFORE.lock() {
            *slot = Some(before);
        }
        Ok(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal's mode, if it was made raw.
pub fn restore() {
    if let Ok(mut slot) = BEFORE.lock()
        && let Some(before) = slot.take()
    {
        // A terminal that is gone cannot be restored.
        let _ = termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &before);
    }
}

/// Returns the present size of the terminal, and each new one.
pub fn sizes() -> std::io::Result<mpsc::Receiver<TerminalSize>> {
    let mut changes = signal(SignalKind::window_change())?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            if let Ok(size) = termios::tcgetwinsize(rustix::stdio::stdout()) {
                let size = TerminalSize { width: size.ws_col, height: size.ws_row };
                if sender.send(size).await.is_err() {
                    return;
                }
            }
            if changes.recv().await.is_none() {
                return;
            }
        }
    });
    Ok(receiver)
}
