//! The file system of a bundle: its root, mounts, devices and masked paths.
//!
//! The creating process copies bind mounts, with its rights and in the host's view ([`Prepared`]).
//! All mounts are attached after the change of root, when no path can lead out of the container.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use warren_sys::mount::{self, AccessTime, Attributes, FsOption};

use super::cgroups::Cgroups;
use super::config::{Config, Device, Mount, NamespaceKind};
use super::{Error, Step as _};
use crate::container::{make_mount_point, restrict_paths};

/// The place where the new root is attached just before it becomes the root.
const STAGING: &str = "/proc";

/// Devices that every container has.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// Resources that only the creating process can open.
#[derive(Debug)]
pub(super) struct Prepared {
    root: OwnedFd,
    mounts: Vec<Source>,
    /// The host's devices, if the container may not make its own.
    devices: Vec<(PathBuf, OwnedFd)>,
}

#[derive(Debug)]
enum Source {
    /// A file or directory of the host, already copied.
    Host { mount: OwnedFd, is_directory: bool },
    /// A file or directory of the host that the container's process copies itself, so that the
    /// mount table lists all mounts in the order of the configuration. This needs the view and the
    /// rights of the host's root.
    HostLater { path: PathBuf, is_directory: bool },
    /// The container's own cgroups, by name.
    Cgroups(Vec<(String, OwnedFd)>),
    /// A new file system, made in the container's namespaces.
    New,
}

/// The options of a mount, sorted by the system call that takes them.
#[derive(Debug, Default)]
struct Options {
    attributes: Attributes,
    recursive: bool,
    propagation: Option<MountPropagationFlags>,
    data: Vec<String>,
}

impl Prepared {
    pub(super) fn new(config: &Config, bundle: &Path, cgroups: &Cgroups) -> Result<Self, Error> {
        let path = bundle.join(&config.root.path);
        let root = mount::copy_mount(&path, true).step(|| format!("take the root {}", path.display()))?;
        let later = config.has_new(NamespaceKind::Mount) && !config.has_new(NamespaceKind::User);
        let mounts = config
            .mounts
            .iter()
            .map(|mount| prepare(mount, bundle, cgroups, later))
            .collect::<Result<_, _>>()?;
        let mut devices = Vec::new();
        if config.has_new(NamespaceKind::User) {
            let paths = DEVICES.iter().map(|(name, ..)| Path::new("/dev").join(name));
            for path in paths.chain(config.linux.devices.iter().map(|device| device.path.clone())) {
                let device = mount::copy_mount(&path, false).step(|| format!("take {}", path.display()))?;
                devices.push((path, device));
            }
        }
        Ok(Self { root, mounts, devices })
    }
}

fn is_bind(mount: &Mount) -> bool {
    mount.kind == "bind" || mount.options.iter().any(|option| option == "bind" || option == "rbind")
}

fn prepare(mount: &Mount, bundle: &Path, cgroups: &Cgroups, later: bool) -> Result<Source, Error> {
    let step = || format!("mount {}", mount.destination.display());
    if is_bind(mount) {
        let source =
            mount.source.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput)).step(step)?;
        let source = bundle.join(source);
        let is_directory = fs::metadata(&source).step(step)?.is_dir();
        let options = Options::read(mount)?;
        if later {
            return Ok(Source::HostLater { path: source, is_directory });
        }
        let copy = mount::copy_mount(&source, options.recursive).step(step)?;
        return Ok(Source::Host { mount: copy, is_directory });
    }
    if mount.kind != "cgroup" {
        return Ok(Source::New);
    }
    let views = cgroups
        .views()
        .map(|(name, path)| Ok((name.to_owned(), mount::copy_mount(path, false).step(step)?)))
        .collect::<Result<_, Error>>()?;
    Ok(Source::Cgroups(views))
}

impl Options {
    fn read(mount: &Mount) -> Result<Self, Error> {
        use MountPropagationFlags as Propagation;
        let mut options = Self::default();
        for option in &mount.options {
            let attributes = &mut options.attributes;
            match option.as_str() {
                "defaults" | "bind" | "rw" | "suid" | "dev" | "exec" | "async" | "atime" | "diratime"
                | "relatime" | "nostrictatime" | "nomand" | "loud" => {}
                "rbind" => options.recursive = true,
                "ro" => attributes.read_only = true,
                "nosuid" => attributes.no_suid = true,
                "nodev" => attributes.no_dev = true,
                "noexec" => attributes.no_exec = true,
                "noatime" => attributes.access_time = AccessTime::Never,
                "strictatime" | "norelatime" => attributes.access_time = AccessTime::Always,
                "nodiratime" => attributes.no_directory_access_time = true,
                "private" => options.propagation = Some(Propagation::PRIVATE),
                "rprivate" => options.propagation = Some(Propagation::PRIVATE | Propagation::REC),
                "shared" => options.propagation = Some(Propagation::SHARED),
                "rshared" => options.propagation = Some(Propagation::SHARED | Propagation::REC),
                "slave" => options.propagation = Some(Propagation::DOWNSTREAM),
                "rslave" => options.propagation = Some(Propagation::DOWNSTREAM | Propagation::REC),
                "unbindable" => options.propagation = Some(Propagation::UNBINDABLE),
                "runbindable" => options.propagation = Some(Propagation::UNBINDABLE | Propagation::REC),
                // The kernel ignores such options of an existing file system.
                other if is_bind(mount) && other.contains('=') => {}
                other if is_bind(mount) => {
                    return Err(Error::Config(format!(
                        "the option `{other}` of the mount at {} is not known",
                        mount.destination.display()
                    )));
                }
                other => options.data.push(other.to_owned()),
            }
        }
        Ok(options)
    }
}

