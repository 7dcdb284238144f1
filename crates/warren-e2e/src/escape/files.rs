//! Attempts on files: the kernel's, the host's, and paths that lead to them.

use anyhow::{Result, ensure};
use serde_json::json;

use super::arena::{Arena, SECRET};

/// Checks that none of these can be opened for writing.
async fn cannot_be_written(arena: &Arena, paths: &[&str]) -> Result<()> {
    for path in paths {
        let ended = arena.perl(&format!("exit(open(F, '+<', '{path}') ? 9 : 0)")).await?;
        ensure!(ended.code == Some(0), "{path} can be written: {ended:?}");
    }
    Ok(())
}

pub(super) async fn write_settings_of_the_kernel(arena: &Arena) -> Result<()> {
    if arena.has_of_its_own("settings") {
        arena.shell("find /proc/sys -type f 2>/dev/null | while read f; do echo 1 > $f; done").await?;
        return Ok(());
    }
    cannot_be_written(
        arena,
        &[
            "/proc/sys/kernel/panic",
            "/proc/sys/kernel/modprobe",
            "/proc/sys/kernel/hotplug",
            "/proc/sys/kernel/hostname",
            "/proc/sys/kernel/ns_last_pid",
            "/proc/sys/vm/drop_caches",
            "/proc/sys/vm/panic_on_oom",
            "/proc/sys/fs/binfmt_misc/register",
            "/proc/irq/default_smp_affinity",
            "/proc/mtrr",
        ],
    )
    .await?;
    // No file below it, even if a later kernel adds some.
    let ended = arena.shell("find /proc/sys -type f -writable 2>/dev/null | head -n 3").await?;
    ensure!(ended.stdout.is_empty(), "{ended:?}");
    Ok(())
}

pub(super) async fn set_the_core_pattern(arena: &Arena) -> Result<()> {
    arena.shell_fails("echo '|/tmp/evil' > /proc/sys/kernel/core_pattern").await?;
    let ended = arena
        .shell("ulimit -c; ulimit -c unlimited 2>/dev/null; sh -c 'kill -SEGV $$'; ls /tmp/core* 2>/dev/null")
        .await?;
    ensure!(ended.stdout == "0\n", "{ended:?}");
    Ok(())
}

pub(super) async fn press_sysrq(arena: &Arena) -> Result<()> {
    if arena.has_of_its_own("an empty file in the place of the trigger") {
        arena.shell("echo b > /proc/sysrq-trigger; echo c > /proc/sysrq-trigger").await?;
        return Ok(());
    }
    arena.shell_fails("echo b > /proc/sysrq-trigger").await?;
    cannot_be_written(arena, &["/proc/sysrq-trigger", "/proc/sys/kernel/sysrq"]).await
}

pub(super) async fn write_to_sysfs(arena: &Arena) -> Result<()> {
    cannot_be_written(
        arena,
        &[
            "/sys/kernel/uevent_helper",
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "/sys/power/state",
            "/sys/class/net/lo/mtu",
        ],
    )
    .await?;
    let ended =
        arena.shell("find /sys -xdev -type f -writable 2>/dev/null | head -n 3; ls -A /sys/firmware").await?;
    ensure!(ended.stdout.is_empty(), "{ended:?}");
    Ok(())
}

pub(super) async fn abuse_the_release_agent(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("mount cgroup", libc::SYS_mount, "'cgroup', '/mnt', 'cgroup', 0, 'memory'"),
            ("mount cgroup2", libc::SYS_mount, "'cgroup2', '/mnt', 'cgroup2', 0, 0"),
        ])
        .await?;
    // With another kernel all files are on one file system, which is slow to walk.
    let place = if arena.has_of_its_own("cgroups") { "/proc /dev /run /var" } else { "/" };
    let script = format!(
        "find {place} -xdev \\( -name release_agent -o -name notify_on_release -o -name cgroup.procs -o -name tasks \\) \
                  2>/dev/null; find /sys \\( -name release_agent -o -name cgroup.procs \\) 2>/dev/null; grep cgroup /proc/mounts; \
                  cut -d: -f3 /proc/self/cgroup /proc/1/cgroup | sort -u"
    );
    let ended = arena.shell(&script).await?;
    ensure!(ended.stdout == "/\n", "{ended:?}");
    Ok(())
}

