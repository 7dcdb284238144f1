//! Chooses the address block of a home's pods.

use std::net::Ipv4Addr;

use super::address::Block;

/// The prefix length of a home's block: 8,192 addresses. That is twice the number of id ranges for
/// pods, so that an address is not reused at once.
pub const PREFIX: u8 = 19;

/// The number of blocks of that length in `10.0.0.0/8`.
const CANDIDATES: u32 = 1 << (PREFIX - 8);

/// Returns a block that overlaps none of those in use on the machine, or `None` if there is none
/// left. Each home starts its search at a different place, so two homes, or one before and after a
/// restart, seldom conflict.
pub fn choose(home_id: &str, taken: &[Block]) -> Option<Block> {
    let hash = home_id
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    // The upper bits of this hash are the better mixed ones.
    let start = hash >> 16;
    (0..CANDIDATES)
        .map(|step| {
            let number = (start + step) % CANDIDATES;
            Block::new(Ipv4Addr::from(0x0a00_0000 | number << (32 - PREFIX)), PREFIX)
        })
        .find(|candidate| !taken.iter().any(|taken| taken.prefix() > 0 && taken.overlaps(*candidate)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_meets_none_that_is_in_use() {
        let first = choose("0badcafe", &[]).unwrap();
        assert_eq!((first.prefix(), choose("0badcafe", &[])), (PREFIX, Some(first)));
        assert_ne!(choose("0badcaff", &[]), Some(first));
        // A default route conflicts with no block. A single address inside a block does.
        assert_eq!(choose("0badcafe", &["0.0.0.0/0".parse().unwrap()]), Some(first));
        let inside = Block::new(first.nth(77).unwrap(), 32);
        let second = choose("0badcafe", &[inside]).unwrap();
        assert!(!second.overlaps(first));
        assert_eq!(choose("0badcafe", &["10.0.0.0/8".parse().unwrap()]), None);
    }
}
