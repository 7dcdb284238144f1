//! The local home: API server, controllers, node and router in one process, over one data
//! directory.
//!
//! This crate starts the drivers and makes no decisions. They communicate only through the API,
//! here by a client that is connected to the server in process. It parses no arguments and prints
//! nothing. Sandboxes run outside of this process and survive it. Start reading at [`run`].
//! [`run_member`] is the node alone, for a cluster.

mod controllers;
mod descriptors;
mod dialer;
pub mod doctor;
mod event_expiry;
mod home;
mod init;
mod kubeconfig;
mod lock;
mod member;
mod ordinary_user;
mod pods;
mod presentation;
mod private;
mod rest;
mod router;
mod runtimes;
mod threads;

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use init::init_command;
pub use lock::{Holder, LockError, Settings, holder, wait_for_start};
pub use member::{Member, MemberConfig, MemberError, run_member};
pub use ordinary_user::{OrdinaryUserError, enter_user_namespace};
pub use pods::{EndPodsError, end_pods};
pub use private::PrivacyError;
pub use runtimes::{NamedRuntime, RuntimeError};
pub use warren_controllers::telemetry::BuildInfo;
pub use warren_node::{HostPath, KubeletAccess, RegistryConfig};

use lock::{Lock, Starting};
use warren_oci::privileges::Privileges;
use warren_oci::zygote::StartZygoteError;

/// The configuration of a home.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data directory. It exists, and the path is canonical.
    pub directory: PathBuf,
    /// The unix socket of the API, for users of this machine.
    pub api_socket: PathBuf,
    /// The TLS address of the API, for all other clients. Port 0 means the previous port if it is
    /// free.
    pub listen: SocketAddr,
    /// The configuration of image pulls.
    pub registries: RegistryConfig,
    /// Further runtimes for pods. `runsc` is available as `gvisor` if it is found, even if it is
    /// not named.
    pub runtimes: Vec<NamedRuntime>,
    /// The directories of this machine that pods may mount.
    pub host_paths: Vec<HostPath>,
    /// The search path for programs: `PATH`.
    pub program_path: Option<OsString>,
    /// The loopback address of the router. Port 0 means the previous port if it is free.
    pub router_listen: SocketAddr,
    /// The file for the router's address.
    pub router_url: PathBuf,
    /// The file for the key that signs tokens for the router. It is created if missing.
    pub router_token_key: PathBuf,
    /// The file for the kubeconfig.
    pub kubeconfig: PathBuf,
    /// Our version, for the lock file.
    pub version: String,
    /// The build of this program, for its metrics.
    pub build: BuildInfo,
}

/// An error of a home.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Other users could read the data directory.
    #[error(transparent)]
    Privacy(#[from] PrivacyError),
    /// Another daemon holds the lock, or the lock file cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The data directory belongs to a node of a cluster, with its pods.
    #[error("`{}` is the data directory of a node of a cluster", directory.display())]
    Member {
        /// The path of the directory.
        directory: PathBuf,
    },
    /// A named runtime does not work.
    #[error(transparent)]
    OtherRuntime(#[from] RuntimeError),
    /// The privileges of this process could not be determined.
    #[error("find out what this process may do")]
    Privileges(#[source] io::Error),
    /// Cgroups that were delegated to the user could not be used.
    #[error("move to a place of our own in the cgroup that was given to us")]
    Cgroups(#[source] io::Error),
    /// The zygote could not be started.
    #[error(transparent)]
    Zygote(#[from] StartZygoteError),
    /// The zygote has ended.
    #[error("the zygote has ended, and no pod can be started without it")]
    ZygoteEnded,
    /// A thread of the API server has died.
    #[error(transparent)]
    Thread(#[from] warren_apiserver::ThreadEnded),
    /// A task that the home needs has died.
    #[error("{what} died, and the home cannot go on without it")]
    Died {
        /// The name of the task.
        what: &'static str,
    },
    /// The async runtime could not be started.
    #[error("start the runtime")]
    Runtime(#[source] io::Error),
    /// The API server could not be started.
    #[error("start the API server")]
    ApiServer(#[from] warren_apiserver::OpenError),
    /// The certificates could not be prepared.
    #[error("prepare the certificates")]
    Certificates(#[from] warren_apiserver::pki::PkiError),
    /// A file or socket could not be created.
    #[error("{action} `{on}`")]
    Make {
        /// The failed action.
        action: &'static str,
        /// The path or address.
        on: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The router's address is not on loopback. Other machines could reach it, and their users
    /// cannot be told apart.
    #[error("the router of a local home listens on loopback only, and {address} is not")]
    RouterNotOnLoopback {
        /// The requested address.
        address: SocketAddr,
    },
    /// The key that signs tokens for the router cannot be used.
    #[error("use the key in `{}`; without the file a new one is made", path.display())]
    RouterTokenKey {
        /// The path of the file.
        path: PathBuf,
        /// The underlying key error.
        #[source]
        source: warren_router::token::KeyError,
    },
    /// The resource definitions could not be serialised.
    #[error("describe the resources")]
    Definitions(#[source] serde_json::Error),
    /// The node could not be started.
    #[error("start the node")]
    Node(#[from] warren_node::StartError),
}

/// The time for unfinished tasks at the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// The time limit of the API's answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Returns true if the API of a home answers. If its process was just killed, the socket still
/// accepts connections for a moment, but does not answer.
fn answers(socket: &Path) -> bool {
    let asked = || -> io::Result<bool> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut start = [0; 5];
        stream.read_exact(&mut start)?;
        Ok(start == *b"HTTP/")
    };
    asked().unwrap_or(false)
}

/// Runs a home until SIGTERM or SIGINT. `on_ready` is called with our process id when the API
/// answers.
///
/// The process must be single-threaded: the zygote and the threads inherit the properties
/// that it has when they are made. An ordinary user's process calls [`enter_user_namespace`] first.
/// After a `kill -9` at any point, the next call finds the objects, the running sandboxes and
/// everything that needs cleanup.
pub fn run(config: Config, on_ready: impl FnOnce(u32)) -> Result<(), StartError> {
    private::tighten(&config.directory)?;
    let starting = Starting::begin(&config.directory)?;
    let pid = std::process::id();
    // Check this before waiting for its lock.
    if member::is_member(&config.directory) {
        return Err(StartError::Member { directory: config.directory });
    }
    let holder = Holder { pid, version: config.version.clone(), settings: Some(Settings::of(&config)) };
    let _lock = Lock::take(&config.directory, &holder, || answers(&config.api_socket))?;
    let privileges = Privileges::of_this_process().map_err(StartError::Privileges)?;
    // Their programs are executed to identify them, which also needs a single-threaded process.
    let other_runtimes = runtimes::find(privileges, &config.runtimes, config.program_path.as_deref())?;
    privileges.claim_cgroups().map_err(StartError::Cgroups)?;
    let zygote = warren_node::start_zygote()?;
    let node = threads::of_node().map_err(StartError::Runtime)?;
    let api = threads::of_api().map_err(StartError::Runtime)?;
    api.spawn(rest::give_memory_back());
    let outcome =
        api.block_on(home::serve(config, other_runtimes, privileges, zygote, node.handle(), || {
            drop(starting);
            on_ready(pid);
        }));
    api.shutdown_timeout(FAREWELL);
    node.shutdown_timeout(FAREWELL);
    outcome
}
