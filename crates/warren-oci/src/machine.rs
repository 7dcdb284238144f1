//! What this machine offers to containers, tried out from the outside: for `warren doctor`. Nothing stays behind.

use std::io;

use warren_sys::cgroup::Hierarchy;
use warren_sys::mount;
use warren_sys::network::nftables;
use warren_sys::process::{self, CloneOptions, Exit, Fork, Namespaces, SingleThreaded};

use crate::kernel;

/// Which version of cgroups has the controllers that limits need.
pub fn cgroup_version() -> io::Result<u8> {
    Ok(Hierarchy::detect()?.version())
}

/// Makes a process in all the namespaces that a container has. To be called while the process has one thread.
pub fn try_namespaces() -> io::Result<()> {
    let proof = SingleThreaded::verify()?;
    let namespaces = [
        Namespaces::PID,
        Namespaces::MOUNT,
        Namespaces::NETWORK,
        Namespaces::IPC,
        Namespaces::UTS,
        Namespaces::CGROUP,
    ];
    let namespaces = namespaces.into_iter().fold(Namespaces::USER, Namespaces::with);
    let options = CloneOptions { namespaces, sibling: false, cgroup: None };
    match process::clone(proof, options).map_err(kernel::explain_namespaces)? {
        Fork::Child => process::exit_now(0),
        Fork::Parent(child) => match child.wait()? {
            Exit::Code(0) => Ok(()),
            other => Err(io::Error::other(format!("the process in them ended with {other:?}"))),
        },
    }
}

/// Whether overlays can be mounted. Needs root.
pub fn knows_overlay() -> io::Result<bool> {
    mount::knows_file_system("overlay")
}

/// Makes an empty table of packet rules and removes it. Needs root.
pub fn try_packet_rules() -> io::Result<()> {
    nftables::remove("warren-doctor")
}
