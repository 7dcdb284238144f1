//! `warren node` on a real control plane: what kube-apiserver and kubectl see of it, who may reach it, and how it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use warren_client::kube::api::PostParams;
use warren_client::kube::runtime::wait::{await_condition, conditions};
use warren_client::kube::{self, Api, Client};
use warren_e2e::cluster_node::{ClusterNode, Taken};
use warren_e2e::streams::{DEADLINE, ECHO};
use warren_testkit::kube::{ControlPlane, KubectlError};

/// A node that takes pods, its control plane, and a client of that.
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

    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, KubectlError> {
        tokio::task::block_in_place(|| self.control_plane.kubectl_with_input(arguments, input))
    }
}

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
    assert_eq!(cluster.kubectl(&["logs", "shell"], "").expect("logs"), "started\n");
    let exec = |words: &[&str], input: &str| {
        let arguments = [&["exec", "-i", "shell", "--"], words].concat();
        cluster.kubectl(&arguments, input)
    };
    let large = "0123456789abcdef".repeat(20_000);
    assert_eq!(exec(&["cat"], &large).expect("exec"), large);
    match exec(&["sh", "-c", "echo no >&2; exit 7"], "") {
        Err(KubectlError::Failed { status, stderr, .. }) => {
            assert_eq!(status.code(), Some(7), "{stderr}");
            assert!(stderr.starts_with("no\n"), "{stderr}");
        }
        other => panic!("{other:?}"),
    }
    // The token that Kubernetes gives every pod is where programs look for it.
    let token = exec(&["cat", "/var/run/secrets/kubernetes.io/serviceaccount/namespace"], "");
    assert_eq!(token.expect("the namespace of the account"), "default");

    let script = "read line; echo \"got $line\"";
    cluster.start("asks", json!({"command": ["sh", "-c", script], "stdin": true, "stdinOnce": true})).await;
    let attached = cluster.kubectl(&["attach", "-i", "asks"], "a line\n").expect("attach");
    assert!(attached.contains("got a line"), "{attached}");
    cluster.kubectl(&["delete", "pod", "shell", "asks"], "").expect("delete");
    tokio::task::block_in_place(|| cluster.node.assert_nothing_left());
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_through_kube_apiserver() {
    if !std::path::Path::new("/usr/bin/perl").exists() {
        return eprintln!("skipped: no Perl on this machine");
    }
    let Some(cluster) = Cluster::up("forwarded").await else { return };
    cluster.start("echo", json!({"command": ["perl", "-e", ECHO, "8080"]})).await;
    let listening = async {
        while !cluster.kubectl(&["logs", "echo"], "").expect("logs").contains("listening") {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(DEADLINE, listening).await.expect("the program listens");
    let mut child = Command::new(&cluster.control_plane.record().kubectl)
        .arg("--kubeconfig")
        .arg(cluster.control_plane.kubeconfig())
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
    assert!(back == data, "the same comes back");
    child.kill().expect("end kubectl");
    child.wait().expect("wait");
}

/// Asks the node itself, past the API server, and gives the status of its answer.
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

#[tokio::test(flavor = "multi_thread")]
async fn only_those_whom_the_cluster_lets_reach_the_node() {
    let Some(cluster) = Cluster::up("guarded").await else { return };
    let listen = cluster.taken.listen;
    for path in ["/healthz", "/pods", "/metrics/resource", "/exec/default/a/b?command=id&output=1"] {
        assert_eq!(status_of(listen, None, path).await, 401, "{path}");
        assert_eq!(status_of(listen, Some("made-up"), path).await, 401, "{path}");
    }
    cluster.kubectl(&["create", "serviceaccount", "stranger"], "").expect("an account");
    cluster.kubectl(&["create", "serviceaccount", "scraper"], "").expect("an account");
    let rights = ["create", "clusterrole", "scraper", "--verb=get", "--resource=nodes/metrics"];
    cluster.kubectl(&rights, "").expect("a role");
    let binding = ["create", "clusterrolebinding", "scraper", "--clusterrole=scraper"];
    let subject = ["--serviceaccount=default:scraper"];
    cluster.kubectl(&[&binding[..], &subject].concat(), "").expect("a binding");
    let token =
        |name: &str| cluster.kubectl(&["create", "token", name], "").expect("a token").trim().to_owned();
    let (stranger, scraper) = (token("stranger"), token("scraper"));
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
    // Its port is another one now, which the API server knows when the node has announced it.
    let port = i32::from(cluster.taken.listen.port());
    let announced = |node: Option<&Node>| {
        let endpoints = node.and_then(|node| node.status.as_ref()?.daemon_endpoints.as_ref());
        endpoints.and_then(|endpoints| endpoints.kubelet_endpoint.as_ref()).is_some_and(|at| at.port == port)
    };
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let waited = await_condition(nodes.clone(), cluster.name, announced);
    tokio::time::timeout(DEADLINE, waited).await.expect("announced in time").expect("watch the node");
    let ran = cluster.kubectl(&["exec", "box", "--", "echo", "still here"], "").expect("exec");
    assert_eq!(ran, "still here\n");
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
