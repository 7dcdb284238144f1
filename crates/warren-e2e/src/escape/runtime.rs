//! Attempts on Warren's own entry points: the init, execs, descriptors, logs, terminals.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use serde_json::json;
use warren_client::sandbox;

use super::arena::{Arena, SECRET, VARIABLE, until};

pub(super) async fn overwrite_the_init(arena: &Arena) -> Result<()> {
    let neighbours_programs = "sha256sum /.warren/*";
    let before = arena.neighbour(neighbours_programs).await?;
    // gVisor allows writes to a running program's file: it is in the sandbox's own layer.
    let may_open = arena.has_of_its_own("files that are running");
    for path in ["/.warren/init", "/proc/1/exe", "/proc/self/root/.warren/init"] {
        for mode in ["+<", ">", ">>"] {
            let script = format!("exit(open(F, '{mode}', '{path}') ? 9 : 0)");
            let ended = arena.perl(&script).await?;
            let is_expected = ended.code == Some(0) || may_open && ended.code == Some(9);
            ensure!(is_expected, "{path} opens with {mode}: {ended:?}");
        }
    }
    // A sandbox may change its own layer, but no other sandbox's. The guest daemon's program is not
    // in every sandbox.
    arena.shell("mv /.warren/init /.warren/other; sleep 0.1; mv /.warren/other /.warren/init").await?;
    arena
        .shell(
            "cp /.warren/guest /tmp/guest && echo forged > /.warren/guest; cp -f /tmp/guest /.warren/guest",
        )
        .await?;
    let after = arena.neighbour(neighbours_programs).await?;
    ensure!(before.code == Some(0) && before.stdout == after.stdout, "{before:?} became {after:?}");
    Ok(())
}

pub(super) async fn overwrite_the_runtime_through_an_exec(arena: &Arena) -> Result<()> {
    // CVE-2019-5736: a program whose interpreter is the program that is about to run it. While it
    // lives, other processes in the sandbox try to open its executable for writing.
    let sandbox = arena.sandbox("exe", json!({})).await?;
    let prepare = "printf '#!/proc/self/exe\\n' > /tmp/trap && chmod 755 /tmp/trap";
    arena.run(&sandbox, &["sh", "-c", prepare]).await?;
    let watcher = "$SIG{CHLD} = 'IGNORE'; fork and exit; close STDIN; close STDOUT; close STDERR; \
                   for (1..4000) { for my $p (glob '/proc/[0-9]*/exe') { \
                   if (open(F, '<', $p)) { my $n = fileno(F); if (open(W, '>>', \"/proc/self/fd/$n\")) { \
                   my $t = readlink(\"/proc/self/fd/$n\"); if ($t !~ m{^/usr/}) { open(R, '>', '/tmp/opened'); print R $t; } } } } }";
    arena.run(&sandbox, &["perl", "-e", watcher]).await?;
    for _ in 0..10 {
        // It fails in one way or another: the runtime is not an interpreter of scripts.
        let _ = arena.run(&sandbox, &["/tmp/trap", "version"]).await;
    }
    let opened = arena.run(&sandbox, &["cat", "/tmp/opened"]).await?;
    let in_own_layer = arena.has_of_its_own("files that are running")
        && ["/.warren/init", "/tmp/trap"].contains(&opened.stdout.as_str());
    ensure!(opened.code != Some(0) || in_own_layer, "{opened:?}");
    arena.delete(&sandbox).await
}

pub(super) async fn stand_on_a_leaked_descriptor(arena: &Arena) -> Result<()> {
    // CVE-2024-21626: a working directory that is one of the runtime's descriptors.
    let program = format!(
        "my $b = ' ' x 4096; my $n = syscall({}, $b, 4096); $| = 1; print 'at ', substr($b, 0, $n - 1), qq(\\n); sleep 100000",
        libc::SYS_getcwd
    );
    // A sandbox takes longer if it has to start a kernel.
    let step = if arena.has_of_its_own("descriptors") { 5 } else { 1 };
    for number in (3..30).step_by(step) {
        let name = format!("standing-{number}");
        let container = json!({
            "workingDir": format!("/proc/self/fd/{number}"),
            "command": ["perl", "-e", program],
        });
        let sandbox = arena.sandbox_unready(&name, container).await?;
        let pod = arena
            .pod_until(&sandbox, "the container starts or fails to", |pod| {
                let status = pod.status.as_ref();
                let container = status.and_then(|status| status.container_statuses.as_ref()?.first());
                container.and_then(|container| container.state.as_ref()).is_some_and(|state| {
                    state.running.is_some()
                        || state.terminated.is_some()
                        || state.waiting.as_ref().and_then(|waiting| waiting.message.as_ref()).is_some()
                })
            })
            .await?;
        let state = pod.status.and_then(|status| status.container_statuses?.into_iter().next()?.state);
        if state.as_ref().is_some_and(|state| state.running.is_some()) {
            let pods: Api<Pod> = Api::namespaced(arena.client.clone(), "default");
            let place = until("it says where it is", async || {
                let text = pods.logs(&sandbox::pod_name(&sandbox), &LogParams::default()).await?;
                Ok(text.strip_prefix("at ").filter(|text| text.ends_with('\n')).map(str::to_owned))
            })
            .await?;
            // The kernel prints `(unreachable)` for a place outside the sandbox.
            ensure!(place.starts_with('/'), "descriptor {number} leads to {place}");
        }
        arena.delete(&sandbox).await?;
    }
    Ok(())
}

