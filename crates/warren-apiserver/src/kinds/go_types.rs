//! The names of kube-apiserver's own Go types, for the error about a value of the wrong type. The
//! embedded schemas are parsed only when such an error happens.

use serde_json::{Map, Value};

/// Returns the path of a field, beginning with the Go structure that has it, and its Go type.
/// `path` has no list indices.
pub(crate) fn describe(kind: &str, path: &str) -> (String, String) {
    let components = super::builtin_schemas();
    let mut owner = kind.to_owned();
    let mut at = components.get(kind);
    let mut shown: Vec<&str> = Vec::new();
    for segment in path.split('.') {
        let (name, node) = resolve(at, &components);
        if let Some(property) = node.and_then(|node| node.get("properties")?.get(segment)) {
            owner = name.unwrap_or(owner);
            shown.push(segment);
            at = Some(property);
        } else {
            // A key of a map. It may contain dots.
            at = node.and_then(|node| node.get("additionalProperties"));
            break;
        }
    }
    let owner = owner.rsplit('.').next().unwrap_or_default();
    (format!("{owner}.{}", shown.join(".")), at.map_or_else(String::new, go_type))
}

/// Follows references and lists to the type that has fields. Also returns the name of that type, if
/// it has one.
fn resolve<'a>(
    mut at: Option<&'a Value>,
    components: &'a Map<String, Value>,
) -> (Option<String>, Option<&'a Value>) {
    let mut name = None;
    while let Some(node) = at {
        if let Some(reference) = node.get("$ref").and_then(Value::as_str) {
            let target = reference.rsplit('/').next().unwrap_or_default();
            name = Some(target.to_owned());
            at = components.get(target);
        } else if let Some(items) = node.get("items") {
            at = Some(items);
        } else {
            break;
        }
    }
    (name, at)
}

fn go_type(node: &Value) -> String {
    let text = |field: &str| node.get(field).and_then(Value::as_str).unwrap_or_default();
    if let Some(reference) = node.get("$ref").and_then(Value::as_str) {
        return format!("v1.{}", reference.rsplit('.').next().unwrap_or_default());
    }
    match (text("type"), text("format")) {
        ("array", _) => format!("[]{}", node.get("items").map_or_else(String::new, go_type)),
        ("object", _) => {
            format!("map[string]{}", node.get("additionalProperties").map_or_else(String::new, go_type))
        }
        ("string", "byte") => "[]uint8".to_owned(),
        ("boolean", _) => "bool".to_owned(),
        ("integer", "int64") => "int64".to_owned(),
        ("integer", _) => "int32".to_owned(),
        ("number", _) => "float64".to_owned(),
        (other, _) => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::describe;

    #[test]
    fn fields_have_the_names_of_the_real_servers_types() {
        for (path, field, type_) in [
            ("metadata", "Pod.metadata", "v1.ObjectMeta"),
            ("metadata.labels.a.b", "ObjectMeta.metadata.labels", "string"),
            ("metadata.labels", "ObjectMeta.metadata.labels", "map[string]string"),
            ("spec.containers", "PodSpec.spec.containers", "[]v1.Container"),
            ("spec.containers.image", "Container.spec.containers.image", "string"),
            ("spec.hostNetwork", "PodSpec.spec.hostNetwork", "bool"),
            ("spec.priority", "PodSpec.spec.priority", "int32"),
        ] {
            assert_eq!(
                describe("io.k8s.api.core.v1.Pod", path),
                (field.to_owned(), type_.to_owned()),
                "{path}"
            );
        }
    }
}
