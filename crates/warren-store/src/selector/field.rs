//! Field selectors.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::SelectorError;
use crate::Object;

/// A field selector: `path=value` and `path!=value` terms, all of which must hold. A missing field
/// counts as the empty string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Term>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    path: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Parses the query parameter, for instance `spec.nodeName=a,status.phase!=Failed`.
    pub fn parse(text: &str) -> Result<FieldSelector, SelectorError> {
        let mut terms = Vec::new();
        for term in split(text).into_iter().filter(|term| !term.is_empty()) {
            let (path, value, equal) = if let Some((path, value)) = term.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) = term.split_once("==") {
                (path, value, true)
            } else if let Some((path, value)) = term.split_once('=') {
                (path, value, true)
            } else {
                return Err(SelectorError(format!("invalid selector: '{text}'; can't understand '{term}'")));
            };
            terms.push(Term { path: path.trim().to_owned(), value: unescape(value), equal });
        }
        Ok(FieldSelector(terms))
    }

    /// Returns true if it matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns its paths, so that the caller can refuse those that a kind does not support.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|term| term.path.as_str())
    }

    /// Returns the value that a path must equal, if the selector requires one.
    pub fn required(&self, path: &str) -> Option<&str> {
        self.0.iter().find(|term| term.equal && term.path == path).map(|term| term.value.as_str())
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|term| {
            let equal = match term.path.as_str() {
                "metadata.name" => *object.key.name == term.value,
                "metadata.namespace" => *object.key.namespace == term.value,
                path => lookup(&object.body, path).unwrap_or_default() == term.value,
            };
            equal == term.equal
        })
    }
}

fn split(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn unescape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut escaped = false;
    for character in value.chars() {
        if !escaped && character == '\\' {
            escaped = true;
            continue;
        }
        escaped = false;
        out.push(character);
    }
    out
}

/// Reads one scalar from a serialised object by its dotted path, without parsing the rest.
fn lookup(body: &[u8], path: &str) -> Option<String> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    // The visitor stops early, so this returns an error for the trailing input. The result is in
    // `found`.
    let mut found = None;
    let _ = Descend { path, found: &mut found }.deserialize(&mut deserializer);
    found
}

struct Descend<'p, 'f> {
    path: &'p str,
    found: &'f mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Descend<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Descend<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (head, rest) = self.path.split_once('.').unwrap_or((self.path, ""));
        while let Some(key) = map.next_key::<std::borrow::Cow<'_, str>>()? {
            if key == head {
                map.next_value_seed(Descend { path: rest, found: self.found })?;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(());
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        if self.path.is_empty() {
            *self.found = Some(value.to_owned());
        }
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        if self.path.is_empty() {
            *self.found = Some(value.to_string());
        }
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        if self.path.is_empty() {
            *self.found = Some(value.to_string());
        }
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        if self.path.is_empty() {
            *self.found = Some(value.to_string());
        }
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        while sequence.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{FieldSelector, lookup};

    #[test]
    fn a_path_is_read_without_a_tree() {
        let body =
            br#"{"a":[1,{"b":2}],"spec":{"x":{"nodeName":"no"},"nodeName":"n1","on":true,"n":5},"z":null}"#;
        assert_eq!(lookup(body, "spec.nodeName").as_deref(), Some("n1"));
        assert_eq!(lookup(body, "spec.on").as_deref(), Some("true"));
        assert_eq!(lookup(body, "spec.n").as_deref(), Some("5"));
        for path in ["spec", "spec.missing", "a.b", "z", "", "spec.nodeName.deeper"] {
            assert_eq!(lookup(body, path), None, "{path}");
        }
    }

    #[test]
    fn terms_split_at_unescaped_commas() {
        let selector = FieldSelector::parse(r"metadata.name=a\,b,status.phase!=Failed").unwrap();
        assert_eq!(selector.required("metadata.name"), Some("a,b"));
        assert_eq!(selector.paths().collect::<Vec<_>>(), ["metadata.name", "status.phase"]);
        assert!(FieldSelector::parse("nonsense").is_err());
        assert!(FieldSelector::parse("").unwrap().is_empty());
    }
}
