//! A simulation of the whole control plane: the real controllers of `warren-controllers` with their caches, queues and wake-ups,
//! around the real decisions of `warren-decide`, and everything else pretended: API server, nodes, a user, and trouble. A run is made from a seed alone, is single
//! threaded and knows no clock, so that a seed that fails once fails always; runs of different seeds share nothing. It
//! never talks to anything real, and nothing depends on it.
//!
//! Start with [`simulation`], which chooses what happens next; [`invariants`] and [`rest`] say what must hold. How the
//! controllers are driven, one wait at a time, is in [`running`], and what they take for a server in [`wire`].

pub mod clock;
pub mod invariants;
pub mod nodes;
pub mod object;
pub mod random;
pub mod rest;
pub mod running;
pub mod server;
pub mod simulation;
pub mod tasks;
pub mod user;
pub mod wire;
