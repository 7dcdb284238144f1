//! An in-process server and a client for it.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use warren_apiserver::{ApiServer, Config, Identity, NoNodes, Storage};

pub async fn open(storage: Storage, crds: Vec<Value>) -> ApiServer {
    let config = Config {
        storage,
        crds,
        nodes: Arc::new(NoNodes),
        accounts: None,
        now: jiff::Timestamp::now,
        limits: Default::default(),
        audit: None,
    };
    ApiServer::open(config).await.unwrap()
}

pub async fn server() -> (ApiServer, Client) {
    let server = open(Storage::Memory, vec![widgets()]).await;
    let client = client(&server);
    (server, client)
}

pub fn client(server: &ApiServer) -> Client {
    Client::new(server.as_user(Identity::admin()), "default")
}

/// Returns a definition with defaults, limits, rules, columns, status and scale.
pub fn widgets() -> Value {
    serde_json::from_str(include_str!("widgets.json")).unwrap()
}

pub fn widget_api(client: &Client) -> Api<DynamicObject> {
    dynamic(client, "example.com", "v1", "Widget")
}

pub fn dynamic(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::default_namespaced_with(client.clone(), &resource)
}

pub fn widget(name: &str, spec: Value) -> DynamicObject {
    object(
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}),
    )
}

pub fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Returns the `Status` of a refused request.
pub fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> kube::core::Status {
    match result {
        Err(kube::Error::Api(status)) => *status,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Waits for a condition. Only a broken server reaches the deadline.
pub async fn eventually<F, Fut>(what: &str, mut condition: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
