//! What the tests of the other crates stand on. Nothing that ships depends on it.
//!
//! [`kube`] gives a real control plane (kube-apiserver, etcd, kube-controller-manager, kube-scheduler) on loopback
//! ports, so that what we say about Kubernetes is judged by Kubernetes. A test asks for one with
//! [`kube::ControlPlane::start`]; a person asks with `cargo xtask kube up`. Start reading there.
//!
//! [`nodes`] pretends to be nodes of such a control plane, for scale and races without containers.
//!
//! [`images`] makes images out of a few files, and [`registry`] serves them on loopback, faults included.
//!
//! The crate stays small on purpose (no async runtime, no Kubernetes client, but with the features `nodes` and `images`): `xtask` is
//! built on it, and every cold checkout compiles `xtask` first.

pub mod cargo;
#[cfg(feature = "images")]
pub mod images;
pub mod kube;
pub mod leaks;
#[cfg(feature = "nodes")]
pub mod nodes;
pub mod privileges;
#[cfg(feature = "images")]
pub mod registry;

mod files;
