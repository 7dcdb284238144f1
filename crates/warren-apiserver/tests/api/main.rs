//! Tests of the server through real clients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers as well")]

mod access;
mod exec;
mod listeners;
mod managers;
mod node_proxy;
mod objects;
mod support;
mod watches;
mod workloads;
