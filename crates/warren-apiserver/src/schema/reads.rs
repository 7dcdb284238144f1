//! Finds the fields that an object's rules read. Converting a value to CEL costs more than
//! evaluating the rule, and a rule about one field of a spec should not pay for the pod template
//! beside it.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// The part of a value that the rules of one node read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// The whole value.
    Everything,
    /// These fields of it.
    Fields(Vec<Box<str>>),
}

impl Reads {
    /// Collects the fields that expressions read. If the text leaves any doubt, returns
    /// `Everything`.
    pub fn of<'a>(expressions: impl Iterator<Item = &'a str>) -> Reads {
        let mut fields: Vec<Box<str>> = Vec::new();
        for expression in expressions {
            // A match inside a string literal only adds a field too many, which does no harm.
            for rest in uses(expression, "self").chain(uses(expression, "oldSelf")) {
                let Some(field) = field_of(rest) else { return Reads::Everything };
                if !fields.iter().any(|known| **known == *field) {
                    fields.push(field.into());
                }
            }
        }
        Reads::Fields(fields)
    }

    /// Reduces a value to the part that the rules read.
    pub fn narrow<'a>(&self, value: &'a Value) -> Cow<'a, Value> {
        match (self, value) {
            (Reads::Fields(fields), Value::Object(object)) => {
                let read = fields.iter().filter_map(|field| object.get_key_value(&**field));
                Cow::Owned(
                    read.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>().into(),
                )
            }
            _ => Cow::Borrowed(value),
        }
    }
}

/// Returns true if an expression refers to the old value.
pub(super) fn looks_back(expression: &str) -> bool {
    uses(expression, "oldSelf").next().is_some()
}

/// Returns the text after each use of a variable.
fn uses<'a>(expression: &'a str, variable: &'static str) -> impl Iterator<Item = &'a str> {
    expression.match_indices(variable).filter_map(move |(start, _)| {
        let rest = &expression[start + variable.len()..];
        let before = expression[..start].chars().next_back();
        let alone = !before.is_some_and(in_name) && !rest.chars().next().is_some_and(in_name);
        alone.then_some(rest)
    })
}

/// Returns the field in `.field`. Returns `None` for a call, and for a name that CEL spells
/// differently from JSON.
fn field_of(rest: &str) -> Option<&str> {
    let rest = rest.trim_start().strip_prefix('.')?.trim_start();
    let end = rest.find(|character| !in_name(character)).unwrap_or(rest.len());
    let (field, after) = rest.split_at(end);
    let plain = !field.is_empty() && !field.contains("__") && !after.trim_start().starts_with('(');
    plain.then_some(field)
}

fn in_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(expression: &str) -> Reads {
        Reads::of([expression].into_iter())
    }

    #[test]
    fn fields_are_read_off_where_they_are_plain() {
        let fields = |names: &[&str]| Reads::Fields(names.iter().map(|name| (*name).into()).collect());
        assert_eq!(of("has(self.a) == has(oldSelf.a) && (!has(self.a) || self.b == 1)"), fields(&["a", "b"]));
        assert_eq!(of("self . a.size() < 3 && myself.c && self.d.all(self, self.e)"), Reads::Everything);
        assert_eq!(of("1 == 1"), fields(&[]));
        for whole in
            ["self == oldSelf", "self.all(x, x > 1)", "self[\"a\"] == 1", "self.?a.hasValue()", "self.__if__"]
        {
            assert_eq!(of(whole), Reads::Everything, "{whole}");
        }
    }

    #[test]
    fn only_what_is_read_is_handed_on() {
        let value = json!({"a": 1, "b": {"c": 2}, "d": 3});
        assert_eq!(*of("self.b.c == 2 && !has(self.x)").narrow(&value), json!({"b": {"c": 2}}));
        assert_eq!(*of("size(self) > 1").narrow(&value), value);
        assert_eq!(*of("self.a").narrow(&json!("text")), json!("text"));
    }

    #[test]
    fn a_look_back_is_seen() {
        assert!(looks_back("self.a == oldSelf.a") && !looks_back("self.oldSelfish == 1"));
    }
}
