//! A JSON parser that reports duplicate fields. The last one counts, and the client gets a warning
//! or an error.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A parsed value and the paths of its duplicate fields.
pub(crate) struct Tree {
    pub value: Value,
    pub duplicates: Vec<String>,
}

impl From<Value> for Tree {
    fn from(value: Value) -> Tree {
        Tree { value, duplicates: Vec::new() }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Value::Bool(value).into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Value::from(value).into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Value::from(value).into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number).into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Value::from(value).into())
    }

    fn visit_string<E>(self, value: String) -> Result<Tree, E> {
        Ok(Value::String(value).into())
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Value::Null.into())
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Value::Null.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let (mut items, mut duplicates) = (Vec::new(), Vec::new());
        while let Some(item) = access.next_element::<Tree>()? {
            let index = items.len();
            duplicates.extend(item.duplicates.iter().map(|below| joined(&format!("[{index}]"), below)));
            items.push(item.value);
        }
        Ok(Tree { value: Value::Array(items), duplicates })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let (mut fields, mut duplicates) = (Map::new(), Vec::new());
        while let Some(FieldName(name)) = access.next_key()? {
            let field = access.next_value::<Tree>()?;
            duplicates.extend(field.duplicates.iter().map(|below| joined(&name, below)));
            if fields.contains_key(&name) {
                duplicates.push(name.clone());
            }
            fields.insert(name, field.value);
        }
        Ok(Tree { value: Value::Object(fields), duplicates })
    }
}

fn joined(above: &str, below: &str) -> String {
    if below.starts_with('[') { format!("{above}{below}") } else { format!("{above}.{below}") }
}

/// The name of a field. In YAML a name may parse as something else (`n` is a boolean); it is turned
/// into text.
struct FieldName(String);

impl<'de> Deserialize<'de> for FieldName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FieldName, D::Error> {
        let tree = deserializer.deserialize_any(TreeVisitor)?;
        Ok(FieldName(match tree.value {
            Value::String(text) => text,
            other => other.to_string(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Tree;

    #[test]
    fn repeated_fields_are_named() {
        let text = r#"{"a":1,"b":{"c":[{"d":1,"d":2}],"e":null},"a":2,"f":1.5,"g":-1,"h":"x","i":true}"#;
        let tree: Tree = serde_json::from_str(text).unwrap();
        assert_eq!(tree.duplicates, ["b.c[0].d", "a"]);
        let plain: Value = serde_json::from_str(text).unwrap();
        assert_eq!(tree.value, plain);
        assert!(serde_json::from_str::<Tree>("{").is_err());
    }

    #[test]
    fn yaml_names_that_look_like_values_become_text() {
        let tree: Tree = serde_saphyr::from_str("n: '1'\nk: \"yes\"\n5: x\n\"y\": z\n").unwrap();
        assert_eq!(tree.value, json!({"false": "1", "k": "yes", "5": "x", "y": "z"}));
    }
}
