//! Processes: fork and clone3, pidfds, waiting, signals, and what a process must shed before it runs foreign code.

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

/// Proof that the process had a single thread when it was asked. Forking a threaded process copies locks that nobody
/// will ever release, so [`fork`] and [`clone`] want to see this.
#[derive(Debug, Clone, Copy)]
pub struct SingleThreaded {
    // Not `Send`: a second thread could not be handed the proof that it does not exist.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl SingleThreaded {
    /// Counts the threads of this process; an error if there is more than one.
    pub fn verify() -> io::Result<Self> {
        match std::fs::read_dir("/proc/self/task")?.count() {
            1 => Ok(Self { _not_send: std::marker::PhantomData }),
            count => Err(io::Error::other(format!(
                "the process has {count} threads, and only a single-threaded one may fork"
            ))),
        }
    }
}

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Fork {
    /// The original process, with a descriptor of its child.
    Parent(Child),
    /// The new process.
    Child,
}

/// A child of this process. Dropping it neither kills nor reaps.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    pidfd: OwnedFd,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl Child {
    /// Its process id in the caller's pid namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its descriptor: readable once it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Adopts a child that another process made for this one (`CLONE_PARENT`).
    ///
    /// Only a child that has not been reaped keeps its number, so the caller must be its parent.
    pub fn adopt(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, pidfd: open_pidfd(pid)? })
    }

    /// Sends it a signal. A process that has ended gives `NotFound`.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        send_signal(self.pidfd.as_fd(), signal)
    }

    /// Reaps it if it has ended.
    pub fn try_wait(&self) -> io::Result<Option<Exit>> {
        self.wait_with(WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
    }

    /// Waits until it has ended, and reaps it.
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

/// A descriptor of the process `pid`.
pub fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Sends a signal to the process behind a pidfd: never to another that took its number.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let signal = Signal::from_named_raw(signal).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{signal} is not a signal that can be sent"))
    })?;
    match rustix::process::pidfd_send_signal(pidfd, signal) {
        Err(rustix::io::Errno::SRCH) => Err(io::ErrorKind::NotFound.into()),
        other => Ok(other?),
    }
}

/// Forks through the C library, which keeps its own state right in the child.
pub fn fork(_proof: SingleThreaded) -> io::Result<Fork> {
    // SAFETY: the proof says that no other thread exists, so no lock can be held by a thread that the child lacks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(Child::adopt(pid)?)),
    }
}

/// Has a command start in a session of its own, and so in a process group of its own.
pub fn start_in_new_session(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: between fork and exec only `setsid` is called, a system call that takes no lock.
    unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
}

/// Has a command start in a session of its own with its standard input, a terminal, as the controlling one.
pub fn start_on_terminal(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt as _;
    let take = || {
        rustix::process::setsid()?;
        Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
    };
    // SAFETY: between fork and exec there are two system calls, which take no lock.
    unsafe { command.pre_exec(take) };
}

/// What a cloned process starts out with.
#[derive(Debug, Default, Clone, Copy)]
pub struct CloneOptions<'fd> {
    /// `CLONE_NEW*` flags.
    pub namespaces: Namespaces,
    /// The child becomes a child of the caller's parent.
    pub sibling: bool,
    /// A cgroup v2 directory that the child is born in.
    pub cgroup: Option<BorrowedFd<'fd>>,
}

/// A set of namespaces.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Namespaces(i32);

impl Namespaces {
    /// None.
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
    /// Host name.
    pub const UTS: Self = Self(libc::CLONE_NEWUTS);
    /// The view of the cgroup tree.
    pub const CGROUP: Self = Self(libc::CLONE_NEWCGROUP);

    /// Both sets together.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn bits(self) -> i32 {
        self.0
    }
}

/// From `linux/sched.h`; the C library's constant does not fit its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Clones this process with `clone3`. As after a fork, the child owns a copy of everything.
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
        // With CLONE_PARENT the kernel wants no signal here: the sibling inherits the caller's own.
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
    // SAFETY: without CLONE_VM the child runs on its own copy of this stack, as after fork; the proof says that no
    // other thread exists; `arguments` and `pidfd` outlive the call; the size is that of the structure passed.
    let result =
        unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => {
            // SAFETY: the kernel has stored a new descriptor in `pidfd` (CLONE_PIDFD), and nobody else knows of it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Fork::Parent(Child { pid: pid as i32, pidfd }))
        }
    }
}

