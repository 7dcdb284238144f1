//! Attempts with system calls that affect the whole kernel.

use anyhow::{Result, ensure};

use super::arena::Arena;

pub(super) async fn mount_something(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("mount", libc::SYS_mount, "'none', '/mnt', 'tmpfs', 0, 0"),
            ("bind", libc::SYS_mount, "'/', '/mnt', 'none', 4096, 0"),
            ("remount", libc::SYS_mount, "'none', '/proc/sys', 'none', 4128, 0"),
            ("proc", libc::SYS_mount, "'proc', '/mnt', 'proc', 0, 0"),
            ("umount2", libc::SYS_umount2, "'/proc/sys', 2"),
            ("umount2 of the root", libc::SYS_umount2, "'/', 2"),
            ("pivot_root", libc::SYS_pivot_root, "'/', '/mnt'"),
        ])
        .await
}

pub(super) async fn mount_by_descriptors(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("fsopen", libc::SYS_fsopen, "'tmpfs', 0"),
            ("fspick", libc::SYS_fspick, "-100, '/', 0"),
            ("fsmount", libc::SYS_fsmount, "0, 0, 0"),
            ("open_tree", libc::SYS_open_tree, "-100, '/', 1"),
            ("move_mount", libc::SYS_move_mount, "-100, '/', -100, '/mnt', 0"),
            ("mount_setattr", libc::SYS_mount_setattr, "-100, '/proc/sys', 0, pack('Q4', 0, 1, 0, 0), 32"),
        ])
        .await
}

pub(super) async fn load_a_module(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("init_module", libc::SYS_init_module, "'x', 1, ''"),
            ("finit_module", libc::SYS_finit_module, "0, '', 0"),
            ("delete_module", libc::SYS_delete_module, "'overlay', 0"),
        ])
        .await
}

pub(super) async fn load_another_kernel(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("kexec_load", libc::SYS_kexec_load, "0, 0, 0, 0"),
            ("kexec_file_load", libc::SYS_kexec_file_load, "0, 0, 0, '', 0"),
            ("reboot", libc::SYS_reboot, "0xfee1dead, 672274793, 0x1234567, 0"),
        ])
        .await
}

pub(super) async fn run_programs_in_the_kernel(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("bpf map", libc::SYS_bpf, "0, pack('L32', 1, 4, 4, 1), 128"),
            ("bpf program", libc::SYS_bpf, "5, pack('L32', 1), 128"),
            ("perf_event_open", libc::SYS_perf_event_open, "pack('L28', 1, 112), -1, 0, -1, 0"),
        ])
        .await
}

pub(super) async fn handle_page_faults_of_others(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[("userfaultfd", libc::SYS_userfaultfd, "0"), ("own", libc::SYS_userfaultfd, "1")])
        .await
}

pub(super) async fn submit_work_to_io_uring(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("io_uring_setup", libc::SYS_io_uring_setup, "8, pack('L30', 0)"),
            ("io_uring_enter", libc::SYS_io_uring_enter, "0, 0, 0, 0, 0, 0"),
            ("io_uring_register", libc::SYS_io_uring_register, "0, 0, 0, 0"),
        ])
        .await
}

pub(super) async fn use_the_keyrings(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("add_key", libc::SYS_add_key, "'user', 'x', 'y', 1, -4"),
            ("request_key", libc::SYS_request_key, "'user', 'x', 0, 0"),
            ("keyctl", libc::SYS_keyctl, "0, -4, 1"),
        ])
        .await?;
    let ended = arena.shell("cat /proc/keys").await?;
    ensure!(ended.stdout.is_empty(), "{ended:?}");
    Ok(())
}

pub(super) async fn open_files_by_handle(arena: &Arena) -> Result<()> {
    // The "shocker" exploit: the handle of a file system's root directory can be guessed.
    let handle = "pack('LlLL', 8, 1, 2, 0)";
    arena
        .calls_refused(&[("open_by_handle_at", libc::SYS_open_by_handle_at, &format!("3, {handle}, 0"))])
        .await
}

pub(super) async fn set_the_clock(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("clock_settime", libc::SYS_clock_settime, "0, pack('QQ', 1, 0)"),
            ("settimeofday", libc::SYS_settimeofday, "pack('QQ', 1, 0), 0"),
            ("adjtimex", libc::SYS_adjtimex, "pack('L52', 1, 0, 1000)"),
        ])
        .await
}