pub(super) async fn read_memory_of_the_machine(arena: &Arena) -> Result<()> {
    for path in ["/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore", "/dev/cpu/0/msr"] {
        let ended = arena.shell(&format!("head -c 1 {path} | wc -c")).await?;
        ensure!(ended.stdout.trim() == "0", "{path}: {ended:?}");
    }
    Ok(())
}

pub(super) async fn make_device_nodes(arena: &Arena) -> Result<()> {
    for (kind, major, minor) in
        [("b", 8, 0), ("b", 254, 0), ("c", 1, 1), ("c", 1, 11), ("c", 10, 229), ("c", 10, 200)]
    {
        arena.shell_fails(&format!("mknod /tmp/node-{kind}-{major}-{minor} {kind} {major} {minor}")).await?;
    }
    // `termination-log` is a file of the pod's, at kubelet's place.
    let devices = arena.shell("ls /dev | grep -v termination-log | tr '\\n' ' '; find /dev -type b").await?;
    if arena.has_of_its_own("device nodes") {
        // None of the machine's devices is among them.
        let script = "ls /dev/mem /dev/kmem /dev/port /dev/kvm /dev/kmsg /dev/sd* /dev/vd* /dev/nvme* /dev/loop* 2>/dev/null";
        let found = arena.shell(script).await?;
        ensure!(found.stdout.is_empty() && !devices.stdout.contains("/dev/"), "{found:?} {devices:?}");
        return Ok(());
    }
    ensure!(
        devices.stdout.trim()
            == "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero",
        "{devices:?}"
    );
    Ok(())
}

pub(super) async fn read_secrets_of_the_host(arena: &Arena) -> Result<()> {
    let data = arena.data_dir().display();
    for path in [
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/machine-id",
        "/etc/ssh",
        "/etc/sudoers",
        "/boot",
        "/etc/ssl/private",
    ] {
        arena.shell_fails(&format!("test -e {path}")).await?;
    }
    for name in ["secret", "kubeconfig", "store.db", "pki", "pods"] {
        arena.shell_fails(&format!("test -e {data}/{name}")).await?;
    }
    let homes = arena.shell("ls -A /root /home /srv /mnt /opt | grep -v -e : -e '^$'").await?;
    ensure!(homes.stdout.is_empty(), "{homes:?}");
    Ok(())
}

pub(super) async fn read_private_files_below_usr(arena: &Arena) -> Result<()> {
    let Some(directory) = arena.below_usr() else { return Ok(()) };
    let directory = directory.display();
    let ended = arena.shell(&format!("cat {directory}/public; ls {directory}")).await?;
    ensure!(ended.stdout == "for everybodypublic\n", "{ended:?}");
    for name in ["private", "group", "closed", "closed/inner"] {
        arena.shell_fails(&format!("cat {directory}/{name}")).await?;
    }
    // It is hidden in the image, and the sandbox can put its own file there.
    let ended = arena.shell(&format!("echo mine > {directory}/private && cat {directory}/private")).await?;
    ensure!(ended.stdout == "mine\n", "{ended:?}");
    Ok(())
}

pub(super) async fn change_programs_of_the_host(arena: &Arena) -> Result<()> {
    let mark = format!("/usr/bin/warren-escape-{}", std::process::id());
    let ended = arena
        .shell(&format!("echo x > {mark}; rm -f /usr/bin/yes; ln /usr/bin/env /usr/bin/env2; test -e {mark}"))
        .await?;
    if !arena.lacks("root's own files in `/usr` to write to") {
        ensure!(ended.code == Some(0), "a sandbox writes to a layer of its own: {ended:?}");
    }
    ensure!(!std::path::Path::new(&mark).exists(), "{mark} is on the host");
    ensure!(std::path::Path::new("/usr/bin/yes").exists(), "a program of the host is gone");
    ensure!(arena.neighbour("test -e /usr/bin/yes").await?.code == Some(0), "a neighbour sees the change");
    Ok(())
}

pub(super) async fn walk_out_of_a_chroot(arena: &Arena) -> Result<()> {
    let program = "mkdir '/tmp/jail'; chdir '/'; chroot '/tmp/jail'; chdir '..' for 1..50; chroot '.'; \
                   exec '/usr/bin/ls', '-A', '/'";
    let ended = arena.perl(program).await?;
    // At the end there is the sandbox's own root directory, or no program to run.
    let nothing_run = ended.code != Some(0) || ended.stdout.is_empty();
    ensure!(ended.stdout.contains(".warren") || nothing_run, "{ended:?}");
    let top = std::fs::read_dir("/")?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    for name in top.filter(|name| ["work", "boot", "lost+found", ".dockerenv"].contains(&name.as_str())) {
        ensure!(!ended.stdout.lines().any(|line| line == name), "/{name} is the host's: {ended:?}");
    }
    Ok(())
}

