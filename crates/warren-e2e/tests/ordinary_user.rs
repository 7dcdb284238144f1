//! Tests a home without root: its abilities, its reported limits, and the reach of a sandbox in it.
//! Root runs these as another user; where such a user cannot make user namespaces, they are skipped
//! with a printed reason.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use warren_client::exec::{Exec, ExecRequest, Streams};
use warren_client::kube::Client;
use warren_client::kube::api::{Api, DeleteParams, LogParams, PostParams};
use warren_e2e::fake_world::{self, INTERNET, PORT};
use warren_e2e::local_home::{LocalHome, warren_binary};

/// The deadline of every wait: each takes a fraction of a second on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns true if a sandbox lacks programs that a script needs.
fn lacks_programs() -> bool {
    let missing = ["/bin/bash", "/usr/bin/perl"].into_iter().find(|program| !Path::new(program).exists());
    if let Some(program) = missing {
        eprintln!("skipped: the test's clients need {program}");
    }
    missing.is_some()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), "default")
}

fn pod(name: &str, annotations: Value, container: Value) -> Pod {
    let mut whole = json!({"name": "main", "image": "warren.dev/host"});
    for (key, value) in container.as_object().expect("fields") {
        whole[key] = value.clone();
    }
    let pod = json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [whole]},
    });
    serde_json::from_value(pod).expect("a valid pod")
}

/// Repeats until there is a result.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let seen = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(DEADLINE, seen).await.unwrap_or_else(|_| panic!("waited in vain for: {what}"))
}

/// Returns a pod's status once it runs or has failed.
async fn start(client: &Client, pod: Pod) -> PodStatus {
    let created = pods(client).create(&PostParams::default(), &pod).await.expect("create the pod");
    let name = created.metadata.name.expect("a name");
    until("the pod runs or fails", async || {
        let status = pods(client).get(&name).await.expect("get the pod").status?;
        ["Running", "Failed"].contains(&status.phase.as_deref()?).then_some(status)
    })
    .await
}

async fn sh(client: &Client, pod: &str, script: &str) -> (i32, String) {
    let request = ExecRequest {
        namespace: "default".to_owned(),
        pod: pod.to_owned(),
        container: None,
        command: ["bash", "-c", script].map(str::to_owned).to_vec(),
        stdin: false,
        tty: false,
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (_, resize) = tokio::sync::mpsc::channel(1);
    let streams = Streams { stdin: tokio::io::empty(), stdout: &mut stdout, stderr: &mut stderr, resize };
    let exec = Exec::start(client, request).await.expect("start the command");
    let code = exec.run(streams).await.expect("run the command");
    (code, String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

async fn get_by_proxy(client: &Client, pod: &str, url: &str) -> String {
    let request = format!("GET {url} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n");
    let script = format!(
        "proxy=${{HTTP_PROXY#http://}}; exec 3<>/dev/tcp/${{proxy%:*}}/${{proxy#*:}}; printf '{request}' >&3; cat <&3"
    );
    sh(client, pod, &script).await.1
}

async fn end(client: &Client, name: &str) {
    pods(client).delete(name, &DeleteParams::default()).await.expect("delete the pod");
    until("the pod is gone", async || {
        pods(client).get_opt(name).await.expect("look for the pod").is_none().then_some(())
    })
    .await;
}

/// Returns the real, effective and file system user of a process.
fn users(pid: u32) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("read the status");
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("a user");
    line.split_ascii_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_command_runs_in_a_sandbox() {
    let Some(home) = LocalHome::of_an_ordinary_user() else { return };
    let ended = home.shell("echo out; echo err >&2; id -u; exit 7");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(7), "out\n0\n"), "{ended:?}");
    assert_eq!(ended.stderr, "err\n");
    let output = home.warren_with_input(&["run", "--", "cat"], b"data");
    assert_eq!(output.stdout, b"data");

    // Its files are its own, and are deleted with it.
    let ended = home.shell("echo x > /root/here && echo y > /tmp/there && cat /root/here /tmp/there");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "x\ny\n"), "{ended:?}");
    assert_ne!(home.shell("cat /root/here").code, Some(0));

    // For the machine, the daemon has only the user's uid, and so has the sandbox's root.
    let uid = home.user().expect("a user").uid().to_string();
    assert_eq!(users(home.up()), vec![uid; 4]);
    home.assert_nothing_left();
}

