//! Helpers for the tests of the other crates. No released program depends on it.
//!
//! [`kube`] runs a real control plane (kube-apiserver, etcd, kube-controller-manager,
//! kube-scheduler) on loopback ports, so that real Kubernetes checks our statements about it. Tests
//! start one with [`kube::ControlPlane::start`], people with `cargo xtask kube up`. Start reading
//! there.
//!
//! [`nodes`] simulates nodes of such a control plane, for tests of scale and races without
//! containers.
//!
//! [`images`] makes images of a few files, and [`registry`] serves them on loopback, with faults on
//! request.
//!
//! [`docker`] starts a Docker daemon of its own.
//!
//! The crate is small on purpose (without the features `docker`, `images` and `nodes` there is no
//! async runtime and no Kubernetes client): `xtask` depends on it, and every fresh checkout
//! compiles `xtask` first.

pub mod cargo;
#[cfg(feature = "docker")]
pub mod docker;
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
