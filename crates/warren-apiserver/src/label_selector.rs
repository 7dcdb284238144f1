//! `LabelSelector` objects: evaluation, and formatting as a query parameter.

use serde_json::Value;
use warren_store::{LabelSelector, Requirement};

/// Parses a selector. Unknown operators are refused when the object is written; here they count as
/// `In`.
pub(crate) fn read(selector: &Value) -> LabelSelector {
    LabelSelector::new(requirements(selector))
}

/// Formats a selector for a query, as `labels.Selector.String` does.
pub(crate) fn text(selector: &Value) -> String {
    let is_label = |key: &str| selector["matchLabels"].get(key).is_some();
    let set = |mut values: Vec<String>| {
        values.sort();
        values.join(",")
    };
    let mut requirements = requirements(selector);
    requirements.sort_by(|a, b| key(a).cmp(key(b)));
    let texts = requirements.into_iter().map(|requirement| match requirement {
        Requirement::In(key, values) if is_label(&key) => format!("{key}={}", set(values)),
        Requirement::In(key, values) => format!("{key} in ({})", set(values)),
        Requirement::NotIn(key, values) => format!("{key} notin ({})", set(values)),
        Requirement::Absent(key) => format!("!{key}"),
        Requirement::Exists(key) | Requirement::GreaterThan(key, _) | Requirement::LessThan(key, _) => key,
    });
    texts.collect::<Vec<_>>().join(",")
}

fn key(requirement: &Requirement) -> &str {
    match requirement {
        Requirement::In(key, _)
        | Requirement::NotIn(key, _)
        | Requirement::Absent(key)
        | Requirement::Exists(key)
        | Requirement::GreaterThan(key, _)
        | Requirement::LessThan(key, _) => key,
    }
}

fn requirements(selector: &Value) -> Vec<Requirement> {
    let mut requirements = Vec::new();
    for (label, wanted) in selector["matchLabels"].as_object().into_iter().flatten() {
        let wanted = wanted.as_str().unwrap_or_default().to_owned();
        requirements.push(Requirement::In(label.clone(), vec![wanted]));
    }
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default().to_owned();
        let values = expression["values"].as_array().into_iter().flatten();
        let values = values.filter_map(|value| Some(value.as_str()?.to_owned())).collect();
        requirements.push(match expression["operator"].as_str() {
            Some("NotIn") => Requirement::NotIn(key, values),
            Some("Exists") => Requirement::Exists(key),
            Some("DoesNotExist") => Requirement::Absent(key),
            _ => Requirement::In(key, values),
        });
    }
    requirements
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::text;

    #[test]
    fn selectors_read_as_kubernetes_writes_them() {
        let selector = json!({
            "matchLabels": {"tier": "b", "app": "a"},
            "matchExpressions": [
                {"key": "zone", "operator": "In", "values": ["y", "x"]},
                {"key": "old", "operator": "DoesNotExist"},
                {"key": "env", "operator": "NotIn", "values": ["dev"]},
                {"key": "new", "operator": "Exists"},
            ],
        });
        assert_eq!(text(&selector), "app=a,env notin (dev),new,!old,tier=b,zone in (x,y)");
        assert_eq!(text(&json!({})), "");
    }
}
