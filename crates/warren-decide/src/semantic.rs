//! Compares two specifications by meaning. One may come from a controller in Go, whose types leave
//! out zeros, write some empty values and spell quantities in their own way, or from a user with
//! another spelling.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::merge::json;
use crate::pod::Quantity;

/// Fields that are plain values in Go's types, so that zero and absent are the same. Elsewhere zero
/// is a value, as in `runAsUser: 0`.
const PLAIN: [&str; 15] = [
    "failureThreshold",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPort",
    "initialDelaySeconds",
    "metadata",
    "periodSeconds",
    "readOnly",
    "resources",
    "stdin",
    "stdinOnce",
    "successThreshold",
    "timeoutSeconds",
    "tty",
];
/// Fields in which an empty text has a meaning: no class, instead of the default one.
const MEANT_EMPTY: [&str; 2] = ["storageClassName", "volumeAttributesClassName"];
/// Maps with free keys and values.
const FREE: [&str; 5] = ["annotations", "labels", "matchLabels", "nodeSelector", "volumeAttributes"];
/// Fields that hold maps of quantities.
const QUANTITIES: [&str; 4] = ["capacity", "limits", "overhead", "requests"];
/// Fields that hold a single quantity.
const QUANTITY: [&str; 2] = ["divisor", "sizeLimit"];

/// Returns true if two values mean the same.
#[must_use]
pub fn same<T: Serialize + PartialEq>(left: &T, right: &T) -> bool {
    left == right || canonical(left) == canonical(right)
}

/// Returns a value in canonical form: equal for all values that mean the same.
#[must_use]
pub fn canonical<T: Serialize>(value: &T) -> Value {
    field("", json(value)).unwrap_or(Value::Null)
}

/// Returns the canonical value of a field, or `None` if absent means the same.
fn field(name: &str, value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Bool(false) if PLAIN.contains(&name) => None,
        Value::Number(number) if PLAIN.contains(&name) && number.as_f64() == Some(0.0) => None,
        Value::String(text) if text.is_empty() && !MEANT_EMPTY.contains(&name) => None,
        Value::String(text) if QUANTITY.contains(&name) => Some(quantity(text)).filter(|value| value != "0m"),
        // An empty element can have a meaning: `ingress: [{}]` allows all peers.
        Value::Array(list) => {
            (!list.is_empty()).then(|| list.into_iter().map(|it| element(name, it)).collect())
        }
        Value::Object(map) if FREE.contains(&name) => (!map.is_empty()).then_some(Value::Object(map)),
        Value::Object(map) if QUANTITIES.contains(&name) => {
            let amounts = map.into_iter().map(|(key, value)| match value {
                Value::String(text) => (key, quantity(text)),
                other => (key, other),
            });
            Some(amounts.collect::<Map<_, _>>()).filter(|map| !map.is_empty()).map(Value::Object)
        }
        Value::Object(map) => {
            let fields: Map<_, _> =
                map.into_iter().filter_map(|(key, value)| Some((key.clone(), field(&key, value)?))).collect();
            (!fields.is_empty() || !PLAIN.contains(&name)).then_some(Value::Object(fields))
        }
        other => Some(other),
    }
}

fn element(of: &str, value: Value) -> Value {
    match value {
        Value::Object(_) => field(of, value).unwrap_or_else(|| Value::Object(Map::new())),
        other => other,
    }
}

fn quantity(text: String) -> Value {
    match text.parse::<Quantity>() {
        Ok(quantity) => Value::String(format!("{}m", quantity.thousandths())),
        Err(_) => Value::String(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::same;

    /// Compares a container with a field in two spellings.
    fn alike(left: Value, right: Value) -> bool {
        let spec = |fields: Value| {
            let mut container = json!({"name": "main", "image": "a"});
            for (key, value) in fields.as_object().unwrap() {
                container[key] = value.clone();
            }
            json!({"containers": [container]})
        };
        same(&spec(left), &spec(right))
    }

    #[test]
    fn what_go_leaves_out_or_writes_out_makes_no_difference() {
        for (left, right) in [
            (json!({"resources": {}}), json!({})),
            (json!({"resources": {"limits": {}}}), json!({})),
            (json!({"env": [], "stdin": false, "workingDir": ""}), json!({})),
            (json!({"env": [{"name": "A", "value": ""}]}), json!({"env": [{"name": "A"}]})),
            (
                json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}}]}),
                json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}),
            ),
            (json!({"livenessProbe": {"initialDelaySeconds": 0}}), json!({"livenessProbe": {}})),
        ] {
            assert!(alike(left.clone(), right.clone()), "{left} and {right}");
        }
    }

    #[test]
    fn quantities_are_compared_by_what_they_are() {
        let limits =
            |cpu: &str, memory: &str| json!({"resources": {"limits": {"cpu": cpu, "memory": memory}}});
        assert!(alike(limits("1000m", "1024Mi"), limits("1", "1Gi")));
        assert!(!alike(limits("1000m", "1024Mi"), limits("1", "1G")));
    }

    #[test]
    fn zero_and_empty_that_are_wishes_count() {
        for (left, right) in [
            (json!({"securityContext": {"runAsUser": 0}}), json!({"securityContext": {}})),
            (json!({"securityContext": {"allowPrivilegeEscalation": false}}), json!({"securityContext": {}})),
            (json!({"args": ["", "a"]}), json!({"args": ["a"]})),
            (json!({"image": "b"}), json!({"image": "a"})),
        ] {
            assert!(!alike(left.clone(), right.clone()), "{left} and {right}");
        }
        let volume = |source: Value| json!({"volumes": [{"name": "v", "emptyDir": source}]});
        assert!(!same(&volume(json!({})), &volume(json!(null))));
        assert!(same(&volume(json!({})), &volume(json!({"medium": ""}))));
        assert!(!same(&json!({"storageClassName": ""}), &json!({})));
        assert!(!same(&json!({"nodeSelector": {"gpu": ""}}), &json!({"nodeSelector": {}})));
        assert!(!same(&json!({"ingress": [{}]}), &json!({"ingress": []})));
    }
}
