//! The library that every Warren client shares. It finds a home ([`home`]), connects to it
//! ([`connect`]), creates sandboxes, waits for them and deletes them ([`sandbox`]), launches them
//! from an image, a pool or a template ([`launch`]), leases them beyond one command ([`lease`]),
//! runs commands in them ([`exec`]), keeps interpreters in them ([`interpreter`]), reads and writes
//! single files ([`files`]), transfers whole trees ([`sync`]), takes over what a sandbox changed in a
//! view of a directory ([`views`]), and adds images to a local home ([`images`]).
//!
//! Every request goes through a `kube::Client`, so the same calls work on the local home and on a
//! cluster. The library parses no arguments, prints nothing and starts no daemon. Start reading at
//! [`sandbox`].

pub mod connect;
pub mod exec;
pub mod files;
pub mod home;
pub mod images;
pub mod interpreter;
pub mod launch;
pub mod lease;
pub mod sandbox;
pub mod sync;
pub mod views;

pub use kube;
