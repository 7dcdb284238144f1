//! The scenarios of a node, one function each.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use http_body_util::BodyExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, AttachParams, DeleteParams, LogParams};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::kubelet::{self, Exec};
use crate::support::{DEADLINE, Home, Machine, condition, is_ready, main_status, phase, restarts, until};

pub async fn a_pod_becomes_ready_and_leaves_nothing(machine: Machine) {
    let home = Home::new(&machine, "ready").await;
    let pod = home.create_ready("box").await;
    let status = pod.status.as_ref().unwrap();
    assert_eq!(phase(&pod), "Running");
    assert!(status.pod_ips.as_ref().is_some_and(|ips| ips.len() == 1), "{status:?}");
    assert_eq!(status.host_ip.as_deref(), Some("127.0.0.1"));
    let isolation = condition(&pod, "warren.dev/isolation").unwrap();
    assert_eq!((isolation.status.as_str(), isolation.reason.as_deref()), ("True", Some("Namespaces")));
    let main = main_status(&pod).unwrap();
    assert!(main.container_id.as_deref().unwrap().starts_with("warren://"));
    assert!(main.state.as_ref().unwrap().running.is_some());
    let (code, list) = kubelet::get(home.node(), "/pods").await;
    assert_eq!(code, 200);
    assert!(list.contains("\"box\""), "{list}");
    assert_eq!(kubelet::get(home.node(), "/healthz").await, (200, "ok".to_owned()));
    home.delete("box").await;
    home.close().await;
}

