//! The fields that kube-apiserver's Go types write even when they are empty. No client sets these,
//! so they have no owner.

use serde_json::{Map, Value, json};

use crate::definition::{SchemaSource, Target};

/// Returns the empty object of a kind. It has no fields for custom resources, which have no Go
/// type.
pub(super) fn zero(target: &Target) -> Value {
    let SchemaSource::Builtin(type_) = target.version().schema.source else {
        return json!({});
    };
    match type_.rsplit('.').next().unwrap_or(type_) {
        "Pod" => json!({"metadata": {}, "spec": {"containers": null}, "status": {}}),
        "PersistentVolumeClaim" => json!({"metadata": {}, "spec": {"resources": {}}, "status": {}}),
        "Service" => json!({"metadata": {}, "spec": {}, "status": {"loadBalancer": {}}}),
        "Node" => json!({
            "metadata": {},
            "spec": {},
            "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {}},
        }),
        "Event" => json!({
            "metadata": {},
            "source": {},
            "firstTimestamp": null,
            "lastTimestamp": null,
            "eventTime": null,
            "reportingComponent": "",
            "reportingInstance": "",
            // The same fields under the names of the other group.
            "deprecatedSource": {},
            "deprecatedFirstTimestamp": null,
            "deprecatedLastTimestamp": null,
            "reportingController": "",
        }),
        "CustomResourceDefinition" => json!({
            "metadata": {},
            "spec": {"names": {}, "versions": null},
            "status": {"acceptedNames": {}, "conditions": null, "storedVersions": null},
        }),
        _ => {
            let known = target.schema().ok();
            let parts = ["metadata", "spec", "status"].into_iter();
            let present =
                parts.filter(|part| known.is_some_and(|schema| schema.properties.contains_key(part)));
            present.map(|part| (part.to_owned(), json!({}))).collect::<Map<_, _>>().into()
        }
    }
}
