//! Processes: fork and clone3, pidfds, waiting, signals, and dropping resources before running
//! untrusted code.

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

/// Proof that the process had a single thread when checked. Forking a threaded process copies locks
/// that are never released, so [`fork`] and [`clone`] require this.
#[derive(Debug, Clone, Copy)]
pub struct SingleThreaded {
    // Not `Send`: a second thread must not get the proof that it does not exist.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl SingleThreaded {
    /// Fails if this process has more than one thread.
    pub fn verify() -> io::Result<Self> {
        match std::fs::read_dir("/proc/self/task")?.count() {
            1 => Ok(Self { _not_send: std::marker::PhantomData }),
            count => Err(io::Error::other(format!(
                "the process has {count} threads, and only a single-threaded one may fork"
            ))),
        }
    }
}

/// The side of a fork that the caller is on.
#[derive(Debug)]
pub enum Fork {
    /// The original process, with its child.
    Parent(Child),
    /// The new process.
    Child,
}

/// A child of this process. Dropping the value neither kills nor reaps it.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    pidfd: OwnedFd,
}

/// The way a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl Child {
    /// Returns its process id in the caller's pid namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns its descriptor, which is readable once it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Adopts a child that another process made for this one (`CLONE_PARENT`).
    ///
    /// The caller must be its parent: only a child that has not been reaped keeps its number.
    pub fn adopt(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, pidfd: open_pidfd(pid)? })
    }

    /// Sends it a signal. Fails with `NotFound` if it has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        send_signal(self.pidfd.as_fd(), signal)
    }

    /// Reaps it if it has ended.
    pub fn try_wait(&self) -> io::Result<Option<Exit>> {
        self.wait_with(WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
    }

    /// Waits for its end and reaps it.
    pub fn wait(&self) -> io::Result<Exit> {
        match self.wait_with(WaitIdOptions::EXITED)? {
            Some(exit) => Ok(exit),
            None => Err(io::Error::other("waitid returned without a child")),
        }
    }

    fn wait_with(&self, options: WaitIdOptions) -> io::Result<Option<Exit>> {
        loop {
            return match rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options) {
                Ok(None) => Ok(None),
                Ok(Some(status)) => Ok(Some(match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Exit::Code(code),
                    (None, Some(signal)) => Exit::Signal(signal),
                    (None, None) => Exit::Signal(libc::SIGKILL),
                })),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => Err(error.into()),
            };
        }
    }
}

/// Opens a descriptor of the process `pid`.
pub fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Sends a signal to the process behind a pidfd, and never to another one with the same number.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let signal = Signal::from_named_raw(signal).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{signal} is not a signal that can be sent"))
    })?;
    match rustix::process::pidfd_send_signal(pidfd, signal) {
        Err(rustix::io::Errno::SRCH) => Err(io::ErrorKind::NotFound.into()),
        other => Ok(other?),
    }
}

/// Forks through the C library, which keeps its own state consistent in the child.
pub fn fork(_proof: SingleThreaded) -> io::Result<Fork> {
    // SAFETY: the proof says that there is no other thread, so no lock is held by a thread that the
    // child lacks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(Child::adopt(pid)?)),
    }
}

/// Makes a command start in its own session and process group.
pub fn start_in_new_session(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: between fork and exec only `setsid` is called, a system call that takes no lock.
    unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
}

/// Makes a command start in its own session, with its standard input as the controlling terminal.
pub fn start_on_terminal(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt as _;
    let take = || {
        rustix::process::setsid()?;
        Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
    };
    // SAFETY: between fork and exec there are only two system calls, which take no lock.
    unsafe { command.pre_exec(take) };
}

/// The properties of a cloned process.
#[derive(Debug, Default, Clone, Copy)]
pub struct CloneOptions<'fd> {
    /// The new namespaces.
    pub namespaces: Namespaces,
    /// True to make it a child of the caller's parent.
    pub sibling: bool,
    /// A cgroup v2 directory to start in.
    pub cgroup: Option<BorrowedFd<'fd>>,
}