#[test]
fn isolation_is_what_root_has_but_for_what_is_said() {
    let Some(home) = LocalHome::of_an_ordinary_user() else { return };
    let inside = |script: &str| {
        let ended = home.shell(script);
        assert_eq!(ended.code, Some(0), "{script}: {ended:?}");
        ended.stdout
    };
    let status = inside("cat /proc/self/status");
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default().to_owned()
    };
    assert_eq!((field("NoNewPrivs:").as_str(), field("Seccomp:").as_str()), ("1", "2"));
    let bounding = u64::from_str_radix(&field("CapBnd:"), 16).expect("hexadecimal");
    let (net_admin, sys_ptrace, sys_admin) = (1 << 12, 1 << 19, 1 << 21);
    assert_eq!(bounding & (net_admin | sys_ptrace | sys_admin), 0, "capabilities {bounding:x}");
    for namespace in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
        let path = format!("/proc/self/ns/{namespace}");
        let host = std::fs::read_link(&path).expect("read the host's namespace");
        assert_ne!(inside(&format!("readlink {path}")).trim(), host.to_string_lossy(), "{namespace}");
    }
    assert_eq!(inside("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"), "lo\n");
    // It cannot fork without limit.
    let limits = inside("grep 'Max processes' /proc/self/limits");
    let limit: u64 =
        limits.split_ascii_whitespace().nth(3).and_then(|hard| hard.parse().ok()).expect("a limit");
    assert!(limit <= 256, "{limits}");
    home.assert_nothing_left();
}

#[test]
fn the_data_directory_is_the_users() {
    let Some(home) = LocalHome::of_an_ordinary_user() else { return };
    let run = |arguments: &[&str]| {
        let mut command = home.command();
        command.env_remove("WARREN_HOME").env("XDG_DATA_HOME", home.path()).args(arguments);
        let output = command.output().expect("run warren");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&["up", "--detach"]);
    assert!(home.path().join("warren/api.sock").exists());
    assert_eq!(run(&["run", "--", "echo", "here"]), "here\n");
    // The daemon removes the remains of a run, which does not wait for that.
    warren_testkit::leaks::assert_nothing_left(&home.path().join("warren"));
    run(&["down"]);
}

#[test]
fn what_cannot_be_enforced_is_said_and_refused_if_asked_for() {
    let Some(home) = LocalHome::of_an_ordinary_user() else { return };
    home.up();
    runtime().block_on(async {
        let client = home.client().await;
        let status = start(&client, pod("plain", json!({}), json!({"command": ["sleep", "1000"]}))).await;
        let conditions = status.conditions.unwrap_or_default();
        let isolation = conditions.iter().find(|condition| condition.type_ == "warren.dev/isolation");
        let isolation = isolation.expect("the isolation is said");
        assert_eq!(isolation.reason.as_deref(), Some("NamespacesWithoutLimits"), "{isolation:?}");
        let message = isolation.message.as_deref().unwrap_or_default();
        assert!(message.contains("none on memory and processors"), "{message}");
        assert!(message.contains("restricted to the egress proxy"), "{message}");
        end(&client, "plain").await;

        for (name, annotations, container, reason, part) in [
            (
                "memory",
                json!({}),
                json!({"resources": {"limits": {"memory": "64Mi"}}}),
                "LimitsNotEnforceable",
                "resources.limits.memory",
            ),
            (
                "processors",
                json!({}),
                json!({"resources": {"limits": {"cpu": "100m"}}}),
                "LimitsNotEnforceable",
                "resources.limits.cpu",
            ),
            ("full", json!({"warren.dev/network": "full"}), json!({}), "NetworkNotAvailable", "`full`"),
        ] {
            let status = start(&client, pod(name, annotations, container)).await;
            assert_eq!(status.phase.as_deref(), Some("Failed"), "{status:?}");
            assert_eq!(status.reason.as_deref(), Some(reason), "{status:?}");
            assert!(status.message.as_deref().is_some_and(|message| message.contains(part)), "{status:?}");
            end(&client, name).await;
        }
    });
    home.assert_nothing_left();
}

