//! Handles signals for a command that has to clean up, or that forwards them to a sandbox.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::terminal;

/// The handled signals: those that a user, a shell or a supervisor sends.
const HEEDED: [(i32, &str); 6] =
    [(1, "HUP"), (2, "INT"), (3, "QUIT"), (10, "USR1"), (12, "USR2"), (15, "TERM")];

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(pub i32);

/// The response to a signal while a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Forward it to the command.
    Forward,
    /// Stop waiting for the command.
    HangUp,
}

impl Signal {
    /// The signal of Ctrl-C.
    pub const INT: Self = Self(2);
    /// The signal that supervisors send.
    pub const TERM: Self = Self(15);

    /// Returns its name, as `kill` accepts it.
    pub fn name(self) -> &'static str {
        HEEDED.iter().find(|(number, _)| *number == self.0).map_or("TERM", |(_, name)| *name)
    }

    /// Returns the exit code with which shells report that it ended a command.
    pub fn exit_code(self) -> i32 {
        128 + self.0
    }

    /// Returns true if it asks the command to end. The meaning of `USR1` and `USR2` depends on the
    /// command.
    pub fn ends(self) -> bool {
        !matches!(self.name(), "USR1" | "USR2")
    }

    /// Returns true for a signal that a terminal sends to all processes in the foreground.
    pub fn is_for_the_group(self) -> bool {
        matches!(self.name(), "HUP" | "INT" | "QUIT")
    }

    /// Decides how to respond to it, after `earlier` ones asked the command to end.
    pub fn response(self, earlier: usize) -> Response {
        match self.ends() && earlier > 0 {
            true => Response::HangUp,
            false => Response::Forward,
        }
    }
}

/// The signals of this process since this was created.
#[derive(Debug)]
pub struct Signals {
    incoming: mpsc::UnboundedReceiver<Signal>,
}

impl Signals {
    /// Starts to handle the signals.
    pub fn listen() -> std::io::Result<Self> {
        let (sender, incoming) = mpsc::unbounded_channel();
        for (number, _) in HEEDED {
            let mut stream = signal(SignalKind::from_raw(number))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(Signal(number)).is_ok() {}
            });
        }
        Ok(Self { incoming })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Signal {
        match self.incoming.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// Waits for one that asks to end.
    pub async fn ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if signal.ends() {
                return signal;
            }
        }
    }

    /// Ends this process at the next signal: a second signal means that the user does not want to
    /// wait for the cleanup.
    pub fn end_at_the_next(mut self) {
        tokio::spawn(async move {
            let signal = self.ending().await;
            terminal::restore();
            std::process::exit(signal.exit_code());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_request_to_end_hangs_up_and_user_signals_never_do() {
        for (number, earlier, expected) in [
            (2, 0, Response::Forward),
            (2, 1, Response::HangUp),
            (15, 1, Response::HangUp),
            (10, 1, Response::Forward),
            (12, 5, Response::Forward),
        ] {
            assert_eq!(Signal(number).response(earlier), expected, "{number} {earlier}");
        }
    }

    #[test]
    fn names_and_codes_are_those_of_a_shell() {
        assert_eq!((Signal(15).name(), Signal(15).exit_code()), ("TERM", 143));
        assert_eq!((Signal(2).name(), Signal(2).exit_code()), ("INT", 130));
    }
}
