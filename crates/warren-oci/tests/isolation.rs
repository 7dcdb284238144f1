//! Tests of the isolation of containers.

use std::io::Read;

use crate::support::{Home, Pod, skipped};
use warren_oci::protocol::ContainerStatus;

#[test]
fn root_inside_is_nobody_outside() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("ids");
    let output = pod.shell("id -u; cat /proc/self/uid_map /proc/self/gid_map; touch /var/tmp/mine; stat -c %u /usr/bin /var/tmp/mine /");
    let expected = format!("0 {} 65536", pod.first_id);
    let lines: Vec<String> =
        output.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines, ["0", &expected, &expected, "0", "0", "0"], "{output:?}");
    use std::os::unix::fs::MetadataExt;
    let file = pod.directory.join("containers/main/0/0.upper/var/tmp/mine");
    assert_eq!(std::fs::metadata(file).unwrap().uid(), pod.first_id);
    pod.shutdown();
}

#[test]
fn the_hosts_processes_files_and_secrets_are_not_there() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("see");
    let output = pod.shell(
        "ls -A /home /root /mnt /srv /opt; ls /proc | grep -c '^[0-9]'; cat /proc/1/cmdline | tr '\\0' ' '",
    );
    assert!(output.stdout.starts_with("/home:\n\n/mnt:\n\n/opt:\n\n/root:\n\n/srv:\n"), "{output:?}");
    assert!(output.stdout.contains("/.warren/init "), "{output:?}");
    let processes: usize = output.stdout.lines().nth(9).unwrap().parse().unwrap();
    assert!(processes <= 5, "{output:?}");
    for secret in [
        "/etc/shadow",
        "/etc/ssh",
        "/etc/sudoers",
        "/etc/machine-id",
        "/etc/ssl/private",
        "/var/lib/dpkg",
        "/boot",
    ] {
        assert!(!pod.shell(&format!("test -e {secret}")).exit.code.eq(&0), "{secret} is visible");
    }
    let mounts = pod.shell("cut -d' ' -f2 /proc/self/mounts").stdout;
    assert!(
        mounts
            .lines()
            .all(|path| ["/proc", "/sys", "/dev", "/usr"].iter().any(|known| path.starts_with(known))
                || path == "/"),
        "{mounts}"
    );
    // It does not reveal the path of the home, nor the kernel's command line.
    let data = home.data.to_str().unwrap();
    let table = pod.shell("cat /proc/self/mountinfo /proc/self/mounts /proc/cmdline").stdout;
    assert!(!table.contains(data) && !table.contains("root="), "{table}");
    assert_eq!(pod.shell("wc -c < /proc/cmdline").stdout, "0\n");
    let devices = pod.shell("ls /dev | tr '\\n' ' '").stdout;
    assert_eq!(
        devices.trim(),
        "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"
    );
    assert_eq!(pod.shell("cat /proc/self/cgroup | cut -d: -f3 | sort -u").stdout, "/\n");
    // Only the standard streams are open (and the directory that is being listed).
    assert_eq!(pod.shell("ls /proc/self/fd | tr '\\n' ' '").stdout, "0 1 2 3 ");
    pod.shutdown();
}

#[test]
fn the_host_cannot_be_written() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("write");
    let marker = format!("/usr/bin/warren-test-{}", home.id);
    let output = pod.shell(&format!("echo x > {marker} && cat {marker}; rm /usr/bin/env; ls /usr/bin/env"));
    assert!(output.stdout.starts_with("x\n"), "a sandbox writes to its own overlay: {output:?}");
    assert!(output.stderr.contains("/usr/bin/env"), "{output:?}");
    assert!(!std::path::Path::new(&marker).exists() && std::path::Path::new("/usr/bin/env").exists());
    for script in [
        "echo 1 > /proc/sys/kernel/panic",
        "echo h > /proc/sysrq-trigger",
        "echo x > /sys/kernel/mm/transparent_hugepage/enabled",
        "echo x > /.warren/init",
        "mknod /tmp/disk b 254 0 && head -c1 /tmp/disk",
        "head -c1 /proc/kcore | grep -q .",
        "echo -1000 > /proc/self/oom_score_adj",
    ] {
        let output = pod.shell(script);
        assert_ne!(output.exit.code, 0, "`{script}` worked: {output:?}");
    }
    pod.shutdown();
}

