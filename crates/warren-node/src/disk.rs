//! Keeps pods from filling the disk, with bytes or with inodes. A pod that exceeds its limits is
//! evicted. When the disk is nearly full, the pod with the most files is.
//!
//! The kernel does not say how much each pod writes. Quotas would, but few file systems are made
//! with them, and an image or a file system of its own for each pod would cost more than the pod's
//! start. A file system does report its free space within a microsecond, and no pod can have grown
//! by more than the free space has shrunk.
//!
//! So a pod's files are counted when the disk has lost as much as the pod may still write.
//! Otherwise, if anything was written at all, they are counted once a minute, as in kubelet, one
//! pod after the other. A pod whose processes have not run since its last count is skipped: it has
//! written nothing. While the free space shrinks, it is read ten times a second. Between two
//! readings a pod can exceed its limit for a moment. The eviction frees that space, and needs none
//! itself.

mod measure;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};
use warren_decide::pod::{Amount, DiskSpace, DiskUsage, disk_eviction, disk_room, low_disk_eviction};
use warren_oci::cgroup_names;
use warren_oci::privileges::Privileges;
use warren_oci::protocol::ContainerStatus;
use warren_sys::cgroup::{Cgroup, Hierarchy};

use self::measure::{MeasureError, first_processes, measure, processes_beside};
use crate::node::Shared;
use crate::pod_registry::{Entry, Seen};
use crate::worker::chain;

/// The time between two readings of the free space.
const PAUSE: Duration = Duration::from_secs(1);
/// The same while the free space shrinks.
const PAUSE_WHILE_SHRINKING: Duration = Duration::from_millis(100);
/// A smaller decrease is ignored: some program always writes a little. The inodes are those of a
/// megabyte in ordinary files.
const SHRINKING: Amount = Amount { bytes: 1 << 20, inodes: 64 };
/// The age after which a pod's files are counted in any case, if the disk has changed: if one pod
/// writes while another deletes, the free space does not show it. Kubelet's number.
const OLDEST_LOOK: Duration = Duration::from_secs(60);
/// The pause after counting, as a multiple of its duration: counting may take a tenth of a
/// processor for each pod, even with millions of files.
const REST_AFTER_COUNTING: u32 = 10;
/// The same on a nearly full disk, where usage must be known better.
const OLDEST_LOOK_WHEN_LOW: Duration = Duration::from_secs(2);

/// Returns the free space on the disk of a directory.
pub(crate) fn space(directory: &Path) -> io::Result<DiskSpace> {
    let found = rustix::fs::statvfs(directory)?;
    Ok(DiskSpace {
        total: Amount { bytes: found.f_blocks.saturating_mul(found.f_frsize), inodes: found.f_files },
        available: Amount { bytes: found.f_bavail.saturating_mul(found.f_frsize), inodes: found.f_favail },
    })
}

/// The known usage of a pod's files.
struct Known {
    usage: DiskUsage,
    /// The amount that it may still write before it reaches a limit.
    room: Amount,
    /// The processor time of its processes at the count; `None` if it is unknown, or if its files
    /// were not counted completely.
    ran: Option<u64>,
    /// The time of the count, and its duration.
    at: Instant,
    took: Duration,
    /// The disk's total loss and number of changes at the count; the latter is `None` before the
    /// first count.
    lost: Amount,
    changes: Option<u64>,
}

/// The disk's state at one reading.
#[derive(Clone, Copy)]
struct Present {
    now: Instant,
    is_low: bool,
    lost: Amount,
    changes: u64,
}

impl Known {
    /// Returns the reason to count the pod's files again, if there is one.
    fn due(&self, present: Present) -> Option<Due> {
        let oldest = if present.is_low { OLDEST_LOOK_WHEN_LOW } else { OLDEST_LOOK };
        let lost = present.lost.saturating_sub(self.lost);
        let may_be_over = lost.bytes >= self.room.bytes || lost.inodes >= self.room.inodes;
        let is_old =
            present.now.saturating_duration_since(self.at) >= oldest && self.changes != Some(present.changes);
        match (may_be_over, is_old) {
            (false, false) => None,
            (false, true) if !present.is_low => Some(Due::InTurn),
            _ => Some(Due::Now),
        }
    }
}

/// The urgency of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    /// After those whose last count is older. Pods that were started together are due together, and
    /// counting them at once would take every processor.
    InTurn,
}

struct Counted {
    uid: String,
    known: Known,
    result: Result<(), MeasureError>,
}

