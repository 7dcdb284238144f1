//! Makes small changes to JSON trees and to bytes.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// Words with a meaning in some part of the API.
const WORDS: &[&str] = &[
    "",
    "a",
    "metadata",
    "name",
    "namespace",
    "spec",
    "status",
    "kind",
    "apiVersion",
    "labels",
    "default",
    "kube-system",
    "finalizers",
    "foregroundDeletion",
    "kubernetes",
    "resourceVersion",
    "0",
    "1",
    "-1",
    "18446744073709551616",
    "uid",
    "$patch",
    "delete",
    "replace",
    "merge",
    "$retainKeys",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "managedFields",
    "f:metadata",
    "k:{\"name\":\"a\"}",
    "v:1",
    "../..",
    "%00",
    "\u{0}",
    "ä",
    "\u{1f600}",
    "A.B_C",
    "100m",
    "1Gi",
    "1e400",
    "-5Ki",
    "NaN",
    "10.96.0.1",
    "::1",
    "None",
    "2026-01-01T00:00:00Z",
    "9999-99-99T99:99:99Z",
    "P1D",
    "1m30s",
    "<nil>",
    "null",
    "true",
    "{}",
    "[]",
    "x-kubernetes-preserve-unknown-fields",
    "self.size",
    "matchLabels",
    "In",
    "Exists",
    "TCP",
    "containers",
    "generateName",
];

/// Returns a word, or several joined.
pub(super) fn word(random: &mut Rng) -> String {
    match random.u8(..20) {
        0 => "x".repeat(random.usize(1..400)),
        1 => (0..random.usize(..12)).map(|_| random.char(..)).collect(),
        2 => format!("{}{}", pick(random, WORDS), pick(random, WORDS)),
        _ => (*pick(random, WORDS)).to_owned(),
    }
}

pub(super) fn pick<'a, T>(random: &mut Rng, from: &'a [T]) -> &'a T {
    &from[random.usize(..from.len())]
}

/// Returns an unusual value.
pub(super) fn value(random: &mut Rng) -> Value {
    match random.u8(..16) {
        0 => Value::Null,
        1 => json!(random.bool()),
        2 => json!(random.i64(-3..300)),
        3 => json!(*pick(random, &[i64::MIN, i64::MAX, -1, 0, 1 << 31, 1 << 53])),
        4 => json!(u64::MAX),
        5 => json!(*pick(random, &[0.5, -0.0, 1e308, 1e-308, 1e15])),
        6 => json!([]),
        7 => json!({}),
        8 => json!([value(random), value(random)]),
        9 => json!({ word(random): value(random) }),
        10 => nested(random.usize(1..110), random.bool()),
        11 => Value::Array(vec![json!({}); random.usize(..200)]),
        _ => Value::String(word(random)),
    }
}

/// Returns deeply nested lists or objects.
fn nested(levels: usize, lists: bool) -> Value {
    (0..levels).fold(Value::Null, |inner, _| if lists { json!([inner]) } else { json!({ "a": inner }) })
}

/// Changes a tree in a few places.
pub(super) fn tree(random: &mut Rng, root: &mut Value, others: &[Value]) {
    for _ in 0..random.usize(1..4) {
        let mut node = &mut *root;
        // Down a random path; deep places are as likely as shallow ones.
        for _ in 0..random.usize(..8) {
            let descend = match node {
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
                _ => false,
            };
            if !descend {
                break;
            }
            node = match node {
                Value::Array(items) => {
                    let index = random.usize(..items.len());
                    &mut items[index]
                }
                Value::Object(fields) => {
                    let index = random.usize(..fields.len());
                    match fields.values_mut().nth(index) {
                        Some(field) => field,
                        None => return,
                    }
                }
                _ => return,
            };
        }
        change(random, node, others);
    }
}

fn change(random: &mut Rng, node: &mut Value, others: &[Value]) {
    match (random.u8(..8), &mut *node) {
        (0 | 1, Value::Object(fields)) => remove_field(random, fields),
        (2 | 3, Value::Object(fields)) => {
            fields.insert(word(random), value(random));
        }
        (4, Value::Object(fields)) if !fields.is_empty() => {
            let index = random.usize(..fields.len());
            if let Some(name) = fields.keys().nth(index).cloned()
                && let Some(moved) = fields.shift_remove(&name)
            {
                fields.insert(word(random), moved);
            }
        }
        (0 | 1, Value::Array(items)) if !items.is_empty() => {
            items.remove(random.usize(..items.len()));
        }
        (2, Value::Array(items)) => items.push(value(random)),
        (3, Value::Array(items)) if !items.is_empty() => {
            let again = pick(random, items).clone();
            items.push(again);
        }
        (5, _) if !others.is_empty() => *node = pick(random, others).clone(),
        (6, Value::String(text)) => text.push_str(&word(random)),
        _ => *node = value(random),
    }
}

fn remove_field(random: &mut Rng, fields: &mut Map<String, Value>) {
    if fields.is_empty() {
        return;
    }
    let index = random.usize(..fields.len());
    if let Some(name) = fields.keys().nth(index).cloned() {
        fields.shift_remove(&name);
    }
}

/// Changes bytes in a few places.
pub(super) fn bytes(random: &mut Rng, data: &mut Vec<u8>) {
    for _ in 0..random.usize(1..6) {
        let place = if data.is_empty() { 0 } else { random.usize(..data.len()) };
        match random.u8(..7) {
            0 if !data.is_empty() => data[place] ^= 1 << random.u8(..8),
            1 if !data.is_empty() => data[place] = random.u8(..),
            2 => data.truncate(place),
            3 => data.splice(place..place, word(random).bytes()).for_each(drop),
            4 if !data.is_empty() => {
                let end = random.usize(place..data.len()) + 1;
                let again = data[place..end].to_vec();
                data.splice(place..place, again).for_each(drop);
            }
            5 if !data.is_empty() => {
                let end = (place + random.usize(1..20)).min(data.len());
                data.drain(place..end).for_each(drop);
            }
            _ => {
                let sign = *pick(random, b"{}[]\",:\\\n \t-&*!|>%@`#'0e.\x00\xff\xc3");
                let many = random.usize(1..30);
                data.splice(place..place, std::iter::repeat_n(sign, many)).for_each(drop);
            }
        }
        // Repeated doubling would only find the limit of bodies.
        data.truncate(1 << 20);
    }
}
