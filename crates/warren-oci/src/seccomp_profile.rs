//! The default list of allowed system calls: that of container engines, without calls that add
//! attack surface and that a sandbox does not need (`io_uring`, `userfaultfd`, sockets to the
//! hypervisor or the kernel's crypto).
//!
//! Calls that are not listed fail with `EPERM`: mounts and namespaces, kernel modules, `bpf`,
//! `perf_event_open`, keyrings, `kexec`, clocks, swap, quotas, accounting, `open_by_handle_at`,
//! NUMA policy, and all calls of later kernels.

use std::collections::BTreeMap;

use warren_sys::seccomp::{Action, Check, Filter};

/// Returns the compiled filter.
pub fn default_filter() -> Filter {
    Filter::compile(&rules(), libc::EPERM as u16)
}

/// Flags of `clone` that make namespaces. `CLONE_NEWTIME` is not among them: in `clone` its bit is
/// part of the exit signal.
const NEW_NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP;

/// Returns the action for each call. Calls that are not in it fail.
pub(crate) fn rules() -> BTreeMap<u32, Action> {
    let mut rules: BTreeMap<u32, Action> =
        ALLOWED.iter().map(|&number| (number as u32, Action::Allow)).collect();
    rules.insert(
        libc::SYS_clone as u32,
        Action::Check(Check::NoneOf { argument: 0, bits: NEW_NAMESPACES as u32 }),
    );
    // Its flags are in memory, where a filter cannot read them. C libraries fall back to `clone` if
    // it does not exist.
    rules.insert(libc::SYS_clone3 as u32, Action::Fail(libc::ENOSYS as u16));
    rules.insert(
        libc::SYS_socket as u32,
        Action::Check(Check::Not { argument: 0, values: vec![libc::AF_ALG as u32, libc::AF_VSOCK as u32] }),
    );
    // PER_LINUX, PER_LINUX32, UNAME26 and their sum, and the query of the current value.
    rules.insert(
        libc::SYS_personality as u32,
        Action::Check(Check::Only { argument: 0, values: vec![0, 8, 0x2_0000, 0x2_0008, u32::MAX] }),
    );
    rules
}

macro_rules! system_calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// The generic calls, then those that only the older architecture has.
static ALLOWED: std::sync::LazyLock<Vec<libc::c_long>> = std::sync::LazyLock::new(|| {
    let mut all = GENERIC.to_vec();
    all.extend_from_slice(NEWER);
    #[cfg(target_arch = "x86_64")]
    all.extend_from_slice(X86_64);
    all
});

const GENERIC: &[libc::c_long] = system_calls![
    // Files.
    SYS_chdir SYS_chroot SYS_close SYS_close_range SYS_copy_file_range SYS_dup SYS_dup3 SYS_faccessat SYS_faccessat2
    SYS_fadvise64 SYS_fallocate SYS_fchdir SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_fcntl SYS_fdatasync
    SYS_fgetxattr SYS_flistxattr SYS_flock SYS_fremovexattr SYS_fsetxattr SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate
    SYS_getcwd SYS_getdents64 SYS_getxattr SYS_inotify_add_watch SYS_inotify_init1 SYS_inotify_rm_watch SYS_ioctl
    SYS_lgetxattr SYS_linkat SYS_listxattr SYS_llistxattr SYS_lremovexattr SYS_lseek SYS_lsetxattr SYS_mkdirat
    SYS_mknodat SYS_name_to_handle_at SYS_newfstatat SYS_openat SYS_openat2 SYS_pipe2 SYS_pread64 SYS_preadv SYS_preadv2
    SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read SYS_readahead SYS_readlinkat SYS_readv SYS_removexattr SYS_renameat
    SYS_renameat2 SYS_sendfile SYS_setxattr SYS_splice SYS_statfs SYS_statx SYS_symlinkat SYS_sync SYS_sync_file_range
    SYS_syncfs SYS_tee SYS_truncate SYS_umask SYS_unlinkat SYS_utimensat SYS_vmsplice SYS_write SYS_writev
    // Waiting.
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_io_cancel SYS_io_destroy
    SYS_io_getevents SYS_io_setup SYS_io_submit SYS_ppoll SYS_pselect6 SYS_signalfd4
    SYS_timerfd_create SYS_timerfd_gettime SYS_timerfd_settime
    // Processes.
    SYS_capget SYS_capset SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_get_robust_list SYS_getcpu SYS_getegid
    SYS_geteuid SYS_getgid SYS_getgroups SYS_getitimer SYS_getpgid SYS_getpid SYS_getppid SYS_getpriority SYS_getresgid
    SYS_getresuid SYS_getrlimit SYS_getrusage SYS_getsid SYS_gettid SYS_getuid SYS_ioprio_get SYS_ioprio_set SYS_kill
    SYS_pidfd_open SYS_pidfd_send_signal SYS_prctl SYS_prlimit64 SYS_process_mrelease SYS_process_vm_readv
    SYS_process_vm_writev SYS_ptrace SYS_restart_syscall SYS_rseq SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask
    SYS_rt_sigqueueinfo SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_tgsigqueueinfo
    SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_getaffinity SYS_sched_getattr SYS_sched_getparam
    SYS_sched_getscheduler SYS_sched_rr_get_interval SYS_sched_setaffinity SYS_sched_setattr SYS_sched_setparam
    SYS_sched_setscheduler SYS_sched_yield SYS_seccomp SYS_set_robust_list SYS_set_tid_address SYS_setfsgid SYS_setfsuid
    SYS_setgid SYS_setgroups SYS_setitimer SYS_setpgid SYS_setpriority SYS_setregid SYS_setresgid SYS_setresuid
    SYS_setreuid SYS_setrlimit SYS_setsid SYS_setuid SYS_sigaltstack SYS_sysinfo SYS_tgkill SYS_times SYS_tkill SYS_uname
    SYS_wait4 SYS_waitid SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self SYS_membarrier
    // Memory.
    SYS_brk SYS_madvise SYS_memfd_create SYS_mincore SYS_mlock SYS_mlock2 SYS_mlockall SYS_mmap SYS_mprotect SYS_mremap
    SYS_msync SYS_munlock SYS_munlockall SYS_munmap SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_process_madvise
    SYS_remap_file_pages
    // Locks and communication between processes.
    SYS_futex SYS_futex_waitv SYS_mq_getsetattr SYS_mq_notify SYS_mq_open SYS_mq_timedreceive SYS_mq_timedsend
    SYS_mq_unlink SYS_msgctl SYS_msgget SYS_msgrcv SYS_msgsnd SYS_semctl SYS_semget SYS_semop SYS_semtimedop SYS_shmat
    SYS_shmctl SYS_shmdt SYS_shmget
    // Network.
    SYS_accept SYS_accept4 SYS_bind SYS_connect SYS_getpeername SYS_getsockname SYS_getsockopt SYS_listen SYS_recvfrom
    SYS_recvmmsg SYS_recvmsg SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_setsockopt SYS_shutdown SYS_socketpair
    // Time. Setting the clock also needs a capability; `adjtimex` without it only reads.
    SYS_adjtimex SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_gettimeofday SYS_nanosleep SYS_timer_create
    SYS_timer_delete SYS_timer_getoverrun SYS_timer_gettime SYS_timer_settime
    // Randomness.
    SYS_getrandom
];

