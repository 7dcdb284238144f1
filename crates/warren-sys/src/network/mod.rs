//! The machine's network, by netlink: devices, addresses and routes ([`link`]), and packet rules ([`nftables`]). What
//! other programs do by `ip` and `nft` is done here by the same messages to the kernel, so nothing has to be installed.

pub mod link;
pub mod netlink;
pub mod nftables;
mod socket_owner;

pub use socket_owner::socket_owner;
