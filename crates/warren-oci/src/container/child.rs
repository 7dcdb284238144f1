//! The container's side of a start: the new process between clone and exec. It has one thread and
//! cannot go back. Once it is in the container's namespaces, it trusts no path that the container
//! could have made.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{Gid, Uid};
use warren_sys::capability::Capabilities;
use warren_sys::mount::{self, Attributes, FsOption};
use warren_sys::process::Namespaces;
use warren_sys::seccomp::Filter;
use warren_sys::{namespace, process, pty};

use super::program::Program;
use super::rootfs::{Detached, Step, StepError};
use crate::defaults;
use crate::protocol::{Refusal, RefusalReason};
use crate::spec::{Process, Spec};

/// The reason why a process did not become its program.
#[derive(Debug)]
pub(super) struct Failure {
    reason: RefusalReason,
    error: StepError,
}

impl Failure {
    /// Returns a failure after setup: the program could not be run.
    pub(super) fn starting(error: StepError) -> Self {
        Self { reason: RefusalReason::StartFailed, error }
    }

    /// Returns a failure of executing the program.
    fn executing(error: StepError) -> Self {
        let reason = match error.source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => RefusalReason::StartFailed,
            _ => RefusalReason::NotExecutable,
        };
        Self { reason, error }
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        Self { reason: RefusalReason::CreateFailed, error }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { reason: failure.reason, message: format!("{}: {}", failure.error.step, failure.error.source) }
    }
}

/// Makes the container's procfs, still detached.
pub(super) fn make_proc() -> Result<OwnedFd, StepError> {
    mount::new_file_system("proc", &[], Attributes::NO_SUID_NO_DEV_NO_EXEC).step(|| "make /proc".to_owned())
}

/// Sets up the root file system on top of the empty one that this process started with
/// ([`super::birthplace`]), and hides that for good. Runs as the container's root in its new
/// namespaces.
pub(super) fn enter_root(spec: &Spec, proc: &OwnedFd, mut mounts: Vec<Detached>) -> Result<(), StepError> {
    // The kernel allows a new procfs or sysfs only while an old one is fully visible, so make both
    // before the root covers them. The same holds for the device nodes.
    let sys = mount::new_file_system("sysfs", &[], Attributes::NO_SUID_NO_DEV_NO_EXEC.read_only())
        .step(|| "make /sys".to_owned())?;
    let devices = DEVICES
        .iter()
        .map(|name| {
            mount::copy_mount(&Path::new("/dev").join(name), false).step(|| format!("take /dev/{name}"))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let nothing =
        mount::copy_mount(Path::new(NOTHING), false).step(|| "take an empty directory".to_owned())?;

    let root = mounts.remove(0).mount;
    mount::attach(root.as_fd(), Path::new("/")).step(|| "attach the root file system".to_owned())?;
    mount::enter_root(root.as_fd()).step(|| "change the root".to_owned())?;

    // From here on every path belongs to the container. A link in its image can only lead elsewhere
    // in the same image.
    for path in ["/proc", "/sys", "/dev"] {
        make_base_directory(Path::new(path)).step(|| format!("make {path}"))?;
    }
    attach(proc, "/proc")?;
    attach(&sys, "/sys")?;
    make_dev(&devices)?;
    for detached in &mounts {
        let step = || format!("attach {}", detached.target.display());
        make_mount_point(&detached.target, detached.is_directory).step(step)?;
        mount::attach(detached.mount.as_fd(), &detached.target).step(step)?;
    }
    restrict_paths(
        &given(&spec.linux.readonly_paths, defaults::READONLY_PATHS),
        &given(&spec.linux.masked_paths, defaults::MASKED_PATHS),
        Some(nothing),
    )?;
    if spec.root.readonly {
        mount::restrict(root.as_fd(), Attributes::NONE.read_only(), None, false)
            .step(|| "make the root read-only".to_owned())?;
    }
    Ok(())
}

/// Material for a container, in the root that its process starts with.
pub(super) const NOTHING: &str = "/nothing";
pub(super) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

fn make_dev(devices: &[OwnedFd]) -> Result<(), StepError> {
    // The limit is that of `/dev/shm`, which is part of it: each further file system would slow
    // down every start and end.
    let options = [FsOption::Text("mode", "755"), FsOption::Text("size", "64m")];
    let attributes = Attributes { no_suid: true, no_exec: true, ..Attributes::NONE };
    let dev = mount::new_file_system("tmpfs", &options, attributes).step(|| "make /dev".to_owned())?;
    attach(&dev, "/dev")?;
    for (name, device) in DEVICES.iter().zip(devices) {
        let path = Path::new("/dev").join(name);
        let step = || format!("make /dev/{name}");
        make_file(&path).step(step)?;
        mount::attach(device.as_fd(), &path).step(step)?;
    }
    for (target, link) in [
        ("pts/ptmx", "/dev/ptmx"),
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ] {
        symlink(target, link).step(|| format!("make {link}"))?;
    }
    for (name, mode) in [("pts", 0o755), ("shm", 0o1777), ("mqueue", 0o755)] {
        let path = Path::new("/dev").join(name);
        let step = || format!("make {}", path.display());
        fs::create_dir(&path).step(step)?;
        // Set the mode again, without the umask.
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).step(step)?;
    }
    let step = || "make /dev/shm".to_owned();
    let shm = mount::copy_mount(Path::new("/dev/shm"), false).step(step)?;
    mount::restrict(shm.as_fd(), Attributes::NO_SUID_NO_DEV_NO_EXEC, None, false).step(step)?;
    attach(&shm, "/dev/shm")?;
    let mqueue = mount::new_file_system("mqueue", &[], Attributes::NO_SUID_NO_DEV_NO_EXEC)
        .step(|| "make /dev/mqueue".to_owned())?;
    attach(&mqueue, "/dev/mqueue")
}

fn attach(mount: &OwnedFd, path: &str) -> Result<(), StepError> {
    mount::attach(mount.as_fd(), Path::new(path)).step(|| format!("attach {path}"))
}

fn make_file(path: &Path) -> io::Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    Ok(())
}

