//! Containers on this machine. A zygote forks one shim per pod. The shim makes the pod's containers
//! from namespaces, an overlay, cgroups and a seccomp filter, owns their output, and records how
//! they end.
//!
//! The crate knows nothing of Kubernetes and uses no async runtime. It never runs inside a threaded
//! process: everything after [`zygote::Zygote::start`] happens in a program of its own,
//! `warren-shim`, in single-threaded processes.
//!
//! Start reading at [`protocol`] (the requests), then [`zygote`], `shim`, and `container` (the
//! start of one).

/// Writes to standard error, which is a log file on the disk that pods write to. `eprintln!` panics
/// when that is full, and a shim would take its pod along.
macro_rules! complain {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

pub mod bundle;
pub mod cgroup_names;
pub mod cleanup;
pub mod client;
mod container;
pub mod defaults;
pub mod host_image;
pub mod idmap;
pub mod kernel;
pub mod machine;
pub mod privileges;
pub mod protocol;
mod seccomp_profile;
mod shim;
pub mod spec;
mod timeline;
mod wire;
pub mod zygote;
