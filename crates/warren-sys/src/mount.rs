//! The mount API by descriptors. A mount is made detached, is known only by its descriptor, and
//! becomes visible where it is attached. One that is never attached ends with its descriptor, so a
//! crash leaves nothing behind.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};

/// Restrictions of a mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Forbids writes.
    pub read_only: bool,
    /// Ignores set-user-id bits and file capabilities.
    pub no_suid: bool,
    /// Forbids to open device nodes.
    pub no_dev: bool,
    /// Forbids to execute programs.
    pub no_exec: bool,
    /// The update of a file's access time on reads.
    pub access_time: AccessTime,
    /// Skips the update of a directory's access time.
    pub no_directory_access_time: bool,
}

/// The update of a file's access time on reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AccessTime {
    /// The default: now and then.
    #[default]
    Relative,
    /// Never.
    Never,
    /// Every time.
    Always,
}

impl Attributes {
    /// No restrictions.
    pub const NONE: Self = Self {
        read_only: false,
        no_suid: false,
        no_dev: false,
        no_exec: false,
        access_time: AccessTime::Relative,
        no_directory_access_time: false,
    };
    /// For data: no set-user-id, no devices.
    pub const NO_SUID_NO_DEV: Self = Self { no_suid: true, no_dev: true, ..Self::NONE };
    /// For kernel file systems: no set-user-id, no devices, no programs.
    pub const NO_SUID_NO_DEV_NO_EXEC: Self = Self { no_exec: true, ..Self::NO_SUID_NO_DEV };

    /// Returns the same attributes, read-only.
    pub const fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    fn flags(self) -> MountAttrFlags {
        let mut flags = MountAttrFlags::empty();
        flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, self.read_only);
        flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, self.no_suid);
        flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, self.no_dev);
        flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, self.no_exec);
        flags.set(MountAttrFlags::MOUNT_ATTR_NOATIME, self.access_time == AccessTime::Never);
        flags.set(MountAttrFlags::MOUNT_ATTR_STRICTATIME, self.access_time == AccessTime::Always);
        flags.set(MountAttrFlags::MOUNT_ATTR_NODIRATIME, self.no_directory_access_time);
        flags
    }
}

/// One option of a new file system.
#[derive(Debug, Clone, Copy)]
pub enum FsOption<'a> {
    /// `key=value`.
    Text(&'a str, &'a str),
    /// `key`.
    Flag(&'a str),
}

/// Makes a detached file system of type `name`.
pub fn new_file_system(name: &str, options: &[FsOption<'_>], attributes: Attributes) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for option in options {
        let result = match option {
            FsOption::Text(key, value) => rustix::mount::fsconfig_set_string(&context, *key, *value),
            FsOption::Flag(key) => rustix::mount::fsconfig_set_flag(&context, *key),
        };
        result.map_err(|error| explain(&context, name, error))?;
    }
    rustix::mount::fsconfig_create(&context).map_err(|error| explain(&context, name, error))?;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes.flags())?)
}

/// Returns true if the kernel supports a file system. The kernel may load a module.
pub fn knows_file_system(name: &str) -> io::Result<bool> {
    match rustix::mount::fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::NODEV) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Adds the kernel's message, which can be read from the context.
fn explain(context: &OwnedFd, name: &str, error: rustix::io::Errno) -> io::Error {
    let mut buffer = [0u8; 512];
    let said = rustix::io::read(context, &mut buffer)
        .map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned());
    let error = io::Error::from(error);
    match said {
        Ok(said) if !said.is_empty() => {
            io::Error::new(error.kind(), format!("{name}: {}: {error}", said.trim()))
        }
        _ => io::Error::new(error.kind(), format!("{name}: {error}")),
    }
}

/// Makes a detached copy of the mount at `path`, alone or with all mounts below it.
pub fn copy_mount(path: &Path, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    Ok(rustix::mount::open_tree(rustix::fs::CWD, path, flags)?)
}

/// Makes a detached copy of the directory or file behind a descriptor, which cannot be replaced
/// meanwhile.
pub fn copy_mount_of(place: BorrowedFd<'_>, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    Ok(rustix::mount::open_tree(place, "", flags)?)
}

/// Restricts a mount. With `user_namespace`, the owners of its files are also mapped through that
/// namespace, so that the host's ids 0, 1, … are the namespace's ids 0, 1, ….
pub fn restrict(
    mount: BorrowedFd<'_>,
    attributes: Attributes,
    user_namespace: Option<BorrowedFd<'_>>,
    recursive: bool,
) -> io::Result<()> {
    let mut attribute = libc::mount_attr {
        attr_set: u64::from(attributes.flags().bits()),
        // The kernel requires to clear the old way of updates first.
        attr_clr: match attributes.access_time {
            AccessTime::Relative => 0,
            _ => u64::from(MountAttrFlags::MOUNT_ATTR__ATIME.bits()),
        },
        propagation: 0,
        userns_fd: 0,
    };
    if let Some(namespace) = user_namespace {
        attribute.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attribute.userns_fd = namespace.as_raw_fd() as u64;
    }
    let recursive = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string. The structure is initialised and outlives the call,
    // and its size is given. The descriptors are borrowed for the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            std::ptr::from_ref(&attribute),
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Attaches a detached mount at `path`. A link there is not followed.
pub fn attach(mount: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    Ok(rustix::mount::move_mount(mount, "", rustix::fs::CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Removes the mount behind `mount`, and everything on top of it, from this mount namespace.
pub fn detach(mount: BorrowedFd<'_>) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", mount.as_raw_fd());
    Ok(rustix::mount::unmount(path, UnmountFlags::DETACH)?)
}

/// Keeps the mounts of this namespace from appearing in others. Mounts and unmounts of others still
/// appear here, so that their disks do not stay busy because of us.
pub fn keep_mounts_private() -> io::Result<()> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", flags)?)
}

/// Returns true if the kernel has `mount_setattr`, which is the newest call here.
pub fn can_restrict() -> bool {
    // SAFETY: the kernel refuses the size 0 before it reads anything. A kernel without the call
    // returns an error.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            -1,
            c"".as_ptr(),
            0,
            std::ptr::null::<libc::mount_attr>(),
            0usize,
        )
    };
    !(result == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS))
}

/// Makes the mount behind `root` the root of this mount namespace, and removes the old one with all
/// mounts in it.
pub fn change_root(root: BorrowedFd<'_>) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    // With the same path for the old and the new root, the old one ends up on top of the new one
    // and is then unmounted. This needs no directory for it.
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// Makes the directory behind `root` the root of this process. If it belongs to a mount on top of
/// the namespace's root, processes that enter the namespace later find it too.
pub fn enter_root(root: BorrowedFd<'_>) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    rustix::process::chroot(".")?;
    Ok(rustix::process::chdir("/")?)
}
