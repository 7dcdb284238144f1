//! Tests the machine's support for containers, for `warren doctor`. The tests leave nothing behind.

use std::io;

use warren_sys::mount;
use warren_sys::network::nftables;
use warren_sys::process::{self, CloneOptions, Exit, Fork, Namespaces, SingleThreaded};

use crate::privileges::Privileges;
use crate::{kernel, privileges};

/// Returns the version of cgroups that can limit containers, or 0 for an ordinary user without
/// delegated cgroups.
pub fn cgroup_version() -> io::Result<u8> {
    Ok(Privileges::of_this_process()?.hierarchy()?.version())
}

/// Makes a process in all the namespaces of a container. The calling process must be
/// single-threaded.
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

/// Returns true if overlays can be mounted. Needs root.
pub fn knows_overlay() -> io::Result<bool> {
    mount::knows_file_system("overlay")
}

/// Makes a user namespace as an ordinary user's home does, and checks that overlays can be mounted
/// there. The calling process must be single-threaded.
pub fn try_ordinary_user() -> io::Result<()> {
    let proof = SingleThreaded::verify()?;
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match process::fork(proof)? {
        Fork::Child => {
            drop(reader);
            let overlay = || match mount::knows_file_system("overlay") {
                Ok(true) => Ok(()),
                Ok(false) => Err("the kernel does not know overlays".to_owned()),
                Err(error) => Err(format!("mount an overlay in the user namespace: {error}")),
            };
            let outcome = privileges::become_namespace_root()
                .map_err(|error| {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    format!("{error}: {}", cause.unwrap_or_default())
                })
                .and_then(|()| overlay());
            if let Err(message) = &outcome {
                let _ = rustix::io::write(&writer, message.as_bytes());
            }
            process::exit_now(i32::from(outcome.is_err()))
        }
        Fork::Parent(child) => {
            drop(writer);
            let message = io::read_to_string(std::fs::File::from(reader))?;
            match child.wait()? {
                Exit::Code(0) => Ok(()),
                _ => Err(io::Error::other(message)),
            }
        }
    }
}

/// Makes an empty table of packet rules and removes it. Needs root.
pub fn try_packet_rules() -> io::Result<()> {
    nftables::remove("warren-doctor")
}
