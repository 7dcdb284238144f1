//! Starts the components of one control plane, waits until it is ready, and ends them with itself.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};

use crate::files::{FileError, create_private_directory, failed, remove_directory, write_private};
use crate::kube::binaries::Binaries;
use crate::kube::cache::Cache;
use crate::kube::components::Layout;
use crate::kube::kubeconfig::{kubeconfig, kubectl};
use crate::kube::pki::{Pki, PkiError};
use crate::kube::process::{ProcessIdentity, boot_id, timespec};
use crate::kube::record::Record;
use crate::kube::{KUBERNETES_VERSION, RUN_COMPONENT};

/// A start takes about five seconds on two free cores; a machine that compiles meanwhile needs several times that.
const START_DEADLINE: Duration = Duration::from_secs(120);

/// Between two looks at whether something is ready.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How often we look for other ports when somebody takes ours between choosing and listening.
const PORT_ATTEMPTS: u32 = 5;

/// What kind of control plane to start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The programs.
    pub binaries: Binaries,
    /// Where it keeps everything; from [`claim_directory`].
    pub directory: PathBuf,
    /// Whether etcd waits for the disk on each write. Off is faster and safe enough for tests of behaviour, since no
    /// test outlives the machine; benchmarks of durable writes need it on.
    pub fsync: bool,
    /// When it ends.
    pub lifetime: Lifetime,
}

/// When a control plane ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Never: somebody calls `down`.
    UntilDown,
    /// When our standard input is closed, that is when the process at the other end of the pipe has ended.
    UntilStdinCloses,
}

