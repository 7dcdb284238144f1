//! Containers on this machine by a thin path of our own: a zygote forks one shim per pod, the shim makes the pod's
//! containers out of namespaces, an overlay, cgroups and a seccomp filter, owns their output, and writes down how they
//! end. It knows nothing of Kubernetes, uses no async runtime, and never runs inside a threaded process: everything
//! after [`zygote::Zygote::start`] happens in a program of its own, `warren-shim`, in processes with one thread.
//!
//! Start reading at [`protocol`] (what can be asked), then [`zygote`], `shim`, and `container` (how one comes to
//! be).

/// Says something on standard error, which is a file on the disk that pods write to. `eprintln!` panics when that is full, and a
/// shim would take its pod along.
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
