//! Handles the requests of clients.

use std::io;
use std::os::fd::OwnedFd;

use warren_sys::cgroup::Cgroup;

use super::Shim;
use super::clients::Asker;
use super::guest::{ExecProcess, Guest};
use crate::container;
use crate::protocol::{
    Answer, Call, ContainerRequest, ContainerStatus, ExecRequest, MemoryVolume, Refusal, RefusalReason,
    Request, RuntimeKind, Target, TerminalSize,
};
use crate::timeline::Timeline;

impl Shim {
    pub(super) fn serve_client(&mut self, number: u64) {
        // Serve one request per turn, so that a busy client does not starve the containers.
        let request = self
            .clients
            .all
            .iter_mut()
            .find(|client| client.number == number)
            .and_then(|client| client.receive());
        if let Some(Request { id, call }) = request {
            let asker = Asker { client: number, request: id };
            match self.serve(asker, call) {
                Ok(Some(answer)) => self.clients.reply(asker, Ok(answer), Vec::<OwnedFd>::new()),
                Ok(None) => {}
                Err(refusal) => self.clients.reply(asker, Err(refusal), Vec::new()),
            }
        }
        self.clients.drop_gone();
    }

    /// Returns the answer, or `None` if it comes later.
    fn serve(&mut self, asker: Asker, call: Call) -> Result<Option<Answer>, Refusal> {
        match call {
            Call::State => {
                self.read_limit_events_of_all();
                Ok(Some(Answer::State { state: self.state() }))
            }
            Call::Subscribe => {
                self.clients.subscribe(asker.client);
                Ok(Some(Answer::State { state: self.state() }))
            }
            Call::Start { container } => self.start(asker, *container),
            Call::Exec(request) => self.exec(asker, &request),
            Call::Attach { container, stdin } => self.attach(asker, &container, stdin),
            Call::EndInput { container } => {
                self.end_input(&container);
                Ok(Some(Answer::Done))
            }
            Call::Socket { version_6 } => self.socket(asker, version_6),
            Call::EgressListener => self.egress_listener(asker),
            Call::Volume(wanted) => self.volume(asker, &wanted),
            Call::Resize { exec, size } => self.resize(exec, size),
            Call::Signal { target, signal } => self.signal(&target, signal),
            Call::Pause => {
                // Freeze all containers or none.
                let frozen = self.cgroups_in_use().try_for_each(Cgroup::freeze);
                frozen.inspect_err(|_| self.thaw()).map_err(failed("pause"))?;
                self.set_paused(true)
            }
            Call::Resume => {
                self.cgroups_in_use().try_for_each(Cgroup::thaw).map_err(failed("resume"))?;
                self.set_paused(false)
            }
            Call::Stats => {
                let mut containers = std::collections::BTreeMap::new();
                for (name, guest) in &self.guests {
                    if let Some(container) = &guest.container {
                        containers.insert(
                            name.clone(),
                            container.cgroup.stats().map_err(failed("read the cgroup"))?,
                        );
                    }
                }
                Ok(Some(Answer::Stats { containers }))
            }
            Call::Shutdown => {
                self.closing.get_or_insert_default().push(asker);
                self.kill_everything();
                Ok(None)
            }
        }
    }

    /// Checks that a process can be started now. In a paused pod it would freeze before its start
    /// is complete.
    fn check_open(&self) -> Result<(), Refusal> {
        match (&self.closing, self.paused) {
            (Some(_), _) => Err(invalid("the pod is shutting down".to_owned())),
            (None, true) => Err(invalid("the pod is paused".to_owned())),
            (None, false) => Ok(()),
        }
    }

    fn set_paused(&mut self, paused: bool) -> Result<Option<Answer>, Refusal> {
        self.dirty |= self.paused != paused;
        self.paused = paused;
        Ok(Some(Answer::Done))
    }

    fn start(&mut self, asker: Asker, request: ContainerRequest) -> Result<Option<Answer>, Refusal> {
        self.check_open()?;
        if let Some(guest) = self.guests.get(&request.name) {
            if guest.container.is_some() {
                return Err(invalid(format!("container `{}` is running", request.name)));
            }
            if request.attempt <= guest.attempt {
                return Err(invalid(format!(
                    "container `{}` has had attempt {}",
                    request.name, guest.attempt
                )));
            }
        }
        let name = request.name.clone();
        let mut timeline = Timeline::new(self.pod.trace, &self.pod.directory);
        let guest = Guest::start(
            &self.workshop,
            &self.pod,
            &mut self.namespaces,
            request,
            Some(asker),
            &mut timeline,
        );
        timeline.flush();
        self.dirty = true;
        let refusal = match &guest.status {
            ContainerStatus::Failed { refusal, .. } => Some(refusal.clone()),
            _ => None,
        };
        self.guests.insert(name, guest);
        refusal.map_or(Ok(None), Err)
    }