/// Creates a directory that the image lacks. The image must not have anything else in its place,
/// because paths below `/proc` must be masked where the container finds them.
fn make_base_directory(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::NotADirectory,
            "the image has something else than a directory there",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::DirBuilder::new().mode(0o755).create(path)
        }
        Err(error) => Err(error),
    }
}

/// Creates the file or directory that a mount is attached to.
pub(crate) fn make_mount_point(path: &Path, is_directory: bool) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() == is_directory && !found.is_symlink()) {
        return Ok(());
    }
    if is_directory {
        return fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    }
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    make_file(path)
}

/// Returns the given paths, or those of a default list.
pub(super) fn given(paths: &Option<Vec<PathBuf>>, default: &[&str]) -> Vec<PathBuf> {
    paths.clone().unwrap_or_else(|| default.iter().map(PathBuf::from).collect())
}

/// Makes some paths read-only and masks others. Missing paths are skipped. `nothing` is an empty
/// directory to mask others with; without it, one is made.
pub(crate) fn restrict_paths(
    readonly: &[PathBuf],
    masked: &[PathBuf],
    mut nothing: Option<OwnedFd>,
) -> Result<(), StepError> {
    for path in readonly {
        let step = || format!("make {} read-only", path.display());
        let copy = match mount::copy_mount(path, true) {
            Err(error) if is_absent(&error) => continue,
            other => other.step(step)?,
        };
        mount::restrict(copy.as_fd(), Attributes::NO_SUID_NO_DEV_NO_EXEC.read_only(), None, true)
            .step(step)?;
        mount::attach(copy.as_fd(), path).step(step)?;
    }
    let mut empty: Option<&PathBuf> = None;
    for path in masked {
        let step = || format!("mask {}", path.display());
        let is_directory = match fs::metadata(path) {
            Err(error) if is_absent(&error) => continue,
            other => other.step(step)?.is_dir(),
        };
        let cover = match (is_directory, &empty) {
            (false, _) => mount::copy_mount(Path::new("/dev/null"), false),
            (true, Some(covered)) => mount::copy_mount(covered, false),
            (true, None) => nothing.take().map_or_else(make_nothing, Ok),
        };
        mount::attach(cover.step(step)?.as_fd(), path).step(step)?;
        if is_directory && empty.is_none() {
            empty = Some(path);
        }
    }
    Ok(())
}

fn make_nothing() -> io::Result<OwnedFd> {
    let options = [FsOption::Text("size", "0"), FsOption::Text("nr_inodes", "1")];
    mount::new_file_system("tmpfs", &options, Attributes::NO_SUID_NO_DEV_NO_EXEC.read_only())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
    )
}

/// The treatment of the supplementary groups that a process starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Groups {
    /// They are replaced.
    Set,
    /// They stay, because the kernel forbids to change them in a user namespace that an ordinary
    /// user has made alone. Inside they are unmapped, and the only files that they could open are
    /// those shown to the container.
    Kept,
}