/// Watches the disk for as long as it is polled.
pub(crate) async fn watch(shared: Arc<Shared>) {
    let hierarchy = match Privileges::of_this_process().and_then(Privileges::hierarchy) {
        Ok(hierarchy) => hierarchy,
        Err(error) => {
            warn!(%error, "the disk is not looked after: no cgroups");
            return;
        }
    };
    let mut keeper = Keeper {
        shared,
        hierarchy,
        began: Timestamp::now(),
        last: None,
        is_low: false,
        is_unsettled: false,
        lost: Amount::default(),
        changes: 0,
        known: HashMap::new(),
        counting: JoinSet::new(),
        being_counted: HashSet::new(),
        line: VecDeque::new(),
        in_turn: None,
    };
    let mut next = tokio::time::Instant::now();
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            // Each reading walks all pods, and counts of a thousand pods end twenty times a second.
            // A single result does not affect other pods, except for the choice of the largest on a
            // nearly full disk.
            Some(counted) = keeper.counting.join_next() => {
                match counted {
                    Ok(counted) => keeper.counted(counted),
                    Err(error) => {
                        warn!(%error, "files of a pod not counted");
                        // The pod is not known. Counting one twice does no harm.
                        keeper.being_counted.clear();
                        keeper.in_turn = None;
                    }
                }
                if !keeper.is_low || !keeper.being_counted.is_empty() {
                    continue;
                }
            }
        }
        next = tokio::time::Instant::now() + keeper.measure();
    }
}

struct Keeper {
    shared: Arc<Shared>,
    hierarchy: Hierarchy,
    began: Timestamp,
    last: Option<DiskSpace>,
    /// True if the disk was nearly full at the last reading.
    is_low: bool,
    /// True if there is work although the disk has not changed.
    is_unsettled: bool,
    /// The bytes and inodes that the disk has lost in total, ignoring freed space.
    lost: Amount,
    /// The number of changes seen.
    changes: u64,
    /// Usage by the pods' uids.
    known: HashMap<String, Known>,
    counting: JoinSet<Counted>,
    being_counted: HashSet<String>,
    /// The pods that wait for their turn to be counted, as of the last reading.
    line: VecDeque<String>,
    /// The pod that is being counted in turn.
    in_turn: Option<String>,
}

impl Keeper {
    /// Reads the free space, starts the counts that are due, and returns the time until the next
    /// reading.
    fn measure(&mut self) -> Duration {
        let space = match space(&self.shared.pods) {
            Ok(space) => space,
            Err(error) => {
                warn!(%error, "room on the disk not known");
                return OLDEST_LOOK;
            }
        };
        if self.last == Some(space) && !self.is_unsettled {
            return PAUSE;
        }
        let lost_before = self.lost;
        let shrunk =
            self.last.map_or(Amount::default(), |last| last.available.saturating_sub(space.available));
        self.lost = self.lost.saturating_add(shrunk);
        self.changes += u64::from(self.last != Some(space));
        self.last = Some(space);

        self.is_low = space.is_low();
        self.is_unsettled = self.is_low;
        let now = Instant::now();
        let present = Present { now, is_low: self.is_low, lost: self.lost, changes: self.changes };
        let mut line = Vec::new();
        for (uid, entry) in self.suspects(present) {
            let Some((entry, pod)) = live(entry) else { continue };
            // A pod that started since the last reading may have written since then. The usage of
            // older pods is unknown.
            let known = self.known.entry(uid.clone()).or_insert_with(|| Known {
                usage: DiskUsage::default(),
                room: match is_older(&entry, self.began) {
                    true => Amount::default(),
                    false => disk_room(&pod, &DiskUsage::default()),
                },
                ran: None,
                at: now,
                took: Duration::ZERO,
                lost: lost_before,
                changes: None,
            });
            let Some(due) = known.due(present) else { continue };
            if now.duration_since(known.at) < known.took * REST_AFTER_COUNTING {
                self.is_unsettled = true;
            } else if due == Due::Now {
                self.count(uid, &entry, pod);
            } else if !self.being_counted.contains(&uid) {
                line.push((known.at, uid));
            }
        }
        line.sort_unstable();
        self.line = line.into_iter().map(|(_, uid)| uid).collect();
        self.next_turn();
        if self.is_low && self.being_counted.is_empty() {
            self.relieve(space);
        }
        let is_shrinking = shrunk.bytes >= SHRINKING.bytes || shrunk.inodes >= SHRINKING.inodes;
        if is_shrinking || self.is_low { PAUSE_WHILE_SHRINKING } else { PAUSE }
    }

