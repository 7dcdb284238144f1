//! Attempts to use up shared resources.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use kube::api::Api;
use serde_json::{Value, json};
use warren_api::Sandbox;
use warren_client::sandbox;

use super::arena::{Arena, until};

/// Returns limits that are reached quickly, if the home enforces any.
fn small(arena: &Arena, memory: &str) -> Value {
    if arena.lacks("limits on memory and processors") {
        return json!({});
    }
    json!({ "resources": { "limits": { "memory": memory, "cpu": "1" } } })
}

fn terminated(pod: &Pod) -> Option<&ContainerStateTerminated> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.as_ref()?.terminated.as_ref()
}

pub(super) async fn fork_without_end(arena: &Arena) -> Result<()> {
    let sandbox = arena.sandbox("forks", small(arena, "256Mi")).await?;
    let bomb = "$SIG{CHLD} = 'IGNORE'; close STDOUT; close STDERR; fork while 1";
    // In the background: the first process of a bomb may never end.
    let start = format!("perl -e '{bomb}' >/dev/null 2>&1 & sleep 1; echo started");
    let _ = arena.run(&sandbox, &["sh", "-c", &start]).await;
    if arena.lacks("a count of forks that failed") {
        // The limit is on the users of the pod's namespace; exactly as many processes as it allows
        // exist.
        let count = || super::processes::processes_with("close STDOUT; close STDERR; fork while 1").len();
        until("the limit is reached", async || Ok((count() > 200).then_some(()))).await?;
        ensure!(count() <= 256, "{} processes", count());
        arena.check_outside().await.context("while it goes on")?;
        return arena.delete(&sandbox).await;
    }
    let directory = arena.pod_directory(&sandbox).await?;
    let pods: Api<Pod> = Api::namespaced(arena.client.clone(), "default");
    let name = sandbox::pod_name(&sandbox);
    until("the limit is reached", async || {
        // A kernel in user space ends when it cannot create one more thread. Then its pod's state
        // is gone, and the pod's status says why.
        let pod = pods.get(&name).await?;
        let said = terminated(&pod).and_then(|ended| ended.message.as_deref());
        if said.is_some_and(|message| message.contains("processes reached")) {
            return Ok(Some(()));
        }
        let state = std::fs::read(directory.join("state.json")).unwrap_or_default();
        let state: Value = serde_json::from_slice(&state).unwrap_or_default();
        Ok((state["containers"]["main"]["pids_limit_hits"].as_u64() > Some(0)).then_some(()))
    })
    .await?;
    arena.check_outside().await.context("while it goes on")?;
    arena.delete(&sandbox).await
}

pub(super) async fn take_all_memory(arena: &Arena) -> Result<()> {
    if arena.lacks("a limit on memory") {
        return Ok(());
    }
    let mut container = small(arena, "32Mi");
    container["command"] = json!(["tail", "/dev/zero"]);
    let sandbox = arena.sandbox_unready("memory", container).await?;
    let pod = arena.pod_until(&sandbox, "it is killed", |pod| terminated(pod).is_some()).await?;
    let ended = terminated(&pod).context("it was there")?;
    ensure!(ended.reason.as_deref() == Some("OOMKilled") && ended.exit_code == 137, "{ended:?}");
    arena.delete(&sandbox).await
}

pub(super) async fn fill_shared_memory(arena: &Arena) -> Result<()> {
    let sandbox = arena.sandbox("shm", small(arena, "256Mi")).await?;
    let script = "cat /dev/zero > /dev/shm/fill 2>/dev/null; stat -c %s /dev/shm/fill; cat /dev/zero > /dev/fill 2>/dev/null; \
                  stat -c %s /dev/fill";
    let ended = arena.run(&sandbox, &["sh", "-c", script]).await?;
    let sizes: Vec<u64> = ended.stdout.lines().filter_map(|line| line.parse().ok()).collect();
    if arena.has_of_its_own("a `/dev` without a limit but that of the sandbox's memory") {
        ensure!(sizes.first().is_some_and(|size| *size <= 64 << 20), "{ended:?}");
        let pod = arena.pod_until(&sandbox, "it is killed", |pod| terminated(pod).is_some()).await?;
        let ended = terminated(&pod).context("it was there")?;
        ensure!(ended.reason.as_deref() == Some("OOMKilled"), "{ended:?}");
        return arena.delete(&sandbox).await;
    }
    ensure!(sizes.len() == 2 && sizes[0] <= 64 << 20 && sizes[1] <= 64 << 10, "{ended:?}");
    arena.delete(&sandbox).await
}

