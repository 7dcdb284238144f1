//! The whole control plane in one thread: real decisions of `warren-decide`, an API server in memory, controllers whose
//! caches are late, who lose answers, who die between any two writes and of whom there may be two at a time; a kubelet, a
//! garbage collector and users. A seed fixes everything that happens, so a failing seed replays exactly.
//!
//! It never touches a network, a disk or a clock. The loops around `decide` (`passes`) follow those of
//! `warren-controllers` write by write. Start with [`run`]; [`invariants`] says what must always hold.

pub mod controller;
pub mod invariants;
mod passes;
pub mod store;
mod world;

pub use world::{Broken, Options, Report, Violation, run};
