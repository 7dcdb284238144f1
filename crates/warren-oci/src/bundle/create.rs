//! `create`: makes a process from a bundle that is ready in its namespaces and waits to be started.
//!
//! The creating process does the work that needs the host's rights and view of files. The new
//! process does the rest inside its namespaces and reports the result through a socket. Then it
//! waits at a socket of its own for [`super::Runtime::start`].

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use warren_sys::process::{self, Child, CloneOptions, Fork, Namespaces, SingleThreaded};
use warren_sys::socket::{Seqpacket, SeqpacketListener};
use warren_sys::{namespace, pty};

use super::cgroups::Cgroups;
use super::config::{Config, IdMapping, NamespaceKind, Process};
use super::filesystem::{self, Prepared};
use super::hooks;
use super::process::{Ready, limit};
use super::state::{Place, Record, State, Status};
use super::{Error, Step as _};
use crate::container::set_ids;
use crate::protocol::ProcessName;
use crate::wire;

/// The options of [`super::Runtime::create`].
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// The bundle's directory.
    pub bundle: PathBuf,
    /// A file for the container's process id.
    pub pid_file: Option<PathBuf>,
    /// A socket that receives the terminal's master.
    pub console_socket: Option<PathBuf>,
}

/// The messages between the two processes.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// To the new process: its cgroup, ids and limits are set.
    Go,
    /// From the new process: it is in its namespaces.
    InNamespaces,
    /// To the new process: the hooks of this moment have run.
    GoOn(State),
    /// From the new process: everything is ready.
    Ready,
    /// From the new process: something failed.
    Failed(String),
}

/// The message of `start` to the waiting process.
pub(super) const START: &[u8] = b"start";

/// Creates the container in `place`, an existing empty directory. After an error only that
/// directory is left.
pub(super) fn create(place: &Place, id: &str, options: &CreateOptions) -> Result<Child, Error> {
    let proof = SingleThreaded::verify().step(|| "create a container".to_owned())?;
    let step = || format!("find the bundle {}", options.bundle.display());
    let bundle = options.bundle.canonicalize().step(step)?;
    let file = bundle.join("config.json");
    let config = Config::parse(&fs::read(&file).step(|| format!("read {}", file.display()))?)?;
    let ready = config.process.as_ref().map(|process| Ready::new(&config, process)).transpose()?;
    let has_terminal = config.process.as_ref().is_some_and(|process| process.terminal);
    if has_terminal != options.console_socket.is_some() {
        return Err(Error::Config(
            "a terminal and a socket to send it to (`--console-socket`) need each other".to_owned(),
        ));
    }
    let console = options
        .console_socket
        .as_ref()
        .map(|path| UnixStream::connect(path).step(|| format!("connect to {}", path.display())))
        .transpose()?;
    place.write_config(&config)?;
    let cgroup = config.linux.cgroups_path.clone().filter(|path| !path.is_empty());
    let mut record = Record {
        id: id.to_owned(),
        bundle: bundle.clone(),
        cgroup: cgroup.unwrap_or_else(|| format!("/warren-oci/{id}")),
        process: None,
    };
    place.write(&record)?;
    let cgroups = Cgroups::named(&record.cgroup)?;
    let made = cgroups.create(&config).and_then(|()| {
        let prepared = Prepared::new(&config, &bundle, &cgroups)?;
        let listener = SeqpacketListener::bind(&place.socket()).step(|| "listen for the start".to_owned())?;
        let (ours, theirs) = Seqpacket::pair().step(|| "make a socket pair".to_owned())?;
        let joined = joined_namespaces(&config)?;
        let flags = new_namespaces(&config);
        let clone = CloneOptions { namespaces: flags, sibling: false, cgroup: None };
        let step = || "clone the first process".to_owned();
        match process::clone(proof, clone).map_err(crate::kernel::explain_namespaces).step(step)? {
            Fork::Child => {
                drop(ours);
                let newborn = Newborn { config: &config, joined, listener, console };
                newborn.live(&theirs, prepared, ready.as_ref())
            }
            Fork::Parent(child) => {
                drop((theirs, joined, listener, prepared));
                match bring_up(&child, &ours, place, &mut record, &config, &cgroups) {
                    Ok(()) => Ok(child),
                    Err(error) => {
                        let _ = child.signal(libc::SIGKILL);
                        let _ = child.wait();
                        Err(error)
                    }
                }
            }
        }
    });
    if made.is_err() {
        let _ = cgroups.remove();
    }
    let child = made?;
    if let Some(path) = &options.pid_file {
        fs::write(path, child.pid().to_string()).step(|| format!("write {}", path.display()))?;
    }
    Ok(child)
}