pub(super) async fn open_files_without_end(arena: &Arena) -> Result<()> {
    if arena.lacks("a limit on memory, which bounds what open files cost") {
        return Ok(());
    }
    let sandbox = arena.sandbox("files", small(arena, "64Mi")).await?;
    // Each open file uses kernel memory that counts for the sandbox: it ends at its limit of files
    // or of memory.
    let program = "for (1..8) { fork or last } my @f; while (1) { open(my $f, '<', '/dev/null') or last; push @f, $f } exit 0";
    let _ = arena.run(&sandbox, &["perl", "-e", program]).await;
    arena.check_outside().await.context("afterwards")?;
    std::fs::File::open("/dev/null").context("the host can open files")?;
    arena.delete(&sandbox).await
}

pub(super) async fn take_all_terminals(arena: &Arena) -> Result<()> {
    let program = "my $n = 0; my @f; while ($n < 5000) { open(my $f, '+<', '/dev/ptmx') or last; push @f, $f; $n++ } print $n";
    let ended = arena.perl(program).await?;
    let count: u32 = ended.stdout.parse()?;
    let limited = (1..=256).contains(&count);
    ensure!(limited || arena.has_of_its_own("terminals, as many as it has memory for"), "{count} terminals");
    rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY)
        .context("the host can open a terminal")?;
    Ok(())
}

fn size_of(directory: &std::path::Path) -> Result<u64> {
    let mut size = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        size += match entry.file_type()?.is_dir() {
            true => size_of(&entry.path())?,
            // The log file may be rotated meanwhile.
            false => entry.metadata().map_or(0, |metadata| metadata.len()),
        };
    }
    Ok(size)
}

pub(super) async fn write_logs_without_end(arena: &Arena) -> Result<()> {
    let script =
        "head -c 150000000 /dev/zero | tr '\\0' 'x' | fold -w 1000; touch /tmp/done; exec sleep 100000";
    let sandbox = arena.sandbox("flood", json!({ "command": ["sh", "-c", script] })).await?;
    let logs = arena.pod_directory(&sandbox).await?.join("logs");
    until("it has written it all", async || {
        ensure!(size_of(&logs)? < 64 << 20, "the logs have {} bytes", size_of(&logs)?);
        let ended = arena.run(&sandbox, &["test", "-e", "/tmp/done"]).await?;
        Ok((ended.code == Some(0)).then_some(()))
    })
    .await?;
    ensure!(size_of(&logs)? < 64 << 20, "the logs have {} bytes", size_of(&logs)?);
    arena.delete(&sandbox).await
}

pub(super) async fn write_one_line_without_end(arena: &Arena) -> Result<()> {
    let script = "head -c 30000000 /dev/zero | tr '\\0' 'x'; touch /tmp/done; exec sleep 100000";
    let sandbox = arena.sandbox("line", json!({ "command": ["sh", "-c", script] })).await?;
    until("it has written it all", async || {
        let ended = arena.run(&sandbox, &["test", "-e", "/tmp/done"]).await?;
        Ok((ended.code == Some(0)).then_some(()))
    })
    .await?;
    arena.delete(&sandbox).await
}

pub(super) async fn leave_zombies_without_end(arena: &Arena) -> Result<()> {
    let sandbox = arena.sandbox("zombies", small(arena, "256Mi")).await?;
    // Orphans whose parents ended before them: only the init can reap them.
    let program = "for (1..600) { my $p = fork; if (defined $p and $p == 0) { fork and exit; exit } waitpid($p, 0) if $p }";
    let _ = arena.run(&sandbox, &["perl", "-e", program]).await;
    let script = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l";
    until("they are reaped", async || {
        let ended = arena.run(&sandbox, &["sh", "-c", script]).await?;
        Ok((ended.stdout.trim() == "0").then_some(()))
    })
    .await?;
    arena.delete(&sandbox).await
}

