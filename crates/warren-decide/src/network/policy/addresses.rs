//! Sets of IPv4 addresses.

use std::net::Ipv4Addr;

use crate::network::address::Block;

/// A set of addresses, as sorted intervals that do not touch each other.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Addresses(Vec<(u32, u32)>);

impl Addresses {
    /// Returns the set of these addresses.
    pub fn of(addresses: impl IntoIterator<Item = Ipv4Addr>) -> Addresses {
        Addresses::normal(addresses.into_iter().map(|address| (address.into(), address.into())).collect())
    }

    /// Returns the set of all addresses.
    pub fn everything() -> Addresses {
        Addresses(vec![(0, u32::MAX)])
    }

    /// Returns the set of a block's addresses.
    pub fn block(block: Block) -> Addresses {
        Addresses(vec![(block.first().into(), block.last().into())])
    }

    /// Returns the union of the sets.
    pub fn union(sets: impl IntoIterator<Item = Addresses>) -> Addresses {
        Addresses::normal(sets.into_iter().flat_map(|set| set.0).collect())
    }

    /// Returns the set without the addresses of the other.
    pub fn without(&self, other: &Addresses) -> Addresses {
        let mut rest = Vec::new();
        for &(first, last) in &self.0 {
            let mut next = Some(first);
            for &(cut_first, cut_last) in other.0.iter().filter(|(from, to)| *from <= last && *to >= first) {
                if let Some(start) = next.filter(|start| *start < cut_first) {
                    rest.push((start, cut_first - 1));
                }
                next = cut_last.checked_add(1).filter(|after| *after <= last);
            }
            rest.extend(next.map(|start| (start, last)));
        }
        Addresses(rest)
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the set contains the address.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        let address = u32::from(address);
        let after = self.0.partition_point(|(first, _)| *first <= address);
        after > 0 && self.0[after - 1].1 >= address
    }

    /// Returns the intervals, each with both ends included.
    pub fn intervals(&self) -> impl Iterator<Item = (Ipv4Addr, Ipv4Addr)> {
        self.0.iter().map(|(first, last)| (Ipv4Addr::from(*first), Ipv4Addr::from(*last)))
    }

    fn normal(mut intervals: Vec<(u32, u32)>) -> Addresses {
        intervals.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(intervals.len());
        for (first, last) in intervals {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Addresses(merged)
    }
}
