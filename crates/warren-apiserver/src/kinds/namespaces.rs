//! Namespaces.

use serde_json::{Value, json};

use super::{Behaviour, NameRule, PLAIN, child};

pub(super) static BEHAVIOUR: Behaviour = Behaviour {
    default: |namespace| {
        // Network policies select namespaces by this label.
        let name = namespace["metadata"]["name"].clone();
        if let Some(metadata) = namespace.get_mut("metadata").and_then(Value::as_object_mut)
            && let Some(labels) = child(metadata, "labels")
        {
            labels.insert("kubernetes.io/metadata.name".to_owned(), name);
        }
    },
    prepare_create: |namespace| {
        let sent = namespace["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
        let others = sent.into_iter().filter(|finalizer| finalizer != "kubernetes");
        let finalizers: Vec<Value> = others.chain(["kubernetes".into()]).collect();
        namespace["spec"] = json!({"finalizers": finalizers});
        namespace["status"] = json!({"phase": "Active"});
    },
    // Only the finalize subresource may change these.
    prepare_update: |new, old| {
        new["spec"] = old["spec"].clone();
    },
    returns_deleted: true,
    verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    name: NameRule::Label,
    ..PLAIN
};
