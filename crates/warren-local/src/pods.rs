//! Ends the processes of pods while no daemon runs.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warren_oci::cleanup::{self, CleanupError};
use warren_oci::client::{CallError, ShimClient};
use warren_oci::protocol::Call;

/// An error of ending pods.
#[derive(Debug, thiserror::Error)]
pub enum EndPodsError {
    /// The pods could not be listed.
    #[error("list `{}`", path.display())]
    List {
        /// The directory of the pods.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A pod's shim runs but does not obey.
    #[error("end the pod in `{}`", path.display())]
    Shim {
        /// The pod's directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: CallError,
    },
    /// The leftovers of a pod without a shim could not be removed.
    #[error(transparent)]
    Cleanup(#[from] CleanupError),
    /// The bridge or the packet rules of the pod network could not be removed.
    #[error("remove the pod network")]
    Network(#[source] io::Error),
}

/// Ends every process of every pod of a home, and returns the number of pods that had any. It may
/// be repeated. Files and recorded exit statuses stay for the next daemon, which starts again the
/// pods that should run.
pub fn end_pods(directory: &Path, home_id: &str) -> Result<usize, EndPodsError> {
    let pods = directory.join("pods");
    let mut ended = 0;
    for path in list(&pods).map_err(|source| EndPodsError::List { path: pods, source })? {
        match connect(&path) {
            Ok(Some(shim)) => {
                shut_down(&shim).map_err(|source| EndPodsError::Shim { path, source })?;
                ended += 1;
            }
            // The shim has ended or was killed. The record and the cgroups below show if any
            // process is left.
            Ok(None) => cleanup::kill_recorded(&path)
                .map_err(|source| EndPodsError::Shim { path, source: source.into() })?,
            Err(source) => return Err(EndPodsError::Shim { path, source: source.into() }),
        }
    }
    for uid in cleanup::pods_with_cgroups(home_id)? {
        cleanup::kill_pod(home_id, &uid)?;
    }
    cleanup::remove_home_cgroup(home_id)?;
    warren_node::remove_network(home_id).map_err(EndPodsError::Network)?;
    Ok(ended)
}

/// Connects to a pod's shim, if it has one. The daemon may have forked it just before it ended, so
/// it may not listen yet.
fn connect(pod_directory: &Path) -> io::Result<Option<ShimClient>> {
    loop {
        // Read this first: if the shim's record exists by now, the shim listens.
        let may_come = warren_node::shim_may_come_within(pod_directory);
        match (ShimClient::connect(pod_directory), may_come) {
            (Ok(shim), _) => return Ok(Some(shim)),
            (Err(error), _)
                if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Err(error);
            }
            (Err(_), None) => return Ok(None),
            // Try again until it listens or its time is over.
            (Err(_), Some(patience)) => std::thread::park_timeout(patience.min(Duration::from_millis(5))),
        }
    }
}

/// Shuts a pod down. The shim answers when all processes of the pod have ended, and then exits.
fn shut_down(shim: &ShimClient) -> Result<(), CallError> {
    shim.call(Call::Shutdown, |_| {}).map(drop)
}

fn list(pods: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(pods) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
