//! Tests the pod network, in network namespaces that each test makes for itself: the destinations
//! of pods, access to pods, and the cleanup.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use warren_client::exec::{Exec, ExecRequest, Streams};
use warren_client::kube::Client;
use warren_client::kube::api::{Api, DeleteParams, Patch, PostParams};
use warren_e2e::fake_world::{self, INTERNET, MACHINE, METADATA, PORT, PRIVATE};
use warren_e2e::local_home::{LocalHome, warren_binary};

/// The deadline of every wait: each takes a fraction of a second on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs a test on a simulated machine with a home.
fn on_a_machine(test: impl AsyncFnOnce(&LocalHome)) {
    let Some(home) = LocalHome::new() else { return };
    for program in ["/bin/bash", "/usr/bin/perl", "/usr/bin/getent"] {
        if !Path::new(program).exists() {
            eprintln!("skipped: the test's clients need {program}");
            return;
        }
    }
    // While there is a network: it may have to be built.
    warren_binary();
    let scratch = tempfile::tempdir().expect("make a directory");
    if !fake_world::enter(scratch.path()) {
        return;
    }
    // The simulated network works as intended.
    for address in [INTERNET, PRIVATE, METADATA] {
        let answer = fake_world::get((address, PORT)).expect("the machine reaches the world");
        assert!(answer.contains(&format!("reached {address}")), "{answer}");
    }
    home.up();
    assert_eq!(fake_world::devices(), Vec::<String>::new(), "a home without pods needs no network");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(test(&home));
    drop(runtime);
    home.assert_nothing_left();
    let ended = home.warren(&["down"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    home.assert_nothing_left();
    assert_eq!(fake_world::devices(), Vec::<String>::new(), "the home's own bridge goes with the home");
}

/// Returns a pod that answers on port 8080 with its name.
fn pod(name: &str, annotations: Value) -> Pod {
    let server = "use IO::Socket::INET; $s = IO::Socket::INET->new(LocalPort => 8080, Listen => 9, ReuseAddr => 1) or \
                  die; while ($c = $s->accept) { while (<$c>) { last if /^\\s*$/ } print $c \"this is $ENV{NAME}\\n\"; close $c }";
    let pod = json!({
        "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
        "spec": {
            "terminationGracePeriodSeconds": 0, "hostname": name, "subdomain": "boxes",
            "containers": [{
                "name": "main", "image": "warren.dev/host", "command": ["perl", "-e", server],
                "env": [{"name": "NAME", "value": name}],
            }],
        },
    });
    serde_json::from_value(pod).expect("a valid pod")
}

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), "default")
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

async fn start(client: &Client, pod: Pod) -> Ipv4Addr {
    let created = pods(client).create(&PostParams::default(), &pod).await.expect("create the pod");
    let name = created.metadata.name.expect("a name");
    address_of(client, &name).await
}

