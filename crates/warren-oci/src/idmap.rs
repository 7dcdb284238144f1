//! Host ids for pods: every pod owns 65,536 of them, and no two pods share one. Ordinary users have none to give away: their
//! pods share those of their user namespace.
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

/// Consecutive ids of the namespace that we are in ourselves (the host's, for root), mapped to 0, 1, … inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The id that is root inside.
    pub first: u32,
    /// How many there are: 65,536, or fewer for an ordinary user.
    #[serde(default = "whole")]
    pub length: u32,
}

fn whole() -> u32 {
    RANGE
}

/// `tty` wherever there is one: terminals belong to it, and its members may write to them.
const TERMINAL_GROUP: u32 = 5;

impl IdRange {
    /// How many ids a pod has that has its own.
    pub const LENGTH: u32 = RANGE;

    /// A pod's own 65,536.
    pub const fn starting_at(first: u32) -> Self {
        Self { first, length: RANGE }
    }

    /// The outer name of an id inside; ids beyond the range have none.
    pub fn to_host(self, inside: u32) -> Option<u32> {
        (inside < self.length).then(|| self.first + inside)
    }

    /// The group, as seen inside, that terminals belong to.
    pub fn terminal_group(self) -> u32 {
        if TERMINAL_GROUP < self.length { TERMINAL_GROUP } else { 0 }
    }
}

/// An id was asked for that a range does not have.
pub fn no_such_id(ids: IdRange) -> io::Error {
    let message = match ids.length {
        1 => "only root exists inside; an ordinary user's pods have more by `/etc/subuid`, `/etc/subgid` and `newuidmap`"
            .to_owned(),
        length => format!("ids above {} do not exist inside", length - 1),
    };
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// Hands out ranges for the pods below one directory.
#[derive(Debug)]
pub struct IdAllocator {
    pods: PathBuf,
    /// Where this home begins to look, so that two homes on one machine seldom meet.
    start: u32,
    taken: BTreeSet<u32>,
    /// So many from there on are taken for certain, and need not be looked at.
    full: u32,
    /// What every pod has, where each cannot have its own.
    shared: Option<IdRange>,
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
    /// Gives all pods the same ids.
    pub fn shared(pods: &Path, range: IdRange) -> Self {
        Self { pods: pods.to_owned(), start: 0, taken: BTreeSet::new(), full: 0, shared: Some(range) }
    }

    /// Reads which ranges are taken. `home_id` only spreads homes over the space.
    pub fn load(pods: &Path, home_id: &str) -> io::Result<Self> {
        let (pods_of, start) = (pods.to_owned(), spread(home_id));
        let mut allocator = Self { pods: pods_of, start, taken: BTreeSet::new(), full: 0, shared: None };
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
        if let Some(range) = self.shared {
            make_directory(&directory).map_err(|source| AllocateError::Record { path: directory, source })?;
            return Ok(range);
        }
        if let Some(range) = read_range(&directory) {
            return Ok(range);
        }
        let free = (self.full..SLOTS)
            .map(|step| (step, IdRange::starting_at(FIRST + (self.start + step) % SLOTS * RANGE)))
            .find(|(_, range)| !self.taken.contains(&range.first));
        self.full = free.map_or(SLOTS, |(step, _)| step);
        let (_, range) = free.ok_or(AllocateError::Exhausted)?;
        let path = directory.join("ids");
        make_directory(&directory)
            .and_then(|()| std::fs::write(&path, format!("{}\n", range.first)))
            .map_err(|source| AllocateError::Record { path, source })?;
        self.taken.insert(range.first);
        Ok(range)
    }

    /// Gives a range back, after the pod's directory has been removed.
    pub fn release(&mut self, range: IdRange) {
        self.taken.remove(&range.first);
        let slot = range.first.saturating_sub(FIRST) / RANGE;
        self.full = self.full.min((slot + SLOTS - self.start) % SLOTS);
    }
}

/// What containers write is owned by ids that no user of the host has, or by its user; nobody else needs to walk there.
fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn read_range(directory: &Path) -> Option<IdRange> {
    let text = std::fs::read_to_string(directory.join("ids")).ok()?;
    let first: u32 = text.trim().parse().ok()?;
    (first >= FIRST && (first - FIRST).is_multiple_of(RANGE) && (first - FIRST) / RANGE < SLOTS)
        .then_some(IdRange::starting_at(first))
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
    fn pods_of_an_ordinary_user_share_what_there_is() {
        let pods = tempfile::tempdir().unwrap();
        let alone = IdRange { first: 0, length: 1 };
        let mut allocator = IdAllocator::shared(pods.path(), alone);
        assert_eq!(allocator.allocate("a").unwrap(), alone);
        assert_eq!(allocator.allocate("b").unwrap(), alone);
        assert!(pods.path().join("a").is_dir());
        assert_eq!((alone.to_host(0), alone.to_host(1), alone.terminal_group()), (Some(0), None, 0));
        assert_eq!(IdRange::starting_at(7).terminal_group(), 5);
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
