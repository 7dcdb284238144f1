//! Makes every decision about Warren's objects as pure functions: the observed state goes in, a
//! plan comes out.
//!
//! This crate never does I/O, never reads a clock and never uses randomness. Names, time and
//! settings are arguments. The same world always gives the same plan, so a simulation can replay
//! it. `warren-controllers` and, for pods, `warren-node` carry the plans out.
//!
//! Start with [`step`], which defines the parts of a plan, then [`sandbox`], the simplest kind that
//! uses all of them.

mod bounded;
pub mod claim;
mod lifetime;
pub mod merge;
pub mod network;
pub mod node;
pub mod ownership;
pub mod pod;
pub mod pool;
pub mod ports;
pub mod propagation;
pub mod route;
pub mod sandbox;
pub mod secure_defaults;
pub mod semantic;
pub mod staleness;
pub mod step;
pub mod storage;
pub mod task;
pub mod template;
pub mod warm_queue;
