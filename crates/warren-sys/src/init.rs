//! The program of idle containers. Its source is `init/main.rs`.

/// The program for this machine. It keeps the container alive, reaps orphans, and ends with
/// `SIGTERM` or `SIGINT`. It ignores arguments.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));
