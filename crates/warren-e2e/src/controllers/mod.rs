//! Scenarios for the controllers, through the API only, on two homes: the local one (a real `warren
//! up` with real containers) and a cluster (a real control plane, with simulated nodes or with
//! `warren node` and real containers).
//!
//! A scenario is an async function of a [`Place`](place::Place), a namespace of its own in a shared
//! home. [`runner`] runs a list of them in one home and prints the results as cargo's own test
//! harness would. Start reading at [`harness`].

mod collector;
pub mod harness;
pub mod history;
mod killer;
pub mod place;
pub mod rows;
pub mod runner;
pub mod suite;
pub mod workload;
