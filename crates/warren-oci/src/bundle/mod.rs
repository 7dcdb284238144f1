//! OCI bundles: a directory with a root file system and a `config.json`, as other container engines
//! make them.
//!
//! A container is made exactly as described. Nothing is added or left out, and unsupported
//! properties are refused. No process of ours stays beside a container: its state is kept in a
//! directory below the root of [`Runtime`].
//!
//! Start reading at [`Runtime`], then `create`, `filesystem` and `process`.

mod cgroups;
mod config;
mod create;
mod exec;
mod filesystem;
mod hooks;
mod process;
mod seccomp;
mod state;
mod system_calls;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use warren_sys::process::Exit;
use warren_sys::socket::Seqpacket;

use self::cgroups::Cgroups;
use self::state::{Place, Record};
use crate::container::StepError;

pub use self::create::CreateOptions;
pub use self::exec::ExecOptions;
pub use self::state::{State, Status};
pub(crate) use self::system_calls::name as system_call_name;

/// The time limit for a killed container to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// An error of an operation on a container.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No container has this name.
    #[error("container `{0}` does not exist")]
    Unknown(String),
    /// A container with this name exists.
    #[error("container `{0}` exists already")]
    Taken(String),
    /// The container's status does not allow the operation.
    #[error("container `{id}` is {status}: it cannot be {operation}")]
    Status {
        /// The name of the container.
        id: String,
        /// Its status.
        status: Status,
        /// The refused operation.
        operation: &'static str,
    },
    /// The name cannot be used as a directory name.
    #[error("`{0}` cannot be a container's name")]
    Name(String),
    /// The configuration is not supported.
    #[error("{0}")]
    Config(String),
    /// The container's own process reported a failure.
    #[error("{0}")]
    Inside(String),
    /// A step failed.
    #[error("{step}")]
    Step {
        /// The failed step.
        step: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl From<StepError> for Error {
    fn from(error: StepError) -> Self {
        Self::Step { step: error.step, source: error.source }
    }
}

/// Names the step that an error belongs to.
trait Step<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Step { step: step(), source })
    }
}

impl<T> Step<T> for rustix::io::Result<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(io::Error::from).step(step)
    }
}

/// Formats an error with its causes in one line, for another process.
fn with_causes(error: &Error) -> String {
    match error {
        Error::Step { step, source } => format!("{step}: {source}"),
        other => other.to_string(),
    }
}

/// The containers below one directory. Callers must be single-threaded.
#[derive(Debug, Clone)]
pub struct Runtime {
    root: PathBuf,
}

impl Runtime {
    /// Uses `root` for the state of containers.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Creates a container that is ready to be started. After an error nothing is left of it.
    pub fn create(&self, id: &str, options: &CreateOptions) -> Result<(), Error> {
        self.make(id, options).map(drop)
    }

