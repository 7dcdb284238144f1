//! Replaces `${name}` in paths, headers and bodies.

use std::collections::BTreeMap;

use serde_json::Value;

/// The named values of a running scenario.
#[derive(Debug, Default, Clone)]
pub(crate) struct Variables(BTreeMap<String, Value>);

/// The error of a name that no earlier step saved.
#[derive(Debug, thiserror::Error)]
#[error("nothing was saved as ${{{0}}}")]
pub(crate) struct Unknown(String);

impl Variables {
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    pub(crate) fn text(&self, text: &str) -> Result<String, Unknown> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            let Some(length) = rest[start..].find('}') else { break };
            let name = &rest[start + 2..start + length];
            out.push_str(&rest[..start]);
            match self.0.get(name).ok_or_else(|| Unknown(name.to_owned()))? {
                Value::String(value) => out.push_str(value),
                other => out.push_str(&other.to_string()),
            }
            rest = &rest[start + length + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    /// Replaces variables in every string and key of `value`. A string that is one variable becomes
    /// the saved value, of any type.
    pub(crate) fn value(&self, value: &Value) -> Result<Value, Unknown> {
        Ok(match value {
            Value::String(text) => {
                let whole = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
                match whole.and_then(|name| self.0.get(name)) {
                    Some(saved) => saved.clone(),
                    None => Value::String(self.text(text)?),
                }
            }
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.value(item)).collect::<Result<_, _>>()?)
            }
            Value::Object(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(key, field)| Ok((self.text(key)?, self.value(field)?)))
                    .collect::<Result<_, Unknown>>()?,
            ),
            other => other.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_replaced_in_text_keys_and_values() {
        let mut variables = Variables::default();
        variables.set("id", "x1");
        variables.set("count", 3);
        assert_eq!(variables.text("/a/${id}/b?limit=${count}").unwrap(), "/a/x1/b?limit=3");
        let body = json!({"k-${id}": ["${id}", "${count}", "{2,3}$"]});
        assert_eq!(variables.value(&body).unwrap(), json!({"k-x1": ["x1", 3, "{2,3}$"]}));
        assert!(variables.text("${nothing}").is_err());
    }
}