pub async fn exec_carries_streams_and_exit_codes(machine: Machine) {
    let home = Home::new(&machine, "exec").await;
    home.create_ready("box").await;
    let node = home.node();

    let both = kubelet::run(node, "exec", "box", &["sh", "-c", "echo out; echo err >&2; exit 7"]).await;
    assert_eq!((both.stdout.as_str(), both.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(
        both.status,
        r#"{"metadata":{},"status":"Failure","message":"command terminated with exit code 7","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#
    );
    assert_eq!(
        kubelet::run(node, "exec", "box", &["true"]).await.status,
        r#"{"metadata":{},"status":"Success"}"#
    );
    assert_eq!(kubelet::run(node, "exec", "box", &["sh", "-c", "kill -9 $$"]).await.exit_code(), 137);

    let mut echo = Exec::start(node, "exec", "box", &["cat"], "input=1&output=1&error=1").await;
    assert_eq!(echo.protocol, "v5.channel.k8s.io");
    echo.send(0, b"some ").await;
    echo.send(0, b"data").await;
    echo.close_stdin().await;
    let echoed = echo.finish().await;
    assert_eq!((echoed.stdout.as_str(), echoed.exit_code()), ("some data", 0));

    let old =
        Exec::start_with(node, "exec", "box", &["echo", "old"], "stdout=true", "v4.channel.k8s.io").await;
    assert_eq!(old.protocol, "v4.channel.k8s.io");
    assert_eq!(old.finish().await.stdout, "old\n");

    // A megabyte arrives complete and in order.
    let long = kubelet::run(node, "exec", "box", &["sh", "-c", "seq 150000; echo end >&2"]).await;
    assert_eq!(long.stdout.lines().count(), 150_000);
    assert!(long.stdout.ends_with("150000\n"));

    // A background process of a command does not keep its session open.
    let left = kubelet::run(node, "exec", "box", &["sh", "-c", "sleep 1000 & echo started"]).await;
    assert_eq!((left.stdout.as_str(), left.exit_code()), ("started\n", 0));

    let missing = kubelet::run(node, "exec", "box", &["/no/such/program"]).await;
    assert_eq!(missing.exit_code(), 127, "{missing:?}");
    assert!(missing.status.contains("/no/such/program"), "{missing:?}");

    let (code, text) = kubelet::get(node, "/exec/exec/nobody/main?command=true&output=1").await;
    assert_eq!((code, text.as_str()), (404, "pod does not exist"));
    let (code, text) = kubelet::get(node, "/exec/exec/box/other?command=true&output=1").await;
    assert_eq!((code, text.as_str()), (404, "container not found (\"other\")"));
    assert_eq!(kubelet::get(node, "/exec/exec/box/main?command=true&output=1").await.0, 400);
    home.create("waits", json!({"image": "example.com/none"}), json!({})).await;
    until("the node knows of it", async || kubelet::get(node, "/pods").await.1.contains("\"waits\"")).await;
    let (code, text) = kubelet::get(node, "/exec/exec/waits/main?command=true&output=1").await;
    assert_eq!((code, text.as_str()), (500, "container \"main\" is not running"));
    home.delete("waits").await;
    home.delete("box").await;
    home.close().await;
}

pub async fn exec_with_a_terminal(machine: Machine) {
    let home = Home::new(&machine, "tty").await;
    home.create_ready("box").await;
    let mut shell = Exec::start(home.node(), "tty", "box", &["sh"], "input=1&output=1&tty=1").await;
    shell.send(4, br#"{"Width":123,"Height":45}"#).await;
    shell.send(0, b"test -t 0 && stty size\n").await;
    shell.read_until("45 123").await;
    shell.send(0, b"exit 3\n").await;
    let outcome = shell.finish().await;
    assert_eq!(outcome.exit_code(), 3, "{outcome:?}");
    home.delete("box").await;
    home.close().await;
}

pub async fn exec_ends_with_its_client(machine: Machine) {
    let home = Home::new(&machine, "gone").await;
    home.create_ready("box").await;
    let node = home.node();
    let mut exec =
        Exec::start(node, "gone", "box", &["sh", "-c", "echo $$; sleep 1234; true"], "output=1").await;
    exec.read_until("\n").await;
    drop(exec);
    // A client whose input is not read is noticed, too.
    let mut deaf =
        Exec::start(node, "gone", "box", &["sh", "-c", "echo up; sleep 4321; true"], "input=1&output=1")
            .await;
    deaf.read_until("up").await;
    for _ in 0..8 {
        let full = tokio::time::timeout(Duration::from_millis(300), deaf.send(0, &[b'x'; 32 << 10])).await;
        if full.is_err() {
            break;
        }
    }
    drop(deaf);
    until("both are killed", async || {
        let left =
            kubelet::run(node, "gone", "box", &["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).await;
        !left.stdout.contains("sleep 1234") && !left.stdout.contains("sleep 4321")
    })
    .await;
    home.delete("box").await;
    home.close().await;
}

pub async fn an_endless_writer_waits_for_its_reader(machine: Machine) {
    let home = Home::new(&machine, "endless").await;
    home.create_ready("box").await;
    let script = "echo $$ is it; exec cat /dev/zero";
    let mut exec = Exec::start(home.node(), "endless", "box", &["sh", "-c", script], "output=1").await;
    let said = exec.read_until(" is it").await;
    let pid = said.split_whitespace().next().unwrap().to_owned();
    let before = resident_kib();
    // The client stops reading, so after a while the writer must block. Without a bound it never
    // would.
    let written = async || {
        let script = format!("grep wchar /proc/{pid}/io");
        kubelet::run(home.node(), "endless", "box", &["sh", "-c", &script]).await.stdout
    };
    until("the writer stands still", async || {
        let first = written().await;
        first.contains("wchar") && first == written().await && first == written().await
    })
    .await;
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 16 << 10, "grew by {grown} KiB");
    drop(exec);
    home.delete("box").await;
    home.close().await;
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

pub async fn logs_can_be_cut_followed_and_of_the_run_before(machine: Machine) {
    let home = Home::new(&machine, "logs").await;
    let node = home.node();
    let script =
        "echo one; echo two; echo three; while ! test -e /tmp/go; do sleep 0.02; done; echo four; exit 5";
    home.create("box", json!({"command": ["sh", "-c", script]}), json!({})).await;
    home.wait("box", "ready", is_ready).await;
    let log = async |query: &str| kubelet::get(node, &format!("/containerLogs/logs/box/main?{query}")).await;
    until("three lines are there", async || log("").await == (200, "one\ntwo\nthree\n".to_owned())).await;
    assert_eq!(log("tailLines=1").await.1, "three\n");
    assert_eq!(log("limitBytes=5").await.1, "one\nt");
    let timed = log("timestamps=true&tailLines=1").await.1;
    let (time, text) = timed.split_once(' ').unwrap();
    assert_eq!(text, "three\n");
    assert!(time.ends_with('Z') || time.contains('+'), "{time}");
    let (code, text) = log("previous=true").await;
    assert_eq!(
        (code, text.as_str()),
        (400, "previous terminated container \"main\" in pod \"box\" not found")
    );
    assert_eq!(kubelet::get(node, "/containerLogs/logs/box/other").await.0, 404);
    assert_eq!(log("tailLines=x").await.0, 400);

    let (_, mut followed) = kubelet::open(node, "/containerLogs/logs/box/main?follow=true&tailLines=1").await;
    let mut seen = String::new();
    // The container ends at this and may kill the command before it has ended by itself.
    let code = kubelet::run(node, "logs", "box", &["touch", "/tmp/go"]).await.exit_code();
    assert!(matches!(code, 0 | 137), "{code}");
    let read = tokio::time::timeout(DEADLINE, async {
        while let Some(frame) = followed.frame().await {
            seen.push_str(&String::from_utf8_lossy(&frame.unwrap().into_data().unwrap()));
        }
    });
    read.await.expect("following ends with the run");
    assert_eq!(seen, "three\nfour\n");

    home.wait("box", "restarted", |pod| restarts(pod) == 1 && is_ready(pod)).await;
    until("the run before has its log", async || {
        log("previous=true").await == (200, "one\ntwo\nthree\nfour\n".to_owned())
    })
    .await;
    home.delete("box").await;
    home.close().await;
}

pub async fn a_finished_pod_says_how_it_ended(machine: Machine) {
    let home = Home::new(&machine, "finished").await;
    for (name, code, wanted, reason) in [("fine", 0, "Succeeded", "Completed"), ("bad", 7, "Failed", "Error")]
    {
        let script = format!("echo {name}; exit {code}");
        home.create(name, json!({"command": ["sh", "-c", script]}), json!({"restartPolicy": "Never"})).await;
        let pod = home.wait(name, "finished", |pod| phase(pod) == wanted).await;
        let ended = main_status(&pod).unwrap().state.as_ref().unwrap().terminated.clone().unwrap();
        assert_eq!((ended.exit_code, ended.reason.as_deref()), (code, Some(reason)));
        // The log outlives the sandbox.
        let (_, log) = kubelet::get(home.node(), &format!("/containerLogs/finished/{name}/main")).await;
        assert_eq!(log, format!("{name}\n"));
    }
    home.create("never", json!({"command": ["/no/such/program"]}), json!({"restartPolicy": "Never"})).await;
    let pod = home.wait("never", "failed", |pod| phase(pod) == "Failed").await;
    let ended = main_status(&pod).unwrap().state.as_ref().unwrap().terminated.clone().unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (128, Some("StartError")));
    assert!(ended.message.as_deref().unwrap().contains("/no/such/program"), "{ended:?}");

    let loop_ = json!({"command": ["sh", "-c", "exit 1"]});
    home.create("loop", loop_, json!({})).await;
    let waits = |pod: &k8s_openapi::api::core::v1::Pod| {
        let state = main_status(pod).and_then(|status| status.state.clone());
        state.and_then(|state| state.waiting?.reason).as_deref() == Some("CrashLoopBackOff")
    };
    let pod = home.wait("loop", "backing off", waits).await;
    assert_eq!(restarts(&pod), 1);
    for name in ["fine", "bad", "never", "loop"] {
        home.delete(name).await;
    }
    home.close().await;
}

pub async fn a_pod_is_started_as_its_spec_says(machine: Machine) {
    let home = Home::new(&machine, "spec").await;
    let container = json!({
        "env": [
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "GREETING", "value": "hello $(POD)"},
        ],
        "workingDir": "/data",
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "readOnlyRootFilesystem": true},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "memory", "mountPath": "/fast"}],
        "resources": {"limits": {"memory": "256Mi", "cpu": "500m"}},
    });
    let spec = json!({
        "hostname": "chosen",
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
    });
    home.create("box", container, spec).await;
    home.wait("box", "ready", is_ready).await;
    let script = "echo $GREETING; pwd; id -u; id -g; hostname; touch /data/x && echo written; touch /etc/x 2>/dev/null || echo kept; \
                  head -c 2000000 /dev/zero > /fast/x 2>/dev/null || echo full";
    let outcome = kubelet::run(home.node(), "spec", "box", &["sh", "-c", script]).await;
    assert_eq!(outcome.stdout, "hello box\n/data\n1000\n1000\nchosen\nwritten\nkept\nfull\n", "{outcome:?}");
    home.delete("box").await;
    home.close().await;
}

