//! A program for a container that has nothing better to run as its first process. It is in `init/main.rs` beside this crate's sources.

/// The program's file, for this machine: it keeps the container alive, reaps what is orphaned inside, and ends with `SIGTERM` or
/// `SIGINT`. It takes no arguments and heeds none.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));
