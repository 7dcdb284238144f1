//! What a pod may reach, and who may reach it.
//!
//! A pod has a [`Mode`]. Without a network it has nothing but its own loopback. A restricted one reaches the egress proxy
//! and the name server of its home, which hold each wish against an [`AllowList`]; a full one has a way out of its own.
//! Between pods nothing passes unless a NetworkPolicy lets it ([`policy`]); where policies select a pod they also narrow
//! what its mode would allow. The node that a pod is on may always reach it, as in Kubernetes.

mod address;
mod allow_list;
mod mode;
mod names;
pub mod policy;
mod range;

pub use address::{Block, BlockError, Kind, kind};
pub use allow_list::{AllowList, AllowListError, DEFAULT_HOSTS, DEFAULT_PORTS, Denial, PortRange};
pub use mode::{Mode, UnknownMode, proxy_environment};
pub use names::{CLUSTER_DOMAIN, Name, parse as parse_name};
pub use range::{PREFIX, choose};
