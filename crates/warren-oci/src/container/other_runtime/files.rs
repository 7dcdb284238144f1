//! A container's files for a runtime that takes paths: its root file system and volumes. They are
//! attached where only the keeper and its children see them, and end with the last of those
//! processes.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use warren_sys::mount::{self, Attributes, FsOption};
use warren_sys::namespace;
use warren_sys::process::Namespaces;

use super::super::rootfs::{self, Detached, Kept, Layers, Message, Step, StepError, Volumes};
use super::super::{Workshop, writable_directory};
use crate::protocol::{ContainerRequest, PodRequest, RuntimeKind};

/// The place where files are shown to the runtime. Every system has this directory, and every user
/// may enter it. A runtime works as the pod's root, who may not enter the pod's directory. No
/// runtime needs the host's contents of it.
const STAGE: &str = "/dev/shm";

/// The paths for the runtime.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) root: PathBuf,
    pub(super) mounts: Vec<Shown>,
    pub(super) messages: Vec<Message>,
}

/// A file or directory to show in the container.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) source: PathBuf,
    pub(super) destination: PathBuf,
    pub(super) read_only: bool,
    pub(super) no_exec: bool,
}

/// Makes and attaches all files, in a new mount namespace of the calling process. The process stays
/// in its network namespace.
pub(super) fn assemble(
    workshop: &Workshop,
    kind: RuntimeKind,
    pod: &PodRequest,
    request: &ContainerRequest,
    user_namespace: BorrowedFd<'_>,
    network_namespace: BorrowedFd<'_>,
) -> Result<Files, StepError> {
    let step = || "make a mount namespace".to_owned();
    namespace::unshare(Namespaces::MOUNT).step(step)?;
    mount::keep_mounts_private().step(step)?;
    let stage = Path::new(STAGE);
    let step = || format!("make a stage at {STAGE}");
    let options = [FsOption::Text("mode", "755"), FsOption::Text("size", "1m")];
    let empty = mount::new_file_system("tmpfs", &options, Attributes::NO_SUID_NO_DEV).step(step)?;
    mount::attach(empty.as_fd(), stage).step(step)?;

    if kind == RuntimeKind::Gvisor {
        hide_network_defaults(stage, network_namespace)
            .step(|| format!("hide {NETWORK_DEFAULTS} from the runtime"))?;
    }
    let root = stage.join("root");
    fs::create_dir(&root).step(step)?;
    let directory = writable_directory(&pod.directory, &request.name, request.attempt);
    let layers = Layers {
        layering: workshop.layering,
        place: &directory,
        user_namespace: Some(user_namespace),
        no_suid: request.spec.process.no_new_privileges,
    };
    attach_root(pod, request, &layers, &root)?;
    let (mounts, messages) = attach_volumes(workshop, pod, request, &layers, &stage.join("mounts"))?;
    Ok(Files { root, mounts, messages })
}

/// Releases of `runsc` before August 2024, and so Debian's, take a network namespace for the
/// machine's own if this directory has a file `rmem_default`. Since Linux 6.11 every namespace has
/// it.
const NETWORK_DEFAULTS: &str = "/proc/sys/net/core";

/// Hides the directory behind an empty one, in the pod's network namespace only. A second, complete
/// `/proc` is mounted on the stage, because the kernel allows a new one only to processes that see
/// a complete one.
fn hide_network_defaults(stage: &Path, network_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let whole = stage.join("proc");
    fs::create_dir(&whole)?;
    mount::attach(mount::copy_mount(Path::new("/proc"), false)?.as_fd(), &whole)?;
    let options = [FsOption::Text("mode", "555")];
    let empty = mount::new_file_system("tmpfs", &options, Attributes::NO_SUID_NO_DEV_NO_EXEC.read_only())?;
    let own = namespace::open(0, "net")?;
    namespace::enter_one(network_namespace)?;
    let hidden = mount::attach(empty.as_fd(), Path::new(NETWORK_DEFAULTS));
    namespace::enter_one(own.as_fd())?;
    hidden
}

fn attach_root(
    pod: &PodRequest,
    request: &ContainerRequest,
    layers: &Layers<'_>,
    root: &Path,
) -> Result<(), StepError> {
    let writable = rootfs::make_writable(layers.place, &request.rootfs, pod.ids)?;
    let overlays = rootfs::overlays(&request.rootfs, &writable, layers, &mut Kept::default())?;
    let Some((first, others)) = overlays.split_first() else { return Ok(()) };
    let step = || "attach the root file system".to_owned();
    mount::attach(first.mount.as_fd(), root).step(step)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(root, flags, Mode::empty()).step(step)?;
    // Resolve paths of the image inside the image.
    let stay = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
    for overlay in others {
        let step = || format!("attach {}", overlay.target.display());
        let target = overlay.target.strip_prefix("/").unwrap_or(&overlay.target);
        let place = rustix::fs::openat2(&top, target, flags, Mode::empty(), stay).step(step)?;
        rustix::process::fchdir(place).step(step)?;
        mount::attach(overlay.mount.as_fd(), Path::new(".")).step(step)?;
    }
    rustix::process::chdir("/").step(step)
}

fn attach_volumes(
    workshop: &Workshop,
    pod: &PodRequest,
    request: &ContainerRequest,
    layers: &Layers<'_>,
    stage: &Path,
) -> Result<(Vec<Shown>, Vec<Message>), StepError> {
    let step = || format!("make {}", stage.display());
    fs::create_dir(stage).step(step)?;
    let Volumes { mounts: volumes, messages } =
        rootfs::volumes(&request.spec.mounts, pod.ids, layers, &workshop.volumes)?;
    let has = |mount: usize, option: &str| {
        request.spec.mounts.get(mount).is_some_and(|mount| mount.options.iter().any(|known| known == option))
    };
    let mut shown = Vec::new();
    for (number, detached) in volumes.into_iter().enumerate() {
        let (read_only, no_exec) = (has(number, "ro"), has(number, "noexec"));
        let Detached { mount, target, is_directory } = detached;
        let source = stage.join(number.to_string());
        let step = || format!("attach {}", target.display());
        if is_directory {
            fs::create_dir(&source).step(step)?;
        } else {
            fs::write(&source, "").step(step)?;
        }
        mount::attach(mount.as_fd(), &source).step(step)?;
        shown.push(Shown { source, destination: target, read_only, no_exec });
    }
    Ok((shown, messages))
}
