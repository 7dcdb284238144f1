//! Host ids of pods. Every pod owns 65,536 ids, and no two pods share one. Ordinary users have no
//! such ids: their pods share those of their user namespace.
//!
//! The record of ranges is in the pods' directories: each has a file `ids`. A range is taken for
//! exactly as long as files owned by it exist, and a crash can neither lose nor leak one.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The number of ids of one pod.
const RANGE: u32 = 1 << 16;

/// The first id. It is just above the ranges that systemd gives to its containers (0x0008_0000 to
/// 0x6FFF_FFFF), which are above those of distributions in `/etc/subuid`. All ids are below 2^31,
/// where some programs begin to see negative numbers.
const FIRST: u32 = 0x7000_0000;

/// The number of ranges between [`FIRST`] and 2^31.
const SLOTS: u32 = 0x0FFF;

/// Consecutive ids of our own namespace (the host's, for root), mapped to 0, 1, … inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The id of root inside.
    pub first: u32,
    /// The number of ids: 65,536, or fewer for an ordinary user.
    #[serde(default = "whole")]
    pub length: u32,
}

fn whole() -> u32 {
    RANGE
}

/// The group `tty` on every system. Terminals belong to it, and its members may write to them.
const TERMINAL_GROUP: u32 = 5;

impl IdRange {
    /// The number of ids of a pod with its own range.
    pub const LENGTH: u32 = RANGE;

    /// Returns a pod's own range of 65,536 ids.
    pub const fn starting_at(first: u32) -> Self {
        Self { first, length: RANGE }
    }

    /// Returns the outer id of an id inside, or `None` beyond the range.
    pub fn to_host(self, inside: u32) -> Option<u32> {
        (inside < self.length).then(|| self.first + inside)
    }

    /// Returns the group that terminals belong to, as seen inside.
    pub fn terminal_group(self) -> u32 {
        if TERMINAL_GROUP < self.length { TERMINAL_GROUP } else { 0 }
    }
}

/// Returns the error for an id that a range does not contain.
pub fn no_such_id(ids: IdRange) -> io::Error {
    let message = match ids.length {
        1 => "only root exists inside; an ordinary user's pods have more by `/etc/subuid`, `/etc/subgid` and `newuidmap`"
            .to_owned(),
        length => format!("ids above {} do not exist inside", length - 1),
    };
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// Allocates ranges for the pods below one directory.
#[derive(Debug)]
pub struct IdAllocator {
    pods: PathBuf,
    /// The slot where this home starts to search, so that two homes on one machine seldom collide.
    start: u32,
    taken: BTreeSet<u32>,
    /// The number of slots from there on that are certainly taken and need no check.
    full: u32,
    /// The range of every pod, if pods cannot have their own.
    shared: Option<IdRange>,
}

/// An error of an allocation.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The file system refused the record.
    #[error("record the id range in {path}")]
    Record {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
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

    /// Returns the recorded range of a pod. If there is none, takes a free one and records it
    /// before it is returned. Creates the pod's directory if it is missing.
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

    /// Releases a range, after the pod's directory has been removed.
    pub fn release(&mut self, range: IdRange) {
        self.taken.remove(&range.first);
        let slot = range.first.saturating_sub(FIRST) / RANGE;
        self.full = self.full.min((slot + SLOTS - self.start) % SLOTS);
    }
}

/// Makes a directory that only its owner may enter: files of containers belong to ids that no user
/// of the host has, or to its user.
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