pub(super) async fn take_all_processor_time(arena: &Arena) -> Result<()> {
    if arena.lacks("a limit on processors") {
        return Ok(());
    }
    let mut container = small(arena, "64Mi");
    container["resources"]["limits"]["cpu"] = json!("100m");
    let sandbox = arena.sandbox("busy", container).await?;
    let program = "for (1..7) { fork or last } close STDOUT; close STDERR; 1 while 1";
    let start = format!("perl -e '{program}' >/dev/null 2>&1 & echo started");
    arena.run(&sandbox, &["sh", "-c", &start]).await?;
    arena.check_outside().await.context("while it goes on")?;
    arena.delete(&sandbox).await
}

pub(super) async fn nest_directories_without_end(arena: &Arena) -> Result<()> {
    let sandbox = arena.sandbox("nest", json!({})).await?;
    // Deeper than the longest path: removing the pod must neither overflow nor fail.
    let program = "chdir '/tmp'; my $name = 'd' x 200; for (1..3000) { mkdir $name; chdir $name or last } print 'nested'";
    let ended = arena.run(&sandbox, &["perl", "-e", program]).await?;
    ensure!(ended.stdout == "nested", "{ended:?}");
    let directory = arena.pod_directory(&sandbox).await?;
    arena.delete(&sandbox).await?;
    until("its files are gone", async || Ok((!directory.exists()).then_some(()))).await
}

/// Waits until a sandbox's pod was evicted with this message, and its files are gone.
async fn evicted(arena: &Arena, sandbox: &Sandbox, message: &str) -> Result<()> {
    let directory = arena.pod_directory(sandbox).await?;
    let failed = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Failed");
    let pod = arena.pod_until(sandbox, "it is evicted", failed).await?;
    let status = pod.status.context("a status")?;
    ensure!(status.reason.as_deref() == Some("Evicted"), "{status:?}");
    ensure!(status.message.as_deref() == Some(message), "{status:?}");
    for place in ["containers", "volumes"] {
        ensure!(!directory.join(place).exists(), "{place} of the pod are still there");
    }
    arena.delete(sandbox).await
}

/// Writes 512 MiB in small pieces: slowly enough that a host without limits is not filled by this
/// test.
const FILL: &str =
    "for i in $(seq 128); do head -c 4194304 /dev/zero >> fill || break; sleep 0.02; done; exec sleep 100000";

pub(super) async fn fill_the_disk(arena: &Arena) -> Result<()> {
    let container = json!({
        "command": ["sh", "-c", FILL], "workingDir": "/var",
        "resources": { "limits": { "ephemeral-storage": "32Mi" } },
    });
    let sandbox = arena.sandbox("disk", container).await?;
    evicted(arena, &sandbox, "Pod ephemeral local storage usage exceeds the total limit of containers 32Mi. ")
        .await
}

pub(super) async fn fill_the_disk_with_files_that_have_no_name(arena: &Arena) -> Result<()> {
    let program = "open(my $f, '>', '/var/fill'); unlink '/var/fill'; my $zeros = \"\\0\" x 4194304; \
                   for (1..128) { syswrite($f, $zeros) or last; select(undef, undef, undef, 0.02) } sleep 100000";
    let container = json!({
        "command": ["perl", "-e", program],
        "resources": { "limits": { "ephemeral-storage": "32Mi" } },
    });
    let sandbox = arena.sandbox("nameless", container).await?;
    evicted(arena, &sandbox, "Pod ephemeral local storage usage exceeds the total limit of containers 32Mi. ")
        .await
}

pub(super) async fn fill_a_volume(arena: &Arena) -> Result<()> {
    let container = json!({
        "command": ["sh", "-c", FILL], "workingDir": "/data",
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        "volumes": [{ "name": "data", "emptyDir": { "sizeLimit": "16Mi" } }],
    });
    let sandbox = arena.sandbox("volume", container).await?;
    evicted(arena, &sandbox, "Usage of EmptyDir volume \"data\" exceeds the limit \"16Mi\". ").await
}
