//! Why bytes are not JSON, in the words of the real server's decoder: clients and their tests match on them.

/// The sentence for an error that `serde_json` found in `bytes`.
pub(crate) fn message(bytes: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    if error.is_data() {
        return error.to_string();
    }
    // The column counts from one and names the byte that was not expected.
    let line = bytes.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    match line.get(error.column().saturating_sub(1)) {
        Some(byte) => format!("invalid character '{}' looking for beginning of value", char::from(*byte)),
        None => error.to_string(),
    }
}

/// A value as Go prints it, which is how some errors of the real server show theirs.
pub(crate) fn printed(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(printed).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(object) => {
            let mut entries: Vec<_> = object.iter().collect();
            entries.sort_by_key(|(name, _)| *name);
            let entries: Vec<String> =
                entries.into_iter().map(|(name, value)| format!("{name}:{}", printed(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::message;

    #[test]
    fn errors_read_as_the_real_servers() {
        for (text, expected) in [
            ("", "unexpected end of JSON input"),
            ("{\"a\":", "unexpected end of JSON input"),
            ("hello", "invalid character 'h' looking for beginning of value"),
        ] {
            let error = serde_json::from_str::<Value>(text).unwrap_err();
            assert_eq!(message(text.as_bytes(), &error), expected, "{text}");
        }
    }
}