/// A set of namespaces.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Namespaces(i32);

impl Namespaces {
    /// No namespaces.
    pub const NONE: Self = Self(0);
    /// User and group ids, capabilities.
    pub const USER: Self = Self(libc::CLONE_NEWUSER);
    /// Process ids.
    pub const PID: Self = Self(libc::CLONE_NEWPID);
    /// Mounts.
    pub const MOUNT: Self = Self(libc::CLONE_NEWNS);
    /// Network devices, addresses, routes.
    pub const NETWORK: Self = Self(libc::CLONE_NEWNET);
    /// System V objects and POSIX message queues.
    pub const IPC: Self = Self(libc::CLONE_NEWIPC);
    /// The host name.
    pub const UTS: Self = Self(libc::CLONE_NEWUTS);
    /// The view of the cgroup tree.
    pub const CGROUP: Self = Self(libc::CLONE_NEWCGROUP);

    /// Returns both sets together.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn bits(self) -> i32 {
        self.0
    }
}

/// From `linux/sched.h`. The C library's constant does not fit its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Clones this process with `clone3`. As after a fork, the child has a copy of everything.
pub fn clone(_proof: SingleThreaded, options: CloneOptions<'_>) -> io::Result<Fork> {
    let mut pidfd: RawFd = -1;
    let mut flags = options.namespaces.bits() as u32 as u64 | libc::CLONE_PIDFD as u64;
    if options.sibling {
        flags |= libc::CLONE_PARENT as u64;
    }
    let mut arguments = libc::clone_args {
        flags,
        pidfd: &raw mut pidfd as u64,
        child_tid: 0,
        parent_tid: 0,
        // With CLONE_PARENT the kernel requires no signal here: the sibling inherits the caller's.
        exit_signal: if options.sibling { 0 } else { libc::SIGCHLD as u64 },
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    if let Some(cgroup) = options.cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM the child runs on its own copy of this stack, as after fork. The
    // proof says that there is no other thread. `arguments` and `pidfd` outlive the call, and the
    // size is that of the structure.
    let result =
        unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => {
            // SAFETY: the kernel has stored a new descriptor in `pidfd` (CLONE_PIDFD), which has no
            // other owner.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Fork::Parent(Child { pid: pid as i32, pidfd }))
        }
    }
}

