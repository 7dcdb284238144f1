//! Tests `warren node` on a real control plane: its view by kube-apiserver and kubectl, access to
//! it, and its shutdown.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use warren_client::kube::api::{Patch, PatchParams, PostParams};
use warren_client::kube::runtime::wait::{await_condition, conditions};
use warren_client::kube::{self, Api, Client};
use warren_e2e::cluster_node::{ClusterNode, Taken};
use warren_e2e::local_home::Ended;
use warren_e2e::streams::{DEADLINE, ECHO};
use warren_e2e::terminal::OnTerminal;
use warren_testkit::kube::ControlPlane;

/// A node that takes pods, its control plane, and a client.
struct Cluster {
    control_plane: &'static ControlPlane,
    client: Client,
    node: ClusterNode,
    name: &'static str,
    taken: Taken,
}

impl Cluster {
    /// Tests share a control plane, so each has a node of its own, and pods that ask for it.
    async fn up(name: &'static str) -> Option<Cluster> {
        let mut node = ClusterNode::new(name)?;
        let started = tokio::task::spawn_blocking(move || {
            let control_plane = ControlPlane::start();
            let taken = node.start(control_plane.kubeconfig(), &[]).expect("start the node");
            (control_plane, node, taken)
        });
        let (control_plane, node, taken) = started.await.expect("a control plane");
        let client = warren_client::connect::from_kubeconfig(control_plane.kubeconfig()).await;
        let client = client.expect("a client");
        node.wait_until_open(&client).await.expect("a node that may be used");
        Some(Cluster { control_plane, client, node, name, taken })
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// Starts a pod with one container on the host image, and waits until it runs.
    async fn start(&self, name: &str, mut container: Value) -> Pod {
        container["name"] = "main".into();
        container["image"] = "warren.dev/host".into();
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": self.name},
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container],
            },
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        self.pods().create(&PostParams::default(), &pod).await.expect("create the pod");
        let running = await_condition(self.pods(), name, conditions::is_pod_running());
        let found = tokio::time::timeout(DEADLINE, running).await.expect("the pod runs in time");
        found.expect("watch the pod").expect("the pod is there")
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        tokio::task::block_in_place(|| self.control_plane.kubectl(arguments)).expect("kubectl")
    }

    /// Makes kube-apiserver use this protocol to the node.
    async fn speak(&self, wire: Wire) {
        if wire == Wire::Translated {
            let nodes: Api<Node> = Api::all(self.client.clone());
            let patch = Patch::Merge(json!({"status": {"declaredFeatures": null}}));
            nodes.patch_status(self.name, &PatchParams::default(), &patch).await.expect("patch the node");
        }
    }

    fn command(&self, wire: Wire) -> Command {
        let mut command = Command::new(&self.control_plane.record().kubectl);
        command.arg("--kubeconfig").arg(self.control_plane.kubeconfig());
        if wire == Wire::Spdy {
            command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false");
            command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false");
        }
        command
    }

    /// Runs kubectl with an input to its end.
    fn run(&self, wire: Wire, arguments: &[&str], input: &str) -> Ended {
        let mut command = self.command(wire);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("run kubectl");
        let mut stdin = child.stdin.take().expect("piped");
        tokio::task::block_in_place(|| {
            std::thread::scope(|scope| {
                // A command that ends early breaks the pipe; its own status says more than that.
                scope.spawn(move || stdin.write_all(input.as_bytes()));
                child.wait_with_output().expect("wait for kubectl").into()
            })
        })
    }

    async fn wait_for_log(&self, pod: &str, wanted: &str) {
        let waited = async {
            while !self.kubectl(&["logs", pod]).contains(wanted) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(DEADLINE, waited).await.expect("the log holds what it should");
    }
}

/// The protocol of streams to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    /// kubectl's present protocol; kube-apiserver passes it on unchanged.
    WebSocket,
    /// The protocol of older clients, also passed on.
    Spdy,
    /// The translation of WebSockets to SPDY by API servers before 1.36.
    Translated,
}

/// In the only possible order: a node that is no longer marked as knowing WebSockets stays so.
const WIRES: [Wire; 3] = [Wire::WebSocket, Wire::Spdy, Wire::Translated];

