//! Assigns addresses to pods.
//!
//! The record is the pods' directories themselves: a pod's address is in its file `network`. It is
//! taken for exactly as long as the directory exists, so a crash can neither lose nor leak one.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use warren_decide::network::{Block, Mode};

use super::LeaseError;

/// The file in a pod's directory.
const RECORD: &str = "network";

/// A pod's address, for as long as its directory exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) address: Ipv4Addr,
    pub(crate) gateway: Ipv4Addr,
    pub(crate) mode: Mode,
}

/// The file's content.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    address: Ipv4Addr,
    gateway: Ipv4Addr,
    is_full: bool,
}

impl Lease {
    /// Reads the lease from a pod's directory; `None` if the pod has no network.
    pub(crate) fn read(directory: &Path) -> Option<Lease> {
        let record: Record = serde_json::from_slice(&std::fs::read(directory.join(RECORD)).ok()?).ok()?;
        let mode = if record.is_full { Mode::Full } else { Mode::Restricted };
        Some(Lease { address: record.address, gateway: record.gateway, mode })
    }

    /// Returns true if packets can reach the address. Otherwise it only identifies the pod in
    /// rules, and the pod's way out is a socket on its own loopback.
    pub(crate) fn is_reachable(&self) -> bool {
        !self.gateway.is_loopback()
    }

    fn write(self, directory: &Path) -> io::Result<()> {
        let record =
            Record { address: self.address, gateway: self.gateway, is_full: self.mode == Mode::Full };
        std::fs::write(directory.join(RECORD), serde_json::to_vec(&record)?)
    }
}

/// The assigned addresses.
#[derive(Debug)]
pub(super) struct Leases {
    range: Block,
    by_pod: BTreeMap<String, Lease>,
    by_address: HashMap<Ipv4Addr, String>,
    /// The offset at which the next search begins: addresses are reused as late as possible, so
    /// that a packet for a pod that has ended does not reach another.
    next: u32,
}

/// The first usable offset: 0 is the range's own address, 1 the gateway's.
const FIRST: u32 = 2;

impl Leases {
    /// Reads the taken addresses. A lease from another range than the home's present one is
    /// ignored.
    pub(super) fn load(pods: &Path, range: Block) -> Leases {
        let mut leases = Leases { range, by_pod: BTreeMap::new(), by_address: HashMap::new(), next: FIRST };
        for entry in std::fs::read_dir(pods).into_iter().flatten().flatten() {
            let Ok(uid) = entry.file_name().into_string() else { continue };
            if let Some(lease) = Lease::read(&entry.path()).filter(|lease| range.contains(lease.address)) {
                leases.insert(&uid, lease);
            }
        }
        leases
    }

    fn insert(&mut self, uid: &str, lease: Lease) {
        let after = u32::from(lease.address) - u32::from(self.range.first()) + 1;
        self.next = self.next.max(after);
        self.by_address.insert(lease.address, uid.to_owned());
        self.by_pod.insert(uid.to_owned(), lease);
    }

    /// Returns a pod's lease: the recorded one if there is one, else a free address, recorded
    /// before it is returned.
    pub(super) fn take(
        &mut self,
        uid: &str,
        directory: &Path,
        mode: Mode,
        gateway: Ipv4Addr,
    ) -> Result<Lease, LeaseError> {
        if let Some(lease) = self.by_pod.get(uid) {
            return Ok(*lease);
        }
        // The last address is the range's broadcast address.
        let end = (1 << (32 - u32::from(self.range.prefix()))) - 1;
        let free = |number: &u32| {
            let address = self.range.nth(*number);
            address.is_some_and(|address| !self.by_address.contains_key(&address))
        };
        let number = (self.next..end).chain(FIRST..self.next.min(end)).find(free);
        let number = number.ok_or(LeaseError::Exhausted(self.range))?;
        let address = self.range.nth(number).ok_or(LeaseError::Exhausted(self.range))?;
        let lease = Lease { address, gateway, mode };
        lease.write(directory).map_err(LeaseError::Record)?;
        self.by_address.insert(address, uid.to_owned());
        self.by_pod.insert(uid.to_owned(), lease);
        self.next = number + 1;
        Ok(lease)
    }

    pub(super) fn release(&mut self, uid: &str) {
        if let Some(lease) = self.by_pod.remove(uid) {
            self.by_address.remove(&lease.address);
        }
    }

    /// Returns all leases in the order of uids.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, Lease)> {
        self.by_pod.iter().map(|(uid, lease)| (uid.as_str(), *lease))
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.by_pod.contains_key(uid)
    }

    pub(super) fn at(&self, address: Ipv4Addr) -> Option<(String, Lease)> {
        let uid = self.by_address.get(&address)?;
        Some((uid.clone(), *self.by_pod.get(uid)?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_pod.is_empty()
    }

    pub(super) fn any_full(&self) -> bool {
        self.by_pod.values().any(|lease| lease.mode == Mode::Full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_distinct_kept_and_used_again_as_late_as_possible() {
        let pods = tempfile::tempdir().unwrap();
        // The range's own address, the gateway's, five for pods, the broadcast address.
        let range: Block = "10.9.8.0/29".parse().unwrap();
        let gateway = range.nth(1).unwrap();
        let mut leases = Leases::load(pods.path(), range);
        let take = |leases: &mut Leases, uid: &str| {
            let directory = pods.path().join(uid);
            std::fs::create_dir_all(&directory).unwrap();
            leases.take(uid, &directory, Mode::Restricted, gateway)
        };
        let end = |leases: &mut Leases, uid: &str| {
            std::fs::remove_dir_all(pods.path().join(uid)).unwrap();
            leases.release(uid);
        };
        let first = take(&mut leases, "a").unwrap();
        assert_eq!(first.address, Ipv4Addr::new(10, 9, 8, 2));
        let second = take(&mut leases, "b").unwrap();
        assert_eq!(take(&mut leases, "a").unwrap(), first);
        end(&mut leases, "a");
        assert_eq!(take(&mut leases, "c").unwrap().address, Ipv4Addr::new(10, 9, 8, 4));

        let mut leases = Leases::load(pods.path(), range);
        assert_eq!(take(&mut leases, "b").unwrap(), second);
        assert_eq!(leases.at(second.address), Some(("b".to_owned(), second)));
        assert_eq!(leases.all().map(|(uid, _)| uid).collect::<Vec<_>>(), ["b", "c"]);
        assert!(leases.has("b") && !leases.has("a"));
        for uid in ["d", "e"] {
            take(&mut leases, uid).unwrap();
        }
        assert_eq!(take(&mut leases, "f").unwrap().address, first.address);
        assert!(matches!(take(&mut leases, "g"), Err(LeaseError::Exhausted(_))));
        // In another range, all are free.
        assert!(Leases::load(pods.path(), "10.0.0.0/29".parse().unwrap()).is_empty());
    }
}
