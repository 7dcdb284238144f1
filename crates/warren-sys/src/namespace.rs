//! Namespaces: making and entering them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags};

use crate::process::Namespaces;

/// Gives the calling process new namespaces. A pid namespace applies to its future children.
pub fn unshare(namespaces: Namespaces) -> io::Result<()> {
    // SAFETY: `Namespaces` contains only namespace flags. The one unsafe flag is that for
    // descriptors.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::from_bits_retain(namespaces.bits() as u32)) }?)
}

/// Enters the namespaces of the process behind `pidfd`, all or none.
pub fn enter(pidfd: BorrowedFd<'_>, namespaces: Namespaces) -> io::Result<()> {
    Ok(rustix::thread::move_into_thread_name_spaces(
        pidfd,
        ThreadNameSpaceType::from_bits_retain(namespaces.bits() as u32),
    )?)
}

/// Enters a namespace by its descriptor.
pub fn enter_one(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(namespace, None::<LinkNameSpaceType>)?)
}

/// Opens a namespace of `pid` (0: of this process). `kind` is the file's name: `user`, `net`,
/// `pid`, …. The descriptor keeps the namespace alive.
pub fn open(pid: i32, kind: &str) -> io::Result<OwnedFd> {
    let process = if pid == 0 { "self".to_owned() } else { pid.to_string() };
    Ok(std::fs::File::open(format!("/proc/{process}/ns/{kind}"))?.into())
}

/// Brings up the loopback device of the calling process's network namespace.
pub fn loopback_up() -> io::Result<()> {
    // SAFETY: the request structure is zeroed and filled in before the call, and outlives it. The
    // socket is new and owned here.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        if libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
