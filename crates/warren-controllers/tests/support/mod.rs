//! What the tests of the controllers stand on: a client of a real control plane with our definitions in it, a namespace
//! for each test, and a kubelet that only pretends.

pub mod kubelet;

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{Condition, await_condition, conditions};
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};
use warren_testkit::kube::ControlPlane;

/// Nothing here takes this long unless it will never come.
pub const DEADLINE: Duration = Duration::from_secs(30);

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A namespace on a control plane that the test has to itself, as controllers look at all namespaces.
pub struct Place {
    pub client: Client,
    pub namespace: String,
    _alone: MutexGuard<'static, ()>,
}

impl Place {
    pub async fn new(name: &str) -> Self {
        let alone = ONE_AT_A_TIME.lock().await;
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let kubeconfig = Kubeconfig::read_from(ControlPlane::start().kubeconfig()).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for definition in warren_api::crds() {
            let name = definition.name_any();
            let params = PatchParams::apply("test").force();
            definitions.patch(&name, &params, &Patch::Apply(&definition)).await.unwrap();
            let established = await_condition(definitions.clone(), &name, conditions::is_crd_established());
            tokio::time::timeout(DEADLINE, established).await.unwrap().unwrap();
        }
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"generateName": format!("{name}-")}})).unwrap();
        let namespace = Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        Self { client, namespace: namespace.name_any(), _alone: alone }
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
pub fn is_ready<K: serde::Serialize>(wanted: &'static str) -> impl Condition<K> {
    move |object: Option<&K>| object.is_some_and(|object| ready(object) == wanted)
}
