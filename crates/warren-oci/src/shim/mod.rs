//! The shim: one single-threaded process per pod, outside the daemon, with an event loop. It makes
//! the pod's containers, owns their output, reaps them, records their state, and answers clients on
//! `shim.sock`.
//!
//! The shim outlives daemons. It stays until it is told to shut down. If it dies, its containers
//! die with it.

mod activation;
mod attach;
mod clients;
mod guest;
mod log;
mod serve;
mod settle;
mod state;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use warren_sys::cgroup::Cgroup;
use warren_sys::process::{self, Namespaces, SingleThreaded};
use warren_sys::socket::{Seqpacket, SeqpacketListener};
use warren_sys::{mount, namespace};

use self::activation::ActivationState;
use self::attach::Attachments;
use self::clients::{Asker, Clients};
use self::guest::{ExecProcess, Guest};
use self::log::Stream;
use crate::cgroup_names;
use crate::client::socket_path;
use crate::container::{Birthplace, PodNamespaces, Workshop};
use crate::kernel::{self, Layering};
use crate::privileges::{OwnIds, Privileges};
use crate::protocol::{Answer, PodRequest, PodState, ProcessName, Refusal, RefusalReason};
use crate::seccomp_profile;
use crate::timeline::Timeline;

/// Resources that the zygote makes once, so that no start pays for them.
#[derive(Debug)]
pub(crate) struct Prepared(Workshop);

impl Prepared {
    pub(crate) fn new(proof: SingleThreaded, layering: Option<Layering>) -> io::Result<Self> {
        // Every shim inherits this. Its death is its pod's, and it is small, so the host's
        // out-of-memory killer should choose another process. Without the right to set it, the
        // value stays.
        let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
        // A container's process may not raise a limit, so raise it here if allowed.
        let open_files = Some(crate::defaults::OPEN_FILES);
        let limit = rustix::process::Rlimit { current: open_files, maximum: open_files };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
        // A process that cannot be dumped cannot be traced by a container's root while it enters.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
        let privileges = Privileges::of_this_process()?;
        if privileges != Privileges::Machine {
            // Make an empty network namespace. A shim enters a pod's network for a moment, and can
            // return only to a namespace of its own user.
            namespace::unshare(Namespaces::NETWORK)?;
        }
        let birthplace = Birthplace::make(proof)
            .map_err(|error| io::Error::other(format!("{}: {}", error.step, error.source)))?;
        Ok(Self(Workshop {
            proof,
            filter: seccomp_profile::default_filter(),
            hierarchy: privileges.hierarchy()?,
            privileges,
            own_ids: OwnIds::of_this_process()?,
            pid_namespace: namespace::open(0, "pid")?,
            birthplace,
            layering: match (kernel::probe()?, layering) {
                (_, Some(wanted)) => wanted,
                (found, None) => found,
            },
            volumes: BTreeMap::new(),
        }))
    }
}

/// Points standard input and output to `/dev/null`, and standard error to `log` if given.
pub(crate) fn detach_standard_streams(log: Option<&Path>) -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    process::replace_standard_descriptor(null.as_fd(), 0)?;
    process::replace_standard_descriptor(null.as_fd(), 1)?;
    if let Some(log) = log {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
        process::replace_standard_descriptor(file.as_fd(), 2)?;
    }
    Ok(())
}

/// Signals that a shim ignores. It ends with its pod, and not by a terminal, a shutdown script or a
/// closed pipe.
pub(crate) const IGNORED_SIGNALS: &[i32] =
    &[libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGPIPE, libc::SIGQUIT];

/// Runs the shim after the fork. Never returns: after an error or panic there must not be a second
/// zygote.
pub(crate) fn run(prepared: Prepared, pod: PodRequest, client: Seqpacket) -> ! {
    let result = catch_unwind(AssertUnwindSafe(|| live(prepared.0, pod, client)));
    let code = match result {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            complain!("warren: shim: {error}");
            1
        }
        Err(_) => 2,
    };
    process::exit_now(code)
}