    /// Starts the next count in turn, unless one is running.
    fn next_turn(&mut self) {
        while self.in_turn.is_none()
            && let Some(uid) = self.line.pop_front()
        {
            if let Some((entry, pod)) = self.shared.registry.get(&uid).and_then(live) {
                self.in_turn = Some(uid.clone());
                self.count(uid, &entry, pod);
            }
        }
    }

    /// Starts the count of a pod's files, unless one is running.
    fn count(&mut self, uid: String, entry: &Entry, pod: Arc<Pod>) {
        if !self.being_counted.insert(uid.clone()) {
            return;
        }
        let (lost, changes) = (self.lost, Some(self.changes));
        let before = self.known.get(&uid).and_then(|known| Some((known.usage.clone(), known.ran?)));
        let directory = entry.directory.clone();
        let cgroups = self.cgroups(&uid, entry);
        // Without root there may be no cgroups to find its processes by.
        let first = (self.hierarchy == Hierarchy::Absent).then(|| first_processes(entry));
        self.counting.spawn_blocking(move || {
            let begun = Instant::now();
            // Read before the files: later writes are seen the next time.
            let ran = cgroups.iter().map(|cgroup| cgroup.processor_nanoseconds().ok()).sum::<Option<u64>>();
            // Without a cgroup the processor time is unknown, not zero.
            let ran = ran.filter(|_| !cgroups.is_empty());
            let (usage, result) = unless_at_rest(before, ran, || {
                let processes = match &first {
                    Some(first) => processes_beside(first),
                    None => cgroups.iter().filter_map(|cgroup| cgroup.processes().ok()).flatten().collect(),
                };
                measure(&directory, &processes)
            });
            let room = disk_room(&pod, &usage);
            let ran = ran.filter(|_| result.is_ok());
            let known = Known { usage, room, ran, at: Instant::now(), took: begun.elapsed(), lost, changes };
            Counted { uid, known, result }
        });
    }

    fn cgroups(&self, uid: &str, entry: &Entry) -> Vec<Cgroup> {
        let names = cgroup_names::pod(&self.shared.home_id, uid);
        let state = entry.state.borrow();
        let containers = state.iter().flat_map(|state| state.containers.keys());
        let named = |name: &String| Cgroup::named(&self.hierarchy, &cgroup_names::container(&names, name));
        containers.map(named).collect()
    }

    /// Returns the pods that are new or may exceed their limits, including dead ones, and forgets
    /// deleted pods. Most pods are neither, so this is their whole cost of a reading.
    fn suspects(&mut self, present: Present) -> Vec<(String, Arc<Entry>)> {
        let known = &mut self.known;
        self.shared.registry.with_entries(|entries| {
            // Keep pods that do not run now: their files stay from one run to the next.
            known.retain(|uid, _| entries.contains_key(uid));
            let suspects = entries
                .iter()
                .filter(|(uid, _)| known.get(*uid).is_none_or(|known| known.due(present).is_some()))
                .map(|(uid, entry)| (uid.clone(), entry.clone()));
            suspects.collect()
        })
    }

    fn counted(&mut self, counted: Counted) {
        let Counted { uid, known, result } = counted;
        self.being_counted.remove(&uid);
        if self.in_turn.as_ref() == Some(&uid) {
            self.in_turn = None;
            self.next_turn();
        }
        let Some(entry) = self.shared.registry.get(&uid) else { return };
        let Some((entry, pod)) = live(entry) else { return };
        let Amount { bytes, inodes } = known.usage.total();
        debug!(%uid, bytes, inodes, took = ?known.took, "files of a pod counted");
        let message = match &result {
            Ok(()) => disk_eviction(&pod, &known.usage),
            // Usage that cannot be measured cannot be limited.
            Err(error @ MeasureError::TooDeep) => Some(format!("Pod's files cannot be counted: {error}. ")),
            Err(error) => {
                warn!(%uid, error = %chain(error), "files of a pod not counted to the end");
                disk_eviction(&pod, &known.usage)
            }
        };
        self.known.insert(uid.clone(), known);
        if let Some(message) = message {
            evict(&uid, &entry, message);
        }
    }

    /// Evicts the pod with the most files, unless one is being evicted already.
    fn relieve(&self, space: DiskSpace) {
        let going = |entry: &Entry| entry.eviction.borrow().is_some();
        let all = self.shared.registry.all();
        if all.iter().any(|(_, entry)| going(entry) && has_files(entry)) {
            return;
        }
        let running: HashMap<String, Live> =
            all.into_iter().filter_map(|(uid, entry)| Some((uid, live(entry)?))).collect();
        let pods = running.iter().filter_map(|(uid, (_, pod))| Some((&**pod, &self.known.get(uid)?.usage)));
        if let Some((pod, message)) = low_disk_eviction(space, pods)
            && let Some(uid) = &pod.metadata.uid
            && let Some((entry, _)) = running.get(uid)
        {
            evict(uid, entry, message);
        }
    }
}

