//! Safe wrappers for the Linux calls that containers need: processes and pidfds, namespaces, the
//! new mount API, sequenced-packet sockets with descriptors, ptys, capabilities, seccomp, network
//! devices and packet rules, cgroups of both versions, and a program for idle containers.
//!
//! This is the one crate with `unsafe`. It makes no decisions: namespaces, limits and system calls
//! are the caller's policy. Start reading at [`process`] and [`cgroup`].

pub mod capability;
pub mod cgroup;
pub mod init;
pub mod memory;
pub mod mount;
pub mod namespace;
pub mod network;
pub mod process;
pub mod pty;
pub mod seccomp;
pub mod socket;
