//! The node: runs the pods that are bound to it as containers on this machine, reports their status
//! as kubelet does, and serves kubelet's HTTP API (exec, logs) on any byte stream.
//!
//! It talks to the API server only through a `kube::Client`. It never forks (the zygote of
//! `warren-oci` does) and decides nothing itself: the next steps of a pod come from
//! `warren_decide::pod`. Pods live in shims outside this process, so stopping or killing a node
//! leaves them running, and the next one finds them again.
//!
//! Start with [`Node`], then `worker`, the loop around one pod.

mod config;
mod descriptor;
mod directory_watch;
mod disk;
mod drain;
mod events;
mod guest_program;
mod images;
mod kubelet;
mod log_file;
mod machine;
mod network;
mod node;
mod objects;
mod pod_api;
mod pod_etc;
mod pod_images;
mod pod_registry;
mod pod_request;
mod pod_sources;
mod probes;
mod pull;
mod readiness;
mod registration;
mod runtime_classes;
mod shim;
mod shim_program;
mod start_mark;
mod termination;
mod usage;
mod volume_claims;
mod volumes;
mod worker;

pub use config::{NodeConfig, OwnPod, RegistryConfig};
pub use kubelet::{AccessError, KubeletAccess};
pub use network::remove_network;
pub use node::{Node, StartError, home_id};
pub use shim_program::start_zygote;
pub use start_mark::shim_may_come_within;
pub use warren_decide::pod::HostPath;
