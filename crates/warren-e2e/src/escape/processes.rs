//! Attempts on other users' processes, and to gain privileges.

use anyhow::{Result, ensure};
use serde_json::json;

use super::arena::{Arena, until};

/// Returns the host's pids whose command line contains a word.
pub(super) fn processes_with(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains(word) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

pub(super) async fn find_processes_of_the_host(arena: &Arena) -> Result<()> {
    let seen =
        arena.shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo; ls -d /proc/[0-9]* | wc -l").await?;
    ensure!(!seen.stdout.contains("sleep 100000") && !seen.stdout.contains("up --detach"), "{seen:?}");
    let count: usize = seen.stdout.lines().last().unwrap_or_default().trim().parse()?;
    ensure!(count <= 8, "{count} processes are seen");
    Ok(())
}

pub(super) async fn signal_a_process_of_the_host(arena: &Arena) -> Result<()> {
    let ended = arena.shell_fails(&format!("kill -9 {}", arena.bystander())).await?;
    ensure!(ended.stderr.contains("No such process"), "{ended:?}");
    Ok(())
}

pub(super) async fn signal_everybody(arena: &Arena) -> Result<()> {
    let sandbox = arena.sandbox("signals", json!({})).await?;
    // The shell itself may be killed, and then its exec ends by the signal.
    let _ = arena.run(&sandbox, &["sh", "-c", "kill -9 -1; kill -9 1; kill -STOP 1"]).await;
    if !arena.has_of_its_own("a first process that can be killed from inside, with everything else inside") {
        let ended = arena.run(&sandbox, &["echo", "alive"]).await?;
        ensure!(ended.stdout == "alive\n", "{ended:?}");
    }
    arena.delete(&sandbox).await
}

pub(super) async fn trace_a_process_of_the_host(arena: &Arena) -> Result<()> {
    let (attach, seize) = (16, 0x4206);
    let pid = arena.bystander();
    for request in [attach, seize] {
        let program = format!("exit(syscall({}, {request}, {pid}, 0, 0) == -1 ? 0 : 9)", libc::SYS_ptrace);
        let ended = arena.perl(&program).await?;
        ensure!(ended.code == Some(0), "{ended:?}");
    }
    Ok(())
}

pub(super) async fn read_the_memory_of_a_process_of_the_host(arena: &Arena) -> Result<()> {
    let pid = arena.bystander();
    arena.shell_fails(&format!("head -c 1 /proc/{pid}/mem")).await?;
    arena.shell_fails(&format!("cat /proc/{pid}/environ")).await?;
    let program = format!(
        "my $b = 'x' x 16; my $v = pack('PQ', $b, 16); exit(syscall({}, {pid}, $v, 1, $v, 1, 0) == -1 ? 0 : 9)",
        libc::SYS_process_vm_readv
    );
    let ended = arena.perl(&program).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok(())
}

pub(super) async fn take_a_descriptor_from_another_process(arena: &Arena) -> Result<()> {
    let program = format!("exit(syscall({}, {}, 0) == -1 ? 0 : 9)", libc::SYS_pidfd_open, arena.bystander());
    let ended = arena.perl(&program).await?;
    ensure!(ended.code == Some(0), "a descriptor of a process of the host: {ended:?}");
    arena.calls_refused(&[("pidfd_getfd", libc::SYS_pidfd_getfd, "0, 0, 0")]).await
}

pub(super) async fn enter_namespaces_through_proc(arena: &Arena) -> Result<()> {
    for namespace in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
        let program = format!(
            "open(F, '<', '/proc/1/ns/{namespace}') or exit 0; exit(syscall({}, fileno(F), 0) == -1 ? 0 : 9)",
            libc::SYS_setns
        );
        let ended = arena.perl(&program).await?;
        ensure!(ended.code == Some(0), "{namespace}: {ended:?}");
        let path = format!("/proc/self/ns/{namespace}");
        let own = arena.shell(&format!("readlink {path}")).await?;
        let host = std::fs::read_link(&path)?;
        ensure!(own.stdout.trim() != host.to_string_lossy(), "{namespace} is the host's");
    }
    Ok(())
}

pub(super) async fn make_new_namespaces(arena: &Arena) -> Result<()> {
    let flags = [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ];
    if arena.has_of_its_own("namespaces") {
        let script = "unshare --user --map-root-user --mount --pid --fork --net --ipc --uts sh -c \
                      'hostname hacked; mount -t tmpfs none /mnt; mount -t proc none /proc; ip link set lo down; kill -9 -1'";
        arena.shell(script).await?;
        return Ok(());
    }
    for flag in flags {
        arena.calls_refused(&[("unshare", libc::SYS_unshare, &flag.to_string())]).await?;
    }
    Ok(())
}

pub(super) async fn clone_into_new_namespaces(arena: &Arena) -> Result<()> {
    let flags = (libc::CLONE_NEWUSER | libc::SIGCHLD).to_string();
    if arena.has_of_its_own("namespaces") {
        arena.perl(&format!("exit(syscall({}, {flags}, 0, 0, 0, 0) == -1)", libc::SYS_clone)).await?;
        return Ok(());
    }
    arena
        .calls_refused(&[
            ("clone", libc::SYS_clone, &format!("{flags}, 0, 0, 0, 0")),
            ("clone3", libc::SYS_clone3, "pack('Q11', 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88"),
        ])
        .await
}

pub(super) async fn gain_by_set_user_id(arena: &Arena) -> Result<()> {
    if arena.lacks("another user than root") {
        return Ok(());
    }
    let script = "cp /usr/bin/id /tmp/id2 && chmod 6755 /tmp/id2 && \
                  perl -e '$) = \"1000 1000\"; $( = 1000; $< = $> = 1000; exec \"/tmp/id2\", \"-u\"'";
    let ended = arena.shell(script).await?;
    ensure!(ended.stdout == "1000\n", "{ended:?}");
    Ok(())
}

