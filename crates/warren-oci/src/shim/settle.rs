//! Handles changes of processes: started, failed to start, ended.

use jiff::Timestamp;
use warren_sys::process::Exit;

use super::Shim;
use super::log::Stream;
use crate::container::{self, PodNamespaces};
use crate::protocol::{Answer, ContainerStatus, Event, ExitStatus, ProcessName};

impl Shim {
    /// Handles that a container's first process has become its program or failed.
    pub(super) fn settle_start(&mut self, name: &str) {
        let Some(guest) = self.guests.get_mut(name) else { return };
        let Some(container) = &mut guest.container else { return };
        let Some(report) = container.report.take() else { return };
        let result = match container::read_report(&report) {
            Some(refusal) => {
                let _ = container.child.wait();
                container.remove_cgroup();
                guest.container = None;
                guest.status =
                    ContainerStatus::Failed { refusal: refusal.clone(), finished_at: Timestamp::now() };
                self.record_first = true;
                Err(refusal)
            }
            None => {
                let pid = container.child.pid();
                // A process that has already ended is a zombie until it is reaped, so it still has
                // a start time.
                let process = ProcessName::of(pid).unwrap_or(ProcessName { pid, start_ticks: 0 });
                guest.status = ContainerStatus::Running { process, started_at: Timestamp::now() };
                guest.is_watched = false;
                if self.pod.activation.is_some()
                    && let Some(Err(error)) = self.namespaces.as_mut().map(PodNamespaces::take_over_network)
                {
                    complain!("warren: shim: take over the network from {name}: {error}");
                }
                Ok(())
            }
        };
        self.dirty = true;
        let asker = guest.asker.take();
        self.look_soon();
        if let Some(asker) = asker {
            let result = result.map(|()| Answer::State { state: self.state() });
            self.clients.reply(asker, result, Vec::new());
        }
    }

    /// Handles the end of a container's first process, and with it of its whole pid namespace.
    pub(super) fn settle_exit(&mut self, name: &str) {
        // Its report may not have been read yet.
        self.settle_start(name);
        let Some(guest) = self.guests.get_mut(name) else { return };
        let Some(container) = &guest.container else { return };
        let exit = match container.child.try_wait() {
            Ok(Some(exit)) => exit,
            Ok(None) => return,
            Err(error) => {
                complain!("warren: shim: wait for {name}: {error}");
                Exit::Signal(libc::SIGKILL)
            }
        };
        for stream in [Stream::Stdout, Stream::Stderr] {
            // Read everything that is left. It fits into a pipe, because no process can write any
            // more.
            guest.pump(stream, usize::MAX, |bytes| {
                self.attachments.show(name, stream, bytes);
                true
            });
            self.attachments.end(name, stream);
        }
        guest.log.finish();
        guest.read_limit_events();
        let started_at = match guest.status {
            ContainerStatus::Running { started_at, .. } => started_at,
            _ => Timestamp::now(),
        };
        let oom_killed = exit == Exit::Signal(libc::SIGKILL) && guest.oom_kills > 0;
        guest.status = ContainerStatus::Exited {
            exit: exit_status(exit, oom_killed),
            started_at,
            finished_at: Timestamp::now(),
        };
        guest.watches.clear();
        if let Some(mut container) = guest.container.take() {
            // Store these before clients learn of the end and look for them.
            container.keep_messages();
            container.remove_cgroup();
        }
        self.dirty = true;
        self.record_first = true;
    }

    pub(super) fn settle_exec_start(&mut self, number: u64) {
        let Some(process) = self.execs.get_mut(&number) else { return };
        let Some(report) = process.exec.report.take() else { return };
        let asker = process.asker;
        let pid = process.exec.child.pid();
        let streams = std::mem::take(&mut process.exec.streams);
        match container::read_report(&report) {
            Some(refusal) => {
                let _ = process.exec.child.wait();
                self.execs.remove(&number);
                match asker {
                    Some(asker) => self.clients.reply(asker, Err(refusal), Vec::new()),
                    None => self.activation.ended(Some(&refusal.message)),
                }
            }
            None => {
                if let Some(asker) = asker {
                    self.clients.reply(asker, Ok(Answer::Exec { exec: number, pid }), streams);
                }
            }
        }
    }

    pub(super) fn settle_exec_exit(&mut self, number: u64) {
        self.settle_exec_start(number);
        let Some(process) = self.execs.get(&number) else { return };
        let exit = match process.exec.child.try_wait() {
            Ok(Some(exit)) => exit,
            Ok(None) => return,
            Err(_) => Exit::Signal(libc::SIGKILL),
        };
        let Some(process) = self.execs.remove(&number) else { return };
        let mut oom_kills = process.oom_kills_before;
        if let Some(guest) = self.guests.get_mut(&process.container) {
            self.dirty |= guest.read_limit_events();
            oom_kills = guest.oom_kills;
        }
        let oom_killed = oom_kills > process.oom_kills_before && was_killed(exit);
        self.look_soon();
        match process.asker {
            Some(asker) => {
                let event = Event::ExecExited { exec: number, exit: exit_status(exit, oom_killed) };
                self.clients.tell(asker.client, event);
            }
            None => self.activation.ended(None),
        }
    }
}

/// Returns true if the process was killed. A shell reports a killed child by its own exit code.
fn was_killed(exit: Exit) -> bool {
    matches!(exit, Exit::Signal(libc::SIGKILL) | Exit::Code(137))
}

fn exit_status(exit: Exit, oom_killed: bool) -> ExitStatus {
    match exit {
        Exit::Code(code) => ExitStatus { code, signal: None, oom_killed },
        Exit::Signal(signal) => ExitStatus { code: 128 + signal, signal: Some(signal), oom_killed },
    }
}
