//! YAML output for clients that ask for it: block style with sorted keys, as kube-apiserver writes
//! it.

use serde_json::Value;

/// Writes a JSON value. Parsing the result gives the same value.
pub(crate) fn write(value: &Value) -> String {
    let mut out = String::new();
    node(value, 0, &mut out);
    out
}

fn node(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            let mut entries: Vec<_> = object.iter().collect();
            entries.sort_by_key(|(name, _)| *name);
            for (name, child) in entries {
                out.push_str(&" ".repeat(indent));
                out.push_str(&text(name));
                out.push(':');
                below(child, indent, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&" ".repeat(indent));
                out.push('-');
                let mut entry = String::new();
                node(item, indent + 2, &mut entry);
                match item {
                    // The first line of the entry follows the dash.
                    Value::Object(object) if !object.is_empty() => {
                        out.push(' ');
                        out.push_str(entry.trim_start_matches(' '));
                    }
                    Value::Array(items) if !items.is_empty() => {
                        out.push(' ');
                        out.push_str(entry.trim_start_matches(' '));
                    }
                    scalar => {
                        out.push(' ');
                        out.push_str(&flat(scalar));
                        out.push('\n');
                    }
                }
            }
        }
        scalar => {
            out.push_str(&flat(scalar));
            out.push('\n');
        }
    }
}

/// Writes the value of a key.
fn below(child: &Value, indent: usize, out: &mut String) {
    match child {
        Value::Object(object) if !object.is_empty() => {
            out.push('\n');
            node(child, indent + 2, out);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            node(child, indent, out);
        }
        scalar => {
            out.push(' ');
            out.push_str(&flat(scalar));
            out.push('\n');
        }
    }
}

fn flat(value: &Value) -> String {
    match value {
        Value::String(string) => text(string),
        Value::Object(_) => "{}".to_owned(),
        Value::Array(_) => "[]".to_owned(),
        other => other.to_string(),
    }
}

/// Writes a string: plain if it cannot be misread, otherwise in JSON's quotes, which YAML shares.
fn text(string: &str) -> String {
    let plain_start = |c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '_' | '.' | '(' | '<');
    let plain = |c: char| !c.is_control() && c != '\u{feff}';
    let word = string.to_ascii_lowercase();
    let reserved =
        matches!(word.as_str(), "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n" | "~")
            || matches!(word.as_str(), ".nan" | ".inf" | "<<");
    let is_plain = string.starts_with(plain_start)
        && string.chars().all(plain)
        && !reserved
        && !string.contains(": ")
        && !string.contains(" #")
        && !string.ends_with([':', ' '])
        && string.parse::<f64>().is_err();
    if is_plain { string.to_owned() } else { Value::from(string).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[test]
    fn what_is_written_is_read_back() {
        let value = json!({
            "kind": "ConfigMap", "metadata": {}, "list": [1, "two", {"a": [true], "b": null}, [[]], []],
            "odd": ["", "yes", "1", "1e3", "0x1F", "- a", "a: b", "a #b", "x:", " x", "é", "a\nb", "*a", "&a", "!a",
                    ".inf", "2001-01-01", "a'b\"c", "{", "inf", "nan", "@x", "%x", "`x`", "null", "~", "<<", "a\u{85}b"],
        });
        let text = super::write(&value);
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read, value, "{text}");
        let status =
            json!({"message": "configmaps \"absent\" not found", "details": {"name": "a"}, "metadata": {}});
        let expected = "details:\n  name: a\nmessage: configmaps \"absent\" not found\nmetadata: {}\n";
        assert_eq!(super::write(&status), expected);
    }
}
