//! Safe wrappers for the Linux calls that containers are made of: processes and pidfds, namespaces, the new mount API,
//! sequenced-packet sockets with descriptors, ptys, capabilities, seccomp, network devices and packet rules, cgroups
//! of both versions behind one interface, and a program for idle containers. It is the one crate with `unsafe`, and it
//! never decides anything: which namespaces, which limits, which system calls is the caller's policy. Start reading at
//! [`process`] and [`cgroup`].

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