/// Ends the process at once, without the exit handlers of the process that it was forked from.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Replaces the program. Returns only on error.
pub fn execute(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Result<Infallible> {
    let pointers = |strings: &[CString]| {
        strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let argument_pointers = pointers(arguments);
    let environment_pointers = pointers(environment);
    // SAFETY: both arrays end with a null pointer. They and their strings outlive the call.
    unsafe { libc::execve(program.as_ptr(), argument_pointers.as_ptr(), environment_pointers.as_ptr()) };
    Err(io::Error::last_os_error())
}

/// All signals with a name of their own.
pub const ALL_SIGNALS: &[i32] = &[
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    29, 30, 31,
];

/// Resets these signals to their default and unblocks all, so that a program does not inherit its
/// parent's settings.
pub fn reset_signals(signals: &[i32]) {
    for &signal in signals {
        // SAFETY: SIG_DFL installs no code of ours. Errors about signals that cannot be changed are
        // harmless.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: an all-zero sigset_t is the empty set on Linux, and the old set is not requested.
    unsafe {
        let empty: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut());
    }
}

/// Ignores these signals. Ignoring `SIGCHLD` makes the kernel reap children by itself.
pub fn ignore_signals(signals: &[i32]) {
    for &signal in signals {
        // SAFETY: SIG_IGN installs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Blocks these signals and returns a descriptor to read them from.
pub fn signal_descriptor(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised before its use. The returned descriptor is new and has no
    // other owner.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
        }
    }
}

/// Reads one signal number from a descriptor made by [`signal_descriptor`].
pub fn read_signal(descriptor: BorrowedFd<'_>) -> io::Result<i32> {
    let mut buffer = [0u8; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(descriptor, &mut buffer)?;
    // `ssi_signo` is the first field of the structure, a u32.
    match buffer.first_chunk::<4>() {
        Some(number) if read == buffer.len() => Ok(u32::from_ne_bytes(*number) as i32),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Closes every descriptor from `first` on, except those in `keep`.
pub fn close_from(first: RawFd, keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> =
        keep.iter().map(|fd| fd.as_raw_fd() as u32).filter(|&fd| fd >= first as u32).collect();
    kept.sort_unstable();
    let mut next = first as u32;
    for descriptor in kept {
        if next < descriptor {
            close_range(next, descriptor - 1, 0)?;
        }
        next = descriptor + 1;
    }
    close_range(next, u32::MAX, 0)
}

/// Marks every descriptor from `first` on as close-on-exec.
pub fn close_from_on_exec(first: RawFd) -> io::Result<()> {
    close_range(first as u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

fn close_range(first: u32, last: u32, flags: u32) -> io::Result<()> {
    // SAFETY: callers of the two functions above are freshly forked children that give up inherited
    // descriptors. An object with a closed number is never used again there, because the child
    // execs or uses only the kept ones.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the process a new, empty session keyring, so that it does not share its parent's keys.
pub fn join_new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name requests a new anonymous keyring. No memory is passed.
    match unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the start time of a process in clock ticks since boot. Together with its number it
/// identifies the process for ever, because numbers are reused.
pub fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in brackets. It may contain brackets and spaces.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has no start time"))
    })
}

/// Returns true if the process leads its session. It does not if the session began outside its pid
/// namespace, as in some containers.
pub fn leads_its_session() -> bool {
    // SAFETY: both calls only return numbers. For a leader outside the namespace the kernel returns
    // 0, which rustix treats as impossible.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Gives disk reads and synchronous writes of this thread, and of threads that it starts later,
/// priority over others. Needs root.
pub fn first_at_disks() -> io::Result<()> {
    const OF_PROCESS: libc::c_int = 1;
    const REAL_TIME: libc::c_int = 1;
    const CLASS_SHIFT: u32 = 13;
    // SAFETY: the call takes numbers only. Process 0 is this thread.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, OF_PROCESS, 0, REAL_TIME << CLASS_SHIFT) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives this thread, but not those that it starts, priority over all others. For a thread with
/// little work that must be on time. Needs root.
pub fn first_at_processors() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is to our own value, which is only read. Process 0 is this thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &lowest) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Schedules this thread, and those that it starts later, in short slices: it is interrupted
/// sooner, and in return does not wait for the end of another's slice. Linux supports this since
/// 6.12; older kernels do nothing.
pub fn in_short_turns() -> io::Result<()> {
    let nice = rustix::process::getpriority_process(None)?;
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: SHORT_TURN.as_nanos() as u64,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the pointer is to our own value of the given size, which is only read. Process 0 is
    // this thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The slice: about the time of one answer. Other threads have 1.4 to 3 ms.
const SHORT_TURN: Duration = Duration::from_micros(200);

/// Returns the number of processors that the machine runs on, including those that we may not use.
pub fn online_processors() -> u64 {
    // SAFETY: the call returns a number.
    let number = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u64::try_from(number).unwrap_or(1).max(1)
}

/// Replaces the standard descriptor `number` (0, 1 or 2) by `descriptor`.
pub fn replace_standard_descriptor(descriptor: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: dup2 onto 0, 1 or 2 invalidates no owned descriptor: the standard library never owns
    // those.
    let result = unsafe {
        if descriptor.as_raw_fd() == number {
            // dup2 would leave close-on-exec set.
            libc::fcntl(number, libc::F_SETFD, 0)
        } else {
            libc::dup2(descriptor.as_raw_fd(), number)
        }
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