    fn exec(&mut self, asker: Asker, request: &ExecRequest) -> Result<Option<Answer>, Refusal> {
        self.check_open()?;
        let guest = self.guests.get(&request.container);
        let running = guest.filter(|guest| matches!(guest.status, ContainerStatus::Running { .. }));
        let Some((guest, container)) = running.and_then(|guest| Some((guest, guest.container.as_ref()?)))
        else {
            return Err(invalid(format!("container `{}` is not running", request.container)));
        };
        let oom_kills_before = container.cgroup.oom_kills().unwrap_or(guest.oom_kills);
        let exec = container::exec(&self.workshop, self.pod.ids, container, request)?;
        let number = self.next_exec;
        self.next_exec += 1;
        self.execs.insert(
            number,
            ExecProcess { container: request.container.clone(), exec, asker: Some(asker), oom_kills_before },
        );
        Ok(None)
    }

    fn socket(&mut self, asker: Asker, version_6: bool) -> Result<Option<Answer>, Refusal> {
        if self.pod.runtime.as_ref().is_some_and(|runtime| runtime.kind == RuntimeKind::Gvisor) {
            // The network stack is in user space, so a socket of the kernel reaches no listener.
            let message = "the pod's network is in its sandbox".to_owned();
            return Err(Refusal { reason: RefusalReason::Unsupported, message });
        }
        let namespaces = self.namespaces.as_mut();
        let namespaces = namespaces.ok_or_else(|| invalid("the pod has no network yet".to_owned()))?;
        let socket = namespaces.socket(version_6).map_err(failed("make a socket in the pod's network"))?;
        self.clients.reply(asker, Ok(Answer::Done), vec![socket]);
        Ok(None)
    }

    fn egress_listener(&mut self, asker: Asker) -> Result<Option<Answer>, Refusal> {
        let namespaces = self.namespaces.as_mut();
        let namespaces = namespaces.ok_or_else(|| invalid("the pod has no network yet".to_owned()))?;
        let socket = namespaces.egress_listener().map_err(failed("find the way to the proxy"))?;
        self.clients.reply(asker, Ok(Answer::Done), vec![socket]);
        Ok(None)
    }

    fn volume(&mut self, asker: Asker, wanted: &MemoryVolume) -> Result<Option<Answer>, Refusal> {
        check_name(&wanted.name)?;
        let volume = self.workshop.memory_volume(wanted, self.pod.ids, &self.pod.directory);
        let volume = volume.map_err(failed("make a volume in memory"))?;
        self.clients.reply(asker, Ok(Answer::Done), vec![volume]);
        Ok(None)
    }

    fn resize(&mut self, exec: u64, size: TerminalSize) -> Result<Option<Answer>, Refusal> {
        let process = self.execs.get(&exec).ok_or_else(|| invalid(format!("there is no exec {exec}")))?;
        let terminal =
            process.exec.terminal.ok_or_else(|| invalid(format!("exec {exec} has no terminal")))?;
        if let Some(container) =
            self.guests.get(&process.container).and_then(|guest| guest.container.as_ref())
        {
            container::resize(container, terminal, size).map_err(failed("resize the terminal"))?;
        }
        Ok(Some(Answer::Done))
    }

    fn signal(&mut self, target: &Target, signal: i32) -> Result<Option<Answer>, Refusal> {
        let sent = match target {
            Target::Container(name) => match self.guests.get_mut(name) {
                Some(guest) => Some(guest.signal(signal)),
                None => return Err(invalid(format!("there is no container `{name}`"))),
            },
            Target::Exec(number) => self.execs.get(number).map(|process| process.exec.child.signal(signal)),
        };
        match sent.unwrap_or(Ok(())) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(invalid(error.to_string())),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("send the signal")(error)),
            _ => Ok(Some(Answer::Done)),
        }
    }

    fn kill_everything(&mut self) {
        for guest in self.guests.values() {
            if let Some(container) = &guest.container {
                let _ = container.signal(libc::SIGKILL);
            }
        }
        for process in self.execs.values() {
            let _ = process.exec.child.signal(libc::SIGKILL);
        }
        if self.paused {
            // They were killed while frozen, so they die as soon as they thaw, without running any
            // code.
            self.thaw();
            self.paused = false;
        }
    }

    fn thaw(&self) {
        for cgroup in self.cgroups_in_use() {
            let _ = cgroup.thaw();
        }
    }

    /// Returns the cgroups of containers that have not ended.
    fn cgroups_in_use(&self) -> impl Iterator<Item = &Cgroup> {
        self.guests.values().filter_map(|guest| Some(&guest.container.as_ref()?.cgroup))
    }
}

/// Checks a name, because it becomes a file and cgroup name.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    let fits = !name.is_empty()
        && name.len() <= 253
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    if fits { Ok(()) } else { Err(invalid(format!("`{name}` cannot be a container's name"))) }
}

pub(super) fn invalid(message: String) -> Refusal {
    Refusal { reason: RefusalReason::Invalid, message }
}

pub(super) fn failed(what: &'static str) -> impl Fn(io::Error) -> Refusal {
    move |error| Refusal { reason: RefusalReason::Failed, message: format!("{what}: {error}") }
}
