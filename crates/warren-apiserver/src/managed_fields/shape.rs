//! The merge behaviour of a value by its schema: atomic, or owned field by field or entry by entry.

use serde_json::Value;

use super::element::Element;
use crate::schema::{ListShape, Schema, Type};

/// The schema of a value, if any. Without a schema objects are granular and lists are atomic.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape<'a>(pub Option<&'a Schema>);

impl<'a> Shape<'a> {
    /// Returns the shape of a field.
    pub fn field(self, name: &str) -> Shape<'a> {
        Shape(self.0.and_then(|schema| schema.field(name)).map(|schema| &**schema))
    }

    /// Returns true if the schema names the field, so that it is no key of a map.
    pub fn declares(self, name: &str) -> bool {
        self.0.is_some_and(|schema| schema.properties.contains_key(name))
    }

    /// Returns true if the object may have the field.
    pub fn allows(self, name: &str) -> bool {
        self.0.is_none_or(|schema| schema.field(name).is_some() || schema.preserve_unknown)
    }

    pub fn items(self) -> Shape<'a> {
        Shape(self.0.and_then(|schema| schema.items.as_deref()))
    }

    /// Returns true if objects here are owned field by field.
    pub fn takes_objects_apart(self) -> bool {
        self.0.is_none_or(|schema| !schema.atomic_map && matches!(schema.type_, None | Some(Type::Object)))
    }

    /// Returns true if lists here are owned entry by entry.
    pub fn takes_lists_apart(self) -> bool {
        self.0.is_some_and(|schema| schema.list != ListShape::Atomic)
    }

    /// Returns the step to an entry of a granular list.
    pub fn entry(self, item: &Value) -> Result<Element, String> {
        match self.0.map(|schema| &schema.list) {
            Some(ListShape::Map(keys)) => self.keyed_entry(keys, item),
            _ => match item {
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".to_owned())
                }
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => {
                    Err("associative list without keys has an element that's an explicit null".to_owned())
                }
                scalar => Ok(Element::Value(scalar.clone())),
            },
        }
    }

    fn keyed_entry(self, keys: &[Box<str>], item: &Value) -> Result<Element, String> {
        let object = match item {
            Value::Object(object) => object,
            Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let default = |key: &str| self.items().field(key).0?.default.as_deref();
        let mut found: Vec<_> = keys
            .iter()
            .filter_map(|key| Some((key.clone(), object.get(&**key).or_else(|| default(key))?.clone())))
            .collect();
        if found.is_empty() {
            let keys: Vec<_> = keys.iter().map(|key| format!("{key:?}")).collect();
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                keys.join(" ")
            ));
        }
        found.sort_by(|(left, _), (right, _)| left.cmp(right));
        Ok(Element::Key(found.into()))
    }
}
