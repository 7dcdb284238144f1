//! The privileged half of a root file system. The shim makes every mount that needs the host's
//! rights as a detached mount and passes the descriptors to the container's process, which attaches
//! them (see [`super::child`]).

mod message;
mod unmapped;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use warren_sys::mount::{self, Attributes, FsOption};

use crate::idmap::IdRange;
use crate::kernel::{self, Layering};
use crate::protocol::{Overlay, Rootfs, View};
use crate::spec::{Mount, MountKind};

pub(crate) use self::message::{Message, keep_all};

/// A failed step of a start.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub(crate) struct StepError {
    pub(crate) step: String,
    #[source]
    pub(crate) source: io::Error,
}

/// Names the step that an error belongs to.
pub(crate) trait Step<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, StepError>;
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, StepError> {
        self.map_err(|source| StepError { step: step(), source })
    }
}

impl<T> Step<T> for rustix::io::Result<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, StepError> {
        self.map_err(io::Error::from).step(step)
    }
}

/// A detached mount and its target inside the container.
#[derive(Debug)]
pub(crate) struct Detached {
    pub(crate) mount: OwnedFd,
    pub(crate) target: PathBuf,
    /// True if the target must be a directory.
    pub(crate) is_directory: bool,
}

/// The writable half of one overlay.
#[derive(Debug)]
pub(crate) struct Writable {
    upper: OwnedFd,
    work: OwnedFd,
}

/// Makes the directories that a container writes to, below `directory`. They belong to its root.
pub(crate) fn make_writable(
    directory: &Path,
    rootfs: &Rootfs,
    ids: IdRange,
) -> Result<Vec<Writable>, StepError> {
    if rootfs.overlays.first().is_none_or(|overlay| overlay.target != Path::new("/")) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput)).step(|| "find the overlay of /".to_owned());
    }
    fs::create_dir_all(directory).step(|| format!("make {}", directory.display()))?;
    rootfs
        .overlays
        .iter()
        .enumerate()
        .map(|(index, overlay)| make_pair(directory, index, overlay, ids))
        .collect()
}

fn make_pair(directory: &Path, index: usize, overlay: &Overlay, ids: IdRange) -> Result<Writable, StepError> {
    let (upper, work) = match &overlay.view {
        Some(view) => (View::upper(&view.name), View::work(&view.name)),
        None => (format!("{index}.upper"), format!("{index}.work")),
    };
    let make = |name: String| -> Result<OwnedFd, StepError> {
        let path = directory.join(name);
        let step = || format!("make {}", path.display());
        fs::create_dir(&path).step(step)?;
        rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .step(step)
    };
    let upper = make(upper)?;
    let work = make(work)?;
    // The top directory of an overlay has the owner and mode of the upper directory.
    let step = || format!("give {} to the pod", directory.display());
    let lower = match overlay.view {
        // Its owner inside is the container's root, who may write there whatever the mode.
        Some(_) => None,
        None => overlay.lower.first(),
    };
    let mode = lower.and_then(|lower| fs::metadata(lower).ok()).map_or(0o755, |lower| lower.mode());
    fs::File::from(upper.try_clone().step(step)?)
        .set_permissions(fs::Permissions::from_mode(mode & 0o7777))
        .step(step)?;
    std::os::unix::fs::fchown(&upper, Some(ids.first), Some(ids.first)).step(step)?;
    Ok(Writable { upper, work })
}

/// Parameters of overlays.
#[derive(Debug)]
pub(crate) struct Layers<'a> {
    pub(crate) layering: Layering,
    /// A directory to attach layers to, if the kernel needs that.
    pub(crate) place: &'a Path,
    /// The user namespace whose ids the owners of files are mapped to. `None` if they are not
    /// mapped, because only root can do that. Overlays then use extended attributes that ordinary
    /// users can write.
    pub(crate) user_namespace: Option<BorrowedFd<'a>>,
    pub(crate) no_suid: bool,
}

