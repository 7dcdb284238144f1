//! Wire types between clients, the router and the daemon inside a sandbox. Plain data with its
//! names on the wire; it knows nothing of Kubernetes and does no I/O. Start with [`runtime`].

pub mod envd;
pub mod files;
pub mod processes;
pub mod runtime;