#[test]
fn privileges_cannot_be_had() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("gain");
    for script in [
        "mount -t tmpfs none /mnt",
        "mount --bind / /mnt",
        "umount /proc",
        "unshare -U true",
        "unshare -m true",
        "unshare -n true",
        "nsenter -t 1 -m true",
        "chroot / mount -t proc none /mnt",
        "hostname other",
        "date -s 2000-01-01",
        "dmesg",
        "swapoff -a && swapon /tmp/x",
        "perl -e 'exit(syscall(248,\"user\",\"x\",\"y\",1,-2) < 0)'",
        "perl -e 'exit(syscall(321,0,0,0) < 0)'",
        "perl -e 'exit(syscall(425,8,0) < 0)'",
        "perl -e 'exit(syscall(323,0) < 0)'",
    ] {
        let output = pod.shell(script);
        // 127 would mean that the program is missing, which proves nothing.
        assert!(![0, 127].contains(&output.exit.code), "`{script}`: {output:?}");
    }
    let status = pod.shell("grep -E '^(NoNewPrivs|Seccomp|CapBnd|CapEff|CapAmb)' /proc/self/status").stdout;
    for line in [
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "CapBnd:\t00000000800405fb",
        "CapEff:\t00000000800405fb",
        "CapAmb:\t0000000000000000",
    ] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    assert_eq!(pod.shell("ulimit -c").stdout, "0\n");
    assert_eq!(pod.shell("cat /proc/self/oom_score_adj /proc/1/oom_score_adj").stdout, "500\n500\n");
    pod.shutdown();
}

#[test]
fn there_is_no_way_out() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("net");
    let output =
        pod.shell("tail -n +2 /proc/net/route | wc -l; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '");
    assert_eq!(output.stdout, "0\nlo\n");
    // Loopback is up, and it is the container's own.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let output = pod.run(Pod::request(&["bash", "-c", &format!("exec 3<>/dev/tcp/127.0.0.1/{port}")]), b"");
    assert!(output.stderr.contains("refused"), "{output:?}");
    let output = pod.run(Pod::request(&["bash", "-c", "exec 3<>/dev/tcp/192.0.2.1/80"]), b"");
    assert!(output.stderr.contains("unreachable"), "{output:?}");
    pod.shutdown();
}

#[test]
fn a_fork_bomb_stays_inside_and_is_counted() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let mut container = home.container("bomb", "main", &["/.warren/init"]);
    container.spec.linux.resources.pids = Some(64);
    let pod = home.pod("bomb", vec![container]);
    pod.wait("main", |container| matches!(container.status, ContainerStatus::Running { .. }));
    let (_, streams) = pod.start(Pod::request(&["sh", "-c", "bomb() { bomb | bomb & }; bomb"])).unwrap();
    pod.wait("main", |container| container.pids_limit_hits > 0);
    // The host and the shim still work, and a client can still enter.
    assert!(std::process::Command::new("true").status().unwrap().success());
    let output = pod.run(Pod::request(&["cat", "/proc/self/uid_map"]), b"");
    assert_eq!(output.exit.code, 0);
    drop(streams);
    assert!(pod.shutdown().shut_down);
}

#[test]
fn a_memory_bomb_is_killed_and_said_to_be() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let mut container = home.container("memory", "main", &["/.warren/init"]);
    container.spec.linux.resources.memory_bytes = Some(32 << 20);
    let pod = home.pod("memory", vec![container]);
    pod.wait("main", |container| matches!(container.status, ContainerStatus::Running { .. }));
    let output = pod.shell("exec tail /dev/zero");
    assert!(output.exit.oom_killed, "{output:?}");
    assert_eq!(output.exit.signal, Some(9));
    pod.wait("main", |container| container.oom_kills > 0);
    assert_eq!(pod.shell("echo alive").stdout, "alive\n");
    pod.shutdown();

    let mut container = home.container("memory2", "main", &["tail", "/dev/zero"]);
    container.spec.linux.resources.memory_bytes = Some(32 << 20);
    let pod = home.pod("memory2", vec![container]);
    let state = pod.wait("main", |container| matches!(container.status, ContainerStatus::Exited { .. }));
    let ContainerStatus::Exited { exit, .. } = state.status else { unreachable!() };
    assert!(exit.oom_killed && exit.signal == Some(9), "{exit:?}");
    pod.shutdown();
}