/// Returns the address of a pod that runs and whose server is up.
async fn address_of(client: &Client, name: &str) -> Ipv4Addr {
    let address = until("the pod runs with an address", async || {
        let status = pods(client).get(name).await.expect("get the pod").status?;
        assert_ne!(status.phase.as_deref(), Some("Failed"), "{status:?}");
        status.phase.filter(|phase| phase == "Running")?;
        status.pod_ip?.parse::<Ipv4Addr>().ok()
    });
    let address = address.await;
    until("its server is up", async || fake_world::get((address, 8080)).ok()).await;
    address
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

/// Returns a pod's answer from an address, if it gets one. Refused packets end at once; dropped
/// ones would let the pod wait for minutes.
async fn get(client: &Client, pod: &str, address: impl Into<SocketAddr>) -> Option<String> {
    let address = address.into();
    let script = format!(
        "exec 3<>/dev/tcp/{}/{} || exit 1; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3",
        address.ip(),
        address.port()
    );
    let (code, output) = sh(client, pod, &format!("timeout 20 bash -c \"{script}\"")).await;
    (code == 0).then_some(output)
}

async fn ask_proxy(client: &Client, pod: &str, request: &str) -> String {
    let script = format!(
        "proxy=${{HTTP_PROXY#http://}}; exec 3<>/dev/tcp/${{proxy%:*}}/${{proxy#*:}}; printf '{request}' >&3; cat <&3"
    );
    sh(client, pod, &script).await.1
}

async fn get_by_proxy(client: &Client, pod: &str, url: &str) -> String {
    ask_proxy(client, pod, &format!("GET {url} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"))
        .await
}

#[test]
fn pods_are_reached_by_their_machine_and_kept_apart_until_a_policy_lets_them() {
    on_a_machine(async |home| {
        let client = home.client().await;
        let inside = |name: &str| pod(name, json!({}));
        let first = start(&client, inside("first")).await;
        let second = start(&client, inside("second")).await;
        let third = start(&client, inside("third")).await;
        assert!(first != second && second != third);

        // From the machine, each is reached at its own address.
        assert_eq!(fake_world::get((first, 8080)).unwrap(), "this is first\n");
        assert_eq!(fake_world::get((second, 8080)).unwrap(), "this is second\n");
        // Pods reach their own address, and have no IPv6.
        assert_eq!(get(&client, "first", (first, 8080)).await.as_deref(), Some("this is first\n"));
        let (_, version_6) = sh(&client, "first", "grep -v ' lo$' /proc/net/if_inet6").await;
        assert_eq!(version_6, "");
        // They would not have it even if one of them assigned itself an address.
        let (_, off) = sh(&client, "first", "cat /proc/sys/net/ipv6/conf/eth0/disable_ipv6 || echo 1").await;
        assert_eq!(off, "1\n");

        // No access to neighbours, nor to any address of the machine.
        assert_eq!(get(&client, "first", (second, 8080)).await, None);
        let everywhere =
            fake_world::serve_on((Ipv4Addr::UNSPECIFIED, 0).into()).expect("a service of the machine");
        let gateway = gateway(&client, "first").await;
        for own in [gateway, MACHINE, Ipv4Addr::LOCALHOST] {
            assert!(fake_world::get((own, everywhere.port())).is_ok(), "the machine reaches itself at {own}");
            assert_eq!(get(&client, "first", (own, everywhere.port())).await, None, "{own}");
        }
        let api = api_server(home);
        assert!(std::net::TcpStream::connect(api).is_ok(), "the API server listens");
        for own in [gateway, MACHINE, Ipv4Addr::LOCALHOST] {
            assert_eq!(get(&client, "first", (own, api.port())).await, None, "{own}");
        }

        // A policy allows one of them to reach one port of another, while they run; and only that
        // one can resolve its name.
        let service = json!({"metadata": {"name": "boxes"}, "spec": {
            "clusterIP": "None", "selector": {"app": "second"}, "ports": [{"port": 8080}]}});
        let services: Api<Service> = Api::namespaced(client.clone(), "default");
        let service = serde_json::from_value(service).expect("a service");
        services.create(&PostParams::default(), &service).await.expect("create the service");
        let name = "second.boxes.default.svc.cluster.local";
        assert_ne!(sh(&client, "first", &format!("getent ahostsv4 {name}")).await.0, 0);
        let policy = json!({"metadata": {"name": "let-in"}, "spec": {
            "podSelector": {"matchLabels": {"app": "second"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "first"}}}], "ports": [{"port": 8080}]}]}});
        let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), "default");
        let policy = serde_json::from_value(policy).expect("a policy");
        policies.create(&PostParams::default(), &policy).await.expect("create the policy");
        let reached =
            until("the policy lets the pod in", async || get(&client, "first", (second, 8080)).await);
        assert_eq!(reached.await, "this is second\n");
        assert_eq!(get(&client, "third", (second, 8080)).await, None);
        assert_eq!(get(&client, "second", (first, 8080)).await, None, "a policy has one direction");
        for known in [name, "boxes.default.svc.cluster.local", "boxes"] {
            let (_, found) = sh(&client, "first", &format!("getent ahostsv4 {known}")).await;
            assert!(found.starts_with(&second.to_string()), "{known}: {found}");
        }
        assert_ne!(sh(&client, "third", &format!("getent ahostsv4 {name}")).await.0, 0);

        // The daemon dies and is restarted: addresses, connections and policies are unchanged.
        let pid = home_pid(home);
        kill_process(pid, Signal::KILL).expect("kill the daemon");
        until("the daemon is gone", async || {
            (!Path::new(&format!("/proc/{}/exe", pid.as_raw_pid())).exists()).then_some(())
        })
        .await;
        assert_eq!(fake_world::get((second, 8080)).unwrap(), "this is second\n", "pods run on without it");
        home.up();
        let client = home.client().await;
        assert_eq!(address_of(&client, "second").await, second);
        assert_eq!(get(&client, "first", (second, 8080)).await.as_deref(), Some("this is second\n"));
        assert_eq!(get(&client, "third", (second, 8080)).await, None);

        let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), "default");
        policies.delete("let-in", &DeleteParams::default()).await.expect("delete the policy");
        until("the pod is kept out again", async || {
            get(&client, "first", (second, 8080)).await.is_none().then_some(())
        })
        .await;
        for name in ["first", "second", "third"] {
            pods(&client).delete(name, &DeleteParams::default()).await.expect("delete the pod");
        }
    });
}

