//! The machine's network by netlink: devices, addresses and routes ([`link`]), and packet rules
//! ([`nftables`]). The messages to the kernel are those of `ip` and `nft`, so neither has to be
//! installed.

pub mod link;
pub mod netlink;
pub mod nftables;
mod socket_owner;

pub use socket_owner::socket_owner;