/// Runs the creating process's side of the protocol.
fn bring_up(
    child: &Child,
    socket: &Seqpacket,
    place: &Place,
    record: &mut Record,
    config: &Config,
    cgroups: &Cgroups,
) -> Result<(), Error> {
    let pid = child.pid();
    cgroups.add(pid)?;
    if config.has_new(NamespaceKind::User) {
        write_maps(pid, &config.linux.uid_mappings, &config.linux.gid_mappings)?;
    }
    if let Some(process) = &config.process {
        limit(pid, process)?;
        if let Some(adjustment) = process.oom_score_adj {
            fs::write(format!("/proc/{pid}/oom_score_adj"), adjustment.to_string())
                .step(|| "write oom_score_adj".to_owned())?;
        }
    }
    tell(socket, &Word::Go)?;
    hear(socket)?;
    let mut state = place.state(record, config);
    state.pid = pid;
    if !config.prestart_at_start() {
        hooks::run_all(&config.hooks.prestart, &state, Some(&record.bundle))?;
    }
    hooks::run_all(&config.hooks.create_runtime, &state, Some(&record.bundle))?;
    tell(socket, &Word::GoOn(state))?;
    hear(socket)?;
    record.process = Some(ProcessName::of(pid).step(|| "name the process".to_owned())?);
    place.write(record)
}

fn tell(socket: &Seqpacket, word: &Word) -> Result<(), Error> {
    wire::send(socket, word, &[]).step(|| "talk to the other process".to_owned())
}

/// Receives the next message. A failure of the other process becomes an error here.
fn hear(socket: &Seqpacket) -> Result<Word, Error> {
    let step = || "hear from the other process".to_owned();
    match wire::receive::<Word>(socket).step(step)? {
        Some((Word::Failed(message), _)) => Err(Error::Inside(message)),
        Some((word, _)) => Ok(word),
        None => Err(io::Error::from(io::ErrorKind::UnexpectedEof)).step(step),
    }
}

fn write_maps(pid: i32, uids: &[IdMapping], gids: &[IdMapping]) -> Result<(), Error> {
    for (name, mappings) in [("uid_map", uids), ("gid_map", gids)] {
        let text: String =
            mappings.iter().map(|one| format!("{} {} {}\n", one.container, one.host, one.size)).collect();
        fs::write(format!("/proc/{pid}/{name}"), text).step(|| format!("write {name}"))?;
    }
    Ok(())
}

/// Returns the namespaces to make when the process is cloned. The cgroup namespace is made later,
/// when the process is in its cgroup.
fn new_namespaces(config: &Config) -> Namespaces {
    let mut all = Namespaces::NONE;
    for one in config.linux.namespaces.iter().filter(|one| one.path.is_none()) {
        all = all.with(match one.kind {
            NamespaceKind::User => Namespaces::USER,
            NamespaceKind::Pid => Namespaces::PID,
            NamespaceKind::Mount => Namespaces::MOUNT,
            NamespaceKind::Network => Namespaces::NETWORK,
            NamespaceKind::Ipc => Namespaces::IPC,
            NamespaceKind::Uts => Namespaces::UTS,
            NamespaceKind::Cgroup => Namespaces::NONE,
        });
    }
    all
}

/// Opens the namespaces to join. A pid namespace is entered here, because entering affects only
/// later children.
fn joined_namespaces(config: &Config) -> Result<Vec<OwnedFd>, Error> {
    let mut joined = Vec::new();
    for one in &config.linux.namespaces {
        let Some(path) = &one.path else { continue };
        let step = || format!("enter the namespace {}", path.display());
        let expected = match one.kind {
            NamespaceKind::User => "user",
            NamespaceKind::Pid => "pid",
            NamespaceKind::Mount => "mnt",
            NamespaceKind::Network => "net",
            NamespaceKind::Ipc => "ipc",
            NamespaceKind::Uts => "uts",
            NamespaceKind::Cgroup => "cgroup",
        };
        let file = OwnedFd::from(fs::File::open(path).step(step)?);
        use std::os::fd::AsRawFd as _;
        let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        // A namespace file mounted elsewhere has no such name. The kernel then checks it.
        let name = name.to_string_lossy();
        if name.contains(":[") && !name.starts_with(&format!("{expected}:")) {
            return Err(Error::Config(format!(
                "{} is no namespace of the kind `{expected}`",
                path.display()
            )));
        }
        match one.kind {
            NamespaceKind::Pid => namespace::enter_one(file.as_fd()).step(step)?,
            _ => joined.push(file),
        }
    }
    Ok(joined)
}

