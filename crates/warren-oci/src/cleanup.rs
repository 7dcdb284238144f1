//! Cleanup after a crash: processes in our cgroups, the cgroups, and the pods' directories.
//!
//! Mounts need no cleanup. They exist only in the containers' own mount namespaces and end with
//! their last process.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use warren_sys::cgroup::{Cgroup, Hierarchy};
use warren_sys::process;

use crate::cgroup_names;
use crate::privileges::Privileges;
use crate::protocol::{ContainerStatus, PodState};

/// Reads the last state that a pod's shim recorded. Returns `None` if it recorded none.
pub fn read_state(pod_directory: &Path) -> io::Result<Option<PodState>> {
    match std::fs::read(pod_directory.join("state.json")) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A leftover could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The cgroups could not be read.
    #[error("look for cgroups")]
    Cgroups(#[source] io::Error),
    /// Processes did not end.
    #[error("processes of cgroup {0} are still there after ten seconds")]
    Alive(String),
    /// The cgroup could not be removed.
    #[error("remove cgroup {name}")]
    Cgroup {
        /// The name of the cgroup.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The directory could not be removed.
    #[error("remove {path}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The time limit for killed processes to end. Only a process that hangs in the kernel, for example
/// on a failing disk, takes longer than a moment.
const PATIENCE: Duration = Duration::from_secs(10);

fn hierarchy() -> Result<Hierarchy, CleanupError> {
    Privileges::of_this_process().and_then(Privileges::hierarchy).map_err(CleanupError::Cgroups)
}

/// Kills all processes of a pod and removes its cgroups. Its directory stays. It may be repeated.
/// It is for a pod whose shim is gone. For a living shim use [`crate::protocol::Call::Shutdown`].
pub fn kill_pod(home_id: &str, pod_uid: &str) -> Result<(), CleanupError> {
    let (hierarchy, home) = (hierarchy()?, cgroup_names::home(home_id));
    let all = hierarchy.children(&home).map_err(CleanupError::Cgroups)?;
    let of_pod = all.iter().filter(|name| cgroup_names::uid_of(name) == pod_uid);
    of_pod
        .map(|name| Cgroup::named(&hierarchy, &format!("{home}/{name}")))
        .try_for_each(|cgroup| remove_cgroup(&cgroup))
}

/// Kills the containers that a pod's record lists as running. It may be repeated. It is for a pod
/// whose shim is gone, on a machine without cgroups. Such containers normally die with their shim,
/// unless one of them has prevented it.
pub fn kill_recorded(pod_directory: &Path) -> io::Result<()> {
    let Some(state) = read_state(pod_directory)? else { return Ok(()) };
    for container in state.containers.values() {
        let ContainerStatus::Running { process: name, .. } = container.status else { continue };
        let Ok(pidfd) = process::open_pidfd(name.pid) else { continue };
        // Check after the process is pinned: the number may have been reused.
        if !name.is_alive() {
            continue;
        }
        match process::send_signal(pidfd.as_fd(), libc::SIGKILL) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&patience))?;
    }
    Ok(())
}

/// Removes a pod's directory and all files that its containers wrote.
pub fn remove_pod_directory(directory: &Path) -> Result<(), CleanupError> {
    match std::fs::remove_dir_all(directory) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(CleanupError::Directory { path: directory.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Returns the UIDs of the pods that have cgroups in this home, dead or alive.
pub fn pods_with_cgroups(home_id: &str) -> Result<Vec<String>, CleanupError> {
    let all = hierarchy()?.children(&cgroup_names::home(home_id)).map_err(CleanupError::Cgroups)?;
    let mut uids: Vec<String> = all.iter().map(|name| cgroup_names::uid_of(name).to_owned()).collect();
    uids.sort_unstable();
    uids.dedup();
    Ok(uids)
}

/// Removes the home's own cgroup if no pod is left in it.
pub fn remove_home_cgroup(home_id: &str) -> Result<(), CleanupError> {
    if !pods_with_cgroups(home_id)?.is_empty() {
        return Ok(());
    }
    let hierarchy = hierarchy()?;
    remove_cgroup(&Cgroup::named(&hierarchy, &cgroup_names::home(home_id)))
}

/// Kills the processes in the cgroup until it can be removed.
#[expect(clippy::disallowed_methods, reason = "nobody is told when a version 1 cgroup has become empty")]
pub(crate) fn remove_cgroup(cgroup: &Cgroup) -> Result<(), CleanupError> {
    let failed = |source| CleanupError::Cgroup { name: cgroup.name().to_owned(), source };
    // A frozen process does not die.
    let _ = cgroup.thaw();
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(50);
    loop {
        match cgroup.remove() {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::ResourceBusy => return Err(failed(error)),
            Err(_) if Instant::now() >= deadline => {
                return Err(CleanupError::Alive(cgroup.name().to_owned()));
            }
            Err(_) => {}
        }
        cgroup.kill_all().map_err(failed)?;
        // So poll, with growing pauses.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