pub async fn a_node_finds_its_pods_again(machine: Machine) {
    let mut home = Home::new(&machine, "again").await;
    let before = home.create_ready("box").await;
    kubelet::run(home.node(), "again", "box", &["touch", "/tmp/mark"]).await;
    home.stop_node().await;
    home.start_node();
    until("the node knows its pod", async || kubelet::get(home.node(), "/pods").await.1.contains("\"box\""))
        .await;
    let marked = kubelet::run(home.node(), "again", "box", &["test", "-e", "/tmp/mark"]).await;
    assert_eq!(marked.exit_code(), 0, "{marked:?}");
    let after = home.pods().get("box").await.unwrap();
    assert_eq!(main_status(&after).unwrap().container_id, main_status(&before).unwrap().container_id);
    assert_eq!(
        after.metadata.resource_version, before.metadata.resource_version,
        "nothing changed, so nothing was written"
    );

    // The shim dies unexpectedly: the pod is started again.
    let uid = before.metadata.uid.unwrap();
    let state = warren_oci::cleanup::read_state(&home.data.path().join("pods").join(&uid)).unwrap().unwrap();
    let shim = rustix::process::Pid::from_raw(state.shim.pid).unwrap();
    rustix::process::kill_process(shim, rustix::process::Signal::KILL).unwrap();
    let restarted = home.wait("box", "restarted", |pod| restarts(pod) == 1 && is_ready(pod)).await;
    let last = main_status(&restarted).unwrap().last_state.clone().and_then(|last| last.terminated).unwrap();
    assert_eq!(last.reason.as_deref(), Some("ContainerStatusUnknown"));
    let fresh = kubelet::run(home.node(), "again", "box", &["test", "-e", "/tmp/mark"]).await;
    assert_eq!(fresh.exit_code(), 1, "{fresh:?}");

    // The same while no node runs.
    home.stop_node().await;
    let state = warren_oci::cleanup::read_state(&home.data.path().join("pods").join(&uid)).unwrap().unwrap();
    let shim = rustix::process::Pid::from_raw(state.shim.pid).unwrap();
    rustix::process::kill_process(shim, rustix::process::Signal::KILL).unwrap();
    until("the shim is gone", async || !state.shim.is_alive()).await;
    home.start_node();
    home.wait("box", "restarted again", |pod| restarts(pod) == 2 && is_ready(pod)).await;
    home.delete("box").await;
    home.close().await;
}

