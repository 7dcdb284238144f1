//! One step of a field's path, in the notation of `fieldsV1`.

use std::cmp::Ordering;
use std::fmt;

use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::{Map, Value};

/// A step: to a field, to a list entry by keys or value, or to an index.
#[derive(Debug, Clone)]
pub(super) enum Element {
    /// `f:name`.
    Field(Box<str>),
    /// `k:{"name":"a"}`, sorted by name.
    Key(Box<[(Box<str>, Value)]>),
    /// `v:"a"`: a member of a set.
    Value(Value),
    /// `i:0`. This server makes none, but a client may send one.
    Index(i64),
}

impl Element {
    pub fn field(name: &str) -> Element {
        Element::Field(name.into())
    }

    /// Parses a step from a key of a JSON object.
    pub fn parse(text: &str) -> Option<Element> {
        let (prefix, rest) = text.split_once(':')?;
        Some(match prefix {
            "f" => Element::field(rest),
            "k" => {
                let keys: Map<String, Value> = serde_json::from_str(rest).ok()?;
                let mut keys: Vec<_> =
                    keys.into_iter().map(|(name, value)| (name.into_boxed_str(), value)).collect();
                keys.sort_by(|(left, _), (right, _)| left.cmp(right));
                Element::Key(keys.into())
            }
            "v" => Element::Value(serde_json::from_str(rest).ok()?),
            "i" => Element::Index(rest.parse().ok()?),
            _ => return None,
        })
    }

    fn rank(&self) -> u8 {
        match self {
            Element::Field(_) => 0,
            Element::Key(_) => 1,
            Element::Value(_) => 2,
            Element::Index(_) => 3,
        }
    }
}

/// Writes a step as a key of a JSON object.
impl Serialize for Element {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Element::Field(name) => serializer.collect_str(&format_args!("f:{name}")),
            Element::Key(keys) => {
                let text = serde_json::to_string(&Keys(keys)).map_err(S::Error::custom)?;
                serializer.collect_str(&format_args!("k:{text}"))
            }
            Element::Value(value) => serializer.collect_str(&format_args!("v:{value}")),
            Element::Index(index) => serializer.collect_str(&format_args!("i:{index}")),
        }
    }
}

struct Keys<'a>(&'a [(Box<str>, Value)]);

impl Serialize for Keys<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Formats a step for messages: `.spec`, `[name="a"]`, `[="a"]`, `[0]`.
impl fmt::Display for Element {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Field(name) => write!(formatter, ".{name}"),
            Element::Key(keys) => {
                let shown: Vec<_> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(formatter, "[{}]", shown.join(","))
            }
            Element::Value(value) => write!(formatter, "[={value}]"),
            Element::Index(index) => write!(formatter, "[{index}]"),
        }
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Element) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Element {}

impl PartialOrd for Element {
    fn partial_cmp(&self, other: &Element) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Element {
    fn cmp(&self, other: &Element) -> Ordering {
        match (self, other) {
            (Element::Field(left), Element::Field(right)) => left.cmp(right),
            (Element::Key(left), Element::Key(right)) => {
                let pairs = left.iter().zip(right.iter());
                pairs
                    .map(|((name, value), (other_name, other_value))| {
                        name.cmp(other_name).then_with(|| compare_values(value, other_value))
                    })
                    .find(|ordering| ordering.is_ne())
                    .unwrap_or_else(|| left.len().cmp(&right.len()))
            }
            (Element::Value(left), Element::Value(right)) => compare_values(left, right),
            (Element::Index(left), Element::Index(right)) => left.cmp(right),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

/// Orders numbers before strings before booleans. Other values, which cannot be keys, are ordered
/// by their text.
fn compare_values(left: &Value, right: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Null => 3,
        Value::Array(_) | Value::Object(_) => 4,
    };
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => left.cmp(&right),
            _ => left.as_f64().unwrap_or_default().total_cmp(&right.as_f64().unwrap_or_default()),
        },
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        _ => rank(left).cmp(&rank(right)).then_with(|| left.to_string().cmp(&right.to_string())),
    }
}
