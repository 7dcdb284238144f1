//! Keeps pods from filling the disk, with bytes or with inodes: one that has more on it than it may is evicted, and when next
//! to nothing is left, the one that has most.
//!
//! Nothing tells who writes how much: quotas do, but few file systems are made with them, and an image or a file system of
//! its own for each pod would cost more than its start. But a file system says in a microsecond how much room it has, and no
//! pod can have grown by more than that has shrunk. So a pod's files are counted when the disk has lost as much as the pod
//! may still write, and else once a minute, as kubelet does, if anything was written at all, one pod after the other; and not while nobody in
//! the pod has run, for then it has written nothing. While room shrinks, it is looked at ten times a second. What lies between two looks can be taken for a moment, and is given back with the
//! eviction, which needs no room on the disk itself.

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
use crate::registry::{Entry, Seen};
use crate::worker::chain;

/// Between two looks at the room on the disk.
const PAUSE: Duration = Duration::from_secs(1);
/// The same, while there is less and less.
const PAUSE_WHILE_SHRINKING: Duration = Duration::from_millis(100);
/// A smaller decrease is not shrinking: some program always writes something. The inodes are those
/// of a megabyte in ordinary files.
const SHRINKING: Amount = Amount { bytes: 1 << 20, inodes: 64 };
/// After this long a pod's files are counted in any case, if anything on the disk has changed: what one writes while others
/// delete is not seen in the room that is left. Kubelet's number.
const OLDEST_LOOK: Duration = Duration::from_secs(60);
/// Counting may take a tenth of a processor for each pod: one with millions of files is not counted all the time.
const REST_AFTER_COUNTING: u32 = 10;
/// On a full disk, who has how much must be known better than that.
const OLDEST_LOOK_WHEN_LOW: Duration = Duration::from_secs(2);

/// How much room there is on the disk of a directory.
pub(crate) fn space(directory: &Path) -> io::Result<DiskSpace> {
    let found = rustix::fs::statvfs(directory)?;
    Ok(DiskSpace {
        total: Amount { bytes: found.f_blocks.saturating_mul(found.f_frsize), inodes: found.f_files },
        available: Amount { bytes: found.f_bavail.saturating_mul(found.f_frsize), inodes: found.f_favail },
    })
}

/// What is known of a pod's files.
struct Known {
    usage: DiskUsage,
    /// What may still be written before a limit is reached.
    room: Amount,
    /// How long its processes had run by then; `None` where nobody tells, or nobody has counted them all.
    ran: Option<u64>,
    /// When they were counted, and how long that took.
    at: Instant,
    took: Duration,
    /// What the disk had lost by then, and how often it had changed; the latter is `None` as long as nobody has counted.
    lost: Amount,
    changes: Option<u64>,
}

/// What a look finds before it looks at pods.
#[derive(Clone, Copy)]
struct Present {
    now: Instant,
    is_low: bool,
    lost: Amount,
    changes: u64,
}

impl Known {
    /// Whether the pod's files are to be counted again, and how soon.
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

/// When files are to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    /// After those whose last count is older. Pods that were started together are due together, and all at once they would
    /// have every processor.
    InTurn,
}

/// One count.
struct Counted {
    uid: String,
    known: Known,
    result: Result<(), MeasureError>,
}

/// Looks after the disk for as long as it is polled.
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
            // Each look is at all pods, and counts of a thousand pods end twenty times a second. One pod more or less that was
            // counted makes no difference to the others, except for who has most on a disk that is nearly full.
            Some(counted) = keeper.counting.join_next() => {
                match counted {
                    Ok(counted) => keeper.counted(counted),
                    Err(error) => {
                        warn!(%error, "files of a pod not counted");
                        // Whose they were is not known; one that is counted twice does no harm.
                        keeper.being_counted.clear();
                        keeper.in_turn = None;
                    }
                }
                if !keeper.is_low || !keeper.being_counted.is_empty() {
                    continue;
                }
            }
        }
        next = tokio::time::Instant::now() + keeper.look();
    }
}

struct Keeper {
    shared: Arc<Shared>,
    hierarchy: Hierarchy,
    began: Timestamp,
    last: Option<DiskSpace>,
    /// Whether next to nothing was left then.
    is_low: bool,
    /// Whether there is something to do although nothing has changed.
    is_unsettled: bool,
    /// Bytes and inodes that the disk has lost since we look, whatever it was given back meanwhile.
    lost: Amount,
    /// How often it was found changed.
    changes: u64,
    /// By the pods' uids.
    known: HashMap<String, Known>,
    counting: JoinSet<Counted>,
    being_counted: HashSet<String>,
    /// Pods that are to be counted in turn, as of the last look.
    line: VecDeque<String>,
    /// Whose turn it is.
    in_turn: Option<String>,
}

impl Keeper {
    /// Looks at the room that is left, has those pods counted that may be over their limits, and says when to look again.
    fn look(&mut self) -> Duration {
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
            // One that was started since the last look has written since then; of those before us nothing is known.
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

    /// Has the next in line counted, unless it is somebody's turn.
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

    /// Has the files of a pod counted, unless they are already.
    fn count(&mut self, uid: String, entry: &Entry, pod: Arc<Pod>) {
        if !self.being_counted.insert(uid.clone()) {
            return;
        }
        let (lost, changes) = (self.lost, Some(self.changes));
        let before = self.known.get(&uid).and_then(|known| Some((known.usage.clone(), known.ran?)));
        let directory = entry.directory.clone();
        let cgroups = self.cgroups(&uid, entry);
        // An ordinary user may have no cgroups to find them by.
        let first = (self.hierarchy == Hierarchy::Absent).then(|| first_processes(entry));
        self.counting.spawn_blocking(move || {
            let begun = Instant::now();
            // Before the files: what is written meanwhile is seen the next time.
            let ran = cgroups.iter().map(|cgroup| cgroup.processor_nanoseconds().ok()).sum::<Option<u64>>();
            // Without any there is nobody to tell; that is not nobody who runs.
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

    /// The pods that are new or may be over their limits, dead ones among them; and forgets those that are gone. Most pods are
    /// neither, and this is all that a look costs for them.
    fn suspects(&mut self, present: Present) -> Vec<(String, Arc<Entry>)> {
        let known = &mut self.known;
        self.shared.registry.look(|entries| {
            // Also of those that do not run just now: what they wrote stays from one run to the next.
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
            // What cannot be measured cannot be limited.
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

    /// Evicts whoever has most, unless somebody is on the way out already.
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

/// Counts, unless the pod's processes have run for as long as at the count before: then that still holds. (What the node itself
/// writes into a pod's volumes, a megabyte at most of each config map and secret, is counted when somebody there has run.)
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

/// Whether a pod has run before a time, or before the run that is shown.
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

/// Whether a pod has anything but logs on the disk.
fn has_files(entry: &Entry) -> bool {
    entry.directory.written().iter().any(|place| place.exists())
}

/// A pod that has not ended, and is not on its way out. It need not run: a shim that was lost leaves files, and on a full disk
/// there will be no other.
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
