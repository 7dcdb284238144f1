//! SIGINT, SIGTERM and SIGHUP for a command that has something to clean up.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::terminal;

/// What arrives when somebody wants the command to end. The first signal is told to whoever asks; the second
/// ends the process on the spot, for when cleaning up does not come to an end.
#[derive(Clone, Debug)]
pub struct Interrupt {
    first: watch::Receiver<Option<i32>>,
}

impl Interrupt {
    /// Takes the signals over from now on.
    pub fn listen() -> std::io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let (sender, first) = watch::channel(None);
        tokio::spawn(async move {
            loop {
                let number = tokio::select! {
                    _ = interrupt.recv() => SignalKind::interrupt(),
                    _ = terminate.recv() => SignalKind::terminate(),
                    _ = hangup.recv() => SignalKind::hangup(),
                }
                .as_raw_value();
                if sender.send_replace(Some(number)).is_some() {
                    terminal::restore();
                    std::process::exit(exit_code(number));
                }
            }
        });
        Ok(Self { first })
    }

    /// Waits for the first signal and returns its number; at once if it has come already.
    pub async fn wait(&mut self) -> i32 {
        match self.first.wait_for(Option::is_some).await {
            Ok(number) => number.unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }
}

/// The exit code by which shells report that a signal ended a command.
pub fn exit_code(signal: i32) -> i32 {
    128 + signal
}
