//! Classifies IP addresses and handles blocks of them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A block of IPv4 addresses, such as `10.0.0.0/8`. A single address is a block of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    first: u32,
    prefix: u8,
}

/// The error of a text that is not a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a block of IPv4 addresses, such as 10.0.0.0/8")]
pub struct BlockError(String);

impl Block {
    /// Returns the block that contains an address.
    pub fn new(address: Ipv4Addr, prefix: u8) -> Block {
        let prefix = prefix.min(32);
        Block { first: u32::from(address) & mask(prefix), prefix }
    }

    /// Returns its first address.
    pub fn first(self) -> Ipv4Addr {
        self.first.into()
    }

    /// Returns its last address.
    pub fn last(self) -> Ipv4Addr {
        (self.first | !mask(self.prefix)).into()
    }

    /// Returns the number of leading bits that its addresses share.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Returns the address at this offset from the first, if it is in the block.
    pub fn nth(self, number: u32) -> Option<Ipv4Addr> {
        self.first.checked_add(number).map(Ipv4Addr::from).filter(|address| self.contains(*address))
    }

    /// Returns true if the block contains the address.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & mask(self.prefix) == self.first
    }

    /// Returns true if the blocks share an address.
    pub fn overlaps(self, other: Block) -> bool {
        self.contains(other.first()) || other.contains(self.first())
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

impl fmt::Display for Block {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.first(), self.prefix)
    }
}

impl FromStr for Block {
    type Err = BlockError;

    fn from_str(text: &str) -> Result<Block, BlockError> {
        let wrong = || BlockError(text.chars().take(64).collect());
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().ok().filter(|prefix| *prefix <= 32).ok_or_else(wrong)?;
        Ok(Block::new(address, prefix))
    }
}

/// A class of addresses, by their use as a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On the internet.
    Public,
    /// In a private network: allowed only if it is named.
    Private,
    /// The machine itself, its link-local neighbours (such as cloud metadata services), or no
    /// single host: never allowed.
    Local,
}

/// Returns the kind of an address.
pub fn kind(address: IpAddr) -> Kind {
    match address {
        IpAddr::V4(address) => kind_4(address),
        IpAddr::V6(address) => kind_6(address),
    }
}

/// Reserved blocks (IANA's special-purpose registry) with their kind.
const SPECIAL: [(&str, Kind); 15] = [
    ("0.0.0.0/8", Kind::Local),
    ("10.0.0.0/8", Kind::Private),
    ("100.64.0.0/10", Kind::Private),
    ("127.0.0.0/8", Kind::Local),
    ("169.254.0.0/16", Kind::Local),
    ("172.16.0.0/12", Kind::Private),
    ("192.0.0.0/24", Kind::Private),
    ("192.0.2.0/24", Kind::Private),
    ("192.88.99.0/24", Kind::Private),
    ("192.168.0.0/16", Kind::Private),
    ("198.18.0.0/15", Kind::Private),
    ("198.51.100.0/24", Kind::Private),
    ("203.0.113.0/24", Kind::Private),
    ("224.0.0.0/4", Kind::Local),
    ("240.0.0.0/4", Kind::Local),
];

fn kind_4(address: Ipv4Addr) -> Kind {
    let inside = |block: &str| block.parse::<Block>().is_ok_and(|block| block.contains(address));
    SPECIAL.iter().find(|(block, _)| inside(block)).map_or(Kind::Public, |(_, kind)| *kind)
}

fn kind_6(address: Ipv6Addr) -> Kind {
    // An IPv4-mapped address counts as its IPv4 address.
    if let Some(hidden) = address.to_ipv4_mapped() {
        return kind_4(hidden);
    }
    let [first, second, ..] = address.segments();
    match first {
        // NAT64: the last 32 bits are an IPv4 address.
        0x0064 if second == 0xff9b => {
            let [.., a, b, c, d] = address.octets();
            kind_4(Ipv4Addr::new(a, b, c, d))
        }
        // Unique local.
        0xfc00..=0xfdff => Kind::Private,
        // Documentation, discard, 6to4 and Teredo (the last two embed IPv4 addresses).
        0x2001 if matches!(second, 0 | 0x0db8) => Kind::Private,
        0x2002 => Kind::Private,
        0x2000..=0x3fff => Kind::Public,
        _ => Kind::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_know_what_is_in_them() {
        let block: Block = "10.1.255.7/19".parse().unwrap();
        assert_eq!(block.to_string(), "10.1.224.0/19");
        assert_eq!(block.last(), Ipv4Addr::new(10, 1, 255, 255));
        assert_eq!(block.nth(1), Some(Ipv4Addr::new(10, 1, 224, 1)));
        assert_eq!(block.nth(1 << 13), None);
        assert!(block.overlaps("10.0.0.0/8".parse().unwrap()));
        assert!(block.overlaps("10.1.230.1".parse().unwrap()));
        assert!(!block.overlaps("10.2.0.0/16".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<Block>().unwrap().contains(Ipv4Addr::BROADCAST));
        for bad in ["", "10.0.0.0/33", "10.0.0/8", "::1", "10.0.0.0/-1", "host"] {
            bad.parse::<Block>().unwrap_err();
        }
    }

    #[test]
    fn addresses_are_told_apart_also_in_disguise() {
        for (address, expected) in [
            ("8.8.8.8", Kind::Public),
            ("10.0.0.1", Kind::Private),
            ("172.31.0.1", Kind::Private),
            ("172.32.0.1", Kind::Public),
            ("127.0.0.1", Kind::Local),
            ("169.254.169.254", Kind::Local),
            ("0.0.0.0", Kind::Local),
            ("255.255.255.255", Kind::Local),
            ("::1", Kind::Local),
            ("::", Kind::Local),
            ("::ffff:127.0.0.1", Kind::Local),
            ("::ffff:10.0.0.1", Kind::Private),
            ("::ffff:8.8.8.8", Kind::Public),
            ("64:ff9b::a9fe:a9fe", Kind::Local),
            ("fe80::1", Kind::Local),
            ("fd00::1", Kind::Private),
            ("ff02::1", Kind::Local),
            ("2002:7f00:1::", Kind::Private),
            ("2606:4700::1111", Kind::Public),
        ] {
            assert_eq!(kind(address.parse().unwrap()), expected, "{address}");
        }
    }
}