fn live(workshop: Workshop, pod: PodRequest, client: Seqpacket) -> io::Result<()> {
    let _ = rustix::thread::set_name(c"warren-shim");
    rustix::process::setsid()?;
    let kept = [client.as_fd(), workshop.pid_namespace.as_fd(), workshop.birthplace.as_fd()];
    process::close_from(3, &kept)?;
    let mut timeline = Timeline::new(pod.trace, &pod.directory);
    timeline.mark("shim", "fork");
    detach_standard_streams(Some(&pod.directory.join("shim.log")))?;
    process::ignore_signals(IGNORED_SIGNALS);
    process::reset_signals(&[libc::SIGCHLD]);
    client.set_nonblocking(true)?;
    if workshop.layering == Layering::Attached {
        // Layers are attached in this namespace only, and end with the shim.
        namespace::unshare(Namespaces::MOUNT)?;
        mount::keep_mounts_private()?;
    }
    timeline.mark("shim", "detach");
    Shim::begin(workshop, pod, client, &mut timeline)?.serve_until_shut_down()
}

#[derive(Debug)]
struct Shim {
    workshop: Workshop,
    pod: PodRequest,
    name: ProcessName,
    listener: SeqpacketListener,
    clients: Clients,
    namespaces: Option<PodNamespaces>,
    guests: BTreeMap<String, Guest>,
    execs: BTreeMap<u64, ExecProcess>,
    attachments: Attachments,
    activation: ActivationState,
    next_exec: u64,
    revision: u64,
    paused: bool,
    /// The clients that requested the shutdown.
    closing: Option<Vec<Asker>>,
    shut_down: bool,
    /// True if clients have not been told the newest state.
    dirty: bool,
    /// True if the state must be on disk before clients learn of it. This holds for an end, which
    /// cannot be found out later. A start is recorded after the reply, because clients wait for it,
    /// and a dead shim has no running container.
    record_first: bool,
    /// The time of the next look at counters without notification, and the pause after it.
    next_look: Option<(Instant, Duration)>,
}

/// The pause before the first look at counters after a start or end. It grows up to the second
/// value: an idle sandbox is checked twelve times an hour.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LAST_LOOK: Duration = Duration::from_secs(300);

impl Shim {
    fn begin(
        workshop: Workshop,
        mut pod: PodRequest,
        client: Seqpacket,
        timeline: &mut Timeline,
    ) -> io::Result<Self> {
        let containers = std::mem::take(&mut pod.containers);
        let mut clients = Clients::default();
        clients.add(client);
        let mut namespaces = None;
        let mut guests = BTreeMap::new();
        for request in containers {
            let name = request.name.clone();
            guests.insert(name, Guest::start(&workshop, &pod, &mut namespaces, request, None, timeline));
        }
        let listener = SeqpacketListener::bind(&socket_path(&pod.directory))?;
        let shim = Self {
            name: ProcessName::of(rustix::process::getpid().as_raw_pid())?,
            workshop,
            pod,
            listener,
            clients,
            namespaces,
            guests,
            execs: BTreeMap::new(),
            attachments: Attachments::default(),
            activation: ActivationState::default(),
            next_exec: 1,
            revision: 0,
            paused: false,
            closing: None,
            shut_down: false,
            dirty: true,
            record_first: false,
            next_look: None,
        };
        timeline.mark("shim", "listen");
        timeline.flush();
        Ok(shim)
    }

    fn serve_until_shut_down(mut self) -> io::Result<()> {
        loop {
            let changed = std::mem::take(&mut self.dirty);
            let record_first = std::mem::take(&mut self.record_first);
            if changed {
                self.revision += 1;
                self.clients.state_changed();
            }
            if record_first {
                self.write_state();
            }
            let state = self.state();
            self.clients.flush(&state);
            if self.shut_down {
                return Ok(());
            }
            if changed && !record_first {
                self.write_state();
            }
            self.watch_limits();
            let ready = self.wait()?;
            for source in ready {
                self.handle(source);
            }
            self.drop_detached();
            self.guests.values_mut().for_each(Guest::deliver);
            self.look_if_due();
            self.finish_closing();
        }
    }