fn container_id(pod: &Pod) -> Option<String> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.container_id.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_reaches_pods_through_kube_apiserver() {
    let Some(cluster) = Cluster::up("reached").await else { return };
    let node: Node = Api::all(cluster.client.clone()).get(cluster.name).await.expect("the node");
    let status = node.status.expect("a status");
    let endpoint = status.daemon_endpoints.and_then(|endpoints| endpoints.kubelet_endpoint);
    assert_eq!(endpoint.map(|endpoint| endpoint.port), Some(i32::from(cluster.taken.listen.port())));

    let pod = cluster.start("shell", json!({"command": ["sh", "-c", "echo started; exec sleep 1000"]})).await;
    assert_eq!(pod.spec.and_then(|spec| spec.node_name).as_deref(), Some(cluster.name));
    cluster.wait_for_log("shell", "started\n").await;
    let large = "0123456789abcdef".repeat(20_000);
    for wire in WIRES {
        cluster.speak(wire).await;
        let exec = |words: &[&str], input: &str| {
            cluster.run(wire, &[&["exec", "-i", "shell", "--"][..], words].concat(), input)
        };
        let copied = exec(&["cat"], &large);
        assert!(copied.code == Some(0) && copied.stdout == large, "{wire:?}: {}", copied.stderr);
        let failed = exec(&["sh", "-c", "echo no >&2; exit 7"], "");
        assert_eq!((failed.code, failed.stdout.as_str()), (Some(7), ""), "{wire:?}: {failed:?}");
        assert!(failed.stderr.starts_with("no\n"), "{wire:?}: {failed:?}");

        let name = format!("asks-{wire:?}").to_lowercase();
        let command = ["sh", "-c", "read line; echo \"got $line\""];
        cluster.start(&name, json!({"command": command, "stdin": true, "stdinOnce": true})).await;
        let attached = cluster.run(wire, &["attach", "-i", &name], "a line\n");
        assert!(attached.code == Some(0) && attached.stdout.contains("got a line"), "{wire:?}: {attached:?}");
        cluster.kubectl(&["delete", "pod", &name]);
    }
    // The files that Kubernetes gives every pod are at their usual place.
    let path = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    assert_eq!(cluster.kubectl(&["exec", "shell", "--", "cat", path]), "default");
    cluster.kubectl(&["delete", "pod", "shell"]);
    tokio::task::block_in_place(|| cluster.node.assert_nothing_left());
}

