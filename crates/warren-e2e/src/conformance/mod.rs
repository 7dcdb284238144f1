//! The API conformance suite: scenarios are sequences of raw HTTP calls, and what a client can observe of a real
//! kube-apiserver's answers is compared with what it observes of ours.
//!
//! A scenario is data (`scenarios/*.yaml`, one file a topic; [`scenario`] describes the format). [`runner`] plays it
//! against a [`target`] and keeps every answer; [`mask`] replaces what differs between any two runs of the same server
//! (uids, times, versions) and nothing else; [`compare`] names what is left. The real server's masked answers are
//! stored in `scenarios/recorded/`, so that ours can be judged without a real one; `tests/conformance.rs` says how they
//! are recorded anew.
//!
//! The suite knows nothing about either server: it never branches on which one it talks to.

pub mod compare;
pub mod kubeconfig;
pub mod mask;
pub mod ours;
pub mod report;
pub mod runner;
pub mod scenario;
pub mod suite;
pub mod target;
pub mod transcript;
mod variables;
mod watch;
