//! What the tests of the controllers stand on: clients of a server with our definitions in it that write down every
//! call, a namespace for each test, and nodes that only pretend.

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

/// Nothing here takes this long unless it will never come.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A call that went through a client.
#[derive(Clone, Debug)]
pub struct Call {
    pub at: Instant,
    pub verb: String,
    pub path: String,
}

impl Call {
    /// Whether it is about something in this place: the controllers work for what other tests have left, too.
    pub fn is_in(&self, place: &Place) -> bool {
        self.path.contains(&format!("/namespaces/{}/", place.namespace))
    }

    /// Whether a pod was to be made in this place.
    pub fn is_creation_of_pod(&self, place: &Place) -> bool {
        self.verb == "POST" && self.path.ends_with(&format!("/namespaces/{}/pods", place.namespace))
    }
}

/// The calls that went through a client, but for lists and watches.
pub type Calls = Arc<Mutex<Vec<Call>>>;

/// A namespace of a server that the scenario has to itself, as controllers look at all namespaces.
pub struct Place {
    pub client: Client,
    pub namespace: String,
    connect: Box<dyn Fn(Calls) -> Client + Send + Sync>,
    _alone: Box<dyn std::any::Any + Send>,
}

/// Writes down every call that passes, but for lists and watches.
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

/// What [`refusing`] answers.
pub const FORBIDDEN: &str = "forbidden: not by this test";

/// The same server for somebody who may do everything but this, by method and path.
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

/// Nodes for the place.
pub async fn nodes(place: &Place) -> SimulatedNodes {
    SimulatedNodes::builder(place.client.clone()).start().await.unwrap()
}

impl Place {
    /// A new namespace of the server that `connect` gives clients of. `alone` is held for as long as the place is.
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

    /// A client of its own that writes down every call.
    pub fn watched_client(&self) -> (Client, Calls) {
        let calls = Calls::default();
        ((self.connect)(calls.clone()), calls)
    }

    /// A template, and a pool of that many.
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

    /// A claim on a pool, with more in its spec.
    pub async fn claim(&self, name: &str, pool: &str, spec: Value) -> SandboxClaim {
        let mut object = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": {"name": name}, "spec": {"warmPoolRef": {"name": pool}}});
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        self.create(object).await
    }

    /// The sandbox of a claim that is ready.
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

    /// Waits until an object is as described; fails with what it was instead.
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

/// `Ready` of an object's status as `status/reason`, or nothing.
pub fn ready<K: serde::Serialize>(object: &K) -> String {
    condition(object, "Ready").map_or_else(String::new, |ready| {
        format!("{}/{}", ready["status"].as_str().unwrap(), ready["reason"].as_str().unwrap())
    })
}

/// A condition of an object's status.
pub fn condition<K: serde::Serialize>(object: &K, type_: &str) -> Option<Value> {
    let object = serde_json::to_value(object).unwrap();
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == type_).cloned()
}

/// The condition that an object's `Ready` is this `status/reason`.
pub fn is_ready<K: serde::Serialize>(wanted: impl Into<String>) -> impl Condition<K> {
    let wanted = wanted.into();
    move |object: Option<&K>| object.is_some_and(|object| ready(object) == wanted)
}
