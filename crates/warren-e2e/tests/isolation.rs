//! Tests the isolation of a sandbox from the inside.

use warren_e2e::local_home::LocalHome;

/// Runs a script in a sandbox and returns its output.
fn inside(home: &LocalHome, script: &str) -> String {
    let ended = home.shell(script);
    assert_eq!(ended.code, Some(0), "{script}: {ended:?}");
    ended.stdout
}

#[test]
fn a_sandbox_sees_only_its_own() {
    let Some(home) = LocalHome::new() else { return };
    std::fs::write(home.path().join("secret"), "of the host").expect("write");

    // Root inside is another user outside.
    let map = inside(&home, "cat /proc/self/uid_map");
    let fields: Vec<u64> =
        map.split_ascii_whitespace().map(|field| field.parse().expect("numbers")).collect();
    assert!(fields[1] != 0, "uid 0 inside is uid {} outside", fields[1]);

    // Processes: its own init and shell, and `ps` itself.
    let count: usize = inside(&home, "ls -d /proc/[0-9]* | wc -l").trim().parse().expect("a number");
    assert!(count <= 5, "{count} processes seen");

    let homes = inside(&home, "ls -A /home /root 2>/dev/null; true");
    let names: Vec<&str> = homes.lines().filter(|line| !line.is_empty() && !line.ends_with(':')).collect();
    assert!(names.is_empty(), "homes of the host: {homes}");

    let secret = home.path().join("secret");
    let seen = inside(&home, &format!("cat {} 2>&1 || true", secret.display()));
    assert!(!seen.contains("of the host"), "{seen}");
    let shadow = inside(&home, "cat /etc/shadow 2>/dev/null; true");
    let host_shadow = std::fs::read_to_string("/etc/shadow").unwrap_or_default();
    assert!(shadow.is_empty() || shadow != host_shadow, "the host's /etc/shadow is there");

    // Routes to the egress proxy and to other pods, all of which refuse; no default route.
    let routes = inside(&home, "tail -n +2 /proc/net/route | cut -f2");
    assert!(!routes.lines().any(|destination| destination == "00000000"), "a route out: {routes}");
    let devices = inside(&home, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort");
    assert!(["lo\n", "eth0\nlo\n"].contains(&devices.as_str()), "{devices}");
    home.assert_nothing_left();
}

#[test]
fn a_sandbox_cannot_reach_out() {
    let Some(home) = LocalHome::new() else { return };
    for attempt in [
        "mount -t tmpfs none /mnt",
        "mount --bind /usr /mnt",
        "echo 1 > /proc/sys/kernel/panic",
        "echo x > /proc/sysrq-trigger",
        "mknod /tmp/disk b 8 0",
        "unshare --user true",
        "unshare --mount true",
        "chroot /tmp true",
        "hostname other",
    ] {
        let ended = home.shell(attempt);
        assert!(ended.code != Some(0), "`{attempt}` succeeded: {ended:?}");
    }
    // A file of the host can be written inside, and is unchanged outside.
    let mark = "/usr/warren-was-here";
    inside(&home, &format!("echo x > {mark} && rm /usr/bin/yes && test -e {mark}"));
    assert!(!std::path::Path::new(mark).exists(), "{mark} is on the host");
    assert!(std::path::Path::new("/usr/bin/yes").exists(), "a file of the host was removed");
    inside(&home, "test -e /usr/bin/yes");
    home.assert_nothing_left();
}

#[test]
fn privileges_are_gone() {
    let Some(home) = LocalHome::new() else { return };
    let status = inside(&home, "cat /proc/self/status");
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default().to_owned()
    };
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Seccomp:"), "2");
    let bounding = u64::from_str_radix(&field("CapBnd:"), 16).expect("hexadecimal");
    let (net_admin, sys_ptrace, sys_admin) = (1 << 12, 1 << 19, 1 << 21);
    assert_eq!(bounding & (net_admin | sys_ptrace | sys_admin), 0, "capabilities {bounding:x}");
    for namespace in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
        let path = format!("/proc/self/ns/{namespace}");
        let host = std::fs::read_link(&path).expect("read the host's namespace");
        let inside = inside(&home, &format!("readlink {path}"));
        assert_ne!(inside.trim(), host.to_string_lossy(), "{namespace} is shared with the host");
    }
}
