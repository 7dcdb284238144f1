//! The controller tests' environment: clients that record every call to a server with our CRDs, a
//! namespace for each test, and simulated nodes.

pub mod collector;

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_testkit::nodes::SimulatedNodes;

/// The deadline of every wait: far longer than a passing test takes.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A call that went through a client.
#[derive(Clone, Debug)]
pub struct Call {
    pub at: Instant,
    pub verb: String,
    pub path: String,
}

impl Call {
    /// Returns true if it concerns an object in this place: the controllers also handle objects of
    /// other tests.
    pub fn is_in(&self, place: &Place) -> bool {
        self.path.contains(&format!("/namespaces/{}/", place.namespace))
    }

    /// Returns true if it creates a pod in this place.
    pub fn is_creation_of_pod(&self, place: &Place) -> bool {
        self.verb == "POST" && self.path.ends_with(&format!("/namespaces/{}/pods", place.namespace))
    }
}

/// A client's calls, except lists and watches.
pub type Calls = Arc<Mutex<Vec<Call>>>;

/// A namespace of a server that the scenario has to itself, as controllers watch all namespaces.
pub struct Place {
    pub client: Client,
    pub namespace: String,
    connect: Box<dyn Fn(Calls) -> Client + Send + Sync>,
    _alone: Box<dyn std::any::Any + Send>,
}

/// Records every call, except lists and watches.
pub fn recording(
    calls: Calls,
) -> tower::util::MapRequestLayer<impl Fn(http::Request<Body>) -> http::Request<Body> + Clone> {
    tower::util::MapRequestLayer::new(move |request: http::Request<Body>| {
        let of_many =
            request.uri().query().is_some_and(|query| query.contains("watch=") || query.contains("limit="));
        if request.method() != http::Method::GET || !of_many {
            calls.lock().unwrap().push(Call {
                at: Instant::now(),
                verb: request.method().to_string(),
                path: request.uri().path().to_owned(),
            });
        }
        request
    })
}

/// The error text of [`refusing`].
pub const FORBIDDEN: &str = "forbidden: not by this test";

/// Wraps a client that may do everything except this, by method and path.
pub fn refusing(
    client: Client,
    is_refused: impl Fn(&http::Method, &str) -> bool + Send + Sync + Clone + 'static,
) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let client = client.clone();
        let is_refused = is_refused(request.method(), request.uri().path());
        async move {
            if !is_refused {
                return client.send(request).await;
            }
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
                "message": FORBIDDEN, "code": 403});
            let answer = http::Response::builder().status(403);
            Ok(answer.body(Body::from(serde_json::to_vec(&status).unwrap())).unwrap())
        }
    });
    Client::new(service, "default")
}

/// Starts simulated nodes for the place.
pub async fn nodes(place: &Place) -> SimulatedNodes {
    SimulatedNodes::builder(place.client.clone()).start().await.unwrap()
}

impl Place {
    /// Creates a namespace on the server that `connect` connects to. `alone` is held for as long as
    /// the place exists.
    pub async fn new(
        connect: impl Fn(Calls) -> Client + Send + Sync + 'static,
        alone: impl std::any::Any + Send,
    ) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let client = connect(Calls::default());
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"generateName": "test-"}})).unwrap();
        let namespace = Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let namespace = namespace.name_any();
        Self { client, namespace, connect: Box::new(connect), _alone: Box::new(alone) }
    }

    /// Returns a separate client that records every call.
    pub fn watched_client(&self) -> (Client, Calls) {
        let calls = Calls::default();
        ((self.connect)(calls.clone()), calls)
    }

    /// Creates a template, and a pool of that many members.
    pub async fn pool(&self, name: &str, replicas: i32, template: Value) {
        let mut spec = json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "i"}]}}});
        for (key, value) in template.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let group = "extensions.agents.x-k8s.io/v1beta1";
        self.create::<SandboxTemplate>(json!({"apiVersion": group, "kind": "SandboxTemplate",
            "metadata": {"name": name}, "spec": spec}))
            .await;
        self.create::<SandboxWarmPool>(json!({"apiVersion": group, "kind": "SandboxWarmPool",
            "metadata": {"name": name}, "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": name}}}))
            .await;
    }

    /// Waits until a pool has that many members, all ready.
    pub async fn full(&self, name: &str, count: i32) -> SandboxWarmPool {
        self.wait::<SandboxWarmPool>(name, "full", move |pool: Option<&SandboxWarmPool>| {
            let status = pool.and_then(|pool| pool.status.clone()).unwrap_or_default();
            (status.replicas, status.ready_replicas) == (count, count)
        })
        .await
        .unwrap()
    }

    /// Creates a claim on a pool, with more fields in its spec.
    pub async fn claim(&self, name: &str, pool: &str, spec: Value) -> SandboxClaim {
        let mut object = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": {"name": name}, "spec": {"warmPoolRef": {"name": pool}}});
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        self.create(object).await
    }

    /// Waits for a claim to be ready, and returns its sandbox.
    pub async fn claimed(&self, name: &str) -> Sandbox {
        let claim =
            self.wait::<SandboxClaim>(name, "ready", is_ready("True/DependenciesReady")).await.unwrap();
        let sandbox = claim.status.unwrap().sandbox.unwrap().name.unwrap();
        self.api::<Sandbox>().get(&sandbox).await.unwrap()
    }

    pub fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates an object from JSON.
    pub async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + serde::Serialize,
    {
        let object: K = serde_json::from_value(object).unwrap();
        self.api::<K>().create(&PostParams::default(), &object).await.unwrap()
    }

    /// Merge-patches an object.
    pub async fn patch<K>(&self, name: &str, body: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap()
    }

    /// Waits until an object meets a condition; fails with its last state.
    pub async fn wait<K>(&self, name: &str, what: &str, condition: impl Condition<K>) -> Option<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + serde::Serialize
            + Send
            + 'static,
    {
        match tokio::time::timeout(DEADLINE, await_condition(self.api::<K>(), name, condition)).await {
            Ok(found) => found.unwrap(),
            Err(_) => {
                let now = self.api::<K>().get_opt(name).await.unwrap();
                panic!("{name} never was {what}: {}", serde_json::to_string_pretty(&now).unwrap())
            }
        }
    }
}

/// Returns `Ready` of an object's status as `status/reason`, or an empty text.
pub fn ready<K: serde::Serialize>(object: &K) -> String {
    condition(object, "Ready").map_or_else(String::new, |ready| {
        format!("{}/{}", ready["status"].as_str().unwrap(), ready["reason"].as_str().unwrap())
    })
}

/// Returns a condition of an object's status.
pub fn condition<K: serde::Serialize>(object: &K, type_: &str) -> Option<Value> {
    let object = serde_json::to_value(object).unwrap();
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == type_).cloned()
}

/// Returns a wait condition: an object's `Ready` is this `status/reason`.
pub fn is_ready<K: serde::Serialize>(wanted: impl Into<String>) -> impl Condition<K> {
    let wanted = wanted.into();
    move |object: Option<&K>| object.is_some_and(|object| ready(object) == wanted)
}
