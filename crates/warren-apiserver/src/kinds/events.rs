//! Events. They are stored in their core form; `events.k8s.io/v1` shows the same object under other
//! field names.

use serde_json::{Map, Value};

use super::{Behaviour, PLAIN, set_default};
use crate::definition::Conversion;
use crate::status::FieldError;

pub(super) static BEHAVIOUR: Behaviour = Behaviour { create_on_update: true, default, validate, ..PLAIN };

/// The behaviour of `events.k8s.io/v1`, which has stricter validation.
pub(super) static NEW_BEHAVIOUR: Behaviour =
    Behaviour { create_on_update: true, default, validate: validate_new, ..PLAIN };

pub(super) static CONVERSION: Conversion = Conversion { from_stored, to_stored };

/// Adds the fields that are always present.
fn default(event: &mut Value) {
    let Some(event) = event.as_object_mut() else { return };
    for time in ["eventTime", "firstTimestamp", "lastTimestamp"] {
        set_default(event, time, Value::Null);
    }
    for name in ["reportingComponent", "reportingInstance"] {
        set_default(event, name, "");
    }
}

/// Pairs of the `events.k8s.io/v1` name and the core name.
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
        // The core form always has these fields; this form omits them if they are empty.
        event.retain(|name, value| {
            !(matches!(name.as_str(), "reportingController" | "reportingInstance") && value == "")
        });
    }
}

fn to_stored(event: &mut Value) {
    rename(event, |(new, core)| (new, core));
    if let Some(event) = event.as_object_mut() {
        event.insert("apiVersion".to_owned(), "v1".into());
        // The core form requires `source`, and older clients read it.
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

fn validate_new(event: &Value, errors: &mut Vec<FieldError>) {
    validate(event, errors);
    // These rules hold for new events only.
    if event["metadata"].get("resourceVersion").is_some() {
        return;
    }
    let text = |field: &str| event[field].as_str().unwrap_or_default();
    if text("eventTime").is_empty() {
        errors.push(FieldError::required("eventTime", ""));
    } else {
        for (field, shown) in [
            ("reportingComponent", "reportingController"),
            ("reportingInstance", "reportingInstance"),
            ("action", "action"),
            ("reason", "reason"),
        ] {
            if text(field).is_empty() {
                errors.push(FieldError::required(shown, ""));
            }
        }
    }
    let type_ = text("type");
    if !matches!(type_, "Normal" | "Warning") {
        errors.push(FieldError::invalid("type", "", format!("has invalid value: {type_}")));
    }
    let old_source = ["component", "host"].iter().any(|field| event["source"][field].is_string());
    for (field, set) in [
        ("firstTimestamp", event["firstTimestamp"].is_string()),
        ("lastTimestamp", event["lastTimestamp"].is_string()),
        ("count", event["count"].as_i64().unwrap_or(0) != 0),
        ("source", old_source),
    ] {
        if set {
            errors.push(FieldError::invalid(field, "", "needs to be unset"));
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
