//! Tests pods of other OCI runtimes: `runsc` as the class `gvisor`, which exists by default, and
//! `runc` by configuration.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::SinkExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use warren_client::kube::api::{
    Api, AttachParams, DeleteParams, ListParams, LogParams, PostParams, TerminalSize,
};
use warren_client::kube::runtime::wait;
use warren_client::kube::{self, ResourceExt as _};
use warren_e2e::gvisor;
use warren_e2e::local_home::{Ended, LocalHome};
use warren_e2e::streams::{DEADLINE, Pods, exit_code, state};

/// Runs until it is asked to end, and then ends with an exit code of its own.
const UNTIL_ASKED: &str = "echo hello; trap 'echo asked; exit 7' TERM; while :; do sleep 0.05; done";

/// Echoes its input on a port of all its addresses.
const ECHO: &str = r#"
use IO::Socket::INET;
$| = 1;
my $server = IO::Socket::INET->new(LocalAddr => '0.0.0.0', LocalPort => 8080, Listen => 8, ReuseAddr => 1) or die $!;
print "listening\n";
while (my $client = $server->accept) {
    while (sysread $client, my $data, 65536) {
        exit 3 if $data eq 'quit';
        syswrite $client, $data;
    }
    close $client;
}
"#;

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// The source of a class: `runsc` is found by default, others are configured.
enum Runtime {
    Found(PathBuf),
    Named(PathBuf),
}

impl Runtime {
    fn gvisor() -> Option<Self> {
        gvisor::runsc().map(Self::Found)
    }

    fn plain() -> Option<Self> {
        let found = program("runc");
        if found.is_none() {
            eprintln!("skipped: no `runc` on this machine (Debian's package `runc` has it)");
        }
        found.map(Self::Named)
    }

    fn class(&self) -> &'static str {
        match self {
            Self::Found(_) => gvisor::CLASS,
            Self::Named(_) => "other",
        }
    }
}

/// Starts a home whose pods can have the class.
async fn home_with(runtime: &Runtime) -> Option<Pods> {
    Some(up(LocalHome::new()?, runtime).await)
}

async fn with_another_daemon(pods: Pods, runtime: &Runtime) -> Pods {
    let lock = std::fs::read(pods.home.path().join("lock")).expect("read who holds the lock");
    let holder: Value = serde_json::from_slice(&lock).expect("JSON");
    let number = i32::try_from(holder["pid"].as_i64().expect("a pid")).expect("a small number");
    kill_process(Pid::from_raw(number).expect("a process"), Signal::KILL).expect("kill the daemon");
    up(pods.home, runtime).await
}

/// Starts a daemon that knows the runtime, and waits until pods can have it.
async fn up(home: LocalHome, runtime: &Runtime) -> Pods {
    let mut command = home.command();
    command.args(["up", "--detach"]);
    match runtime {
        Runtime::Found(path) => {
            let own = std::env::var_os("PATH").unwrap_or_default();
            let all = path.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&own));
            command.env("PATH", std::env::join_paths(all).expect("a search path"))
        }
        Runtime::Named(path) => command.arg("--runtime").arg(format!("other={}", path.display())),
    };
    let ended: Ended = command.output().expect("run warren").into();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let class = runtime.class();
    let client = home.client().await;
    let classes: Api<RuntimeClass> = Api::all(client.clone());
    let there = wait::await_condition(classes, class, |found: Option<&RuntimeClass>| found.is_some());
    tokio::time::timeout(DEADLINE, there).await.expect("the class is there").expect("watch the class");
    Pods { home, api: Api::default_namespaced(client) }
}

/// Creates a pod of the class with one container on the host image.
async fn create(pods: &Pods, class: &str, name: &str, container: Value, more: Value) -> kube::Result<Pod> {
    let mut container = container;
    container["name"] = "main".into();
    container["image"] = "warren.dev/host".into();
    let mut spec = json!({
        "runtimeClassName": class, "restartPolicy": "Never", "terminationGracePeriodSeconds": 30,
        "containers": [container],
    });
    spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let pod = json!({"metadata": {"name": name}, "spec": spec});
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    pods.api.create(&PostParams::default(), &pod).await
}

