//! Ending the processes of pods while no daemon runs.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warren_oci::cleanup::{self, CleanupError};
use warren_oci::client::{CallError, ShimClient};
use warren_oci::protocol::Call;

/// A pod's processes could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum EndPodsError {
    /// The pods could not be listed.
    #[error("list `{}`", path.display())]
    List {
        /// Their directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A pod's shim is there but does not do as told.
    #[error("end the pod in `{}`", path.display())]
    Shim {
        /// The pod's directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: CallError,
    },
    /// What is left of a pod without a shim would not go.
    #[error(transparent)]
    Cleanup(#[from] CleanupError),
    /// The bridge or the packet rules of the pod network would not go.
    #[error("remove the pod network")]
    Network(#[source] io::Error),
}

/// Ends every process of every pod of a home, and returns how many pods had any. Their files and what is known of how
/// their containers ended stay for the next daemon, which starts again what should run. Safe to repeat.
pub fn end_pods(directory: &Path, home_id: &str) -> Result<usize, EndPodsError> {
    let pods = directory.join("pods");
    let mut ended = 0;
    for path in list(&pods).map_err(|source| EndPodsError::List { path: pods, source })? {
        match connect(&path) {
            Ok(Some(shim)) => {
                shut_down(&shim).map_err(|source| EndPodsError::Shim { path, source })?;
                ended += 1;
            }
            // No shim: it has ended before, or was killed. Its record and the cgroups below say whether something is left.
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

/// A pod's shim, if it has one. The daemon may have had it forked a moment before it ended, so that it is there without
/// listening yet.
fn connect(pod_directory: &Path) -> io::Result<Option<ShimClient>> {
    loop {
        // Asked first: a shim whose record is there by now listens.
        let may_come = warren_node::shim_may_come_within(pod_directory);
        match (ShimClient::connect(pod_directory), may_come) {
            (Ok(shim), _) => return Ok(Some(shim)),
            (Err(error), _)
                if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Err(error);
            }
            (Err(_), None) => return Ok(None),
            // Looking again, until it listens or its time is over.
            (Err(_), Some(patience)) => std::thread::park_timeout(patience.min(Duration::from_millis(5))),
        }
    }
}

/// The shim answers when everything in the pod is gone, and then goes itself.
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