/// Makes a new, detached file system. Its source is only a name in the mount table, but some
/// programs read it.
fn make(mount: &Mount, options: &Options) -> io::Result<OwnedFd> {
    let source = mount.source.as_ref().map(|source| source.to_string_lossy().into_owned());
    let mut data: Vec<FsOption<'_>> = source.iter().map(|source| FsOption::Text("source", source)).collect();
    data.extend(options.data.iter().map(|option| match option.split_once('=') {
        Some((key, value)) => FsOption::Text(key, value),
        None => FsOption::Flag(option),
    }));
    mount::new_file_system(&mount.kind, &data, options.attributes)
}

/// Enters the bundle's root and sets it up as configured. Runs in the container's namespaces.
pub(super) fn set_up(config: &Config, prepared: Prepared) -> Result<(), Error> {
    mount::keep_mounts_private().step(|| "keep mounts from the host".to_owned())?;
    // The kernel allows a new procfs or sysfs only while an old one is fully visible, so make them
    // before the host's mounts go.
    let mut made = Vec::new();
    for (mount, source) in config.mounts.iter().zip(prepared.mounts) {
        let step = || format!("mount {}", mount.destination.display());
        let options = Options::read(mount)?;
        let (own, more, is_directory) = match source {
            Source::Host { mount: copy, is_directory } => {
                mount::restrict(copy.as_fd(), options.attributes, None, false).step(step)?;
                (copy, Vec::new(), is_directory)
            }
            Source::HostLater { path, is_directory } => {
                let copy = mount::copy_mount(&path, options.recursive).step(step)?;
                mount::restrict(copy.as_fd(), options.attributes, None, false).step(step)?;
                (copy, Vec::new(), is_directory)
            }
            Source::New => (make(mount, &options).step(step)?, Vec::new(), true),
            Source::Cgroups(views) => {
                let attributes = options.attributes;
                let top = match views.as_slice() {
                    // Version 2 has a single hierarchy, mounted directly.
                    [(name, _)] if name.is_empty() => mount::new_file_system("cgroup2", &[], attributes),
                    _ => mount::new_file_system(
                        "tmpfs",
                        &[FsOption::Text("mode", "755")],
                        Attributes::NO_SUID_NO_DEV_NO_EXEC,
                    ),
                };
                (top.step(step)?, views, true)
            }
        };
        made.push((mount, options, own, more, is_directory));
    }
    mount::attach(prepared.root.as_fd(), Path::new(STAGING)).step(|| "attach the root".to_owned())?;
    mount::change_root(prepared.root.as_fd()).step(|| "change the root".to_owned())?;

    for (mount, options, own, more, is_directory) in &made {
        let step = || format!("mount {}", mount.destination.display());
        // Resolve links of the image inside the image.
        let target = fs::canonicalize(&mount.destination).unwrap_or_else(|_| mount.destination.clone());
        make_mount_point(&target, *is_directory).step(step)?;
        mount::attach(own.as_fd(), &target).step(step)?;
        if let Some(propagation) = options.propagation {
            rustix::mount::mount_change(&target, propagation).step(step)?;
        }
        for (name, view) in more.iter().filter(|(name, _)| !name.is_empty()) {
            let place = target.join(name);
            mount::restrict(view.as_fd(), options.attributes, None, false).step(step)?;
            make_mount_point(&place, true).step(step)?;
            mount::attach(view.as_fd(), &place).step(step)?;
        }
        if !more.is_empty() {
            mount::restrict(own.as_fd(), options.attributes, None, false).step(step)?;
        }
    }
    make_devices(config, &prepared.devices)?;
    if let Some(process) = &config.process {
        let step = || format!("make the working directory {}", process.cwd.display());
        make_working_directory(&process.cwd).step(step)?;
    }
    for (name, value) in &config.linux.sysctl {
        let path = Path::new("/proc/sys").join(name.replace('.', "/"));
        fs::write(&path, value).step(|| format!("set {name}"))?;
    }
    if let Some(propagation) = &config.linux.rootfs_propagation {
        set_root_propagation(propagation)?;
    }
    restrict_paths(&config.linux.readonly_paths, &config.linux.masked_paths, None)
        .map_err(|error| Error::Step { step: error.step, source: error.source })?;
    if config.root.readonly {
        mount::restrict(prepared.root.as_fd(), Attributes::NONE.read_only(), None, false)
            .step(|| "make the root read-only".to_owned())?;
    }
    Ok(())
}