async fn start(pods: &Pods, class: &str, name: &str, container: Value, more: Value) {
    create(pods, class, name, container, more).await.expect("create the pod");
    pods.wait(name, "runs", |pod| state(pod).is_some_and(|state| state.running.is_some())).await;
}

/// Runs a script in a pod; returns its output, and true if it succeeded.
async fn run(pods: &Pods, name: &str, script: &str) -> (String, bool) {
    let parameters = AttachParams::default().stderr(true);
    let mut process = pods.api.exec(name, ["sh", "-c", script], &parameters).await.expect("exec");
    let mut text = String::new();
    let mut stdout = process.stdout().expect("stdout");
    let reading = stdout.read_to_string(&mut text);
    tokio::time::timeout(DEADLINE, reading).await.expect("ends").expect("read");
    let status = process.take_status().expect("a status");
    let status = tokio::time::timeout(DEADLINE, status).await.expect("ends").expect("a status");
    (text, status.status.as_deref() == Some("Success"))
}

async fn delete(pods: &Pods, name: &str) {
    pods.api.delete(name, &DeleteParams::default()).await.expect("delete the pod");
    let gone = wait::await_condition(pods.api.clone(), name, |pod: Option<&Pod>| pod.is_none());
    tokio::time::timeout(DEADLINE, gone).await.expect("the pod goes").expect("watch the pod");
}

/// Returns the processes whose command line contains this.
fn processes(marker: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").expect("read /proc").flatten();
    let commands = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    commands
        .map(|command| String::from_utf8_lossy(&command).replace('\0', " "))
        .filter(|command| command.contains(marker))
        .collect()
}

/// Returns the pid in a pod's shim's record. The shim reports a start before it writes the record.
async fn shim_pid(pods: &Pods, uid: &str) -> i32 {
    let path = pods.home.path().join("pods").join(uid).join("state.json");
    let written = async {
        loop {
            match std::fs::read(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                read => return read.expect("read the state"),
            }
        }
    };
    let state = tokio::time::timeout(DEADLINE, written).await.expect("the state is written");
    let state: Value = serde_json::from_slice(&state).expect("JSON");
    i32::try_from(state["shim"]["pid"].as_i64().expect("a pid")).expect("a small number")
}