pub async fn pods_that_vanished_while_no_node_ran_are_removed(machine: Machine) {
    let mut home = Home::new(&machine, "vanished").await;
    home.create_ready("one").await;
    home.create_ready("two").await;
    home.stop_node().await;
    // Only the node removes a bound pod, unless it is deleted by force.
    home.pods().delete("one", &DeleteParams::default().grace_period(0)).await.unwrap();
    home.pods().delete("two", &DeleteParams::default()).await.unwrap();
    home.wait_gone("one").await;
    home.start_node();
    home.wait_gone("two").await;
    home.close().await;
}

pub async fn a_node_that_keeps_dying_loses_and_leaks_nothing(machine: Machine) {
    let mut home = Home::new(&machine, "dying").await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let names: Vec<String> = (0..12).map(|number| format!("box-{number}")).collect();
    for name in &names {
        home.create(name, json!({}), json!({})).await;
        // Dropping a node stops it between any two steps, like a crash.
        tokio::time::sleep(Duration::from_micros(random.u64(0..30_000))).await;
        home.stop_node().await;
        home.start_node();
    }
    for name in &names {
        home.wait(name, "ready", is_ready).await;
    }
    for name in &names {
        home.pods().delete(name, &DeleteParams::default()).await.unwrap();
        tokio::time::sleep(Duration::from_micros(random.u64(0..15_000))).await;
        home.stop_node().await;
        home.start_node();
    }
    for name in &names {
        home.wait_gone(name).await;
    }
    home.close().await;
}