/// Why a control plane did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The directory for it exists and holds something.
    #[error("`{}` is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// A component's program could not be started.
    #[error("start {component}")]
    Spawn {
        /// Which one.
        component: &'static str,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// A component ended although nobody asked it to.
    #[error("{component} ended with {status}; the end of its log:\n{log}")]
    Ended {
        /// Which one.
        component: &'static str,
        /// How.
        status: ExitStatus,
        /// Its last words.
        log: String,
    },
    /// Somebody else took a port that we had chosen.
    #[error("{component} lost its port to another process")]
    PortLost {
        /// Which one.
        component: &'static str,
    },
    /// Something took too long.
    #[error("{what} was not reached within {} s; the end of the log of {component}:\n{log}", START_DEADLINE.as_secs())]
    NotReady {
        /// What we waited for.
        what: &'static str,
        /// The component that was started last.
        component: &'static str,
        /// Its last words.
        log: String,
    },
    /// The process that wanted the control plane has ended.
    #[error("standard input was closed before the control plane was ready")]
    OwnerGone,
    /// The kernel refused something that it should not refuse.
    #[error("{action}")]
    System {
        /// What we tried.
        action: &'static str,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// The certificates could not be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Makes the directory for a control plane: the named one, which must be empty, or a new one in the cache.
pub fn claim_directory(cache: &Cache, named: Option<&Path>) -> Result<PathBuf, StartError> {
    if let Some(directory) = named {
        create_private_directory(directory)?;
        let directory = fs::canonicalize(directory).map_err(failed("resolve", directory))?;
        let mut entries = fs::read_dir(&directory).map_err(failed("read directory", &directory))?;
        return if entries.next().is_none() { Ok(directory) } else { Err(StartError::NotEmpty(directory)) };
    }
    create_private_directory(&cache.run())?;
    let run = fs::canonicalize(cache.run()).map_err(failed("resolve", &cache.run()))?;
    let mut number = 1u32;
    loop {
        let directory = run.join(number.to_string());
        // `create_dir` is the arbiter between two who want the same number.
        match fs::create_dir(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(failed("create directory", &directory)(error).into()),
        }
    }
}

/// Becomes a component: asks the kernel to be killed when the supervisor ends, then turns into the program.
///
/// It is the first thing of a component's life and runs in the component's own process, because the request belongs
/// to a process, survives `exec` and is not inherited. Returns only if that did not work.
pub fn run_component(supervisor: u32, program: &Path, arguments: &[OsString]) -> io::Result<Infallible> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the supervisor ended before the request, the signal will never come.
    if getppid().map(Pid::as_raw_nonzero).map(|pid| pid.get().cast_unsigned()) != Some(supervisor) {
        return Err(io::Error::other("the supervisor has ended already"));
    }
    Err(Command::new(program).args(arguments).exec())
}

/// A running control plane, owned by this process. Dropping it ends the components.
///
/// [`Supervisor::start`] must be called on the main thread: the kernel ties a component's life to the thread that
/// started it.
pub struct Supervisor {
    settings: Settings,
    record: Record,
    components: Vec<Component>,
}

struct Component {
    name: &'static str,
    child: Child,
    /// Readable when it has ended.
    handle: OwnedFd,
}

impl Supervisor {
    /// Starts a control plane and waits until it serves: the API server is ready, built-in roles are there, and the
    /// controllers have made their first object.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let started = start_with_new_ports(&settings);
        if started.is_err() && settings.lifetime == Lifetime::UntilStdinCloses {
            remove_directory(&settings.directory)?;
        }
        started
    }

    /// The file that lets a client in as administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.settings.directory.join("kubeconfig")
    }

    /// Stays until the control plane has to end, then ends it. Good only if its owner asked for that; a component
    /// that ends by itself is an error. What belongs to an owner leaves nothing on disk in either case.
    pub fn hold(mut self) -> Result<(), StartError> {
        let outcome = loop {
            match self.wait(None) {
                Ok(()) => {}
                Err(StartError::OwnerGone) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.end();
        if self.settings.lifetime == Lifetime::UntilStdinCloses {
            remove_directory(&self.settings.directory)?;
        }
        outcome
    }

    fn launch(settings: &Settings, pki: &Pki) -> Result<Self, StartError> {
        let etcd_port = ReservedPort::choose()?;
        let apiserver_port = ReservedPort::choose()?;
        let layout = Layout {
            directory: &settings.directory,
            pki,
            etcd_port: etcd_port.number,
            apiserver_port: apiserver_port.number,
            fsync: settings.fsync,
        };
        let server = format!("https://127.0.0.1:{}", apiserver_port.number);
        for (file, user, group) in [
            ("kubeconfig", "warren-admin", Some("system:masters")),
            ("controller-manager.kubeconfig", "system:kube-controller-manager", None),
            ("scheduler.kubeconfig", "system:kube-scheduler", None),
        ] {
            let text = kubeconfig(&server, &pki.authority, &pki.client(user, group)?);
            write_private(&settings.directory.join(file), text)?;
        }
        let ourselves = ProcessIdentity::of("supervisor", std::process::id())
            .map_err(|source| StartError::System { action: "find our own start time", source })?;
        let record = Record {
            version: KUBERNETES_VERSION.to_owned(),
            server,
            kubectl: settings.binaries.kubectl.clone(),
            fsync: settings.fsync,
            until_stdin_closes: settings.lifetime == Lifetime::UntilStdinCloses,
            boot_id: boot_id(),
            supervisor: ourselves,
            components: Vec::new(),
        };
        record.store(&settings.directory)?;
        let mut supervisor = Self { settings: settings.clone(), record, components: Vec::new() };
        let binaries = settings.binaries.clone();

        let etcd = etcd_port.release();
        supervisor.spawn("etcd", &binaries.etcd, layout.etcd())?;
        supervisor.until("an etcd that accepts connections", |_| accepts(etcd))?;

        let apiserver = apiserver_port.release();
        supervisor.spawn("kube-apiserver", &binaries.kube_apiserver, layout.kube_apiserver())?;
        // kubectl costs more than a connection, so it is asked only when the server listens.
        supervisor.until("a ready kube-apiserver", |supervisor| {
            accepts(apiserver) && supervisor.kubectl_succeeds(&["get", "--raw", "/readyz"])
        })?;

        supervisor.spawn(
            "kube-controller-manager",
            &binaries.kube_controller_manager,
            layout.kube_controller_manager(),
        )?;
        supervisor.spawn("kube-scheduler", &binaries.kube_scheduler, layout.kube_scheduler())?;
        supervisor.until("a controller manager that makes service accounts", |supervisor| {
            supervisor.kubectl_succeeds(&["get", "serviceaccount", "default", "--namespace", "default"])
        })?;
        Ok(supervisor)
    }

    fn spawn(
        &mut self,
        name: &'static str,
        program: &Path,
        arguments: Vec<String>,
    ) -> Result<(), StartError> {
        let log = log_file(&self.settings.directory, name);
        let output = File::create(&log).map_err(failed("create", &log))?;
        let spawn = || {
            let mut child = Command::new(std::env::current_exe()?)
                .args(RUN_COMPONENT)
                .arg("--supervisor")
                .arg(std::process::id().to_string())
                .arg("--")
                .arg(program)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output)
                .spawn()?;
            match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
                Ok(handle) => Ok(Component { name, child, handle }),
                Err(error) => {
                    child.kill()?;
                    child.wait()?;
                    Err(error.into())
                }
            }
        };
        let component = spawn().map_err(|source| StartError::Spawn { component: name, source })?;
        let identity = ProcessIdentity::of(name, component.child.id());
        self.components.push(component);
        self.record
            .components
            .push(identity.map_err(|source| StartError::Spawn { component: name, source })?);
        Ok(self.record.store(&self.settings.directory)?)
    }

    /// Waits until `condition` holds, as long as all components live and the owner does.
    fn until(&mut self, what: &'static str, condition: impl Fn(&Self) -> bool) -> Result<(), StartError> {
        let deadline = Instant::now() + START_DEADLINE;
        while !condition(self) {
            if Instant::now() > deadline {
                let component = self.components.last().map_or("nothing", |component| component.name);
                let log = last_lines(&log_file(&self.settings.directory, component));
                return Err(StartError::NotReady { what, component, log });
            }
            self.wait(Some(LOOK_AGAIN))?;
        }
        Ok(())
    }

    /// Waits for `timeout`, or without end, or until a component or the owner has ended, which is an error.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), StartError> {
        let stdin = io::stdin();
        let mut watched: Vec<PollFd<'_>> =
            self.components.iter().map(|component| PollFd::new(&component.handle, PollFlags::IN)).collect();
        if self.settings.lifetime == Lifetime::UntilStdinCloses {
            watched.push(PollFd::new(&stdin, PollFlags::IN));
        }
        match poll(&mut watched, timeout.map(timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(StartError::System { action: "wait for the components", source: error.into() });
            }
        }
        let happened: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();

        if happened.get(self.components.len()) == Some(&true) {
            // Nobody writes to us, but if they do it does not matter: only the end does.
            let read = rustix::io::read(&stdin, &mut [0; 512]);
            if !matches!(read, Ok(1..) | Err(rustix::io::Errno::INTR)) {
                return Err(StartError::OwnerGone);
            }
        }
        match self.components.iter_mut().zip(&happened).find(|(_, ended)| **ended) {
            None => Ok(()),
            Some((component, _)) => {
                let name = component.name;
                let status = component
                    .child
                    .wait()
                    .map_err(|source| StartError::System { action: "ask how a component ended", source })?;
                let log = last_lines(&log_file(&self.settings.directory, name));
                Err(if log.contains("address already in use") {
                    StartError::PortLost { component: name }
                } else {
                    StartError::Ended { component: name, status, log }
                })
            }
        }
    }

    fn kubectl_succeeds(&self, arguments: &[&str]) -> bool {
        kubectl(&self.settings.binaries.kubectl, &self.settings.directory)
            .args(["--request-timeout", "5s"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Kills the components: what they hold is thrown away, so there is nothing to flush.
    fn end(&mut self) {
        for component in &mut self.components {
            // An error means that it has ended.
            let _ = component.child.kill();
        }
        for mut component in self.components.drain(..) {
            let _ = component.child.wait();
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.end();
    }
}

/// Certificates once, then as many launches as it takes to keep the chosen ports.
fn start_with_new_ports(settings: &Settings) -> Result<Supervisor, StartError> {
    create_private_directory(&settings.directory.join("logs"))?;
    let pki = Pki::create(&settings.directory.join("pki"))?;
    let mut attempt = 1;
    loop {
        match Supervisor::launch(settings, &pki) {
            Err(StartError::PortLost { component }) if attempt < PORT_ATTEMPTS => {
                eprintln!("{component} lost its port to another process; trying others");
                attempt += 1;
                remove_directory(&settings.directory.join("etcd"))?;
            }
            outcome => return outcome,
        }
    }
}

/// A port of the kernel's choosing, kept from others until the component is about to take it.
struct ReservedPort {
    number: u16,
    listener: TcpListener,
}

impl ReservedPort {
    fn choose() -> Result<Self, StartError> {
        let choose = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            Ok(Self { number: listener.local_addr()?.port(), listener })
        };
        choose().map_err(|source| StartError::System { action: "choose a port on 127.0.0.1", source })
    }

    /// Gives the port up for the component. Somebody may be faster; then the component ends with `PortLost`.
    fn release(self) -> SocketAddr {
        drop(self.listener);
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

fn accepts(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

fn log_file(directory: &Path, component: &str) -> PathBuf {
    directory.join("logs").join(format!("{component}.log"))
}

/// The end of a log, short enough for an error message.
fn last_lines(path: &Path) -> String {
    const BYTES: u64 = 8 * 1024;
    const LINES: usize = 12;
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
        let mut bytes = Vec::new();
        file.take(BYTES).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_claim_gets_a_directory_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::locate(Some(place.path().to_owned()), |_| None).unwrap();
        let first = claim_directory(&cache, None).unwrap();
        let second = claim_directory(&cache, None).unwrap();
        assert_ne!(first, second);
        assert!(first.is_dir() && second.is_dir());
    }

    #[test]
    fn a_named_directory_with_something_in_it_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::locate(Some(place.path().join("cache")), |_| None).unwrap();
        let named = place.path().join("named");
        assert_eq!(claim_directory(&cache, Some(&named)).unwrap(), named.canonicalize().unwrap());
        fs::write(named.join("something"), "").unwrap();
        assert!(matches!(claim_directory(&cache, Some(&named)), Err(StartError::NotEmpty(_))));
    }

    #[test]
    fn only_the_end_of_a_log_is_told() {
        let place = tempfile::tempdir().unwrap();
        let log = place.path().join("log");
        let lines: Vec<String> = (0..10_000).map(|number| format!("line {number}")).collect();
        fs::write(&log, lines.join("\n")).unwrap();
        let told = last_lines(&log);
        assert_eq!(told.lines().count(), 12);
        assert!(told.starts_with("line 9988\n") && told.ends_with("line 9999"), "{told}");
        assert_eq!(last_lines(&place.path().join("none")), "");
    }

    #[test]
    fn reserved_ports_differ_and_are_free_afterwards() {
        let (first, second) = (ReservedPort::choose().unwrap(), ReservedPort::choose().unwrap());
        assert_ne!(first.number, second.number);
        TcpListener::bind(first.release()).unwrap();
    }
}