/// Tests everything that a pod of a class has to do.
async fn lives(runtime: &Runtime) -> Option<Pods> {
    let class = runtime.class();
    let pods = home_with(runtime).await?;
    let settings: Api<ConfigMap> = Api::default_namespaced(pods.api.clone().into_client());
    let map = json!({"metadata": {"name": "settings"}, "data": {"mode": "careful"}});
    let map = serde_json::from_value(map).expect("a config map");
    settings.create(&PostParams::default(), &map).await.expect("create the config map");
    let container = json!({
        "command": ["sh", "-c", UNTIL_ASKED],
        "livenessProbe": {
            "exec": {"command": ["test", "!", "-e", "/scratch/enough"]},
            "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 60,
        },
        "resources": {"limits": {"memory": "512Mi", "cpu": "1"}},
        "volumeMounts": [
            {"name": "scratch", "mountPath": "/scratch"},
            {"name": "memory", "mountPath": "/memory"},
            {"name": "settings", "mountPath": "/settings"},
        ],
    });
    let volumes = json!({"volumes": [
        {"name": "scratch", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        {"name": "settings", "configMap": {"name": "settings"}},
    ]});
    start(&pods, class, "box", container, volumes).await;
    pods.wait_for_log("box", "hello").await;

    // Exec, its streams and its exit code; root inside, files of the volumes, the host name.
    let script = "id -u; hostname; cat /settings/mode; echo; echo x > /scratch/a && echo y > /memory/b && cat /scratch/a /memory/b";
    assert_eq!(run(&pods, "box", script).await, ("0\nbox\ncareful\nx\ny\n".to_owned(), true));
    assert!(!run(&pods, "box", "exit 3").await.1);
    let (text, _) = run(
        &pods,
        "box",
        "echo z > /settings/mode 2>/dev/null && echo written; touch /usr/mark && echo /usr/mark",
    )
    .await;
    assert_eq!(text, "/usr/mark\n");
    assert!(!Path::new("/usr/mark").exists(), "a file of the host was written");

    let mut shell = pods.api.exec("box", ["sh"], &AttachParams::interactive_tty()).await.expect("exec");
    let (mut stdin, mut stdout) = (shell.stdin().expect("stdin"), shell.stdout().expect("stdout"));
    let mut size = shell.terminal_size().expect("a terminal");
    size.send(TerminalSize { width: 101, height: 33 }).await.expect("resize");
    let typed = "until [ \"$(stty size)\" = '33 101' ]; do :; done; echo is-$((6*7)); exit\n";
    stdin.write_all(typed.as_bytes()).await.expect("type");
    stdin.flush().await.expect("flush");
    let mut seen = String::new();
    let reading = stdout.read_to_string(&mut seen);
    tokio::time::timeout(DEADLINE, reading).await.expect("ends").expect("read");
    assert!(seen.contains("is-42\r\n"), "{seen:?}");

    // Its usage is counted in its cgroup.
    let path = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/box";
    let used = async {
        loop {
            let request = http::Request::get(path).body(Vec::new()).expect("a request");
            let answer = pods.api.clone().into_client().request_text(request).await;
            let numbers: Value =
                answer.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            let memory = numbers["containers"][0]["usage"]["memory"].as_str().unwrap_or_default().to_owned();
            if !memory.is_empty() && memory != "0" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(DEADLINE, used).await.expect("the pod's memory is counted");
    Some(pods)
}

/// Ends the pod of [`lives`] by a failing probe, so that it is asked to end, and checks that
/// nothing is left.
async fn ends(pods: &Pods) {
    let uid = pods.api.get("box").await.expect("read the pod").uid().expect("a uid");
    run(pods, "box", "touch /scratch/enough").await;
    pods.wait("box", "ended", |pod| exit_code(pod).is_some()).await;
    let log = pods.api.logs("box", &LogParams::default()).await.expect("read the log");
    let pod = pods.api.get("box").await.expect("read the pod");
    assert_eq!((exit_code(&pod), log.as_str()), (Some(7), "hello\nasked\n"));
    delete(pods, "box").await;
    assert_eq!(processes(&uid), [""; 0]);
    pods.home.assert_nothing_left();
}

#[tokio::test]
async fn gvisor_runs_a_pod() {
    let Some(runtime) = Runtime::gvisor() else { return };
    let Some(pods) = lives(&runtime).await else { return };
    let (text, _) = run(&pods, "box", "dmesg").await;
    assert!(text.contains("gVisor"), "{text}");
    let pods = with_another_daemon(pods, &runtime).await;
    assert_eq!(run(&pods, "box", "cat /scratch/a").await, ("x\n".to_owned(), true));
    ends(&pods).await;
}

#[tokio::test]
async fn a_configured_runtime_runs_a_pod() {
    let Some(runtime) = Runtime::plain() else { return };
    let Some(pods) = lives(&runtime).await else { return };
    ends(&pods).await;
}

#[tokio::test]
async fn gvisor_has_the_network_of_its_pod_also_after_a_restart() {
    if !Path::new("/usr/bin/perl").exists() {
        eprintln!("skipped: no Perl on this machine");
        return;
    }
    let Some(runtime) = Runtime::gvisor() else { return };
    let Some(pods) = home_with(&runtime).await else { return };
    let container = json!({
        "command": ["perl", "-e", ECHO],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    });
    let more = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 0});
    start(&pods, "gvisor", "echo", container, more).await;
    for restarts in [0, 1] {
        pods.wait("echo", "is ready", |pod| {
            let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()?.first());
            status.is_some_and(|status| status.ready && status.restart_count == restarts)
        })
        .await;
        let address = pods.api.get("echo").await.expect("read").status.and_then(|status| status.pod_ip);
        let address = address.expect("an address");
        let back = tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect((address.as_str(), 8080)).expect("connect");
            stream.set_read_timeout(Some(DEADLINE)).expect("set a timeout");
            stream.write_all(b"over the wire").expect("write");
            let mut back = [0; 13];
            stream.read_exact(&mut back).expect("read");
            back
        });
        assert_eq!(&back.await.expect("no panic"), b"over the wire");
        let mut forwarder = pods.api.portforward("echo", &[8080]).await.expect("forward");
        let mut stream = forwarder.take_stream(8080).expect("a stream");
        stream.write_all(b"forwarded").await.expect("write");
        let mut back = [0; 9];
        tokio::time::timeout(DEADLINE, stream.read_exact(&mut back))
            .await
            .expect("comes back")
            .expect("read");
        assert_eq!(&back, b"forwarded");
        if restarts == 0 {
            stream.write_all(b"quit").await.expect("write");
            let ended = tokio::time::timeout(DEADLINE, stream.read(&mut back)).await.expect("ends");
            assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        }
    }
    delete(&pods, "echo").await;
    pods.home.assert_nothing_left();
}

