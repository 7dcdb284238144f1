//! Which addresses the pods of a home have.

use std::net::Ipv4Addr;

use super::address::Block;

/// A home has 8,192 addresses: twice as many pods as it has id ranges for, so that an address rests before it is used again.
pub const PREFIX: u8 = 19;

/// Blocks of that length in `10.0.0.0/8`.
const CANDIDATES: u32 = 1 << (PREFIX - 8);

/// A block for a home that meets none of those in use on the machine. Homes begin to look at different places, so that two
/// of them, or one before and after a restart, seldom get in each other's way. `None`: there is none left.
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
        // A default route is in nobody's way; one address inside is.
        assert_eq!(choose("0badcafe", &["0.0.0.0/0".parse().unwrap()]), Some(first));
        let inside = Block::new(first.nth(77).unwrap(), 32);
        let second = choose("0badcafe", &[inside]).unwrap();
        assert!(!second.overlaps(first));
        assert_eq!(choose("0badcafe", &["10.0.0.0/8".parse().unwrap()]), None);
    }
}
