//! The API conformance suite: plays sequences of raw HTTP calls on two servers, and compares the
//! answers of a real kube-apiserver with ours as a client can observe them.
//!
//! A scenario is data (`scenarios/*.yaml`, one file per topic; [`scenario`] describes the format).
//! [`runner`] plays it on a [`target`] and keeps every answer. [`mask`] replaces the parts that
//! differ between any two runs on the same server (uids, times, versions) and nothing else.
//! [`compare`] finds the remaining differences. The real server's masked answers are stored in
//! `scenarios/recorded/`, so that ours can be checked without a real one; `tests/conformance.rs`
//! says how to record them again.
//!
//! The suite knows nothing about either server: it never depends on which one it uses.

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