#[tokio::test]
async fn nothing_is_left_when_the_shim_is_killed() {
    let Some(runtime) = Runtime::gvisor() else { return };
    let Some(pods) = home_with(&runtime).await else { return };
    start(&pods, "gvisor", "box", json!({"command": ["sleep", "1234567"]}), json!({})).await;
    let uid = pods.api.get("box").await.expect("read the pod").uid().expect("a uid");
    assert!(!processes(&uid).is_empty(), "the runtime's processes name the pod");
    let shim = Pid::from_raw(shim_pid(&pods, &uid).await).expect("a process");
    kill_process(shim, Signal::KILL).expect("kill the shim");
    pods.wait("box", "ended", |pod| exit_code(pod).is_some()).await;
    delete(&pods, "box").await;
    // A killed process may take a moment to free its memory.
    let begun = std::time::Instant::now();
    while !processes(&uid).is_empty() {
        assert!(begun.elapsed() < DEADLINE, "these are left: {:?}", processes(&uid));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pods.home.assert_nothing_left();
}

#[tokio::test]
async fn a_class_that_is_not_there_is_refused() {
    let Some(pods) = Pods::up().await else { return };
    let error = create(&pods, "nothing", "box", json!({}), json!({})).await.expect_err("no such class");
    assert!(error.to_string().contains("pod rejected: RuntimeClass \"nothing\" not found"), "{error}");
    // A class that a user made, with a runtime that this machine does not have.
    let classes: Api<RuntimeClass> = Api::all(pods.api.clone().into_client());
    let class = json!({"metadata": {"name": "nothing"}, "handler": "nothing"});
    let class = serde_json::from_value(class).expect("a class");
    classes.create(&PostParams::default(), &class).await.expect("create the class");
    create(&pods, "nothing", "box", json!({}), json!({})).await.expect("create the pod");
    pods.wait("box", "failed", |pod| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.reason.as_deref()) == Some("RuntimeClassNotFound")
    })
    .await;
    // Other classes exist only if they work on this machine.
    for class in classes.list(&ListParams::default()).await.expect("list") {
        let name = class.name_any();
        assert!(name == "nothing" || (name == "gvisor" && program("runsc").is_some()), "{name}");
    }
    delete(&pods, "box").await;
    pods.home.assert_nothing_left();
}

#[test]
fn a_runtime_that_is_none_is_refused_at_the_start() {
    let Some(home) = LocalHome::new() else { return };
    for (runtime, said) in
        [("odd=/bin/true", "/bin/true"), ("odd=runc", "NAME=PATH"), ("odd=/no/where", "/no/where")]
    {
        let ended = home.warren(&["up", "--detach", "--runtime", runtime]);
        assert!(ended.code != Some(0) && ended.stderr.contains(said), "{ended:?}");
    }
}
