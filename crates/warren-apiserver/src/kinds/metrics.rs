//! `metrics.k8s.io`: what pods and nodes use. Nothing of it is stored: the nodes are asked.

use serde_json::Value;

use super::columns::{COLUMN, NAME};
use super::{Behaviour, PLAIN};
use crate::definition::Column;

pub(super) static BEHAVIOUR: Behaviour = Behaviour { verbs: &["get", "list"], measured: true, ..PLAIN };

/// As the metrics server shows them.
pub(super) const COLUMNS: &[Column] = &[
    NAME,
    Column { name: "cpu", cell: |object, _| uses(object, "cpu"), ..COLUMN },
    Column { name: "memory", cell: |object, _| uses(object, "memory"), ..COLUMN },
    Column { name: "Window", cell: |object, _| object["window"].clone(), ..COLUMN },
];

/// The use of a node, or of each container of a pod.
fn uses(object: &Value, resource: &str) -> Value {
    match &object["containers"] {
        Value::Array(containers) => {
            let each = containers.iter().filter_map(|container| container["usage"][resource].as_str());
            each.collect::<Vec<_>>().join("+").into()
        }
        _ => object["usage"][resource].clone(),
    }
}