#[test]
fn a_restricted_pod_reaches_what_its_list_allows_and_a_full_one_the_world() {
    on_a_machine(async |home| {
        let client = home.client().await;
        let hosts = "allowed.test, private.test, metadata.test, loopback.test";
        start(&client, pod("restricted", json!({"warren.dev/network-allowed-hosts": hosts}))).await;
        start(&client, pod("full", json!({"warren.dev/network": "full"}))).await;

        // Restricted: no direct access.
        for address in [INTERNET, PRIVATE, METADATA] {
            assert_eq!(get(&client, "restricted", (address, PORT)).await, None, "{address}");
        }
        // By the proxy: the names on the list, if they lead to the internet.
        let reached = get_by_proxy(&client, "restricted", "http://allowed.test/").await;
        assert!(reached.starts_with("HTTP/1.1 200 ") && reached.contains("reached 11.0.0.2"), "{reached}");
        let tunnel = "CONNECT allowed.test:80 HTTP/1.1\\r\\nHost: allowed.test:80\\r\\n\\r\\nGET / HTTP/1.0\\r\\n\\r\\n";
        let reached = ask_proxy(&client, "restricted", tunnel).await;
        assert!(reached.starts_with("HTTP/1.1 200 ") && reached.contains("reached 11.0.0.2"), "{reached}");
        for (url, reason) in [
            ("http://denied.test/", "the host is not among the allowed ones"),
            ("http://allowed.test:81/", "the port is not among the allowed ones"),
            ("http://11.0.0.2/", "the host is not among the allowed ones"),
            ("http://private.test/", "the address is a private one and not named among the allowed hosts"),
            ("http://metadata.test/", "the address belongs to this machine or its link"),
            ("http://169.254.169.254/", "the address belongs to this machine or its link"),
            ("http://loopback.test/", "the address belongs to this machine or its link"),
            ("http://11.0.0.1/", "the host is not among the allowed ones"),
        ] {
            let answer = get_by_proxy(&client, "restricted", url).await;
            assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(reason), "{url}: {answer}");
        }
        // Forbidden names do not exist; allowed ones resolve only to addresses that it could reach.
        let known = async |pod: &str, name: &str| sh(&client, pod, &format!("getent ahostsv4 {name}")).await;
        assert!(known("restricted", "allowed.test").await.1.starts_with("11.0.0.2"));
        for name in ["denied.test", "private.test", "metadata.test"] {
            assert_ne!(known("restricted", name).await.0, 0, "{name}");
        }

        // A changed list takes effect without a restart.
        let patch = json!({"metadata": {"annotations": {"warren.dev/network-allowed-hosts": "denied.test, 192.168.77.0/24, private.test"}}});
        let patch = Patch::Merge(patch);
        pods(&client).patch("restricted", &Default::default(), &patch).await.expect("patch the pod");
        until("the new list holds", async || {
            let answer = get_by_proxy(&client, "restricted", "http://denied.test/").await;
            answer.contains("reached 11.0.0.2").then_some(())
        })
        .await;
        assert!(
            get_by_proxy(&client, "restricted", "http://allowed.test/").await.starts_with("HTTP/1.1 403 ")
        );
        assert!(
            get_by_proxy(&client, "restricted", "http://private.test/")
                .await
                .contains("reached 192.168.77.2")
        );

        // Full: out, including private networks; not to the machine, its link or its pods.
        for address in [INTERNET, PRIVATE] {
            let reached = get(&client, "full", (address, PORT)).await;
            assert!(reached.is_some_and(|text| text.contains(&format!("reached {address}"))), "{address}");
        }
        assert_eq!(get(&client, "full", (METADATA, PORT)).await, None);
        let service =
            fake_world::serve_on((Ipv4Addr::UNSPECIFIED, 0).into()).expect("a service of the machine");
        for own in [MACHINE, Ipv4Addr::LOCALHOST, gateway(&client, "full").await] {
            assert_eq!(get(&client, "full", (own, service.port())).await, None, "{own}");
        }
        let neighbour = address_of(&client, "restricted").await;
        assert_eq!(get(&client, "full", (neighbour, 8080)).await, None);
        assert!(known("full", "denied.test").await.1.starts_with("11.0.0.2"));
        assert_ne!(known("full", "metadata.test").await.0, 0);

        // An egress policy restricts it while it runs.
        let policy = json!({"metadata": {"name": "narrow"}, "spec": {
            "podSelector": {"matchLabels": {"app": "full"}}, "policyTypes": ["Egress"],
            "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["192.168.0.0/16"]}}]}]}});
        let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), "default");
        let policy = serde_json::from_value(policy).expect("a policy");
        policies.create(&PostParams::default(), &policy).await.expect("create the policy");
        until("the policy holds", async || {
            get(&client, "full", (PRIVATE, PORT)).await.is_none().then_some(())
        })
        .await;
        assert!(get(&client, "full", (INTERNET, PORT)).await.is_some());

        for name in ["restricted", "full"] {
            pods(&client).delete(name, &DeleteParams::default()).await.expect("delete the pod");
        }
    });
}