pub(super) async fn gain_by_file_capabilities(arena: &Arena) -> Result<()> {
    if arena.lacks("another user than root") {
        return Ok(());
    }
    // The kernel's own format, version 2: all capabilities, effective at once.
    let program = format!(
        "system('cp /usr/bin/grep /tmp/grep2'); my $c = pack('V5', 0x02000001, ~0 & 0xffffffff, 0, ~0 & 0xffffffff, 0); \
         my ($f, $n) = ('/tmp/grep2', 'security.capability'); syscall({}, $f, $n, $c, 20, 0); \
         $) = '1000 1000'; $( = 1000; $< = $> = 1000; exec '/tmp/grep2', 'CapEff', '/proc/self/status'",
        libc::SYS_setxattr
    );
    let ended = arena.perl(&program).await?;
    ensure!(ended.stdout == "CapEff:\t0000000000000000\n", "{ended:?}");
    Ok(())
}

pub(super) async fn become_a_user_who_is_not_mapped(arena: &Arena) -> Result<()> {
    let program = format!(
        "my $f = '/tmp'; exit(syscall({}, 70000) == -1 && syscall({}, $f, 70000, 70000) == -1 ? 0 : 9)",
        libc::SYS_setuid,
        libc::SYS_chown
    );
    let ended = arena.perl(&program).await?;
    ensure!(arena.has_of_its_own("all user ids") || ended.code == Some(0), "{ended:?}");
    Ok(())
}

pub(super) async fn run_with_realtime_priority(arena: &Arena) -> Result<()> {
    let fifo = "0, 1, pack('i', 50)";
    arena.calls_refused(&[("sched_setscheduler", libc::SYS_sched_setscheduler, fifo)]).await?;
    let nice = ("setpriority", libc::SYS_setpriority, "0, 0, -10");
    if arena.has_of_its_own("priorities") {
        let (_, number, arguments) = nice;
        arena.perl(&format!("syscall({number}, {arguments})")).await?;
        return Ok(());
    }
    arena.calls_refused(&[nice]).await
}

pub(super) async fn be_spared_when_memory_runs_out(arena: &Arena) -> Result<()> {
    if arena.has_of_its_own("scores for when memory runs out") {
        arena.shell("echo -500 > /proc/self/oom_score_adj; echo -500 > /proc/1/oom_score_adj").await?;
        return Ok(());
    }
    arena.shell_fails("echo -500 > /proc/self/oom_score_adj").await?;
    let ended = arena.shell("cat /proc/self/oom_score_adj /proc/1/oom_score_adj").await?;
    ensure!(ended.stdout == "500\n500\n", "{ended:?}");
    Ok(())
}

pub(super) async fn raise_resource_limits(arena: &Arena) -> Result<()> {
    let huge = "pack('QQ', 1 << 40, 1 << 40)";
    arena
        .calls_refused(&[
            ("nofile", libc::SYS_setrlimit, &format!("7, {huge}")),
            ("core", libc::SYS_setrlimit, &format!("4, {huge}")),
            ("rtprio", libc::SYS_setrlimit, &format!("14, {huge}")),
        ])
        .await
}

pub(super) async fn leave_a_process_behind(arena: &Arena) -> Result<()> {
    let sandbox = arena.sandbox("behind", json!({})).await?;
    let word = "left-behind-by-an-attempt";
    let daemon = format!(
        "fork and exit; setpgrp; $SIG{{$_}} = 'IGNORE' for qw(HUP TERM INT); fork and exit; close STDIN; close STDOUT; \
         close STDERR; sleep 1 while '{word}'"
    );
    let ended = arena.run(&sandbox, &["perl", "-e", &daemon]).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let mark = arena.mark_of(&sandbox, word).await?;
    until("the process runs", async || Ok((!processes_with(&mark).is_empty()).then_some(()))).await?;
    arena.delete(&sandbox).await?;
    until("the process is gone", async || Ok(processes_with(&mark).is_empty().then_some(()))).await
}

pub(super) async fn refuse_to_end(arena: &Arena) -> Result<()> {
    let stubborn = "trap '' TERM INT HUP QUIT USR1 USR2 PIPE; while :; do sleep 1; done";
    let sandbox = arena.sandbox("stubborn", json!({ "command": ["sh", "-c", stubborn] })).await?;
    arena.delete(&sandbox).await
}

pub(super) async fn hide_an_exec_from_its_cgroup(arena: &Arena) -> Result<()> {
    if arena.lacks("cgroups") {
        return Ok(());
    }
    let sandbox = arena.sandbox("counted", json!({})).await?;
    let directory = arena.pod_directory(&sandbox).await?;
    let uid = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let word = "counted-with-its-pod";
    let program = format!("fork and exit; close STDIN; close STDOUT; close STDERR; sleep 1 while '{word}'");
    arena.run(&sandbox, &["perl", "-e", &program]).await?;
    let mark = arena.mark_of(&sandbox, word).await?;
    let pid = until("the process runs", async || Ok(processes_with(&mark).pop())).await?;
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    // With version 1 one of these lines has no limits: the empty version 2 beside it.
    for controller in ["memory", "pids", "cpu"] {
        let line = cgroups
            .lines()
            .find(|line| {
                line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == controller))
            })
            .or_else(|| cgroups.lines().find(|line| line.starts_with("0::")));
        ensure!(line.is_some_and(|line| line.contains(&uid)), "{controller}: {cgroups}");
    }
    arena.delete(&sandbox).await?;
    until("the process is gone", async || Ok(processes_with(&mark).is_empty().then_some(()))).await
}
