//! Starts the components of one control plane, waits until it is ready, and ends them when it ends
//! itself.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};

use crate::files::{FileError, create_private_directory, failed, remove_directory, write_private};
use crate::kube::binaries::Binaries;
use crate::kube::components::Layout;
use crate::kube::kubeconfig::{kubeconfig, kubectl};
use crate::kube::logs::{last_lines, log_file};
use crate::kube::pki::{Pki, PkiError};
use crate::kube::ports::{ADDRESS_IN_USE, ReservedPort};
use crate::kube::process::{ProcessIdentity, boot_id, timespec};
use crate::kube::record::Record;
use crate::kube::{KUBERNETES_VERSION, RUN_COMPONENT};

/// The time limit of a start. It takes about five seconds on two free cores, and several times that
/// while the machine compiles.
const START_DEADLINE: Duration = Duration::from_secs(120);

/// The interval of readiness checks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The number of attempts with other ports, if other processes take the chosen ones.
const PORT_ATTEMPTS: u32 = 5;

/// The path of our own program. Unlike the file's path it stays valid if the file is rebuilt.
const OUR_PROGRAM: &str = "/proc/self/exe";

/// The settings of a control plane.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The programs.
    pub binaries: Binaries,
    /// Its directory, from [`claim_directory`](crate::kube::claim_directory).
    pub directory: PathBuf,
    /// True if etcd syncs each write to disk. Without it etcd is faster, and safe enough for tests
    /// of behaviour, since no test outlives the machine. Benchmarks of durable writes need it.
    pub fsync: bool,
    /// The end of its life.
    pub lifetime: Lifetime,
}

/// The event that ends a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// A call of `down`.
    UntilDown,
    /// The end of our standard input, which means that the process at the other end of the pipe has
    /// ended.
    UntilStdinCloses,
}

/// An error of a control plane.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A component's program could not be started.
    #[error("start {component}")]
    Spawn {
        /// The name of the component.
        component: &'static str,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
    /// A component ended unexpectedly.
    #[error("{component} ended with {status}; the end of its log:\n{log}")]
    Ended {
        /// The name of the component.
        component: &'static str,
        /// Its exit status.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// Another process took a port that we had chosen.
    #[error("{component} lost its port to another process")]
    PortLost {
        /// The name of the component.
        component: &'static str,
    },
    /// A condition was not met in time.
    #[error("{what} was not reached within {} s; the end of the log of {component}:\n{log}", START_DEADLINE.as_secs())]
    NotReady {
        /// The condition.
        what: &'static str,
        /// The component that was started last.
        component: &'static str,
        /// The end of its log.
        log: String,
    },
    /// The process that wanted the control plane has ended.
    #[error("standard input was closed before the control plane was ready")]
    OwnerGone,
    /// A system call failed unexpectedly.
    #[error("{action}")]
    System {
        /// The failed action.
        action: &'static str,
        /// The underlying I/O error.
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

/// Becomes a component: asks the kernel to be killed when the supervisor ends, then executes the
/// program.
///
/// It must run in the component's own process, because the request belongs to a process, survives
/// `exec` and is not inherited. Returns only on error.
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
/// [`Supervisor::start`] must be called on the main thread: the kernel ends a component together
/// with the thread that started it.
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
    /// Starts a control plane and waits until it is usable: the API server is ready, the built-in
    /// roles exist, and the controllers have created their first object.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let started = start_with_new_ports(&settings);
        if started.is_err() && settings.lifetime == Lifetime::UntilStdinCloses {
            remove_directory(&settings.directory)?;
        }
        started
    }

    /// Returns the path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.settings.directory.join("kubeconfig")
    }

    /// Waits until the control plane has to end, then ends it. Succeeds only if its owner has
    /// requested the end; if a component ends by itself, that is an error. A control plane with an
    /// owner leaves nothing on disk in either case.
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
        let choose = || {
            ReservedPort::choose()
                .map_err(|source| StartError::System { action: "choose a port on 127.0.0.1", source })
        };
        let (etcd_port, apiserver_port) = (choose()?, choose()?);
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
        // kubectl costs more than a connection, so run it only once the server listens.
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
            let mut child = Command::new(OUR_PROGRAM)
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

    /// Waits until `condition` holds. Fails if a component or the owner ends.
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

    /// Waits for `timeout`, or without limit. Fails if a component or the owner ends.
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
            // Ignore any input; only its end matters.
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
                Err(if log.contains(ADDRESS_IN_USE) {
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

    /// Kills the components. Their data is discarded, so nothing needs to be flushed.
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

/// Creates the certificates, then starts the components until they get all chosen ports.
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

fn accepts(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}
