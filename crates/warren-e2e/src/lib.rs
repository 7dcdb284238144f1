//! End-to-end suites: behaviour that a user of Warren observes, checked against a running home or a
//! real control plane.
//!
//! This crate holds scenarios and the means to run them; the product never depends on it. It has no
//! privileged access: any client with the same kubeconfig could do the same. Start reading at
//! [`conformance`], which compares the embedded API server with a real kube-apiserver, at
//! [`controllers`], which tests the controllers on both homes, or at [`local_home`], which runs the
//! real binary in a fresh data directory ([`cluster_node`]: as a node of a control plane).

pub mod clients;
pub mod cluster_node;
pub mod conformance;
pub mod controllers;
pub mod crash;
pub mod disk;
pub mod embedded;
pub mod escape;
pub mod fake_world;
pub mod faulty_proxy;
pub mod foreground;
pub mod full_disk;
pub mod fuzz;
pub mod gvisor;
pub mod local_home;
pub mod mcp;
pub mod memory;
pub mod provider_contract;
pub mod served;
pub mod storm;
pub mod streams;
pub mod terminal;
