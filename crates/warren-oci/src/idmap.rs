//! Host ids for pods: every pod owns 65,536 of them, and no two pods share one.
//!
//! The record is the pods' directories themselves: a pod's range is in its file `ids`, so it is taken for exactly as
//! long as files owned by it exist, and a crash can neither lose nor leak one.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Ids of one pod.
const RANGE: u32 = 1 << 16;

/// Just above the ranges that systemd gives to its containers (0x0008_0000 to 0x6FFF_FFFF), which are above what
/// distributions hand out in `/etc/subuid`; below 2^31, where some programs begin to see negative numbers.
const FIRST: u32 = 0x7000_0000;

/// Ranges between [`FIRST`] and 2^31.
const SLOTS: u32 = 0x0FFF;

/// 65,536 consecutive host ids, mapped to 0–65,535 inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The host id that is root inside.
    pub first: u32,
}

impl IdRange {
    /// How many ids there are in every range.
    pub const LENGTH: u32 = RANGE;

    /// The host's name of an id inside; ids beyond the range have none.
    pub fn to_host(self, inside: u32) -> Option<u32> {
        (inside < RANGE).then(|| self.first + inside)
    }
}

/// Hands out ranges for the pods below one directory.
#[derive(Debug)]
pub struct IdAllocator {
    pods: PathBuf,
    /// Where this home begins to look, so that two homes on one machine seldom meet.
    start: u32,
    taken: BTreeSet<u32>,
}

/// A range could not be given.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The file system refused.
    #[error("record the id range in {path}")]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// All ranges are taken.
    #[error("all {SLOTS} id ranges are taken")]
    Exhausted,
}

impl IdAllocator {
    /// Reads which ranges are taken. `home_id` only spreads homes over the space.
    pub fn load(pods: &Path, home_id: &str) -> io::Result<Self> {
        let mut allocator = Self { pods: pods.to_owned(), start: spread(home_id), taken: BTreeSet::new() };
        let entries = match std::fs::read_dir(pods) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(allocator),
            other => other?,
        };
        for entry in entries {
            if let Some(range) = read_range(&entry?.path()) {
                allocator.taken.insert(range.first);
            }
        }
        Ok(allocator)
    }

    /// The range of a pod: the recorded one if its directory has one, else a free one, recorded before it is returned.
    /// Makes the pod's directory if it is missing.
    pub fn allocate(&mut self, pod_uid: &str) -> Result<IdRange, AllocateError> {
        let directory = self.pods.join(pod_uid);
        if let Some(range) = read_range(&directory) {
            return Ok(range);
        }
        let range = (0..SLOTS)
            .map(|step| IdRange { first: FIRST + (self.start + step) % SLOTS * RANGE })
            .find(|range| !self.taken.contains(&range.first))
            .ok_or(AllocateError::Exhausted)?;
        let path = directory.join("ids");
        // What containers write is owned by ids that no user of the host has; nobody but root needs to walk there.
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .and_then(|()| std::fs::write(&path, format!("{}\n", range.first)))
            .map_err(|source| AllocateError::Record { path, source })?;
        self.taken.insert(range.first);
        Ok(range)
    }

    /// Gives a range back, after the pod's directory has been removed.
    pub fn release(&mut self, range: IdRange) {
        self.taken.remove(&range.first);
    }
}

fn read_range(directory: &Path) -> Option<IdRange> {
    let text = std::fs::read_to_string(directory.join("ids")).ok()?;
    let first: u32 = text.trim().parse().ok()?;
    (first >= FIRST && (first - FIRST).is_multiple_of(RANGE) && (first - FIRST) / RANGE < SLOTS)
        .then_some(IdRange { first })
}

fn spread(home_id: &str) -> u32 {
    home_id.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
        % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_distinct_kept_and_given_back() {
        let pods = tempfile::tempdir().unwrap();
        let mut allocator = IdAllocator::load(pods.path(), "0badcafe").unwrap();
        let first = allocator.allocate("a").unwrap();
        let second = allocator.allocate("b").unwrap();
        assert!(first.first.abs_diff(second.first) >= RANGE);
        assert_eq!(allocator.allocate("a").unwrap(), first);

        let mut reloaded = IdAllocator::load(pods.path(), "0badcafe").unwrap();
        assert_eq!(reloaded.allocate("b").unwrap(), second);
        assert!(![first, second].contains(&reloaded.allocate("c").unwrap()));
        std::fs::remove_dir_all(pods.path().join("a")).unwrap();
        reloaded.release(first);
        assert_eq!(reloaded.allocate("d").unwrap(), first);
    }

    #[test]
    fn a_damaged_record_is_not_believed() {
        let pods = tempfile::tempdir().unwrap();
        for bad in ["0", "nonsense", "1879048193", "4294967295"] {
            std::fs::create_dir_all(pods.path().join("a")).unwrap();
            std::fs::write(pods.path().join("a/ids"), bad).unwrap();
            let range = IdAllocator::load(pods.path(), "x").unwrap().allocate("a").unwrap();
            assert!(range.first >= FIRST);
        }
    }
}