/// Mounts that are only needed to make overlays. An overlay has its own copies, but closing a mount
/// makes the kernel wait for all processors, so it is done later.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Closed when the shim ends.
    pub(crate) detached: Vec<OwnedFd>,
    /// The layers in the shim's mount namespace, each on top of the one before.
    attached: Vec<OwnedFd>,
}

impl Drop for Kept {
    /// Detaches the layers from the shim's mount namespace, so that restarts do not accumulate
    /// them.
    fn drop(&mut self) {
        // Start from the top: a lookup through the descriptor of a lower one ends at the one on top
        // of it.
        for layer in self.attached.iter().rev() {
            if let Err(error) = mount::detach(layer.as_fd()) {
                // They end with the shim.
                complain!("warren: shim: detach layers: {error}");
            }
        }
    }
}

/// Makes the overlays, in order.
pub(crate) fn overlays(
    rootfs: &Rootfs,
    writable: &[Writable],
    layers: &Layers<'_>,
    kept: &mut Kept,
) -> Result<Vec<Detached>, StepError> {
    let mut mounts = Vec::new();
    for (overlay, writable) in rootfs.overlays.iter().zip(writable) {
        match layers.user_namespace {
            Some(user_namespace) => {
                let mount = overlay_mount(overlay, writable, layers, user_namespace, kept)?;
                mounts.push(Detached { mount, target: overlay.target.clone(), is_directory: true });
            }
            None => mounts.extend(unmapped::overlay(overlay, writable, layers)?),
        }
    }
    Ok(mounts)
}

fn overlay_mount(
    overlay: &Overlay,
    writable: &Writable,
    layers: &Layers<'_>,
    user_namespace: BorrowedFd<'_>,
    kept: &mut Kept,
) -> Result<OwnedFd, StepError> {
    let attributes = Attributes { no_suid: layers.no_suid, ..Attributes::NO_SUID_NO_DEV };
    let mut lower = Vec::new();
    for directory in &overlay.lower {
        let step = || format!("map the owners of {}", directory.display());
        let copy = match &overlay.view {
            Some(view) => mount::copy_mount_of(open_shown(directory, view)?.as_fd(), false),
            None => mount::copy_mount(directory, false),
        };
        let copy = copy.step(step)?;
        let attributes = Attributes::NO_SUID_NO_DEV.read_only();
        mount::restrict(copy.as_fd(), attributes, Some(user_namespace), false)
            .map_err(|error| kernel::explain_mapping(error, directory))
            .step(step)?;
        lower.push(copy);
    }
    let options: &[FsOption<'_>] = match overlay.view {
        Some(_) => &[VOLATILE, FsOption::Text("redirect_dir", "off"), FsOption::Text("metacopy", "off")],
        None => &[VOLATILE],
    };
    let mount = match layers.layering {
        Layering::Detached => overlay_on_detached(&lower, writable, options, attributes),
        Layering::Attached => lower
            .iter()
            // Attach each on top of the one before. A descriptor still leads to its own mount.
            .try_for_each(|layer| mount::attach(layer.as_fd(), layers.place))
            .and_then(|()| overlay_on_attached(&lower, writable, options, attributes)),
    };
    match layers.layering {
        Layering::Detached => kept.detached.append(&mut lower),
        Layering::Attached => kept.attached.append(&mut lower),
    }
    mount
        .map_err(kernel::explain_overlay)
        .step(|| format!("make the overlay of {}", overlay.target.display()))
}

