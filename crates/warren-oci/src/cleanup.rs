//! What is left after a crash: processes in our cgroups, the cgroups, and the pods' directories.
//!
//! Mounts are never among it: they exist only in the containers' own mount namespaces and go with their last process.

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

/// What a pod's shim last wrote down about it; `None` if it never got that far.
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
    /// Processes would not die.
    #[error("processes of cgroup {0} are still there after ten seconds")]
    Alive(String),
    /// The cgroup would not go.
    #[error("remove cgroup {name}")]
    Cgroup {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The directory would not go.
    #[error("remove {path}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// How long killed processes may take to disappear. A process that the kernel holds (say, in a hung disk) is the only
/// reason for it to take longer than a moment.
const PATIENCE: Duration = Duration::from_secs(10);

fn hierarchy() -> Result<Hierarchy, CleanupError> {
    Privileges::of_this_process().and_then(Privileges::hierarchy).map_err(CleanupError::Cgroups)
}

/// Kills whatever is left of a pod and removes its cgroups. For a pod whose shim is gone; with a living shim use
/// [`crate::protocol::Call::Shutdown`]. Safe to repeat. Its directory stays.
pub fn kill_pod(home_id: &str, pod_uid: &str) -> Result<(), CleanupError> {
    let (hierarchy, home) = (hierarchy()?, cgroup_names::home(home_id));
    let all = hierarchy.children(&home).map_err(CleanupError::Cgroups)?;
    let of_pod = all.iter().filter(|name| cgroup_names::uid_of(name) == pod_uid);
    of_pod
        .map(|name| Cgroup::named(&hierarchy, &format!("{home}/{name}")))
        .try_for_each(|cgroup| remove_cgroup(&cgroup))
}

/// Kills the containers that a pod's record says are running. For a pod whose shim is gone, where there are no cgroups to find
/// them by: they die with their shim, unless one has seen to it that it does not. Safe to repeat.
pub fn kill_recorded(pod_directory: &Path) -> io::Result<()> {
    let Some(state) = read_state(pod_directory)? else { return Ok(()) };
    for container in state.containers.values() {
        let ContainerStatus::Running { process: name, .. } = container.status else { continue };
        let Ok(pidfd) = process::open_pidfd(name.pid) else { continue };
        // Asked after it is pinned: another may have its number by now.
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

/// Removes a pod's directory and all that its containers wrote.
pub fn remove_pod_directory(directory: &Path) -> Result<(), CleanupError> {
    match std::fs::remove_dir_all(directory) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(CleanupError::Directory { path: directory.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// The uids of pods that have cgroups in this home, dead or alive.
pub fn pods_with_cgroups(home_id: &str) -> Result<Vec<String>, CleanupError> {
    let all = hierarchy()?.children(&cgroup_names::home(home_id)).map_err(CleanupError::Cgroups)?;
    let mut uids: Vec<String> = all.iter().map(|name| cgroup_names::uid_of(name).to_owned()).collect();
    uids.sort_unstable();
    uids.dedup();
    Ok(uids)
}

/// Removes the home's own cgroup once no pod is left in it; a home with pods keeps it.
pub fn remove_home_cgroup(home_id: &str) -> Result<(), CleanupError> {
    if !pods_with_cgroups(home_id)?.is_empty() {
        return Ok(());
    }
    let hierarchy = hierarchy()?;
    remove_cgroup(&Cgroup::named(&hierarchy, &cgroup_names::home(home_id)))
}

/// Kills what is in the cgroup until it can be removed.
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
        // So we look again, ever less often.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
