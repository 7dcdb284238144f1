//! Decides what a pod may reach, and which pods may reach it.
//!
//! Each pod has a [`Mode`]. A pod without a network has only its own loopback. A restricted pod
//! reaches the egress proxy and the name server of its home, which check each request against an
//! [`AllowList`]. A pod with full network has a route out of its own.
//!
//! Traffic between pods passes only if a NetworkPolicy allows it ([`policy`]). Policies that select
//! a pod also narrow what its mode allows. The pod's node may always reach it, as in Kubernetes.

mod address;
mod allow_list;
mod mode;
mod names;
pub mod policy;
mod range;

pub use address::{Block, BlockError, Kind, kind};
pub use allow_list::{AllowList, AllowListError, Denial, PortRange};
pub use mode::{Mode, UnknownMode, proxy_environment};
pub use names::{CLUSTER_DOMAIN, Name, parse as parse_name};
pub use range::{PREFIX, choose};