/// Opens the directory that a view shows.
fn open_shown(directory: &Path, view: &View) -> Result<OwnedFd, StepError> {
    let step = || format!("open {} in {}", view.inside.display(), directory.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(directory, flags, Mode::empty()).step(step)?;
    let inside = if view.inside.as_os_str().is_empty() { Path::new(".") } else { &view.inside };
    let stay = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(&top, inside, flags, Mode::empty(), stay).step(step)
}

/// Skips the sync of the host's whole file system at the container's end. Files that a container
/// wrote do not outlive a power cut anyway: it is made anew from its image.
const VOLATILE: FsOption<'static> = FsOption::Flag("volatile");

fn overlay_on_detached(
    lower: &[OwnedFd],
    writable: &Writable,
    flags: &[FsOption<'_>],
    attributes: Attributes,
) -> io::Result<OwnedFd> {
    // Pass directories by descriptor: the option's text is limited to 255 bytes, and the path of a
    // data directory may be long.
    let name = |descriptor: &OwnedFd| format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let names: Vec<String> = lower.iter().map(name).collect();
    let (upper, work) = (name(&writable.upper), name(&writable.work));
    let mut options: Vec<FsOption<'_>> = names.iter().map(|path| FsOption::Text("lowerdir+", path)).collect();
    options.extend([FsOption::Text("upperdir", &upper), FsOption::Text("workdir", &work)]);
    options.extend(flags);
    mount::new_file_system("overlay", &options, attributes)
}

/// Makes an overlay as kernels before 6.15 need it: every layer is in the caller's mount namespace,
/// and one option names all of them. Names are looked up from the directory of our descriptors. So
/// the option is short, and needs no quoting because the names are numbers.
fn overlay_on_attached(
    lower: &[OwnedFd],
    writable: &Writable,
    flags: &[FsOption<'_>],
    attributes: Attributes,
) -> io::Result<OwnedFd> {
    let name = |descriptor: &OwnedFd| descriptor.as_raw_fd().to_string();
    let lower = lower.iter().map(name).collect::<Vec<_>>().join(":");
    if lower.len() > LONGEST_OPTION {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the image has more layers than overlays can be told of before Linux 6.15",
        ));
    }
    let (upper, work) = (name(&writable.upper), name(&writable.work));
    let mut options = vec![
        FsOption::Text("lowerdir", &lower),
        FsOption::Text("upperdir", &upper),
        FsOption::Text("workdir", &work),
    ];
    options.extend(flags);
    let before = rustix::fs::open(".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::process::chdir("/proc/self/fd")?;
    let mount = mount::new_file_system("overlay", &options, attributes);
    rustix::process::fchdir(before)?;
    mount
}

/// The longest text that `fsconfig` accepts.
const LONGEST_OPTION: usize = 255;

/// Makes the container's own instance of terminals. The shim opens terminals through the descriptor
/// that it keeps, so it never follows a path that the container could have changed.
pub(crate) fn terminals(ids: IdRange) -> Result<Detached, StepError> {
    // The machine has 4096 terminals; one pod must not take them all.
    let group = (ids.first + ids.terminal_group()).to_string();
    let options = [
        FsOption::Text("ptmxmode", "0666"),
        FsOption::Text("mode", "0620"),
        FsOption::Text("gid", &group),
        FsOption::Text("max", "256"),
    ];
    let attributes = Attributes { no_suid: true, no_exec: true, ..Attributes::NONE };
    let mount = mount::new_file_system("devpts", &options, attributes).step(|| "make /dev/pts".to_owned())?;
    Ok(Detached { mount, target: "/dev/pts".into(), is_directory: true })
}

/// The mounts of the specification.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    /// In the order of the specification.
    pub(crate) mounts: Vec<Detached>,
    /// The mounts that the container leaves messages in.
    pub(crate) messages: Vec<Message>,
}

/// Makes the mounts of the specification.
pub(crate) fn volumes(
    mounts: &[Mount],
    ids: IdRange,
    layers: &Layers<'_>,
    memory: &BTreeMap<String, OwnedFd>,
) -> Result<Volumes, StepError> {
    let mut volumes = Volumes::default();
    for volume in mounts {
        let mount = volume_mount(volume, ids, layers, memory, &mut volumes.messages)?;
        volumes.mounts.push(mount);
    }
    Ok(volumes)
}

fn volume_mount(
    volume: &Mount,
    ids: IdRange,
    layers: &Layers<'_>,
    memory: &BTreeMap<String, OwnedFd>,
    messages: &mut Vec<Message>,
) -> Result<Detached, StepError> {
    let step = || format!("mount {}", volume.destination.display());
    let refuse = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    if !volume.destination.is_absolute()
        || volume.destination.components().any(|part| part.as_os_str() == "..")
    {
        return Err(refuse("the destination is not an absolute path".to_owned())).step(step);
    }
    // A volume must offer neither set-user-id programs nor devices.
    let mut attributes = Attributes::NO_SUID_NO_DEV;
    let (mut map_owners, mut size, mut mode, mut inside) = (false, None, None, None);
    for option in &volume.options {
        match option.as_str() {
            "ro" => attributes.read_only = true,
            "rw" => attributes.read_only = false,
            "noexec" => attributes.no_exec = true,
            "idmap" => map_owners = true,
            "exec" | "nosuid" | "nodev" | "bind" | "rbind" | "private" | "rprivate" => {}
            other => match (volume.kind, other.split_once('=')) {
                (MountKind::Tmpfs, Some(("size", value))) => size = Some(value),
                (MountKind::Tmpfs, Some(("mode", value))) => mode = Some(value),
                (MountKind::Bind | MountKind::Memory, Some(("X-mount.subdir", value))) => {
                    inside = Some(Path::new(value));
                }
                _ => return Err(refuse(format!("the option `{other}` is not known"))).step(step),
            },
        }
    }
    match volume.kind {
        MountKind::Bind | MountKind::Memory => {
            let source = volume
                .source
                .as_deref()
                .ok_or_else(|| refuse("a volume has no source".to_owned()))
                .step(step)?;
            let mut place = if volume.kind == MountKind::Bind {
                rustix::fs::open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step(step)?
            } else {
                let known = source.to_str().and_then(|name| memory.get(name));
                let known = known.ok_or_else(|| refuse(format!("there is no memory `{}`", source.display())));
                known.and_then(OwnedFd::try_clone).step(step)?
            };
            if let Some(inside) = inside {
                place = super::volume::open_inside(place.as_fd(), inside).step(step)?;
            }
            let kind = rustix::fs::fstat(&place).step(step)?.st_mode;
            let is_directory = rustix::fs::FileType::from_raw_mode(kind).is_dir();
            let mount = mount::copy_mount_of(place.as_fd(), true).step(step)?;
            let mapping = layers.user_namespace.filter(|_| map_owners);
            mount::restrict(mount.as_fd(), attributes, mapping, true)
                .map_err(
                    |error| if mapping.is_some() { kernel::explain_mapping(error, source) } else { error },
                )
                .step(step)?;
            Ok(Detached { mount, target: volume.destination.clone(), is_directory })
        }
        MountKind::Tmpfs => {
            let owner = ids.first.to_string();
            let options = [
                FsOption::Text("size", size.unwrap_or("64m")),
                FsOption::Text("mode", mode.unwrap_or("1777")),
                FsOption::Text("uid", &owner),
                FsOption::Text("gid", &owner),
            ];
            let mount = mount::new_file_system("tmpfs", &options, attributes).step(step)?;
            Ok(Detached { mount, target: volume.destination.clone(), is_directory: true })
        }
        MountKind::Message => {
            let kept_at = volume.source.clone();
            let kept_at = kept_at.ok_or_else(|| refuse("a message has no source".to_owned())).step(step)?;
            let (message, mount) = Message::make(kept_at, ids, layers).step(step)?;
            mount::restrict(mount.as_fd(), attributes, None, false).step(step)?;
            messages.push(message);
            Ok(Detached { mount, target: volume.destination.clone(), is_directory: false })
        }
    }
}

/// Gives a pipe's or terminal's inode to the user that will hold it, so that `/dev/stdout` can be
/// opened again.
pub(crate) fn give(descriptor: BorrowedFd<'_>, ids: IdRange, uid: u32, gid: u32) -> Result<(), StepError> {
    let step = || format!("give standard streams to user {uid}");
    let unmapped = || crate::idmap::no_such_id(ids);
    let uid = ids.to_host(uid).ok_or_else(unmapped).step(step)?;
    let gid = ids.to_host(gid).ok_or_else(unmapped).step(step)?;
    std::os::unix::fs::fchown(descriptor, Some(uid), Some(gid)).step(step)
}
