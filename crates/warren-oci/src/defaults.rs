//! Defaults for containers whose specification does not set a value: those of container engines,
//! without what a sandbox does not need.

/// The capabilities of root inside, over its own namespaces. This is the engines' list without raw
/// sockets (`NET_RAW`), device nodes (`MKNOD`, which a user namespace refuses anyway) and the audit
/// log (`AUDIT_WRITE`).
pub const CAPABILITIES: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// Paths that appear empty, because they reveal facts about the host.
pub const MASKED_PATHS: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// Paths that are read-only, because they affect the host.
pub const READONLY_PATHS: &[&str] =
    &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The maximum number of open files, if the daemon's own limit is not lower. It is the kernel's
/// default maximum. Without a limit, programs that close "all" descriptors one by one take for
/// ever.
pub const OPEN_FILES: u64 = 1 << 20;

/// When memory runs out, containers are killed before other processes of the host.
pub const OOM_SCORE_ADJUSTMENT: i32 = 500;

/// The `PATH` of an environment that has none.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
