//! The local home: API server, controllers, node and router in one process, over one data directory.
//!
//! It puts the drivers together and decides nothing of its own: they talk to each other through the API only, here
//! by a client that is wired to the server in process. It parses no arguments and prints nothing. Sandboxes run
//! outside of this process and do not notice its end. Start reading at [`run`]; [`run_member`] is the node without the rest,
//! for a cluster.

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

/// Everything a home needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data directory: it exists, and the path is canonical.
    pub directory: PathBuf,
    /// Where the API listens for this machine's own users.
    pub api_socket: PathBuf,
    /// Where the API listens for everybody else, with TLS. With port 0, the port of last time if it is free.
    pub listen: SocketAddr,
    /// How images are pulled.
    pub registries: RegistryConfig,
    /// Further runtimes for pods. `runsc` is `gvisor` also without being named, where it is found.
    pub runtimes: Vec<NamedRuntime>,
    /// The directories of this machine that pods may have as volumes.
    pub host_paths: Vec<HostPath>,
    /// Where programs are found: `PATH`.
    pub program_path: Option<OsString>,
    /// The address that the router listens on, on loopback. With port 0, the port of last time if
    /// it is free.
    pub router_listen: SocketAddr,
    /// The file for the router's address.
    pub router_url: PathBuf,
    /// The file for the key that signs tokens for the router; made if it is not there.
    pub router_token_key: PathBuf,
    /// Where the kubeconfig for that goes.
    pub kubeconfig: PathBuf,
    /// What to call ourselves in the lock file.
    pub version: String,
    /// What this program was built from, for its metrics.
    pub build: BuildInfo,
}

/// A home could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Other users could read the data directory.
    #[error(transparent)]
    Privacy(#[from] PrivacyError),
    /// Somebody else has it, or the lock file cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The data directory is that of a node of a cluster, whose pods are not ours.
    #[error("`{}` is the data directory of a node of a cluster", directory.display())]
    Member {
        /// Which directory.
        directory: PathBuf,
    },
    /// A runtime that was named is none.
    #[error(transparent)]
    OtherRuntime(#[from] RuntimeError),
    /// What we may do on this machine could not be found out.
    #[error("find out what this process may do")]
    Privileges(#[source] io::Error),
    /// Cgroups that were given to the user could not be used.
    #[error("move to a place of our own in the cgroup that was given to us")]
    Cgroups(#[source] io::Error),
    /// The process that forks shims could not be made.
    #[error(transparent)]
    Zygote(#[from] StartZygoteError),
    /// That process has ended.
    #[error("the zygote has ended, and no pod can be started without it")]
    ZygoteEnded,
    /// A thread of the API server has died.
    #[error(transparent)]
    Thread(#[from] warren_apiserver::ThreadEnded),
    /// A task that the home cannot do without has died.
    #[error("{what} died, and the home cannot go on without it")]
    Died {
        /// Which one.
        what: &'static str,
    },
    /// No threads.
    #[error("start the runtime")]
    Runtime(#[source] io::Error),
    /// The API server did not come up.
    #[error("start the API server")]
    ApiServer(#[from] warren_apiserver::OpenError),
    /// No certificates.
    #[error("prepare the certificates")]
    Certificates(#[from] warren_apiserver::pki::PkiError),
    /// A file or a socket could not be made.
    #[error("{action} `{on}`")]
    Make {
        /// What was tried.
        action: &'static str,
        /// A path or an address.
        on: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The router would be reached from other machines, whose users cannot be told apart.
    #[error("the router of a local home listens on loopback only, and {address} is not")]
    RouterNotOnLoopback {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// The key that signs tokens for the router cannot be used.
    #[error("use the key in `{}`; without the file a new one is made", path.display())]
    RouterTokenKey {
        /// The file.
        path: PathBuf,
        /// The underlying key error.
        #[source]
        source: warren_router::token::KeyError,
    },
    /// The definitions of our resources could not be written down.
    #[error("describe the resources")]
    Definitions(#[source] serde_json::Error),
    /// The node did not come up.
    #[error("start the node")]
    Node(#[from] warren_node::StartError),
}

/// How long tasks that are in the middle of something may take at the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long the API of a home has to answer whether it lives.
const ANSWER: Duration = Duration::from_secs(2);

/// Whether the API of a home answers. One whose process was killed takes connections for a moment longer, but says nothing.
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

/// Runs a home until SIGTERM or SIGINT. `on_ready` is called with our process id when the API answers.
///
/// To be called by a process with one thread: the zygote and the threads begin as their maker, each at its time. An ordinary user's comes here by way of
/// [`enter_user_namespace`]. After a `kill -9` at any point, the next
/// call finds the objects, the running sandboxes and whatever has to be cleaned up.
pub fn run(config: Config, on_ready: impl FnOnce(u32)) -> Result<(), StartError> {
    private::tighten(&config.directory)?;
    let starting = Starting::begin(&config.directory)?;
    let pid = std::process::id();
    // Before its lock is waited for.
    if member::is_member(&config.directory) {
        return Err(StartError::Member { directory: config.directory });
    }
    let holder = Holder { pid, version: config.version.clone(), settings: Some(Settings::of(&config)) };
    let _lock = Lock::take(&config.directory, &holder, || answers(&config.api_socket))?;
    let privileges = Privileges::of_this_process().map_err(StartError::Privileges)?;
    // Their programs are asked who they are, which is for a process with one thread, too.
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
