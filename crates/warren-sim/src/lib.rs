//! A simulation of the whole control plane: the real decisions of `warren-decide`, and everything around them pretended: API
//! server, controllers with their caches and queues, nodes, a user, and trouble. A run is made from a seed alone, is single
//! threaded and knows no clock, so that a seed that fails once fails always; runs of different seeds share nothing. It
//! never talks to anything real, and nothing depends on it.
//!
//! Start with [`simulation`], which chooses what happens next; [`invariants`] and [`rest`] say what must hold. How the pretended
//! controllers correspond to the real ones is in [`mirror`].

pub mod clock;
pub mod invariants;
pub mod mirror;
pub mod nodes;
pub mod object;
pub mod random;
pub mod rest;
pub mod running;
pub mod server;
pub mod simulation;
pub mod user;
pub mod wire;
