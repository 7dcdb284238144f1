//! Events are stored in their core form; `events.k8s.io/v1` is the same object under other field names.

use serde_json::{Map, Value};

use super::{Behaviour, PLAIN, set_default};
use crate::definition::Conversion;
use crate::status::FieldError;

pub(super) static BEHAVIOUR: Behaviour = Behaviour { create_on_update: true, default, validate, ..PLAIN };

pub(super) static CONVERSION: Conversion = Conversion { from_stored, to_stored };

/// These are always written out.
fn default(event: &mut Value) {
    let Some(event) = event.as_object_mut() else { return };
    for time in ["eventTime", "firstTimestamp", "lastTimestamp"] {
        set_default(event, time, Value::Null);
    }
    for name in ["reportingComponent", "reportingInstance"] {
        set_default(event, name, "");
    }
}

/// The pairs `events.k8s.io/v1` name, core name.
const RENAMED: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

fn from_stored(event: &mut Value) {
    rename(event, |(new, core)| (core, new));
    if let Some(event) = event.as_object_mut() {
        // Always written in the core form, and left out of this one where they are empty.
        event.retain(|name, value| {
            !(matches!(name.as_str(), "reportingController" | "reportingInstance") && value == "")
        });
    }
}

fn to_stored(event: &mut Value) {
    rename(event, |(new, core)| (new, core));
    if let Some(event) = event.as_object_mut() {
        event.insert("apiVersion".to_owned(), "v1".into());
        // Required there, and read by older clients.
        event.entry("source").or_insert_with(|| Value::Object(Map::new()));
    }
}

fn rename(
    event: &mut Value,
    direction: impl Fn(&(&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let Some(event) = event.as_object_mut() else { return };
    for pair in RENAMED {
        let (from, to) = direction(pair);
        if let Some(value) = event.shift_remove(from) {
            event.insert(to.to_owned(), value);
        }
    }
}

fn validate(event: &Value, errors: &mut Vec<FieldError>) {
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
    let involved = event["involvedObject"]["namespace"].as_str().unwrap_or_default();
    if involved.is_empty() {
        if namespace != "default" && namespace != "kube-system" {
            errors.push(FieldError::invalid(
                "involvedObject.namespace",
                involved,
                "does not match event.namespace",
            ));
        }
    } else if involved != namespace {
        errors.push(FieldError::invalid(
            "involvedObject.namespace",
            involved,
            "does not match event.namespace",
        ));
    }
}
