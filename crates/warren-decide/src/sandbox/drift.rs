//! Detects that a live pod differs from its sandbox's pod template. A pod is never replaced because
//! of an edit, so the sandbox's status says that the edit has not been applied yet.
//!
//! The server fills in and changes the spec of a pod, so the specs cannot be compared. Instead the
//! pod carries hashes of the template's fields from its creation. A pod without them (adopted, or
//! made by another controller) is not judged.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::Value;
use warren_api::conditions::{ConditionStatus, ConditionType, Observation, Reason};
use warren_api::{NameHash, Sandbox, annotations};

use crate::bounded::bounded;
use crate::merge;
use crate::ownership;

/// The longest fingerprint with a hash per field. A longer one has a single hash for all
/// containers. All annotations of an object together may have 256 KiB.
const LONGEST: usize = 8 * 1024;
/// The largest number of fields that a message names.
const MOST_NAMED: usize = 5;
/// The longest part of each name in bytes.
const LONGEST_NAME: usize = 100;

/// The lists whose elements are identified by their names.
const NAMED_LISTS: [&str; 2] = ["containers", "initContainers"];

type Fields = BTreeMap<String, String>;

/// Returns the fingerprint of the template that a pod is about to be made from.
pub(super) fn fingerprint(spec: &PodSpec) -> String {
    let write = |fields: Fields| {
        fields.into_iter().map(|(field, hash)| format!("{field}={hash}")).collect::<Vec<_>>().join(",")
    };
    let fine = write(fields(spec, true));
    if fine.len() <= LONGEST { fine } else { write(fields(spec, false)) }
}

/// Returns the condition of a live pod that differs from the template.
pub(super) fn observe(sandbox: &Sandbox, pod: &Pod) -> Option<Observation> {
    let stored = ownership::annotation(&pod.metadata, annotations::POD_TEMPLATE_FINGERPRINT)?;
    let then: BTreeMap<&str, &str> = stored.split(',').filter_map(|field| field.split_once('=')).collect();
    let is_fine = !NAMED_LISTS.iter().any(|list| then.contains_key(list));
    let now = fields(&sandbox.spec.blueprint.pod_template.spec, is_fine);
    let changed = now.iter().filter(|(field, hash)| then.get(field.as_str()) != Some(&hash.as_str()));
    let mut differing: Vec<&str> = changed.map(|(field, _)| field.as_str()).collect();
    differing.extend(then.keys().filter(|field| !now.contains_key(**field)));
    if differing.is_empty() {
        return None;
    }
    differing.sort_unstable();
    let named: Vec<_> = differing.iter().take(MOST_NAMED).map(|field| bounded(field, LONGEST_NAME)).collect();
    let more = match differing.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let text = format!(
        "Pod was made from an earlier podTemplate, which differs in {}{more}; suspend and resume the sandbox to apply it",
        named.join(", ")
    );
    Some(Observation::new(
        ConditionType::PodOutdated,
        ConditionStatus::True,
        Reason::PodTemplateChanged,
        text,
    ))
}

/// Returns every field that is set, with the hash of its value.
fn fields(spec: &PodSpec, is_fine: bool) -> Fields {
    let hash = |value: &Value| NameHash::of(&value.to_string()).to_string();
    let mut fields = Fields::new();
    let Value::Object(spec) = merge::json(spec) else { return fields };
    for (field, value) in spec {
        let elements = value.as_array().filter(|_| is_fine && NAMED_LISTS.contains(&field.as_str()));
        let Some(elements) = elements else {
            if !is_empty(&value) {
                fields.insert(field, hash(&value));
            }
            continue;
        };
        for element in elements.iter().filter_map(Value::as_object) {
            let name = element.get("name").and_then(Value::as_str).unwrap_or_default();
            // The entry of the name itself records that the element exists.
            for (inner, value) in element.iter().filter(|(_, value)| !is_empty(value)) {
                fields.insert(format!("{field}[{name}].{inner}"), hash(value));
            }
        }
    }
    fields
}

/// Returns true for an empty value, which means the same as an absent one to the server.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::{Value, json};

    use super::{LONGEST, fingerprint, observe};

    fn check(before: Value, after: Value, expect: Expect) {
        let mut pod = k8s_openapi::api::core::v1::Pod::default();
        let made_from = fingerprint(&serde_json::from_value(before).unwrap());
        assert!(made_from.len() <= LONGEST);
        pod.metadata.annotations =
            Some([("warren.dev/pod-template-fingerprint".to_owned(), made_from)].into());
        let sandbox =
            serde_json::from_value(json!({"metadata": {}, "spec": {"podTemplate": {"spec": after}}}));
        let observation = observe(&sandbox.unwrap(), &pod);
        expect.assert_eq(&observation.map(|observation| observation.message).unwrap_or_default());
    }

    #[test]
    fn the_fields_that_differ_are_named() {
        let spec =
            json!({"containers": [{"name": "main", "image": "a", "env": []}], "nodeSelector": {"x": "y"}});
        check(spec.clone(), spec.clone(), expect![""]);
        let mut other = spec.clone();
        other["containers"][0]["image"] = json!("b");
        other["nodeSelector"] = json!({});
        other["priority"] = json!(3);
        check(
            spec.clone(),
            other,
            expect![
                "Pod was made from an earlier podTemplate, which differs in containers[main].image, nodeSelector, priority; suspend and resume the sandbox to apply it"
            ],
        );
        let mut renamed = spec.clone();
        renamed["containers"][0]["name"] = json!("other");
        check(
            spec,
            renamed,
            expect![
                "Pod was made from an earlier podTemplate, which differs in containers[main].image, containers[main].name, containers[other].image, containers[other].name; suspend and resume the sandbox to apply it"
            ],
        );
    }

    #[test]
    fn a_large_template_has_a_short_fingerprint_and_a_short_message() {
        let containers = |count: usize, image: &str| {
            let containers = (0..count).map(|number| json!({"name": format!("c{number}"), "image": image}));
            json!({"containers": containers.collect::<Vec<_>>(), "hostname": "h"})
        };
        check(
            containers(20, "a"),
            containers(20, "b"),
            expect![
                "Pod was made from an earlier podTemplate, which differs in containers[c0].image, containers[c10].image, containers[c11].image, containers[c12].image, containers[c13].image and 15 more; suspend and resume the sandbox to apply it"
            ],
        );
        check(containers(500, "a"), containers(500, "a"), expect![""]);
        check(
            containers(500, "a"),
            containers(500, "b"),
            expect![
                "Pod was made from an earlier podTemplate, which differs in containers; suspend and resume the sandbox to apply it"
            ],
        );
    }

    #[test]
    fn a_pod_without_a_fingerprint_is_not_judged() {
        let sandbox =
            json!({"metadata": {}, "spec": {"podTemplate": {"spec": {"containers": [{"name": "a"}]}}}});
        assert!(observe(&serde_json::from_value(sandbox).unwrap(), &Default::default()).is_none());
    }
}