pub(super) async fn find_leaked_descriptors(arena: &Arena) -> Result<()> {
    // The fourth is the directory that is being listed.
    let own = arena.shell("ls /proc/self/fd | tr '\\n' ' '").await?;
    ensure!(own.stdout == "0 1 2 3 ", "{own:?}");
    // Alone: another program that is just being loaded has its libraries open.
    let all = arena.shell("ls -l /proc/[0-9]*/fd 2>/dev/null; true").await?;
    // The null device is the host's, opened before the container had one; a file leads nowhere.
    // `host:` is gVisor's name for the pipes of its own streams.
    let harmless =
        ["host:", "pipe:", "socket:", "/dev/null", "/null", "/dev/pts/", "anon_inode:[signalfd]", "/proc/"];
    for target in all.stdout.lines().filter_map(|line| Some(line.rsplit_once("-> ")?.1)) {
        ensure!(harmless.iter().any(|known| target.starts_with(known)), "a descriptor leads to {target}");
    }
    Ok(())
}

pub(super) async fn find_variables_of_the_daemon(arena: &Arena) -> Result<()> {
    let ended = arena
        .shell("env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'; cat /proc/1/cmdline | tr '\\0' ' '")
        .await?;
    ensure!(!ended.stdout.contains(VARIABLE) && !ended.stdout.contains("WARREN_HOME"), "{ended:?}");
    Ok(())
}

pub(super) async fn find_variables_of_the_runtime(arena: &Arena) -> Result<()> {
    // The shim's memory from before it executed the program is gone: none of it is in this process.
    let data = arena.data_dir().display().to_string();
    let program = format!(
        "my $word = join('', reverse(split(//, '{}'))); open(M, '<', '/proc/self/maps'); open(F, '<', '/proc/self/mem'); \
         for (<M>) {{ next unless /^([0-9a-f]+)-([0-9a-f]+) r.*(stack|vdso|vvar)?/; my ($a, $b) = (hex $1, hex $2); \
         next if $b - $a > (1 << 26) or $a > 0x7fffffffffff; seek(F, $a, 0); my $t; read(F, $t, $b - $a); \
         exit 9 if defined $t and index($t, $word) >= 0 and $t !~ /reverse/ and not /heap/; }} exit 0",
        data.chars().rev().collect::<String>()
    );
    let ended = arena.perl(&program).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok(())
}

pub(super) async fn put_something_else_in_the_place_of_dev_null(arena: &Arena) -> Result<()> {
    let sandbox = arena.sandbox("null", json!({})).await?;
    let script = "rm -f /dev/null; mv /dev/null /dev/other; mkfifo /dev/null; ln -sf /etc/passwd /dev/stdout; \
                  rm -rf /dev/pts /dev/fd; mkfifo /dev/fd; true";
    arena.run(&sandbox, &["sh", "-c", script]).await?;
    // An exec neither depends on the new file there nor writes to it.
    let ended = arena.run(&sandbox, &["sh", "-c", "cat; echo out"]).await?;
    ensure!(ended.stdout == "out\n", "{ended:?}");
    arena.delete(&sandbox).await
}

pub(super) async fn forge_log_lines(arena: &Arena) -> Result<()> {
    let script = "printf '2020-01-01T00:00:00Z stderr F forged\\n\\033[2J\\000\\r2020-01-01T00:00:00.0Z stdout P x\\n'; \
                  echo end; exec sleep 100000";
    let sandbox = arena.sandbox("forger", json!({ "command": ["sh", "-c", script] })).await?;
    let pods: Api<Pod> = Api::namespaced(arena.client.clone(), "default");
    let name = sandbox::pod_name(&sandbox);
    let text = until("the log has it all", async || {
        let text = pods.logs(&name, &LogParams { timestamps: true, ..LogParams::default() }).await?;
        Ok(text.contains(" end\n").then_some(text))
    })
    .await?;
    let lines: Vec<&str> = text.lines().collect();
    ensure!(lines.len() == 3 && !lines.iter().any(|line| line.starts_with("2020")), "{lines:?}");
    arena.delete(&sandbox).await
}

pub(super) async fn push_input_into_the_callers_terminal(arena: &Arena) -> Result<()> {
    // TIOCSTI: characters as if they had been typed. The terminal is the sandbox's, so they can
    // only reach the sandbox itself.
    let mark = format!("/tmp/warren-escape-typed-{}", std::process::id());
    let program = format!(
        "for my $c (split //, \"touch {mark}\\n\") {{ syscall({}, 0, 0x5412, $c) }} exit 0",
        libc::SYS_ioctl
    );
    let ended = arena.on_a_terminal(&["perl", "-e", &program]).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    ensure!(!std::path::Path::new(&mark).exists(), "{mark} was made on the host");
    Ok(())
}

pub(super) async fn reach_a_neighbours_files(arena: &Arena) -> Result<()> {
    let ended = arena
        .neighbour(&format!("mkdir -p /workspace && echo {SECRET} > /workspace/of-the-neighbour"))
        .await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let ended = arena
        .shell("find / -xdev -path /usr -prune -o -name of-the-neighbour -print 2>/dev/null; ls /workspace")
        .await?;
    ensure!(!ended.stdout.contains("of-the-neighbour"), "{ended:?}");
    if arena.lacks("ids of each pod's own") {
        return Ok(());
    }
    // With other ids on the host, one pod cannot even read the other's files by id.
    use std::os::unix::fs::MetadataExt as _;
    let own = arena.attackers_directory().await?;
    let mut owners = Vec::new();
    for pod in std::fs::read_dir(own.parent().unwrap_or(&own))?.flatten() {
        let upper = pod.path().join("containers/main/0/0.upper");
        if let Ok(metadata) = std::fs::metadata(upper) {
            owners.push(metadata.uid());
        }
    }
    let count = owners.len();
    owners.sort_unstable();
    owners.dedup();
    ensure!(count >= 2 && owners.len() == count && !owners.contains(&0), "{owners:?}");
    Ok(())
}
