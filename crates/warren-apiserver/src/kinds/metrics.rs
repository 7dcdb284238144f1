//! `metrics.k8s.io`: the resource usage of pods and nodes. It is not stored: the nodes are asked.

use serde_json::Value;

use super::columns::{COLUMN, NAME};
use super::{Behaviour, PLAIN};
use crate::definition::Column;

pub(super) static BEHAVIOUR: Behaviour = Behaviour { verbs: &["get", "list"], measured: true, ..PLAIN };

/// The columns that the metrics server shows.
pub(super) const COLUMNS: &[Column] = &[
    NAME,
    Column { name: "cpu", cell: |object, _| uses(object, "cpu"), ..COLUMN },
    Column { name: "memory", cell: |object, _| uses(object, "memory"), ..COLUMN },
    Column { name: "Window", cell: |object, _| object["window"].clone(), ..COLUMN },
];

/// Returns the usage of a node, or the total of a pod's containers.
fn uses(object: &Value, resource: &str) -> Value {
    match &object["containers"] {
        Value::Array(containers) => {
            let each = containers.iter().filter_map(|container| container["usage"][resource].as_str());
            each.collect::<Vec<_>>().join("+").into()
        }
        _ => object["usage"][resource].clone(),
    }
}
