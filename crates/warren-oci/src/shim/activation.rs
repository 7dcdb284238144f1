//! Starts the program of an [`Activation`](crate::protocol::Activation) when a client connects to
//! its port. A sandbox without clients costs one socket.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::Shim;
use super::guest::ExecProcess;
use crate::container;
use crate::protocol::ContainerStatus;

/// A program that ends sooner than this has failed. It is started again with a growing delay.
const LIVED: Duration = Duration::from_secs(10);
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct ActivationState {
    /// The start time, if it runs.
    running_since: Option<Instant>,
    /// Failures in a row.
    failures: u32,
    not_before: Option<Instant>,
}

impl ActivationState {
    /// Returns the time from which it may be started again, if that is in the future.
    pub(super) fn not_before(&self) -> Option<Instant> {
        self.not_before.filter(|time| *time > Instant::now())
    }

    /// Records that the program has ended, or could not be run.
    pub(super) fn ended(&mut self, problem: Option<&str>) {
        let lived = self.running_since.take().is_some_and(|since| since.elapsed() >= LIVED);
        if let Some(problem) = problem {
            complain!("warren: shim: start the activated program: {problem}");
        }
        if lived {
            self.failures = 0;
            self.not_before = None;
        } else {
            self.not_before = Some(Instant::now() + delay(self.failures));
            self.failures = self.failures.saturating_add(1);
        }
    }
}

fn delay(failures: u32) -> Duration {
    FIRST_DELAY.saturating_mul(1 << failures.min(16)).min(LONGEST_DELAY)
}

impl Shim {
    /// Returns the sockets on which a connection would start the program. Empty while it runs or
    /// cannot run.
    pub(super) fn awaited_connections(&self) -> &[OwnedFd] {
        let (Some(activation), Some(namespaces)) = (&self.pod.activation, &self.namespaces) else {
            return &[];
        };
        let guest = self.guests.get(&activation.container);
        let can_run = guest.is_some_and(|guest| matches!(guest.status, ContainerStatus::Running { .. }));
        if !can_run || self.activation.running_since.is_some() || self.paused || self.closing.is_some() {
            return &[];
        }
        namespaces.activation()
    }

    pub(super) fn activate(&mut self) {
        let listeners = self.awaited_connections();
        if listeners.is_empty() {
            return;
        }
        let Some(activation) = &self.pod.activation else { return };
        let Some(guest) = self.guests.get(&activation.container) else { return };
        let Some(container) = &guest.container else { return };
        let oom_kills_before = container.cgroup.oom_kills().unwrap_or(guest.oom_kills);
        let started = container::activate(&self.workshop, container, activation, listeners);
        let container = activation.container.clone();
        match started {
            Ok(exec) => {
                let number = self.next_exec;
                self.next_exec += 1;
                self.activation.running_since = Some(Instant::now());
                self.execs.insert(number, ExecProcess { container, exec, asker: None, oom_kills_before });
            }
            Err(refusal) => self.activation.ended(Some(&refusal.message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_started_later_and_later() {
        assert_eq!(delay(0), FIRST_DELAY);
        assert_eq!(delay(3), Duration::from_millis(800));
        assert_eq!(delay(100), LONGEST_DELAY);
        let mut state = ActivationState::default();
        state.ended(None);
        assert!(state.not_before().is_some());
        assert_eq!(state.failures, 1);
    }
}