pub(super) async fn learn_paths_of_the_host(arena: &Arena) -> Result<()> {
    let data = arena.data_dir().to_string_lossy().into_owned();
    let ended =
        arena.shell("cat /proc/self/mounts /proc/self/mountinfo /proc/self/maps /proc/1/maps; env").await?;
    ensure!(!ended.stdout.contains(&data), "the data directory is told: {ended:?}");
    let started = std::fs::read_to_string("/proc/cmdline")?;
    let ended = arena.shell("cat /proc/cmdline").await?;
    ensure!(ended.stdout.trim() != started.trim(), "how the host's kernel was started is told: {ended:?}");
    let points = arena.shell("cut -d' ' -f2 /proc/self/mounts").await?;
    let known = [
        "/proc",
        "/sys",
        "/dev",
        "/usr",
        "/.warren",
        "/bin",
        "/sbin",
        "/lib",
        "/etc",
        "/run/secrets",
        "/tmp",
    ];
    ensure!(
        points.stdout.lines().all(|path| path == "/" || known.iter().any(|known| path.starts_with(known))),
        "{points:?}"
    );
    Ok(())
}

pub(super) async fn lead_a_mount_astray(arena: &Arena) -> Result<()> {
    if arena.has_of_its_own("a pod, which has one container at a time") {
        return Ok(());
    }
    // While the first container waits, the second puts a link at the mount point of the first one's
    // inner volume. Then the first is restarted.
    let place = format!("/tmp/warren-escape-{}", std::process::id());
    std::fs::create_dir(&place)?;
    let main = "if [ -e /outer/planted ]; then touch /outer/inner/landed; exec sleep 100000; fi; \
                while [ ! -e /outer/planted ]; do sleep 0.1; done; exit 1";
    let planter = format!(
        "while [ ! -d /outer/inner ]; do sleep 0.1; done; rmdir /outer/inner && ln -s /../../../../..{place} /outer/inner && \
         touch /outer/planted; exec sleep 100000"
    );
    let outer = json!({ "name": "outer", "mountPath": "/outer" });
    let container = json!({
        "command": ["sh", "-c", main],
        "restartPolicy": "Always",
        "volumeMounts": [outer, { "name": "inner", "mountPath": "/outer/inner" }],
        "volumes": [{ "name": "outer", "emptyDir": {} }, { "name": "inner", "emptyDir": {} }],
        "beside": [{
            "name": "planter", "image": "warren.dev/host", "command": ["sh", "-c", planter], "volumeMounts": [outer],
        }],
    });
    let sandbox = arena.sandbox_unready("astray", container).await?;
    let settled = arena
        .pod_until(&sandbox, "the first container was started again, or could not be", |pod| {
            let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
            let main = status.into_iter().flatten().find(|container| container.name == "main");
            main.is_some_and(|main| {
                let state = main.state.as_ref();
                let waits = state.and_then(|state| state.waiting.as_ref());
                let runs = state.is_some_and(|state| state.running.is_some());
                (main.restart_count > 0 && runs) || waits.is_some_and(|waits| waits.message.is_some())
            })
        })
        .await
        .map(drop);
    let landed = std::fs::read_dir(&place)?.count();
    std::fs::remove_dir_all(&place)?;
    settled?;
    ensure!(landed == 0, "a mount of a sandbox landed on the host");
    arena.delete(&sandbox).await
}

pub(super) async fn follow_proc_to_other_roots(arena: &Arena) -> Result<()> {
    let secret = arena.data_dir().join("secret");
    let secret = secret.display();
    for way in [
        "/proc/1/root",
        "/proc/self/root",
        "/proc/1/cwd",
        "/proc/self/cwd/../../../../..",
        "/proc/self/fd/0/..",
        "/dev/fd/1/../../..",
    ] {
        let ended = arena.shell(&format!("cat {way}{secret} 2>&1; cat {way}/etc/shadow 2>&1")).await?;
        ensure!(!ended.stdout.contains(SECRET) && !ended.stdout.contains("root:"), "{way}: {ended:?}");
    }
    Ok(())
}