#[tokio::test(flavor = "multi_thread")]
async fn terminals_files_and_followed_logs_are_as_on_any_node() {
    let Some(cluster) = Cluster::up("usual").await else { return };
    // Copying files needs `tar`, which the host image has from the host.
    let script = "echo one; while ! test -e /tmp/go; do sleep 0.05; done; echo two";
    cluster.start("usual", json!({"command": ["sh", "-c", script]})).await;
    for wire in WIRES {
        cluster.speak(wire).await;
        let mut command = cluster.command(wire);
        command.args(["exec", "-it", "usual", "--", "sh"]);
        let mut session = OnTerminal::start(command, 33, 101);
        let sized = |rows: u16, columns: u16| {
            format!("until [ \"$(stty size)\" = '{rows} {columns}' ]; do :; done; echo is-$((6*7)); tty\r")
        };
        let code = tokio::task::block_in_place(|| {
            session.type_in(&sized(33, 101));
            assert!(session.read_until("/dev/pts/").contains("is-42"), "{wire:?}");
            session.resize(44, 120);
            session.type_in(&sized(44, 120));
            assert!(session.read_until("/dev/pts/").contains("is-42"), "{wire:?}");
            session.type_in("exit 3\r");
            session.end()
        });
        assert_eq!(code, Some(3), "{wire:?}");

        let directory = tempfile::tempdir().expect("make a directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        let large: Vec<u8> = (0..1_000_003_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(path("large"), &large).expect("write");
        let there = cluster.run(wire, &["cp", &path("large"), "usual:/tmp/large"], "");
        assert_eq!(there.code, Some(0), "{wire:?}: {there:?}");
        let back = cluster.run(wire, &["cp", "usual:/tmp/large", &path("back")], "");
        assert_eq!(back.code, Some(0), "{wire:?}: {back:?}");
        assert!(std::fs::read(path("back")).expect("read") == large, "{wire:?}: the same comes back");
    }

    let mut follower = cluster.command(Wire::WebSocket);
    let mut follower =
        follower.args(["logs", "-f", "usual"]).stdout(Stdio::piped()).spawn().expect("run kubectl");
    let mut lines = BufReader::new(follower.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "one");
    assert!(cluster.kubectl(&["describe", "pod", "usual"]).contains("Status:           Running"));
    cluster.kubectl(&["exec", "usual", "--", "touch", "/tmp/go"]);
    let rest: Vec<String> = lines.map(|line| line.expect("read")).collect();
    assert_eq!(rest, ["two"]);
    assert_eq!(follower.wait().expect("wait").code(), Some(0));
    assert!(cluster.kubectl(&["describe", "node", cluster.name]).contains("kubelet is posting ready status"));
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_through_kube_apiserver() {
    if !std::path::Path::new("/usr/bin/perl").exists() {
        return eprintln!("skipped: no Perl on this machine");
    }
    let Some(cluster) = Cluster::up("forwarded").await else { return };
    cluster.start("echo", json!({"command": ["perl", "-e", ECHO, "8080"]})).await;
    cluster.wait_for_log("echo", "listening").await;
    for wire in WIRES {
        cluster.speak(wire).await;
        let mut child = cluster
            .command(wire)
            .args(["port-forward", "--address=127.0.0.1", "pod/echo", ":8080"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("run kubectl");
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().expect("piped"));
        said.read_line(&mut line).expect("read");
        let (address, _) =
            line.strip_prefix("Forwarding from ").and_then(|line| line.split_once(" -> ")).expect(&line);
        let mut stream = TcpStream::connect(address).expect("connect");
        // Less than any buffer on the way, so that writing does not wait for reading.
        let data = vec![7; 10_000];
        stream.write_all(&data).expect("write");
        stream.shutdown(Shutdown::Write).expect("end");
        let mut back = Vec::new();
        stream.read_to_end(&mut back).expect("read");
        assert!(back == data, "{wire:?}: the same comes back");
        child.kill().expect("end kubectl");
        child.wait().expect("wait");
    }
}

/// Sends a request directly to the node, and returns the status of its answer.
async fn status_of(listen: SocketAddr, token: Option<&str>, path: &str) -> u16 {
    let mut config = kube::Config::new(format!("https://{listen}").parse().expect("an address"));
    config.accept_invalid_certs = true;
    if let Some(token) = token {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).expect("a token");
        config.headers.push((AUTHORIZATION, value));
    }
    let client = Client::try_from(config).expect("a client");
    let request = Request::get(path).body(Vec::new()).expect("a request");
    match client.request_text(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}

async fn wait_until_allowed(client: &Client, user: &str) {
    let review = json!({"spec": {"user": user, "resourceAttributes": {
        "verb": "get", "version": "v1", "resource": "nodes", "subresource": "metrics"}}});
    let review: SubjectAccessReview = serde_json::from_value(review).expect("a review");
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let waited = async {
        loop {
            let answer = reviews.create(&PostParams::default(), &review).await.expect("ask");
            if answer.status.is_some_and(|status| status.allowed) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waited).await.expect("the right is known in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_those_whom_the_cluster_lets_reach_the_node() {
    let Some(cluster) = Cluster::up("guarded").await else { return };
    let listen = cluster.taken.listen;
    for path in ["/healthz", "/pods", "/metrics/resource", "/exec/default/a/b?command=id&output=1"] {
        assert_eq!(status_of(listen, None, path).await, 401, "{path}");
        assert_eq!(status_of(listen, Some("made-up"), path).await, 401, "{path}");
    }
    cluster.kubectl(&["create", "serviceaccount", "stranger"]);
    cluster.kubectl(&["create", "serviceaccount", "scraper"]);
    cluster.kubectl(&["create", "clusterrole", "scraper", "--verb=get", "--resource=nodes/metrics"]);
    let subject = "--serviceaccount=default:scraper";
    cluster.kubectl(&["create", "clusterrolebinding", "scraper", "--clusterrole=scraper", subject]);
    let token = |name: &str| cluster.kubectl(&["create", "token", name]).trim().to_owned();
    let (stranger, scraper) = (token("stranger"), token("scraper"));
    // The node caches a refusal for a while, so it is asked once its API server has seen the
    // binding.
    wait_until_allowed(&cluster.client, "system:serviceaccount:default:scraper").await;
    assert_eq!(status_of(listen, Some(&stranger), "/metrics/resource").await, 403);
    assert_eq!(status_of(listen, Some(&scraper), "/metrics/resource").await, 200);
    assert_eq!(status_of(listen, Some(&scraper), "/pods").await, 403, "its right is for metrics");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_outlive_a_killed_node_and_leave_one_that_is_asked_to_stop() {
    let Some(mut cluster) = Cluster::up("mortal").await else { return };
    let before = cluster.start("box", json!({"command": ["sleep", "1000"]})).await;
    assert!(container_id(&before).is_some());
    tokio::task::block_in_place(|| cluster.node.kill());
    cluster.taken =
        tokio::task::block_in_place(|| cluster.node.start(cluster.control_plane.kubeconfig(), &[]))
            .expect("start the node again");
    // Its port has changed; the API server knows the new one when the node has announced it.
    let port = i32::from(cluster.taken.listen.port());
    let announced = |node: Option<&Node>| {
        let endpoints = node.and_then(|node| node.status.as_ref()?.daemon_endpoints.as_ref());
        endpoints.and_then(|endpoints| endpoints.kubelet_endpoint.as_ref()).is_some_and(|at| at.port == port)
    };
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let waited = await_condition(nodes.clone(), cluster.name, announced);
    tokio::time::timeout(DEADLINE, waited).await.expect("announced in time").expect("watch the node");
    assert_eq!(cluster.kubectl(&["exec", "box", "--", "echo", "still here"]), "still here\n");
    let after = cluster.pods().get("box").await.expect("the pod");
    assert_eq!(container_id(&after), container_id(&before), "it is the same container");

    let ended = tokio::task::block_in_place(|| cluster.node.stop()).expect("stop the node");
    assert!(ended.success(), "{ended}: {}", cluster.node.log());
    assert!(cluster.pods().get_opt("box").await.expect("look").is_none(), "it was evicted");
    let closed = nodes.get(cluster.name).await.expect("the node");
    assert_eq!(closed.spec.and_then(|spec| spec.unschedulable), Some(true));
    cluster.node.assert_nothing_left();

    tokio::task::block_in_place(|| cluster.node.start(cluster.control_plane.kubeconfig(), &[]))
        .expect("start the node once more");
    cluster.node.wait_until_open(&cluster.client).await.expect("it takes pods again");
}
