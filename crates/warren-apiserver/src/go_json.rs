//! JSON errors and values as Go prints them. Clients and their tests match on this text.

/// Returns Go's message for an error that `serde_json` found in `bytes`.
pub(crate) fn message(bytes: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    if error.is_data() {
        return error.to_string();
    }
    // `column` counts from one and points at the unexpected byte.
    let line = bytes.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    match line.get(error.column().saturating_sub(1)) {
        Some(byte) => format!("invalid character '{}' looking for beginning of value", char::from(*byte)),
        None => error.to_string(),
    }
}

/// Formats a value as Go's `%v` does: some of kube-apiserver's errors contain it.
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