    fn state(&self) -> PodState {
        PodState {
            uid: self.pod.uid.clone(),
            revision: self.revision,
            shim: self.name,
            paused: self.paused,
            shut_down: self.shut_down,
            runtime: self.pod.runtime.as_ref().map(|runtime| runtime.kind),
            containers: self.guests.iter().map(|(name, guest)| (name.clone(), guest.state())).collect(),
        }
    }

    /// Writes the state. If the disk is full or gone, the pod must survive; a later daemon can
    /// still ask the shim.
    fn write_state(&self) {
        if let Err(error) = state::write(&self.pod.directory, &self.state()) {
            complain!("warren: shim: write state.json: {error}");
        }
    }

    /// Waits for events and returns their sources. The list is built anew each time: it is short,
    /// and a stored list could become inconsistent.
    fn wait(&self) -> io::Result<Vec<Source>> {
        let mut sources: Vec<Source> = vec![Source::Listener];
        let mut waits = vec![PollFd::new(&self.listener, PollFlags::IN)];
        for client in &self.clients.all {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, client.wants_to_write());
            sources.push(Source::Client(client.number));
            waits.push(PollFd::new(client, flags));
        }
        for (number, process) in &self.execs {
            if let Some(report) = &process.exec.report {
                sources.push(Source::ExecReport(*number));
                waits.push(PollFd::new(report, PollFlags::IN));
            }
            sources.push(Source::ExecExit(*number));
            waits.push(PollFd::from_borrowed_fd(process.exec.child.pidfd(), PollFlags::IN));
        }
        for (name, guest) in &self.guests {
            let Some(container) = &guest.container else { continue };
            if let Some(report) = &container.report {
                sources.push(Source::Report(name.clone()));
                waits.push(PollFd::new(report, PollFlags::IN));
            }
            let streams = &container.streams;
            for (stream, pipe) in [(Stream::Stdout, &streams.stdout), (Stream::Stderr, &streams.stderr)] {
                if let Some(pipe) = pipe
                    && !self.attachments.hold_up(name, stream)
                {
                    sources.push(Source::Output(name.clone(), stream));
                    waits.push(PollFd::new(pipe, PollFlags::IN));
                }
            }
            for watch in &guest.watches {
                sources.push(Source::Limits(name.clone()));
                let flags = if watch.exceptional { PollFlags::PRI } else { PollFlags::IN };
                waits.push(PollFd::new(&watch.descriptor, flags));
            }
            sources.push(Source::Exit(name.clone()));
            waits.push(PollFd::from_borrowed_fd(container.child.pidfd(), PollFlags::IN));
        }
        for (number, stream, pipe) in self.attachments.full_pipes() {
            sources.push(Source::Attached(number, stream));
            waits.push(PollFd::new(pipe, PollFlags::OUT));
        }
        let look = self.next_look.map(|(due, _)| due);
        let mut due = self.guests.values().filter_map(Guest::delivery_due).chain(look).min();
        for socket in self.awaited_connections() {
            match self.activation.not_before() {
                Some(later) => due = Some(due.map_or(later, |due| due.min(later))),
                None => {
                    sources.push(Source::Activation);
                    waits.push(PollFd::new(socket, PollFlags::IN));
                }
            }
        }
        let timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        loop {
            match poll(&mut waits, timeout.as_ref()) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sources
            .into_iter()
            .zip(&waits)
            .filter(|(_, wait)| !wait.revents().is_empty())
            .map(|(source, _)| source)
            .collect())
    }

    fn handle(&mut self, source: Source) {
        match source {
            Source::Listener => {
                while let Ok(Some(socket)) = self.listener.accept() {
                    self.clients.add(socket);
                }
            }
            Source::Client(number) => self.serve_client(number),
            Source::Report(name) => self.settle_start(&name),
            Source::Output(name, stream) => {
                if let Some(guest) = self.guests.get_mut(&name) {
                    // Read a limited amount, so that one container's flood does not starve the
                    // others and clients.
                    let attachments = &mut self.attachments;
                    if !guest.pump(stream, 4, |bytes| attachments.show(&name, stream, bytes)) {
                        attachments.end(&name, stream);
                    }
                }
            }
            Source::Limits(name) => {
                if let Some(guest) = self.guests.get_mut(&name) {
                    self.dirty |= guest.read_limit_events();
                }
            }
            Source::Exit(name) => self.settle_exit(&name),
            Source::Attached(number, stream) => self.attachments.flush(number, stream),
            Source::Activation => self.activate(),
            Source::ExecReport(number) => self.settle_exec_start(number),
            Source::ExecExit(number) => self.settle_exec_exit(number),
        }
    }

    /// Starts to watch containers that have begun to run.
    fn watch_limits(&mut self) {
        for (name, guest) in self.guests.iter_mut().filter(|(_, guest)| !guest.is_watched) {
            guest.is_watched = true;
            let Some(container) = &guest.container else { continue };
            match container.cgroup.watch() {
                Ok(watches) => guest.watches = watches,
                Err(error) => complain!("warren: shim: watch the limits of {name}: {error}"),
            }
        }
    }

    /// Schedules a look at the counters: version 1 of cgroups counts forks prevented by the pids
    /// limit, but does not notify.
    fn look_soon(&mut self) {
        if self.workshop.hierarchy.version() == 1 {
            self.next_look = Some((Instant::now() + FIRST_LOOK, FIRST_LOOK));
        }
    }

    fn look_if_due(&mut self) {
        if let Some((due, interval)) = self.next_look
            && due <= Instant::now()
        {
            let interval = (interval * 2).min(LAST_LOOK);
            self.next_look = Some((Instant::now() + interval, interval));
            self.read_limit_events_of_all();
        }
    }

    fn read_limit_events_of_all(&mut self) {
        for guest in self.guests.values_mut() {
            self.dirty |= guest.read_limit_events();
        }
    }

    /// Returns the cgroups of all containers that ever existed: one that has ended may have left
    /// processes.
    fn cgroups(&self) -> impl Iterator<Item = Cgroup> {
        // A container with an invalid name was refused. It is listed only to report that.
        let names = self.guests.keys().filter(|name| serve::check_name(name).is_ok());
        names.map(|name| {
            let name = cgroup_names::container(&self.pod.cgroup, name);
            Cgroup::named(&self.workshop.hierarchy, &name)
        })
    }

    /// Removes the cgroups and answers the shutdown requests, once all processes are dead.
    fn finish_closing(&mut self) {
        if self.closing.is_none()
            || !self.execs.is_empty()
            || self.guests.values().any(|guest| guest.container.is_some())
        {
            return;
        }
        let askers = self.closing.take().unwrap_or_default();
        let removed = self.cgroups().try_for_each(|cgroup| crate::cleanup::remove_cgroup(&cgroup));
        self.shut_down = removed.is_ok();
        self.revision += 1;
        self.write_state();
        let _ = std::fs::remove_file(socket_path(&self.pod.directory));
        for asker in askers {
            let result = match &removed {
                Ok(()) => Ok(Answer::State { state: self.state() }),
                Err(error) => Err(Refusal { reason: RefusalReason::Failed, message: error.to_string() }),
            };
            self.clients.reply(asker, result, Vec::new());
        }
        // Finish even if the cgroup could not be removed: nothing is left to look after.
        self.shut_down = true;
    }
}

/// The sources of events.
#[derive(Debug)]
enum Source {
    Listener,
    Client(u64),
    Report(String),
    Output(String, Stream),
    Limits(String),
    Exit(String),
    /// An attached client's pipe has space.
    Attached(u64, Stream),
    /// A client has connected to a port of the activation.
    Activation,
    ExecReport(u64),
    ExecExit(u64),
}