/// Ends the process at once, without running the exit handlers that belong to the process it was forked from.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Replaces the program. Returns only an error.
pub fn execute(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Result<Infallible> {
    let pointers = |strings: &[CString]| {
        strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let argument_pointers = pointers(arguments);
    let environment_pointers = pointers(environment);
    // SAFETY: both arrays end with a null pointer, and they and the strings they point to live until the call returns.
    unsafe { libc::execve(program.as_ptr(), argument_pointers.as_ptr(), environment_pointers.as_ptr()) };
    Err(io::Error::last_os_error())
}

/// All signals that have a name of their own.
pub const ALL_SIGNALS: &[i32] = &[
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    29, 30, 31,
];

/// Sets these signals to their default and unblocks all, so that a program does not inherit what its parent ignores.
pub fn reset_signals(signals: &[i32]) {
    for &signal in signals {
        // SAFETY: SIG_DFL installs no code of ours. Signals that cannot be changed give an error that means nothing here.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: an all-zero sigset_t is the empty set on Linux, and the old set is not asked for.
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

/// Blocks these signals and returns a descriptor that they are read from.
pub fn signal_descriptor(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised before it is used; the descriptor returned is new and owned by nobody else.
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
    // `ssi_signo` is the structure's first field, a u32.
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

/// Marks every descriptor from `first` on as closed by exec.
pub fn close_from_on_exec(first: RawFd) -> io::Result<()> {
    close_range(first as u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

fn close_range(first: u32, last: u32, flags: u32) -> io::Result<()> {
    // SAFETY: whoever calls the two functions above is a freshly forked child that gives up whatever it inherited; a
    // descriptor object that still names a closed number is never used again there, because the child execs or keeps
    // only what it named.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the process a new, empty session keyring, so that it neither sees nor shares its parent's keys.
pub fn join_new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for a new anonymous keyring; no memory is passed.
    match unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// When the process started, in clock ticks since boot. With its number it names a process for good: numbers are used
/// again, pairs are not.
pub fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in brackets and may itself hold brackets and blanks.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has no start time"))
    })
}

/// Whether the process leads its session. One whose session began outside of its process namespace, as in some containers, does not.
pub fn leads_its_session() -> bool {
    // SAFETY: both calls only return numbers. For a leader that cannot be seen from here the kernel says 0, which rustix takes to
    // be impossible.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Has disks serve this thread, and those that it makes from now on, before others: what it reads and what it waits to be written. Takes
/// root.
pub fn first_at_disks() -> io::Result<()> {
    const OF_PROCESS: libc::c_int = 1;
    const REAL_TIME: libc::c_int = 1;
    const CLASS_SHIFT: u32 = 13;
    // SAFETY: numbers only; process 0 is this thread.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, OF_PROCESS, 0, REAL_TIME << CLASS_SHIFT) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has processors serve this thread before all others, but not those that it makes. For one that has next to nothing to do and must do it on time. Takes
/// root.
pub fn first_at_processors() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is to a value of our own, which is only read; process 0 is this thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &lowest) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has processors serve this thread, and those that it makes from now on, in short turns: it is interrupted sooner, and in return need not wait until
/// another one's turn is over. Linux has this since 6.12; older ones do nothing.
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
    // SAFETY: the pointer is to a value of our own, of the size that it says, which is only read; process 0 is this thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An answer takes about so long. Others have 1.4 to 3 ms.
const SHORT_TURN: Duration = Duration::from_micros(200);

/// How many processors the machine runs on at the moment, whether or not we may use them.
pub fn online_processors() -> u64 {
    // SAFETY: returns a number.
    let number = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u64::try_from(number).unwrap_or(1).max(1)
}

/// Puts `descriptor` in the place of the standard descriptor `number` (0, 1 or 2).
pub fn replace_standard_descriptor(descriptor: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: dup2 onto 0, 1 or 2 invalidates no owned descriptor: the standard library never owns those.
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