struct Newborn<'a> {
    config: &'a Config,
    joined: Vec<OwnedFd>,
    listener: SeqpacketListener,
    console: Option<UnixStream>,
}

impl Newborn<'_> {
    /// Runs the new process until it becomes the program. Never returns: after an error or panic
    /// there must not be a second creator.
    fn live(self, socket: &Seqpacket, prepared: Prepared, ready: Option<&Ready>) -> ! {
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.grow(socket, prepared, ready)));
        let message = match outcome {
            Ok(Err(error)) => super::with_causes(&error),
            Ok(Ok(never)) => match never {},
            Err(_) => "the container's first process panicked".to_owned(),
        };
        let _ = wire::send(socket, &Word::Failed(message), &[]);
        process::exit_now(1)
    }

    fn grow(
        &self,
        socket: &Seqpacket,
        prepared: Prepared,
        ready: Option<&Ready>,
    ) -> Result<Infallible, Error> {
        let config = self.config;
        hear(socket)?;
        for namespace in &self.joined {
            namespace::enter_one(namespace.as_fd()).step(|| "enter a namespace".to_owned())?;
        }
        if config.has_new(NamespaceKind::User) {
            set_ids(0, 0, &[]).step(|| "become root of the user namespace".to_owned())?;
        }
        rustix::process::setsid().step(|| "make a session".to_owned())?;
        process::join_new_session_keyring().step(|| "make a keyring".to_owned())?;
        if config.has_new(NamespaceKind::Cgroup) {
            namespace::unshare(Namespaces::CGROUP).step(|| "make a cgroup namespace".to_owned())?;
        }
        if config.has_new(NamespaceKind::Network) {
            namespace::loopback_up().step(|| "bring up the loopback device".to_owned())?;
        }
        if let Some(name) = &config.hostname {
            rustix::system::sethostname(name.as_bytes()).step(|| "set the host name".to_owned())?;
        }
        if let Some(name) = &config.domainname {
            rustix::system::setdomainname(name.as_bytes()).step(|| "set the domain name".to_owned())?;
        }
        tell(socket, &Word::InNamespaces)?;
        let Word::GoOn(mut state) = hear(socket)? else {
            return Err(io::Error::from(io::ErrorKind::InvalidData))
                .step(|| "hear from the creator".to_owned());
        };
        hooks::run_all(&config.hooks.create_container, &state, None)?;
        filesystem::set_up(config, prepared)?;
        if let (Some(process), Some(console)) = (&config.process, &self.console) {
            take_terminal(process, console)?;
        }
        tell(socket, &Word::Ready)?;

        let starter = self.wait_for_start()?;
        let started = (|| {
            state.status = Status::Created;
            hooks::run_all(&config.hooks.start_container, &state, None)?;
            match (&config.process, ready) {
                (Some(process), Some(ready)) => ready.become_program(process),
                _ => Err(Error::Config("there is no `process` to start".to_owned())),
            }
        })();
        // A successful exec closes the connection.
        let message = match started {
            Err(error) => super::with_causes(&error),
            Ok(never) => match never {},
        };
        let _ = starter.send(message.as_bytes(), &[]);
        process::exit_now(1)
    }

    fn wait_for_start(&self) -> Result<Seqpacket, Error> {
        let step = || "wait for the start".to_owned();
        loop {
            match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.step(step)?,
            };
            let Some(starter) = self.listener.accept().step(step)? else { continue };
            starter.set_nonblocking(false).step(step)?;
            if starter.receive(START.len()).step(step)?.is_some_and(|packet| packet.bytes == START) {
                return Ok(starter);
            }
        }
    }
}

/// Opens a terminal of the container's own, sends its master to the console socket and makes it the
/// standard streams.
fn take_terminal(process: &Process, console: &UnixStream) -> Result<(), Error> {
    let step = || "open a terminal".to_owned();
    let terminals = fs::File::open(Path::new("/dev/pts")).step(step)?;
    let (columns, rows) = process.console_size.map_or((80, 24), |size| (size.width, size.height));
    let pty = pty::open(terminals.as_fd(), columns, rows).step(step)?;
    std::os::unix::fs::fchown(&pty.slave, Some(process.user.uid), None).step(step)?;
    let sender = Seqpacket::from(OwnedFd::from(console.try_clone().step(step)?));
    sender.send(b"/dev/ptmx", &[pty.master.as_fd()]).step(|| "send the terminal".to_owned())?;
    pty::take_control(pty.slave.as_fd()).step(step)?;
    (0..3).try_for_each(|number| process::replace_standard_descriptor(pty.slave.as_fd(), number).step(step))
}
