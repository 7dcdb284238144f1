//! The effect of deletion on an object's metadata: finalizers, grace periods, propagation.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

/// The finalizer that makes an object wait for its blocking dependents.
pub const FOREGROUND_FINALIZER: &str = "foregroundDeletion";
/// The finalizer that makes an object wait until its dependents have been orphaned.
pub const ORPHAN_FINALIZER: &str = "orphan";

/// The treatment of a deleted object's dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
    /// They stay, without the owner reference.
    Orphan,
}

/// The result of a delete request.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Remove the object now.
    Remove,
    /// Keep the object for now, in this state.
    Mark(Value),
    /// The deletion is already in progress, and this request changes nothing.
    Unchanged,
}

/// Formats a time for `metadata`.
pub fn timestamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Decides the effect of a delete request on `object`. `grace` is its grace period: zero for kinds
/// that have none.
pub fn delete(object: &Value, propagation: Propagation, grace: i64, now: Timestamp) -> Outcome {
    let Some(metadata) = object.get("metadata").and_then(Value::as_object) else {
        return Outcome::Remove;
    };
    let already = metadata.get("deletionTimestamp").is_some_and(Value::is_string);
    let running_grace = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    // All other propagations add a finalizer.
    let is_held = propagation != Propagation::Background || has_finalizers(metadata);
    if !is_held && (grace == 0 || (already && running_grace == 0)) {
        return Outcome::Remove;
    }
    let mut marked = object.clone();
    let Some(metadata) = marked.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Outcome::Remove;
    };
    match propagation {
        Propagation::Background => {}
        Propagation::Foreground => add_finalizer(metadata, FOREGROUND_FINALIZER, ORPHAN_FINALIZER),
        Propagation::Orphan => add_finalizer(metadata, ORPHAN_FINALIZER, FOREGROUND_FINALIZER),
    }
    if !already {
        let deadline = now.checked_add(SignedDuration::from_secs(grace)).unwrap_or(now);
        metadata.insert("deletionTimestamp".to_owned(), timestamp(deadline).into());
        metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
        bump_generation(metadata);
    } else if grace < running_grace {
        // A later request may shorten the grace period but not extend it.
        let deadline = now.checked_add(SignedDuration::from_secs(grace)).unwrap_or(now);
        metadata.insert("deletionTimestamp".to_owned(), timestamp(deadline).into());
        metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
    }
    if marked == *object { Outcome::Unchanged } else { Outcome::Mark(marked) }
}

/// Returns the last state of an object that is deleted with a grace period of zero, for kinds that
/// show it to watchers before the removal. Returns `None` if the object already is in that state.
pub fn last_state(object: &Value, now: Timestamp) -> Option<Value> {
    let mut marked = object.clone();
    let metadata = marked.get_mut("metadata").and_then(Value::as_object_mut)?;
    let deleting = metadata.get("deletionTimestamp").is_some_and(Value::is_string);
    if deleting && metadata.get("deletionGracePeriodSeconds") == Some(&Value::from(0)) {
        return None;
    }
    metadata.insert("deletionTimestamp".to_owned(), timestamp(now).into());
    metadata.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
    if !deleting {
        bump_generation(metadata);
    }
    Some(marked)
}

/// Returns true if an updated object can be removed: it is being deleted, its grace period is over
/// and its last finalizer is gone.
pub fn is_finished(object: &Value) -> bool {
    let Some(metadata) = object.get("metadata").and_then(Value::as_object) else { return false };
    metadata.get("deletionTimestamp").is_some_and(Value::is_string)
        && metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0) == 0
        && !has_finalizers(metadata)
}

fn has_finalizers(metadata: &Map<String, Value>) -> bool {
    metadata.get("finalizers").and_then(Value::as_array).is_some_and(|finalizers| !finalizers.is_empty())
}

fn add_finalizer(metadata: &mut Map<String, Value>, name: &str, instead_of: &str) {
    let finalizers = metadata.entry("finalizers").or_insert_with(|| Value::Array(Vec::new()));
    if !finalizers.is_array() {
        *finalizers = Value::Array(Vec::new());
    }
    let Some(finalizers) = finalizers.as_array_mut() else { return };
    finalizers.retain(|finalizer| finalizer != instead_of);
    if !finalizers.iter().any(|finalizer| finalizer == name) {
        finalizers.push(name.into());
    }
}

fn bump_generation(metadata: &mut Map<String, Value>) {
    if let Some(generation) = metadata.get("generation").and_then(Value::as_i64)
        && generation > 0
    {
        metadata.insert("generation".to_owned(), (generation + 1).into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Outcome, Propagation, delete, is_finished, last_state};

    fn now() -> jiff::Timestamp {
        "2026-11-15T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn without_finalizers_and_grace_an_object_goes_at_once() {
        let object = json!({"metadata": {"name": "a"}});
        assert_eq!(delete(&object, Propagation::Background, 0, now()), Outcome::Remove);
    }

    #[test]
    fn a_finalizer_or_a_grace_period_keeps_it() {
        let object = json!({"metadata": {"name": "a", "generation": 1, "finalizers": ["x"]}});
        let Outcome::Mark(marked) = delete(&object, Propagation::Background, 0, now()) else { panic!() };
        assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-11-15T12:00:00Z");
        assert_eq!(marked["metadata"]["generation"], 2);
        assert!(!is_finished(&marked));
        assert_eq!(delete(&marked, Propagation::Background, 0, now()), Outcome::Unchanged);

        let Outcome::Mark(marked) = delete(&json!({"metadata": {}}), Propagation::Background, 30, now())
        else {
            panic!()
        };
        assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-11-15T12:00:30Z");
        assert_eq!(delete(&marked, Propagation::Background, 60, now()), Outcome::Unchanged);
        assert_eq!(delete(&marked, Propagation::Background, 0, now()), Outcome::Remove);
    }

    #[test]
    fn the_last_state_has_no_grace_left_and_comes_once() {
        let object =
            json!({"metadata": {"generation": 1, "deletionGracePeriodSeconds": 7, "deletionTimestamp": "x"}});
        let last = last_state(&object, now()).unwrap();
        assert_eq!(last["metadata"]["deletionGracePeriodSeconds"], 0);
        assert_eq!(last["metadata"]["deletionTimestamp"], "2026-11-15T12:00:00Z");
        assert_eq!(last["metadata"]["generation"], 1);
        assert_eq!(last_state(&last, now()), None);
    }

    #[test]
    fn propagation_becomes_a_finalizer() {
        let object = json!({"metadata": {"finalizers": ["orphan"]}});
        let Outcome::Mark(marked) = delete(&object, Propagation::Foreground, 0, now()) else { panic!() };
        assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
        let mut finished = marked;
        finished["metadata"]["finalizers"] = json!([]);
        assert!(is_finished(&finished));
    }
}