/// Newer than the C library's table on some systems, so listed by number. From 424 on, numbers are
/// the same on all architectures.
const NEWER: &[libc::c_long] = &[
    451, // cachestat
    452, // fchmodat2
    453, // map_shadow_stack
    454, // futex_wake
    455, // futex_wait
    456, // futex_requeue
    457, // statmount
    458, // listmount
    462, // mseal
    463, // setxattrat
    464, // getxattrat
    465, // listxattrat
    466, // removexattrat
];

#[cfg(target_arch = "x86_64")]
const X86_64: &[libc::c_long] = system_calls![
    SYS_access SYS_alarm SYS_arch_prctl SYS_chmod SYS_chown SYS_creat SYS_dup2 SYS_epoll_create SYS_epoll_ctl_old
    SYS_epoll_wait SYS_epoll_wait_old SYS_eventfd SYS_fork SYS_futimesat SYS_get_thread_area SYS_getdents SYS_getpgrp
    SYS_inotify_init SYS_lchown SYS_link SYS_lstat SYS_memfd_secret SYS_mkdir SYS_mknod SYS_modify_ldt SYS_open SYS_pause
    SYS_pipe SYS_poll SYS_readlink SYS_rename SYS_rmdir SYS_select SYS_set_thread_area SYS_signalfd SYS_stat SYS_symlink
    SYS_time SYS_unlink SYS_utime SYS_utimes SYS_vfork
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dangerous_ones_are_not_allowed() {
        let rules = rules();
        for number in [
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_fsopen,
            libc::SYS_fsmount,
            libc::SYS_move_mount,
            libc::SYS_open_tree,
            libc::SYS_mount_setattr,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_kexec_load,
            libc::SYS_kexec_file_load,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_delete_module,
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_enter,
            libc::SYS_userfaultfd,
            libc::SYS_open_by_handle_at,
            libc::SYS_clock_settime,
            libc::SYS_settimeofday,
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_swapoff,
            libc::SYS_syslog,
            libc::SYS_quotactl,
            libc::SYS_acct,
            libc::SYS_fanotify_init,
            libc::SYS_pidfd_getfd,
            libc::SYS_kcmp,
            libc::SYS_sethostname,
        ] {
            assert!(!rules.contains_key(&(number as u32)), "system call {number} is allowed");
        }
        assert_eq!(rules[&(libc::SYS_clone3 as u32)], Action::Fail(libc::ENOSYS as u16));
    }

    #[test]
    fn the_filter_is_short() {
        // The kernel accepts 4096, but every instruction slows down a start.
        assert!(default_filter().instructions() < 256, "{}", default_filter().instructions());
    }
}