impl Groups {
    fn become_user(self, uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
        match self {
            Groups::Set => set_ids(uid, gid, groups),
            Groups::Kept if groups.iter().any(|group| *group != gid) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "further groups need ids of `/etc/subgid` and `newgidmap`",
            )),
            Groups::Kept => set_user_and_group(uid, gid),
        }
    }
}

/// Becomes root of the user namespace, before anything is made there.
pub(super) fn become_root(groups: Groups) -> Result<(), StepError> {
    groups.become_user(0, 0, &[]).step(|| "become root of the user namespace".to_owned())
}

/// Becomes a user permanently.
pub(crate) fn set_ids(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let groups: Vec<Gid> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
    rustix::thread::set_thread_groups(&groups)?;
    set_user_and_group(uid, gid)
}

fn set_user_and_group(uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

/// Standard streams of the program.
#[derive(Debug)]
pub(super) enum Streams<'fd> {
    /// Separate descriptors.
    Pipes { stdin: BorrowedFd<'fd>, stdout: BorrowedFd<'fd>, stderr: BorrowedFd<'fd> },
    /// One terminal for all three.
    Terminal(BorrowedFd<'fd>),
}

/// Opens the standard input of a process without input. It is the host's `/dev/null`, opened before
/// the container's files are visible: a container could replace its own.
pub(super) fn open_null() -> Result<OwnedFd, StepError> {
    fs::File::open("/dev/null").map(OwnedFd::from).step(|| "open /dev/null".to_owned())
}

/// Makes this process die with the shim, whose end of `lifeline` closes when it dies. Call it again
/// after each change of user, which clears the setting.
pub(super) fn die_with_parent() -> Result<(), StepError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .step(|| "tie the process to its shim".to_owned())
}

/// Drops the privileges that the program must not have, and executes it.
pub(super) fn become_program(
    process: &Process,
    environment: &[String],
    streams: Streams<'_>,
    filter: &Filter,
    groups: Groups,
) -> Result<Infallible, Failure> {
    let starting = Failure::starting;
    take_streams(&streams)?;
    for limit in resource_limits(process)? {
        rustix::process::setrlimit(limit.0, limit.1).step(|| "set resource limits".to_owned())?;
    }
    let names: Vec<&str> = match &process.capabilities {
        Some(capabilities) => capabilities.bounding.iter().map(String::as_str).collect(),
        None => defaults::CAPABILITIES.to_vec(),
    };
    let bounding = Capabilities::from_names(names)
        .map_err(|name| io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is not a capability")))
        .step(|| "read the capabilities".to_owned())?;
    bounding.bound().step(|| "drop capabilities".to_owned())?;

    let cwd = &process.cwd;
    if let Err(error) = rustix::process::chdir(cwd) {
        // Create a working directory that the image lacks, as container engines do.
        let step = || format!("change to the directory {}", cwd.display());
        if error != rustix::io::Errno::NOENT {
            return Err(starting(StepError { step: step(), source: error.into() }));
        }
        fs::create_dir_all(cwd)
            .and_then(|()| Ok(rustix::process::chdir(cwd)?))
            .step(step)
            .map_err(starting)?;
    }
    // A directory opened through one of our descriptors (`/proc/self/fd/7`) could be outside the
    // container (CVE-2024-21626). The kernel reports such a place as unreachable from the root.
    let here = rustix::process::getcwd(Vec::new()).step(|| "look where it is".to_owned())?;
    if !here.to_bytes().starts_with(b"/") {
        let source = io::Error::new(io::ErrorKind::PermissionDenied, "it is not in the container");
        return Err(starting(StepError {
            step: format!("change to the directory {}", cwd.display()),
            source,
        }));
    }
    // Without privileges the kernel accepts a filter only from processes that can gain none. Other
    // processes install it while they have privileges. It allows all later steps here.
    if !process.no_new_privileges {
        install(filter)?;
    }
    let user = &process.user;
    groups
        .become_user(user.uid, user.gid, &user.additional_gids)
        .step(|| format!("become user {}", user.uid))
        .map_err(starting)?;
    die_with_parent()?;
    let effective = if user.uid == 0 { bounding } else { Capabilities::default() };
    effective.set().step(|| "set capabilities".to_owned())?;
    process::reset_signals(crate::shim::IGNORED_SIGNALS);
    rustix::process::umask(Mode::from_raw_mode(0o022));
    process::close_from_on_exec(3).step(|| "close descriptors".to_owned())?;

    let program = Program::new(&process.args, environment).map_err(starting)?;

    if process.no_new_privileges {
        rustix::thread::set_no_new_privs(true).step(|| "renounce new privileges".to_owned())?;
        install(filter)?;
    }
    program.run().map_err(Failure::executing)
}

fn install(filter: &Filter) -> Result<(), StepError> {
    filter.install().step(|| "install the system call filter".to_owned())
}

/// Makes these streams the standard streams of this process.
pub(super) fn take_streams(streams: &Streams<'_>) -> Result<(), StepError> {
    let step = || "take the standard streams".to_owned();
    match streams {
        Streams::Pipes { stdin, stdout, stderr } => {
            process::replace_standard_descriptor(*stdin, 0).step(step)?;
            process::replace_standard_descriptor(*stdout, 1).step(step)?;
            process::replace_standard_descriptor(*stderr, 2).step(step)
        }
        Streams::Terminal(terminal) => {
            pty::take_control(*terminal).step(step)?;
            (0..3).try_for_each(|number| process::replace_standard_descriptor(*terminal, number).step(step))
        }
    }
}

fn resource_limits(process: &Process) -> Result<Vec<(Resource, Rlimit)>, StepError> {
    let both = |value: u64| Rlimit { current: Some(value), maximum: Some(value) };
    let allowed = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let mut limits =
        vec![(Resource::Core, both(0)), (Resource::Nofile, both(defaults::OPEN_FILES.min(allowed)))];
    for limit in &process.rlimits {
        let resource = resource(&limit.kind)?;
        limits.retain(|(known, _)| *known as u32 != resource as u32);
        limits.push((resource, Rlimit { current: Some(limit.soft), maximum: Some(limit.hard) }));
    }
    Ok(limits)
}

/// Parses the specification's name of a resource.
pub(crate) fn resource(kind: &str) -> Result<Resource, StepError> {
    Ok(match kind {
        "RLIMIT_AS" => Resource::As,
        "RLIMIT_CORE" => Resource::Core,
        "RLIMIT_CPU" => Resource::Cpu,
        "RLIMIT_DATA" => Resource::Data,
        "RLIMIT_FSIZE" => Resource::Fsize,
        "RLIMIT_LOCKS" => Resource::Locks,
        "RLIMIT_MEMLOCK" => Resource::Memlock,
        "RLIMIT_MSGQUEUE" => Resource::Msgqueue,
        "RLIMIT_NICE" => Resource::Nice,
        "RLIMIT_NOFILE" => Resource::Nofile,
        "RLIMIT_NPROC" => Resource::Nproc,
        "RLIMIT_RSS" => Resource::Rss,
        "RLIMIT_RTPRIO" => Resource::Rtprio,
        "RLIMIT_RTTIME" => Resource::Rttime,
        "RLIMIT_SIGPENDING" => Resource::Sigpending,
        "RLIMIT_STACK" => Resource::Stack,
        other => {
            let error =
                io::Error::new(io::ErrorKind::InvalidInput, format!("{other} is not a resource limit"));
            return Err(error).step(|| "read the resource limits".to_owned());
        }
    })
}

/// Makes a network namespace with a loopback device only, and returns its descriptor.
pub(super) fn make_network() -> Result<OwnedFd, StepError> {
    namespace::unshare(Namespaces::NETWORK).step(|| "make a network namespace".to_owned())?;
    namespace::loopback_up().step(|| "bring up the loopback device".to_owned())?;
    namespace::open(0, "net").step(|| "open the network namespace".to_owned())
}

/// Sets kernel parameters of this process's namespaces. `proc` is a procfs that shows them.
pub(super) fn set_parameters(proc: BorrowedFd<'_>, parameters: &[(String, String)]) -> Result<(), StepError> {
    for (name, value) in parameters {
        let step = || format!("set the kernel parameter {name}");
        // A dot separates directories; a slash stands for a dot inside a name.
        let path: String = name
            .chars()
            .map(|character| match character {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect();
        if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput)).step(step);
        }
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(proc, format!("sys/{path}"), flags, Mode::empty())
            .map_err(io::Error::from)
            .step(step)?;
        // The kernel accepts a value only in a single write.
        rustix::io::write(&file, value.as_bytes()).map_err(io::Error::from).step(step)?;
    }
    Ok(())
}

/// Hides the rest of the cgroup tree from this process.
pub(super) fn hide_cgroups() -> Result<(), StepError> {
    namespace::unshare(Namespaces::CGROUP).step(|| "make a cgroup namespace".to_owned())
}