/// Creates a missing working directory, as runc does. This happens while the root is still
/// writable. A path through a descriptor (`/proc/self/fd/7`) is not followed, because it could lead
/// out of the container.
fn make_working_directory(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags, Mode::empty())?;
    let stay = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
    let open = |path: &Path| rustix::fs::openat2(&root, path, flags, Mode::empty(), stay);
    // All other errors are reported when the process changes to the directory.
    if !matches!(open(path), Err(Errno::NOENT)) {
        return Ok(());
    }
    let mut walked = PathBuf::from("/");
    for part in path.components() {
        let parent = open(&walked)?;
        match part {
            Component::Normal(name) => match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => walked.push(name),
                Err(error) => return Err(error.into()),
            },
            Component::ParentDir => walked.push(".."),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    Ok(())
}

fn set_root_propagation(name: &str) -> Result<(), Error> {
    use MountPropagationFlags as Propagation;
    let (kind, flags) = match name {
        "" => return Ok(()),
        _ => match name.strip_prefix('r').filter(|rest| !rest.is_empty() && *rest != "unbindable") {
            Some(kind) => (kind, Propagation::REC),
            None => (
                name.trim_start_matches('r'),
                if name == "runbindable" { Propagation::REC } else { Propagation::empty() },
            ),
        },
    };
    let kind = match kind {
        "shared" => Propagation::SHARED,
        "slave" => Propagation::DOWNSTREAM,
        "private" => Propagation::PRIVATE,
        "unbindable" => Propagation::UNBINDABLE,
        _ => return Err(Error::Config(format!("rootfsPropagation `{name}` is not known"))),
    };
    rustix::mount::mount_change("/", kind | flags).step(|| "set the root's propagation".to_owned())
}

fn make_devices(config: &Config, from_host: &[(PathBuf, OwnedFd)]) -> Result<(), Error> {
    if !from_host.is_empty() {
        for (path, device) in from_host {
            let step = || format!("make {}", path.display());
            make_mount_point(path, false).step(step)?;
            mount::attach(device.as_fd(), path).step(step)?;
        }
    } else {
        let is_own = |path: &Path| config.linux.devices.iter().any(|device| device.path == path);
        for (name, major, minor) in DEVICES {
            let path = Path::new("/dev").join(name);
            if !is_own(&path) {
                let device = Device {
                    kind: "c".to_owned(),
                    path,
                    major,
                    minor,
                    file_mode: Some(0o666),
                    uid: None,
                    gid: None,
                };
                make_node(&device)?;
            }
        }
        config.linux.devices.iter().try_for_each(make_node)?;
    }
    for (target, link) in [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
        ("pts/ptmx", "/dev/ptmx"),
    ] {
        match symlink(target, link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error).step(|| format!("make {link}"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn make_node(device: &Device) -> Result<(), Error> {
    let step = || format!("make {}", device.path.display());
    let kind = match device.kind.as_str() {
        "b" => FileType::BlockDevice,
        "c" | "u" => FileType::CharacterDevice,
        "p" => FileType::Fifo,
        other => return Err(Error::Config(format!("`{other}` is not a kind of device"))),
    };
    if let Some(parent) = device.path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).step(step)?;
    }
    let number = rustix::fs::makedev(device.major, device.minor);
    let mode = Mode::from_raw_mode(device.file_mode.unwrap_or(0o666) & 0o7777);
    match rustix::fs::mknodat(rustix::fs::CWD, &device.path, kind, mode, number) {
        // An image may contain the device. It must then be the right one.
        Err(Errno::EXIST) => {
            let found = rustix::fs::stat(&device.path).step(step)?;
            if FileType::from_raw_mode(found.st_mode) != kind
                || (kind != FileType::Fifo && found.st_rdev != number)
            {
                return Err(io::Error::from(io::ErrorKind::AlreadyExists)).step(step);
            }
        }
        other => other.step(step)?,
    }
    // Set the mode again, without the umask.
    rustix::fs::chmod(&device.path, mode).step(step)?;
    std::os::unix::fs::chown(&device.path, Some(device.uid.unwrap_or(0)), Some(device.gid.unwrap_or(0)))
        .step(step)
}