pub async fn limits_show_in_the_status(machine: Machine) {
    let home = Home::new(&machine, "limits").await;
    let limits = json!({"resources": {"limits": {"memory": "64Mi"}}});
    let mut bomb = limits.clone();
    bomb["command"] = json!(["sh", "-c", "exec tail /dev/zero"]);
    home.create("memory", bomb, json!({"restartPolicy": "Never"})).await;
    let pod = home.wait("memory", "failed", |pod| phase(pod) == "Failed").await;
    let ended = main_status(&pod).unwrap().state.as_ref().unwrap().terminated.clone().unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (137, Some("OOMKilled")));

    // In an exec only that command dies, and the pod's status has the reason.
    home.create("box", limits, json!({})).await;
    home.wait("box", "ready", is_ready).await;
    let outcome = kubelet::run(home.node(), "limits", "box", &["tail", "/dev/zero"]).await;
    assert_eq!(outcome.exit_code(), 137, "{outcome:?}");
    let reached = |reason: &'static str| {
        move |pod: &k8s_openapi::api::core::v1::Pod| {
            condition(pod, "warren.dev/limit-reached")
                .is_some_and(|found| found.reason.as_deref() == Some(reason))
        }
    };
    let pod = home.wait("box", "marked for memory", reached("OOMKilled")).await;
    assert!(is_ready(&pod));

    home.create_ready("forks").await;
    let bomb = "i=0; while [ $i -lt 400 ]; do sleep 30 & i=$((i+1)); done 2>/dev/null; true";
    let fork_bomb = Exec::start(home.node(), "limits", "forks", &["sh", "-c", bomb], "output=1").await;
    let pod = home.wait("forks", "marked for processes", reached("PidsLimit")).await;
    let message = condition(&pod, "warren.dev/limit-reached").unwrap().message.clone().unwrap();
    assert!(message.contains("256 processes"), "{message}");
    drop(fork_bomb);
    for name in ["memory", "box", "forks"] {
        home.delete(name).await;
    }
    home.close().await;
}

pub async fn what_cannot_be_run_says_why(machine: Machine) {
    let home = Home::new(&machine, "refused").await;
    home.create("image", json!({"image": "docker.io/library/nginx:1.27"}), json!({})).await;
    let waiting = |pod: &k8s_openapi::api::core::v1::Pod| {
        main_status(pod).and_then(|status| status.state.as_ref()?.waiting.as_ref()?.message.clone()).is_some()
    };
    let pod = home.wait("image", "waiting", waiting).await;
    let reason = main_status(&pod).unwrap().state.as_ref().unwrap().waiting.clone().unwrap();
    assert_eq!(reason.reason.as_deref(), Some("ErrImagePull"));
    assert!(reason.message.unwrap().contains("docker.io/library/nginx:1.27"));

    let volume = json!({"volumes": [{"name": "secret", "hostPath": {"path": "/root"}}]});
    home.create("volume", json!({}), volume).await;
    let pod = home.wait("volume", "failed", |pod| phase(pod) == "Failed").await;
    let status = pod.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("UnsupportedVolume"));
    assert!(status.message.unwrap().contains("\"secret\""));
    for name in ["image", "volume"] {
        home.delete(name).await;
    }
    home.close().await;
}

pub async fn fifty_pods_at_once(machine: Machine) {
    let home = Home::new(&machine, "many").await;
    let names: Vec<String> = (0..50).map(|number| format!("box-{number}")).collect();
    join_all(names.iter().map(|name| home.create_ready(name))).await;
    let outcomes =
        join_all(names.iter().map(|name| kubelet::run(home.node(), "many", name, &["hostname"]))).await;
    let heard: BTreeSet<String> =
        outcomes.into_iter().map(|outcome| outcome.stdout.trim().to_owned()).collect();
    assert_eq!(heard, names.iter().cloned().collect());
    join_all(names.iter().map(|name| home.delete(name))).await;
    home.close().await;
}