    fn make(&self, id: &str, options: &CreateOptions) -> Result<warren_sys::process::Child, Error> {
        let place = self.place(id)?;
        let step = || format!("make {}", place.0.display());
        fs::create_dir_all(&self.root).step(step)?;
        match fs::create_dir(&place.0) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Taken(id.to_owned()));
            }
            other => other.step(step)?,
        }
        create::create(&place, id, options).inspect_err(|_| {
            let _ = fs::remove_dir_all(&place.0);
        })
    }

    /// Runs the program of a created container.
    pub fn start(&self, id: &str) -> Result<(), Error> {
        let (place, record) = self.find(id)?;
        let status = place.status(&record);
        if status != Status::Created {
            return Err(Error::Status { id: id.to_owned(), status, operation: "started" });
        }
        let config = place.config()?;
        if config.process.is_none() {
            return Err(Error::Config("there is no `process` to start".to_owned()));
        }
        if config.prestart_at_start() {
            let state = place.state(&record, &config);
            if let Err(error) = hooks::run_all(&config.hooks.prestart, &state, Some(&record.bundle)) {
                // The specification requires to delete a container whose hook failed.
                self.delete(id, true)?;
                return Err(error);
            }
        }
        let step = || "reach the container's process".to_owned();
        let socket = Seqpacket::connect(&place.socket()).step(step)?;
        socket.send(create::START, &[]).step(step)?;
        place.set_started()?;
        if let Some(packet) = socket.receive(64 << 10).step(step)? {
            return Err(Error::Inside(String::from_utf8_lossy(&packet.bytes).into_owned()));
        }
        let mut state = place.state(&record, &config);
        // A short program may have ended already. The hooks still get the status running.
        state.status = Status::Running;
        hooks::run_each(&config.hooks.poststart, &state, Some(&record.bundle));
        Ok(())
    }

    /// Returns the current state of a container.
    pub fn state(&self, id: &str) -> Result<State, Error> {
        let (place, record) = self.find(id)?;
        Ok(place.state(&record, &place.config()?))
    }

    /// Returns all containers, sorted by name. One that is being created or removed may be missing.
    pub fn list(&self) -> Result<Vec<State>, Error> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.step(|| format!("list {}", self.root.display()))?,
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut all: Vec<State> = names.filter_map(|name| self.state(&name).ok()).collect();
        all.sort_by(|left, right| left.id.cmp(&right.id));
        Ok(all)
    }

    /// Sends a signal to a container's first process, or to all of its processes.
    pub fn kill(&self, id: &str, signal: i32, all: bool) -> Result<(), Error> {
        let (place, record) = self.find(id)?;
        let status = place.status(&record);
        let process = match (status, record.process) {
            (Status::Created | Status::Running, Some(process)) => process,
            _ => return Err(Error::Status { id: id.to_owned(), status, operation: "killed" }),
        };
        if all {
            Cgroups::named(&record.cgroup)?.signal_all(signal);
            return Ok(());
        }
        let step = || "send the signal".to_owned();
        let pidfd = warren_sys::process::open_pidfd(process.pid).step(step)?;
        // The descriptor pins the process. Check again that it is the right one: the first check
        // was before it was opened.
        if !state::runs(process) {
            return Err(Error::Status { id: id.to_owned(), status: Status::Stopped, operation: "killed" });
        }
        use std::os::fd::AsFd as _;
        warren_sys::process::send_signal(pidfd.as_fd(), signal).step(step)
    }

    /// Removes a stopped container. With `force` it removes any, and a missing one is no error.
    pub fn delete(&self, id: &str, force: bool) -> Result<(), Error> {
        let (place, record) = match self.find(id) {
            Err(Error::Unknown(_)) if force => return Ok(()),
            other => other?,
        };
        let status = place.status(&record);
        if status != Status::Stopped && !force {
            return Err(Error::Status { id: id.to_owned(), status, operation: "deleted" });
        }
        self.end(&record)?;
        Cgroups::named(&record.cgroup)?.remove()?;
        let config = place.config()?;
        let mut state = place.state(&record, &config);
        (state.status, state.pid) = (Status::Stopped, 0);
        fs::remove_dir_all(&place.0).step(|| format!("remove {}", place.0.display()))?;
        hooks::run_each(&config.hooks.poststop, &state, None);
        Ok(())
    }

    /// Creates and starts a container, waits for its end, and deletes it. Returns its exit code in
    /// the form that shells use.
    pub fn run(&self, id: &str, options: &CreateOptions) -> Result<i32, Error> {
        let child = self.make(id, options)?;
        let outcome = self.start(id).and_then(|()| child.wait().step(|| "wait for the container".to_owned()));
        self.delete(id, true)?;
        Ok(match outcome? {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        })
    }

    /// Runs another program in a running container. Returns its exit code in the form that shells
    /// use, or 0 at once if detached.
    pub fn exec(&self, id: &str, options: &ExecOptions) -> Result<i32, Error> {
        let (place, record) = self.find(id)?;
        let status = place.status(&record);
        match (status, record.process) {
            (Status::Running, Some(process)) => exec::exec(&record, &place.config()?, process, options),
            _ => Err(Error::Status { id: id.to_owned(), status, operation: "entered" }),
        }
    }

    /// Kills a container's first process and waits until it is gone.
    #[expect(clippy::disallowed_methods, reason = "the process is not our child, so that nobody wakes us")]
    fn end(&self, record: &Record) -> Result<(), Error> {
        let Some(process) = record.process else { return Ok(()) };
        let deadline = Instant::now() + PATIENCE;
        while state::runs(process) {
            if let Ok(pidfd) = warren_sys::process::open_pidfd(process.pid) {
                use std::os::fd::AsFd as _;
                let _ = warren_sys::process::send_signal(pidfd.as_fd(), libc::SIGKILL);
            }
            if Instant::now() >= deadline {
                return Err(io::Error::from(io::ErrorKind::TimedOut))
                    .step(|| "kill the container".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn place(&self, id: &str) -> Result<Place, Error> {
        let fits = !id.is_empty()
            && id.len() <= 255
            && !id.starts_with('.')
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._+".contains(&byte));
        match fits {
            true => Ok(Place(self.root.join(id))),
            false => Err(Error::Name(id.chars().take(255).collect())),
        }
    }

    fn find(&self, id: &str) -> Result<(Place, Record), Error> {
        let place = self.place(id)?;
        let record = place.record(id)?;
        Ok((place, record))
    }
}