#[test]
fn a_pod_without_a_network_has_none_and_a_wrong_wish_is_refused() {
    on_a_machine(async |home| {
        let client = home.client().await;
        let mut alone = pod("alone", json!({"warren.dev/network": "none"}));
        alone.metadata.name = Some("alone".to_owned());
        pods(&client).create(&PostParams::default(), &alone).await.expect("create the pod");
        until("the pod runs", async || {
            let phase = pods(&client).get("alone").await.expect("get the pod").status?.phase?;
            (phase == "Running").then_some(())
        })
        .await;
        let (_, devices) = sh(&client, "alone", "ls /sys/class/net").await;
        assert_eq!(devices, "lo\n");
        assert_eq!(get(&client, "alone", (INTERNET, PORT)).await, None);

        for (name, annotation, value) in [
            ("mode", "warren.dev/network", "open"),
            ("hosts", "warren.dev/network-allowed-hosts", "https://allowed.test"),
        ] {
            let mut annotations = json!({});
            annotations[annotation] = json!(value);
            pods(&client)
                .create(&PostParams::default(), &pod(name, annotations))
                .await
                .expect("create the pod");
            let status = until("the pod is refused", async || {
                let status = pods(&client).get(name).await.expect("get the pod").status?;
                (status.phase.as_deref() == Some("Failed")).then_some(status)
            });
            let status = status.await;
            assert_eq!(status.reason.as_deref(), Some("NetworkNotAvailable"));
            assert!(status.message.is_some_and(|message| message.contains(annotation)));
        }
        for name in ["alone", "mode", "hosts"] {
            pods(&client).delete(name, &DeleteParams::default()).await.expect("delete the pod");
        }
    });
}

/// Returns the machine's address as a pod sees it.
async fn gateway(client: &Client, pod: &str) -> Ipv4Addr {
    let (_, text) = sh(client, pod, "sed -n 's/^nameserver //p' /etc/resolv.conf").await;
    text.trim().parse().expect("an address")
}

fn api_server(home: &LocalHome) -> SocketAddr {
    let kubeconfig = std::fs::read_to_string(home.path().join("kubeconfig")).expect("read the kubeconfig");
    let server = kubeconfig.split("https://").nth(1).expect("a server");
    let end = server.find(|letter: char| !(letter.is_ascii_digit() || ".:".contains(letter)));
    server[..end.unwrap_or(server.len())].parse().expect("an address")
}

fn home_pid(home: &LocalHome) -> Pid {
    let lock: Value =
        serde_json::from_slice(&std::fs::read(home.path().join("lock")).expect("read the lock"))
            .expect("JSON");
    let pid = lock["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a process id");
    Pid::from_raw(pid).expect("a process")
}
