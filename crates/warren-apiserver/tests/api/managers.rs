//! Most writes handle managers apart from their object; a write that names them does not. Both ways
//! must have the same result.

use http::Request;
use kube::Client;
use serde_json::{Value, json};
use warren_apiserver::{ApiServer, Config, Identity, NoNodes, Storage};

use crate::support::widgets;

/// A collection, an object, and changes as merge patches and as JSON patches.
struct Case {
    path: &'static str,
    object: Value,
    steps: Vec<(&'static str, Value, Value)>,
}

fn now() -> jiff::Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

async fn send(client: &Client, method: &str, path: &str, content_type: &str, body: &Value) -> Value {
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let request = request.header("user-agent", "test/1").body(body.to_string().into_bytes()).unwrap();
    client.request(request).await.unwrap_or_else(|error| panic!("{method} {path} {body}: {error}"))
}

/// Removes the fields that differ between two objects with the same history.
fn common(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    assert_eq!(metadata.keys().next_back().map(String::as_str), Some("managedFields"), "it stands last");
    for own in ["name", "uid", "resourceVersion"] {
        metadata.shift_remove(own).unwrap();
    }
    object
}

#[tokio::test]
async fn managers_kept_apart_and_managers_in_the_object_come_to_the_same() {
    let config = Config {
        storage: Storage::Memory,
        crds: vec![widgets()],
        nodes: std::sync::Arc::new(NoNodes),
        accounts: None,
        now,
        limits: Default::default(),
        audit: None,
    };
    let server = ApiServer::open(config).await.unwrap();
    let client = Client::new(server.as_user(Identity::admin()), "default");
    let label = |path: &str, value: &str| json!([{"op": "add", "path": path, "value": value}]);
    let cases = [
        Case {
            path: "/api/v1/namespaces/default/configmaps",
            object: json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"labels": {"l": "1"}}, "data": {"a": "1", "b": "2"}}),
            steps: vec![
                ("?fieldManager=one", json!({"data": {"a": "2"}}), label("/data/a", "2")),
                ("?fieldManager=one", json!({"data": {"a": "2"}}), label("/data/a", "2")),
                ("?fieldManager=two&dryRun=All", json!({"data": {"b": "3"}}), label("/data/b", "3")),
                (
                    "?fieldManager=two",
                    json!({"metadata": {"labels": {"m": "1"}}}),
                    label("/metadata/labels/m", "1"),
                ),
                (
                    "?fieldManager=two",
                    json!({"data": {"a": null}}),
                    json!([{"op": "remove", "path": "/data/a"}]),
                ),
            ],
        },
        Case {
            path: "/apis/example.com/v1/namespaces/default/widgets",
            object: json!({"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {"labels": {"l": "1"}}, "spec": {"name": "a"}}),
            steps: vec![
                (
                    "?fieldManager=one",
                    json!({"spec": {"size": "large"}}),
                    json!([{"op": "replace", "path": "/spec/size", "value": "large"}]),
                ),
                (
                    "/status?fieldManager=two",
                    json!({"status": {"phase": "Ready"}}),
                    json!([{"op": "add", "path": "/status", "value": {"phase": "Ready"}}]),
                ),
                (
                    "/status?fieldManager=two",
                    json!({"status": {"phase": "Ready"}}),
                    json!([{"op": "add", "path": "/status", "value": {"phase": "Ready"}}]),
                ),
                (
                    "?fieldManager=two",
                    json!({"metadata": {"labels": {"l": "2"}}}),
                    label("/metadata/labels/l", "2"),
                ),
            ],
        },
    ];
    for Case { path, object, steps } in cases {
        let mut versions = (Value::Null, Value::Null);
        for name in ["apart", "whole"] {
            let mut object = object.clone();
            object["metadata"]["name"] = name.into();
            send(&client, "POST", path, "application/json", &object).await;
        }
        for (how, merge, operations) in steps {
            let at = |name: &str| format!("{path}/{name}{how}");
            let apart = send(&client, "PATCH", &at("apart"), "application/merge-patch+json", &merge).await;

            let whole = send(&client, "GET", &format!("{path}/whole"), "", &Value::Null).await;
            let test = json!({"op": "test", "path": "/metadata/managedFields", "value": whole["metadata"]["managedFields"]});
            let operations: Value =
                [&test].into_iter().chain(operations.as_array().unwrap()).cloned().collect();
            let whole =
                send(&client, "PATCH", &at("whole"), "application/json-patch+json", &operations).await;

            let now =
                (apart["metadata"]["resourceVersion"].clone(), whole["metadata"]["resourceVersion"].clone());
            assert_eq!(
                now.0 == versions.0,
                now.1 == versions.1,
                "{how} {merge}: both are written, or neither"
            );
            versions = now;
            assert_eq!(common(apart).to_string(), common(whole).to_string(), "{how} {merge}");
        }
    }
}