#[test]
fn a_process_on_its_way_in_cannot_be_traced() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("trace");
    // The shim is outside the container's pid namespace and has no number there. The only attempt
    // left is to catch an exec: a loop searches for a process whose memory it can read while its
    // program is still ours. It finds none.
    let script = "for i in $(seq 300); do for p in /proc/[0-9]*; do \
                  readlink $p/exe 2>/dev/null | grep -v -e /usr/ -e /.warren/ ; done; done";
    let (_, streams) = pod.start(Pod::request(&["sh", "-c", script])).unwrap();
    for _ in 0..100 {
        pod.start(Pod::request(&["true"])).unwrap();
    }
    let mut found = String::new();
    let mut streams = streams.into_iter().map(std::fs::File::from);
    streams.next().unwrap().read_to_string(&mut found).unwrap();
    assert_eq!(found, "");
    drop(streams);
    pod.shutdown();
}

#[test]
fn set_user_id_programs_gain_nothing_unless_asked_for_and_then_only_inside() {
    if skipped() {
        return;
    }
    let home = Home::new();
    for (uid, no_new_privileges, expected) in [("suid-off", true, "1000"), ("suid-on", false, "0")] {
        let mut container = home.container(uid, "main", &["/.warren/init"]);
        container.spec.process.no_new_privileges = no_new_privileges;
        let pod = home.pod(uid, vec![container]);
        pod.wait("main", |container| matches!(container.status, ContainerStatus::Running { .. }));
        assert_eq!(
            pod.shell("cp /usr/bin/id /usr/local/bin/id2 && chmod u+s /usr/local/bin/id2").exit.code,
            0
        );
        let mut request = Pod::request(&["/usr/local/bin/id2", "-u"]);
        request.user = Some(warren_oci::spec::User { uid: 1000, gid: 1000, additional_gids: Vec::new() });
        assert_eq!(pod.run(request, b"").stdout.trim(), expected, "{uid}");
        let status = pod.shell("cat /proc/self/status; mount -t tmpfs none /mnt").stdout;
        assert!(status.contains("Seccomp:\t2") && status.contains("CapEff:\t00000000800405fb"), "{status}");
        assert_ne!(pod.shell("mount -t tmpfs none /mnt").exit.code, 0);
        pod.shutdown();
    }
}

/// This process has the power to take the root of a container off. No process inside has it.
#[test]
fn below_a_containers_root_there_is_nothing_of_the_host() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("below");
    let running = pod.wait("main", |container| matches!(container.status, ContainerStatus::Running { .. }));
    let ContainerStatus::Running { process, .. } = running.status else { unreachable!() };
    let (setns, umount) = (libc::SYS_setns, libc::SYS_umount2);
    let program = format!(
        "sub enter {{ syscall({setns}, fileno $_[0], 0) == 0 or die \"setns: $!\" }}
         sub names {{ opendir my $d, $_[0] or die \"$_[0]: $!\"; print join(' ', sort grep !/^\\./, readdir $d), \"\\n\" }}
         open my $mounts, '<', \"/proc/$ARGV[0]/ns/mnt\"; open my $user, '<', \"/proc/$ARGV[0]/ns/user\";
         enter($mounts); my $root = '/'; syscall({umount}, $root, 2) == 0 or die \"umount: $!\"; enter($mounts);
         enter($user); $( = $) = 0; $< = $> = 0;
         names('/'); names('/dev'); names('/nothing'); names('/sys/class/net');
         opendir my $proc, '/proc';
         print join(' ', sort map {{ $_ == $$ ? 'self' : $_ == $ARGV[0] ? 'init' : $_ }} grep /^\\d+$/, readdir $proc), \"\\n\";
         print open(my $f, '>', '/file') ? 'writable' : $!, \"\\n\";"
    );
    let ended = std::process::Command::new("perl")
        .args(["-e", &program, &process.pid.to_string()])
        .output()
        .expect("run perl");
    let expected =
        "dev nothing proc sys\nfull null random tty urandom zero\n\n\ninit self\nRead-only file system\n";
    assert_eq!(String::from_utf8_lossy(&ended.stdout), expected, "{ended:?}");
    pod.shutdown();
}
