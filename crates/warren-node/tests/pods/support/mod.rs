//! The scenarios' environment: an API server, a node in a data directory of its own, and clients of
//! both.

pub mod kubelet;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, PostParams, WatchParams};
use kube::core::WatchEvent;
use serde_json::{Value, json};
use tempfile::TempDir;
use warren_node::{Node, NodeConfig};
use warren_oci::zygote::Zygote;

use crate::api_servers::Nodes;

/// The deadline of every wait: long enough for a busy machine. A passing test does not wait for it.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The state that all scenarios share: one zygote and one API server.
#[derive(Clone)]
pub struct Machine {
    pub client: kube::Client,
    pub zygote: Arc<Zygote>,
    pub nodes: Arc<Nodes>,
    /// True if the server is ours, so that it reaches the node.
    pub embedded: bool,
}

/// A node with a data directory and a namespace of its own.
pub struct Home {
    pub machine: Machine,
    pub data: TempDir,
    pub name: String,
    pub node: Option<Arc<Node>>,
    pub bind_unassigned: bool,
    pub heartbeat: Option<Duration>,
}

impl Home {
    /// Creates a home named after its scenario.
    pub async fn new(machine: &Machine, name: &str) -> Home {
        let namespaces: Api<Namespace> = Api::all(machine.client.clone());
        let namespace = json!({"metadata": {"name": name}});
        namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
        let mut home = Home {
            machine: machine.clone(),
            data: tempfile::Builder::new().prefix("warren-node-").tempdir().unwrap(),
            name: name.to_owned(),
            node: None,
            bind_unassigned: false,
            heartbeat: None,
        };
        home.start_node();
        home
    }

    pub fn start_node(&mut self) {
        let machine = &self.machine;
        let config = NodeConfig {
            pod_range: None,
            // A node takes only pods of its own scenario, which name it.
            bind_unassigned: self.bind_unassigned,
            serve_claims: self.bind_unassigned,
            heartbeat: self.heartbeat,
            ..NodeConfig::local(
                self.name.clone(),
                self.data.path().to_owned(),
                machine.client.clone(),
                machine.zygote.clone(),
            )
        };
        let node = Arc::new(Node::start(config).unwrap());
        machine.nodes.0.lock().unwrap().insert(self.name.clone(), node.clone());
        self.node = Some(node);
    }

    pub async fn stop_node(&mut self) {
        self.node.take().expect("running").shutdown().await;
        self.machine.nodes.0.lock().unwrap().remove(&self.name);
    }

    pub fn node(&self) -> &Node {
        self.node.as_ref().expect("running")
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.machine.client.clone(), &self.name)
    }

    /// Creates a pod on this node with one container `main` on the host image.
    pub async fn create(&self, name: &str, container: Value, spec: Value) -> Pod {
        let mut main = json!({"name": "main", "image": "warren.dev/host"});
        merge(&mut main, container);
        let mut whole = json!({
            "nodeName": self.name, "containers": [main], "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 2, "automountServiceAccountToken": false,
        });
        merge(&mut whole, spec);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole});
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
    }

    /// Creates a pod that runs the image's init, and waits until it is ready.
    pub async fn create_ready(&self, name: &str) -> Pod {
        self.create(name, json!({}), json!({})).await;
        self.wait(name, "ready", is_ready).await
    }

    /// Waits by watch until the pod meets a condition.
    pub async fn wait(&self, name: &str, what: &str, wished: impl Fn(&Pod) -> bool) -> Pod {
        let last = std::cell::RefCell::new(None);
        let waited = tokio::time::timeout(DEADLINE, async {
            loop {
                let list = self
                    .pods()
                    .list(&kube::api::ListParams::default().fields(&format!("metadata.name={name}")))
                    .await
                    .unwrap();
                if let Some(pod) = list.items.into_iter().next() {
                    if wished(&pod) {
                        return pod;
                    }
                    *last.borrow_mut() = Some(pod);
                }
                let version = list.metadata.resource_version.unwrap_or_default();
                let parameters = WatchParams::default().fields(&format!("metadata.name={name}"));
                let mut events = self.pods().watch(&parameters, &version).await.unwrap().boxed();
                while let Some(Ok(event)) = events.next().await {
                    if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event {
                        if wished(&pod) {
                            return pod;
                        }
                        *last.borrow_mut() = Some(pod);
                    }
                }
            }
        });
        match waited.await {
            Ok(pod) => pod,
            Err(_) => {
                let status = last.borrow().as_ref().and_then(|pod| pod.status.clone());
                panic!("pod {name} is not {what}: {}", serde_json::to_string_pretty(&status).unwrap())
            }
        }
    }

    /// Deletes the pod and waits until its object is gone.
    pub async fn delete(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.unwrap();
        self.wait_gone(name).await;
    }

    pub async fn wait_gone(&self, name: &str) {
        until(&format!("pod {name} is gone"), async || self.pods().get_opt(name).await.unwrap().is_none())
            .await;
    }

    /// Ends the scenario and checks that nothing is left on the machine.
    pub async fn close(mut self) {
        let path = self.data.path().to_owned();
        // The node still runs in this process, with its bridge and rules. The lock file tells the
        // check that a daemon owns them.
        std::fs::write(path.join("lock"), format!("{{\"pid\": {}}}", std::process::id())).unwrap();
        let checked = tokio::task::spawn_blocking(move || warren_testkit::leaks::assert_nothing_left(&path));
        checked.await.expect("nothing left");
        self.stop_node().await;
        std::fs::remove_file(self.data.path().join("lock")).unwrap();
        // Without the node nothing of its own may be left either.
        let path = self.data.path().to_owned();
        let checked = tokio::task::spawn_blocking(move || warren_testkit::leaks::assert_nothing_left(&path));
        checked.await.expect("nothing left of the node");
    }
}

impl Drop for Home {
    /// Cleans up after a failed scenario: its node still exists, and perhaps pods.
    fn drop(&mut self) {
        self.node = None;
        let nodes = self.machine.nodes.0.lock();
        nodes.unwrap_or_else(std::sync::PoisonError::into_inner).remove(&self.name);
        let Ok(home_id) = warren_node::home_id(self.data.path()) else { return };
        for uid in warren_oci::cleanup::pods_with_cgroups(&home_id).unwrap_or_default() {
            let directory = self.data.path().join("pods").join(&uid);
            if let Ok(shim) = warren_oci::client::ShimClient::connect(&directory) {
                let _ = shim.call(warren_oci::protocol::Call::Shutdown, drop);
            }
            let _ = warren_oci::cleanup::kill_pod(&home_id, &uid);
        }
        let _ = warren_oci::cleanup::remove_home_cgroup(&home_id);
        let _ = warren_node::remove_network(&home_id);
    }
}

/// Polls a condition that has no event.
pub async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "never: {what}");
}

fn merge(into: &mut Value, from: Value) {
    for (key, value) in from.as_object().unwrap() {
        into[key] = value.clone();
    }
}

pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a k8s_openapi::api::core::v1::PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns the status of the container `main`.
pub fn main_status(pod: &Pod) -> Option<&k8s_openapi::api::core::v1::ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

pub fn restarts(pod: &Pod) -> i32 {
    main_status(pod).map_or(0, |status| status.restart_count)
}
