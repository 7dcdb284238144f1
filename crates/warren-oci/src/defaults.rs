//! What a container gets when its specification says nothing: the container engines' defaults, less what no sandbox
//! needs.

/// Capabilities that root has inside, over its own namespaces. The engines' list without raw sockets (`NET_RAW`), device
/// nodes (`MKNOD`, which a user namespace refuses anyway) and the audit log (`AUDIT_WRITE`).
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

/// Paths that read as empty, because they tell about the host.
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

/// Paths that cannot be written, because they reach the host.
pub const READONLY_PATHS: &[&str] =
    &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Open files, if the daemon's own limit is not lower: the kernel's default for the most there can be. Without a limit,
/// programs that close "all" descriptors one by one take forever.
pub const OPEN_FILES: u64 = 1 << 20;

/// Containers go before anything of the host when memory runs out.
pub const OOM_SCORE_ADJUSTMENT: i32 = 500;

/// `PATH` when the environment has none.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
