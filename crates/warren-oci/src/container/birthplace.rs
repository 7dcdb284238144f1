//! The mount namespace in which containers' first processes start: a root that contains only the
//! material for a container's own mounts. The zygote makes it once.
//!
//! A process that starts among the machine's mounts would have to leave them with `pivot_root`, for
//! which the kernel visits every thread of the machine, and each mount would cost a copy and a
//! removal. Here a container's root is attached on top of the empty one. Reaching what is below
//! needs power over the container's own mounts, which no process in it has. Even then there is only
//! this: the devices that every container has, an empty directory, and kernel file systems that
//! show only the container's processes and no network device. (An ordinary user cannot make such a
//! procfs. It is then the machine's, as that user sees it.)

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use warren_sys::mount::{self, Attributes, FsOption};
use warren_sys::namespace;
use warren_sys::process::{self, CloneOptions, Fork, Namespaces, SingleThreaded};
use warren_sys::socket::Seqpacket;

use super::child;
use super::rootfs::{Step, StepError};

/// The place where the root is attached just before it becomes the root. Every Linux system has
/// this directory.
const STAGING: &str = "/proc";

#[derive(Debug)]
pub(crate) struct Birthplace(OwnedFd);

impl Birthplace {
    /// Makes the namespace in a process of its own, which then ends.
    pub(crate) fn make(proof: SingleThreaded) -> Result<Self, StepError> {
        let step = || "make an empty root".to_owned();
        let (ours, theirs) = Seqpacket::pair().step(step)?;
        match process::fork(proof).step(step)? {
            Fork::Child => {
                drop(ours);
                let sent = furnish().and_then(|namespace| {
                    theirs.send(b"mnt", &[namespace.as_fd()]).step(|| "hand over the namespace".to_owned())
                });
                if let Err(error) = sent {
                    let _ = theirs.send(format!("{}: {}", error.step, error.source).as_bytes(), &[]);
                }
                process::exit_now(0)
            }
            Fork::Parent(helper) => {
                drop(theirs);
                let packet = ours.receive(4096);
                let _ = helper.wait();
                let packet =
                    packet.and_then(|packet| packet.ok_or(io::ErrorKind::UnexpectedEof.into())).step(step)?;
                let said = || io::Error::other(String::from_utf8_lossy(&packet.bytes).into_owned());
                packet.descriptors.into_iter().next().ok_or_else(said).step(step).map(Self)
            }
        }
    }

    /// Clones a process into a copy of the namespace. This process returns to its own namespace.
    pub(super) fn clone_process(&self, proof: SingleThreaded, options: CloneOptions<'_>) -> io::Result<Fork> {
        let own = namespace::open(0, "mnt")?;
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        namespace::enter_one(self.0.as_fd())?;
        let cloned = process::clone(proof, options);
        if matches!(cloned, Ok(Fork::Child)) {
            return cloned;
        }
        namespace::enter_one(own.as_fd())?;
        // Entering led to the root of the namespace. The root of this process may be below it.
        mount::enter_root(root.as_fd())?;
        cloned
    }
}

/// Returns the namespace, for processes that enter it and stay.
impl AsFd for Birthplace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes the namespace, with this process in it, and returns its descriptor.
fn furnish() -> Result<OwnedFd, StepError> {
    // Containers have other ids, so files must be accessible to all.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // A sysfs shows the network devices of the namespace that it is made in.
    namespace::unshare(Namespaces::MOUNT.with(Namespaces::NETWORK)).step(|| "make namespaces".to_owned())?;
    mount::keep_mounts_private().step(|| "keep mounts private".to_owned())?;
    let namespace = namespace::open(0, "mnt").step(|| "open the mount namespace".to_owned())?;

    let options = [FsOption::Text("mode", "555"), FsOption::Text("size", "64k")];
    let root = mount::new_file_system("tmpfs", &options, Attributes::NO_SUID_NO_DEV_NO_EXEC)
        .step(|| "make the root".to_owned())?;
    let hidden = [FsOption::Text("subset", "pid"), FsOption::Text("hidepid", "ptraceable")];
    let proc = kernel_file_system("proc", "/proc", &hidden, Attributes::NO_SUID_NO_DEV_NO_EXEC)?;
    let read_only = Attributes::NO_SUID_NO_DEV_NO_EXEC.read_only();
    let sys = kernel_file_system("sysfs", "/sys", &[], read_only)?;
    let devices = child::DEVICES
        .iter()
        .map(|name| {
            let path = Path::new("/dev").join(name);
            mount::copy_mount(&path, false)
                .step(|| format!("take {}", path.display()))
                .map(|copy| (path, copy))
        })
        .collect::<Result<Vec<_>, _>>()?;

    mount::attach(root.as_fd(), Path::new(STAGING)).step(|| "attach the root".to_owned())?;
    mount::change_root(root.as_fd()).step(|| "change the root".to_owned())?;
    for (path, mounted) in [("/proc", proc), ("/sys", sys)] {
        let step = || format!("attach {path}");
        fs::create_dir(path).step(step)?;
        mount::attach(mounted.as_fd(), Path::new(path)).step(step)?;
    }
    for path in ["/dev", child::NOTHING] {
        fs::create_dir(path).step(|| format!("make {path}"))?;
    }
    for (path, device) in devices {
        let step = || format!("attach {}", path.display());
        fs::File::create_new(&path).step(step)?;
        mount::attach(device.as_fd(), &path).step(step)?;
    }
    mount::restrict(root.as_fd(), read_only, None, false).step(|| "make the root read-only".to_owned())?;
    Ok(namespace)
}

/// Makes a new file system, or takes the existing one where an ordinary user may not make one.
fn kernel_file_system(
    kind: &str,
    path: &str,
    options: &[FsOption<'_>],
    attributes: Attributes,
) -> Result<OwnedFd, StepError> {
    let made = match mount::new_file_system(kind, options, attributes) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            mount::copy_mount(Path::new(path), true)
        }
        other => other,
    };
    made.step(|| format!("make {path}"))
}
