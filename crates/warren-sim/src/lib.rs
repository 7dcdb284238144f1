//! A simulation of the whole control plane: the real controllers of `warren-controllers` with their
//! caches, queues and wake-ups, around the real decisions of `warren-decide`. API server, nodes,
//! user and faults are simulated.
//!
//! A run depends on its seed alone. It is single threaded and reads no clock, so a seed that fails
//! once fails always. Runs of different seeds share nothing. It never uses anything real, and
//! nothing depends on it.
//!
//! Start with [`simulation`], which chooses the next event. [`invariants`] and [`rest`] define what
//! must hold. [`running`] drives the controllers, one wait at a time, and [`wire`] is their server.

pub mod clock;
pub mod invariants;
pub mod nodes;
pub mod object;
pub mod quiescence;
pub mod random;
pub mod running;
pub mod server;
pub mod simulation;
pub mod tasks;
pub mod user;
pub mod wire;