#[test]
fn sandboxes_outlive_the_daemon() {
    let Some(home) = LocalHome::of_an_ordinary_user() else { return };
    if lacks_programs() {
        return;
    }
    let daemon = home.up();
    runtime().block_on(async {
        let client = home.client().await;
        let script = "echo begun; exec sleep 1000";
        let status =
            start(&client, pod("lasting", json!({}), json!({"command": ["sh", "-c", script]}))).await;
        assert_eq!(status.phase.as_deref(), Some("Running"), "{status:?}");
        assert_eq!(sh(&client, "lasting", "echo kept > /tmp/note").await.0, 0);

        let pid = Pid::from_raw(i32::try_from(daemon).expect("a pid")).expect("a pid");
        kill_process(pid, Signal::KILL).expect("kill the daemon");
        until("the daemon is gone", async || {
            (!Path::new(&format!("/proc/{daemon}/exe")).exists()).then_some(())
        })
        .await;
        home.up();
        let client = home.client().await;
        until("its pod is found again", async || {
            let status = pods(&client).get("lasting").await.expect("get the pod").status?;
            let container = status.container_statuses?.into_iter().next()?;
            assert_eq!(container.restart_count, 0, "it was not started again");
            container.state?.running
        })
        .await;
        assert_eq!(sh(&client, "lasting", "cat /tmp/note").await, (0, "kept\n".to_owned()));
        let log = pods(&client).logs("lasting", &LogParams::default()).await.expect("the log");
        assert_eq!(log, "begun\n");
        end(&client, "lasting").await;
    });
    home.assert_nothing_left();
}

#[test]
fn the_proxy_is_the_only_way_out() {
    let Some(home) = LocalHome::of_an_ordinary_user() else { return };
    if lacks_programs() {
        return;
    }
    // While there is a network: it may have to be built.
    warren_binary();
    let scratch = tempfile::tempdir().expect("make a directory");
    if !fake_world::enter(scratch.path()) {
        return;
    }
    let answer = fake_world::get((INTERNET, PORT)).expect("the machine reaches the world");
    assert!(answer.contains(&format!("reached {INTERNET}")), "{answer}");
    home.up();
    runtime().block_on(async {
        let client = home.client().await;
        // It connects at once: the proxy's socket exists before the first program runs.
        let early = "proxy=${HTTP_PROXY#http://}; exec 3<>/dev/tcp/${proxy%:*}/${proxy#*:} && \
                     printf 'GET http://allowed.test/ HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' >&3 && cat <&3; \
                     exec sleep 1000";
        let allowed = json!({"warren.dev/network-allowed-hosts": "allowed.test"});
        let status = start(&client, pod("out", allowed, json!({"command": ["bash", "-c", early]}))).await;
        assert_eq!(status.phase.as_deref(), Some("Running"), "{status:?}");
        let reached = format!("reached {INTERNET}");
        until("it has its answer", async || {
            let log = pods(&client).logs("out", &LogParams::default()).await.ok()?;
            assert!(!log.contains("refused"), "{log}");
            log.contains(&reached).then_some(())
        })
        .await;
        let answer = get_by_proxy(&client, "out", "http://allowed.test/").await;
        assert!(answer.contains(&reached), "{answer}");
        for url in ["http://denied.test/", "http://private.test/", "http://metadata.test/", "http://loopback.test/"] {
            let answer = get_by_proxy(&client, "out", url).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{url}: {answer}");
        }
        // Without the proxy, nothing is reachable.
        let direct = format!("timeout 20 bash -c 'exec 3<>/dev/tcp/{INTERNET}/{PORT}'");
        assert_ne!(sh(&client, "out", &direct).await.0, 0);

        let none = json!({"warren.dev/network": "none"});
        let status = start(&client, pod("in", none, json!({"command": ["sleep", "1000"]}))).await;
        assert_eq!(status.phase.as_deref(), Some("Running"), "{status:?}");
        let (code, _) = sh(&client, "in", "test -z \"$HTTP_PROXY\" && ! (exec 3<>/dev/tcp/127.0.0.1/3128)").await;
        assert_eq!(code, 0, "a pod without a network has no proxy either");
        end(&client, "out").await;
        end(&client, "in").await;
    });
    home.assert_nothing_left();
    let ended = home.warren(&["down"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(fake_world::devices(), Vec::<String>::new());
}