pub(super) async fn read_and_clear_the_kernel_log(arena: &Arena) -> Result<()> {
    if !arena.has_of_its_own("a log") {
        arena.calls_refused(&[("read", libc::SYS_syslog, "3, ' ' x 100, 100")]).await?;
    }
    arena.calls_refused(&[("clear", libc::SYS_syslog, "5, 0, 0")]).await?;
    arena.shell_fails("head -c 1 /dev/kmsg").await?;
    arena.shell_fails("head -c 1 /proc/kmsg").await?;
    Ok(())
}

pub(super) async fn touch_ports_and_swap_and_accounting(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("swapon", libc::SYS_swapon, "'/tmp/swap', 0"),
            ("swapoff", libc::SYS_swapoff, "'/tmp/swap'"),
            ("acct", libc::SYS_acct, "'/tmp/acct'"),
            ("quotactl", libc::SYS_quotactl, "0x800002, '/dev/sda', 0, 0"),
            ("vhangup", libc::SYS_vhangup, ""),
        ])
        .await?;
    #[cfg(target_arch = "x86_64")]
    arena.calls_refused(&[("iopl", libc::SYS_iopl, "3"), ("ioperm", libc::SYS_ioperm, "0x80, 1, 1")]).await?;
    Ok(())
}

pub(super) async fn watch_the_whole_machine(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("fanotify_init", libc::SYS_fanotify_init, "4, 0"),
            ("lookup_dcookie", LOOKUP_DCOOKIE, "1, ' ' x 100, 100"),
            ("move_pages", libc::SYS_move_pages, "1, 0, 0, 0, 0, 0"),
            ("kcmp", libc::SYS_kcmp, "1, 1, 0, 0, 0"),
        ])
        .await
}

/// Removed from newer headers.
#[cfg(target_arch = "x86_64")]
const LOOKUP_DCOOKIE: i64 = 212;
#[cfg(not(target_arch = "x86_64"))]
const LOOKUP_DCOOKIE: i64 = 18;

pub(super) async fn rename_the_machine(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("sethostname", libc::SYS_sethostname, "'hacked', 6"),
            ("setdomainname", libc::SYS_setdomainname, "'hacked', 6"),
        ])
        .await
}

/// The bit of the x32 interface, whose numbers a filter might have forgotten.
const X32: i64 = 0x4000_0000;

pub(super) async fn make_calls_of_another_architecture(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("mount", X32 + libc::SYS_mount, "'none', '/mnt', 'tmpfs', 0, 0"),
            ("unshare", X32 + libc::SYS_unshare, "0x10000000"),
            ("keyctl", X32 + libc::SYS_keyctl, "0, -4, 1"),
        ])
        .await
}

/// A complete 32-bit program: it makes a user namespace by `int 0x80` and exits with 0 if that
/// worked.
const PROGRAM_OF_32_BITS: &str = "\
    7f454c46010101000000000000000000020003000100000054800408340000000000000000000000340020000100000000000000\
    0100000000000000008004080080040874000000740000000500000000100000\
    b836010000bb00000010cd8085c00f95c30fb6dbb801000000cd80f4";

pub(super) async fn run_a_program_of_another_architecture(arena: &Arena) -> Result<()> {
    let program = format!(
        "open(F, '>', '/tmp/program32'); print F pack('H*', '{PROGRAM_OF_32_BITS}'); close F; \
         chmod 0755, '/tmp/program32'; exit(system('/tmp/program32') == 0 ? 9 : 0)"
    );
    let ended = arena.perl(&program).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok(())
}

pub(super) async fn turn_off_the_filter(arena: &Arena) -> Result<()> {
    // Another filter can only be added on top, and one that allows everything changes nothing.
    let allow_all = format!(
        "my $code = pack('SCCL', 6, 0, 0, 0x7fff0000); my $filter = pack('SxxxxxxP', 1, $code); \
         syscall({}, 1, 0, $filter); exit(syscall({}, 0x10000000) == -1 ? 0 : 9)",
        libc::SYS_seccomp,
        libc::SYS_unshare
    );
    let ended = arena.perl(&allow_all).await?;
    if arena.has_of_its_own("namespaces, and filters that are asked for inside") {
        return arena.filtered_outside().await;
    }
    ensure!(ended.code == Some(0), "{ended:?}");
    let status = arena.shell("grep -E '^(Seccomp|NoNewPrivs):' /proc/1/status /proc/self/status").await?;
    ensure!(status.stdout.matches("Seccomp:\t2").count() == 2, "{status:?}");
    ensure!(status.stdout.matches("NoNewPrivs:\t1").count() == 2, "{status:?}");
    Ok(())
}