/// Counts a pod's files, unless its processes have not run since the last count. (The node itself
/// writes config maps and secrets into a pod's volumes, a megabyte each at most. That is counted
/// once the pod has run.)
fn unless_at_rest(
    before: Option<(DiskUsage, u64)>,
    ran: Option<u64>,
    count: impl FnOnce() -> (DiskUsage, Result<(), MeasureError>),
) -> (DiskUsage, Result<(), MeasureError>) {
    match before {
        Some((usage, ran_before)) if ran == Some(ran_before) => (usage, Ok(())),
        _ => count(),
    }
}

/// Returns true if a pod ran before this time, or before its present run.
fn is_older(entry: &Entry, time: Timestamp) -> bool {
    let state = entry.state.borrow();
    let mut containers = state.iter().flat_map(|state| state.containers.values());
    containers.any(|container| match container.status {
        ContainerStatus::Running { started_at, .. } => started_at < time || container.attempt > 0,
        _ => false,
    })
}

fn evict(uid: &str, entry: &Entry, message: String) {
    info!(%uid, pod = %entry.name, reason = %message, "pod evicted");
    entry.eviction.send_replace(Some(message));
}

/// Returns true if a pod has anything but logs on the disk.
fn has_files(entry: &Entry) -> bool {
    entry.directory.written().iter().any(|place| place.exists())
}

/// A pod that has not ended and is not being deleted. It need not run: a lost shim leaves files,
/// and on a full disk no new one is started.
type Live = (Arc<Entry>, Arc<Pod>);

fn live(entry: Arc<Entry>) -> Option<Live> {
    let Seen::Pod(pod) = entry.seen.borrow().clone() else { return None };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let ended = matches!(phase, Some("Succeeded" | "Failed")) || pod.metadata.deletion_timestamp.is_some();
    let goes = entry.eviction.borrow().is_some();
    (!ended && !goes).then_some((entry, pod))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_when_a_limit_may_be_reached_or_the_count_is_old() {
        let at = Instant::now();
        let known = Known {
            usage: DiskUsage::default(),
            room: Amount { bytes: 100, inodes: 10 },
            ran: None,
            at,
            took: Duration::ZERO,
            lost: Amount { bytes: 1_000, inodes: 500 },
            changes: Some(7),
        };
        let due = |seconds, is_low, bytes, changes| {
            let lost = Amount { bytes, inodes: 509 };
            known.due(Present { now: at + Duration::from_secs(seconds), is_low, lost, changes })
        };
        assert_eq!(due(1, false, 1_099, 8), None);
        assert_eq!(
            due(1, false, 1_100, 8),
            Some(Due::Now),
            "the disk has lost all that the pod may still write"
        );
        assert_eq!(due(60, false, 1_100, 8), Some(Due::Now));
        assert_eq!(due(59, false, 1_000, 8), None);
        assert_eq!(due(60, false, 1_000, 8), Some(Due::InTurn));
        assert_eq!(due(60, false, 1_000, 7), None, "nothing was written since");
        assert_eq!(due(2, true, 1_000, 8), Some(Due::Now), "a full disk");
        assert_eq!(due(1, true, 1_000, 8), None);
        let lost = Amount { bytes: 1_000, inodes: 510 };
        let present = Present { now: at + Duration::from_secs(1), is_low: false, lost, changes: 8 };
        assert_eq!(known.due(present), Some(Due::Now), "the disk has lost all inodes that the pod may take");
    }

    #[test]
    fn files_are_not_counted_again_while_nobody_runs() {
        let usage = |bytes| DiskUsage { others: Amount { bytes, inodes: 1 }, ..DiskUsage::default() };
        let counted = |before, ran| unless_at_rest(before, ran, || (usage(2), Ok(()))).0;
        assert_eq!(counted(None, Some(5)), usage(2), "never counted");
        assert_eq!(counted(Some((usage(1), 5)), Some(5)), usage(1));
        assert_eq!(counted(Some((usage(1), 5)), Some(6)), usage(2), "somebody has run");
        assert_eq!(counted(Some((usage(1), 5)), Some(0)), usage(2), "it was started anew");
        assert_eq!(counted(Some((usage(1), 5)), None), usage(2), "nobody tells");
    }
}
