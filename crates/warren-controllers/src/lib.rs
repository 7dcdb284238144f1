//! The controllers: they watch, take a snapshot, let `warren-decide` decide, and carry out its
//! plan.
//!
//! They never make a choice of their own, never poll, and never reach past the Kubernetes API, so
//! the same code runs inside `warren up` and on a cluster.
//!
//! Start with [`Controllers`], or with [`run()`] for a program of its own. [`engine::Engine`] is
//! everything except the tasks that run by themselves, [`cluster::Cluster`] is what every
//! controller works with, and the loop around a key is [`queue::WorkQueue`].

pub mod cache;
mod claim;
pub mod clock;
pub mod cluster;
mod config;
mod connect;
mod endpoint;
pub mod engine;
mod events;
mod kube_server;
pub mod leader;
mod nodes;
pub mod object;
pub mod permissions;
mod pool;
#[cfg(test)]
mod pretended;
pub mod queue;
mod run;
mod sandbox;
mod secure_serving;
pub mod server;
mod set_clock;
mod shared_specs;
mod start;
mod task;
pub mod telemetry;
mod template;
mod trim;
mod wake;
mod watch;
mod write_limiter;

pub use config::Config;
pub use connect::{ConnectError, Connection, connect};
pub use endpoint::{BindAddress, BindAddressError};
pub use run::{Endpoints, Program, RunError, run};
pub use secure_serving::{SecureServing, SecureServingError, TlsCipherSuite, TlsVersion, UnknownName};
pub use start::Controllers;
