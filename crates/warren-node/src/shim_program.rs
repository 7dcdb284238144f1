//! The program of zygote and shims, which the daemon embeds.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use warren_oci::zygote::{StartZygoteError, Zygote};

/// The program, built by `build.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/warren-shim"));

/// Starts the zygote. Its children inherit this process's present priority, limits and user.
pub fn start_zygote() -> Result<Zygote, StartZygoteError> {
    let program = in_memory().map_err(StartZygoteError::Run)?;
    Zygote::start(&PathBuf::from(format!("/proc/self/fd/{}", program.as_raw_fd())))
}

/// Returns the program as a memory file: the data directory's disk may be mounted noexec. It is
/// sealed against changes.
fn in_memory() -> io::Result<File> {
    let make = |flags| {
        rustix::fs::memfd_create("warren-shim", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)
    };
    let made = match make(MemfdFlags::EXEC) {
        // A kernel before 6.3, where memory files are always executable.
        Err(Errno::INVAL) => make(MemfdFlags::empty()),
        other => other,
    };
    let mut file = File::from(made.map_err(forbidden)?);
    file.write_all(PROGRAM)?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    Ok(file)
}

fn forbidden(error: Errno) -> io::Error {
    match error {
        Errno::ACCESS => io::Error::other(
            "programs in memory are forbidden here; `sysctl vm.memfd_noexec=1` allows them where they are asked for",
        ),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_can_change_the_program() {
        let mut file = in_memory().unwrap();
        assert_eq!(file.metadata().unwrap().len(), PROGRAM.len() as u64);
        assert_eq!(file.write(b"more").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(file.set_len(0).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