pub async fn pods_that_nobody_placed_are_taken_and_used_through_the_api(machine: Machine) {
    if !machine.embedded {
        // A real control plane has a scheduler, and reaches nodes by address.
        return;
    }
    let mut home = Home::new(&machine, "unplaced").await;
    home.stop_node().await;
    home.bind_unassigned = true;
    home.start_node();
    home.create(
        "box",
        json!({"command": ["sh", "-c", "echo logged; exec sleep 1000"]}),
        json!({"nodeName": null}),
    )
    .await;
    let pod = home.wait("box", "ready", is_ready).await;
    assert_eq!(pod.spec.as_ref().unwrap().node_name.as_deref(), Some("unplaced"));

    let attach = AttachParams::default().stdin(true).stderr(true);
    let mut process =
        home.pods().exec("box", ["sh", "-c", "cat; echo err >&2; exit 7"], &attach).await.unwrap();
    let status = process.take_status().unwrap();
    let (mut stdin, mut stdout) = (process.stdin().unwrap(), process.stdout().unwrap());
    stdin.write_all(b"hello").await.unwrap();
    stdin.shutdown().await.unwrap();
    drop(stdin);
    let mut heard = String::new();
    stdout.read_to_string(&mut heard).await.unwrap();
    let status = status.await.unwrap();
    assert_eq!((heard.as_str(), status.reason.as_deref()), ("hello", Some("NonZeroExitCode")));
    until("the log is there", async || {
        home.pods().logs("box", &LogParams::default()).await.unwrap() == "logged\n"
    })
    .await;
    home.delete("box").await;
    home.close().await;
}

pub async fn a_scheduler_places_pods_on_the_node(machine: Machine) {
    if machine.embedded {
        // It has no scheduler: the node takes pods itself.
        return;
    }
    let mut home = Home::new(&machine, "scheduled").await;
    home.stop_node().await;
    home.heartbeat = Some(Duration::from_secs(10));
    home.start_node();
    let wish = json!({"nodeName": null, "nodeSelector": {"kubernetes.io/hostname": "scheduled"}});
    home.create("box", json!({}), wish).await;
    let pod = home.wait("box", "ready", is_ready).await;
    assert_eq!(pod.spec.as_ref().unwrap().node_name.as_deref(), Some("scheduled"));
    let leases: Api<Lease> = Api::namespaced(machine.client.clone(), "kube-node-lease");
    let lease = leases.get("scheduled").await.unwrap().spec.unwrap();
    assert_eq!(
        (lease.holder_identity.as_deref(), lease.lease_duration_seconds),
        (Some("scheduled"), Some(40))
    );
    home.delete("box").await;
    home.close().await;
}

/// Prints the durations of a pod's phases; run only when asked for by name, as a measurement proves
/// nothing.
pub async fn measure(machine: Machine) {
    let mut home = Home::new(&machine, "measure").await;
    home.stop_node().await;
    home.bind_unassigned = true;
    home.start_node();
    let mut ready = Vec::new();
    let mut exec = Vec::new();
    for number in 0..50 {
        let name = format!("box-{number}");
        let start = std::time::Instant::now();
        home.create(&name, json!({}), json!({"nodeName": null})).await;
        home.wait(&name, "ready", is_ready).await;
        ready.push(start.elapsed());
        let start = std::time::Instant::now();
        assert_eq!(kubelet::run(home.node(), "measure", &name, &["true"]).await.exit_code(), 0);
        exec.push(start.elapsed());
        home.delete(&name).await;
    }
    for (what, mut times) in [("create to Ready", ready), ("exec true", exec)] {
        times.sort();
        println!(
            "{what}: least {:?}, p50 {:?}, p90 {:?}",
            times[0],
            times[times.len() / 2],
            times[times.len() * 9 / 10]
        );
    }
    home.close().await;
}
