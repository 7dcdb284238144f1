//! ConfigMaps and Secrets: keys, sizes and the required fields of known secret types.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::{Behaviour, PLAIN, child, set_default};
use crate::status::{FieldError, Problem};

/// The maximum total size of one object's values, in bytes.
const LARGEST: usize = 1 << 20;
const KEY_RULE: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const FROZEN: &str = "field is immutable when `immutable` is set";

pub(super) static CONFIG_MAP: Behaviour = Behaviour {
    validate: validate_config_map,
    binary_maps: &["binaryData"],
    validate_update: |new, old, errors| check_frozen(new, old, &["data", "binaryData"], errors),
    ..PLAIN
};

pub(super) static SECRET: Behaviour = Behaviour {
    default: default_secret,
    validate: validate_secret,
    binary_maps: &["data"],
    validate_update: |new, old, errors| {
        if new["type"] != old["type"] {
            errors.push(FieldError::invalid("type", new["type"].clone(), "field is immutable"));
        }
        check_frozen(new, old, &["data"], errors);
    },
    ..PLAIN
};

fn default_secret(secret: &mut Value) {
    let Some(secret) = secret.as_object_mut() else { return };
    set_default(secret, "type", "Opaque");
    // `stringData` is write-only: its values move to `data`.
    if let Some(Value::Object(strings)) = secret.shift_remove("stringData")
        && let Some(data) = child(secret, "data")
    {
        for (name, value) in strings {
            data.insert(name, STANDARD.encode(value.as_str().unwrap_or_default()).into());
        }
    }
}

fn entries<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    object[field].as_object().into_iter().flat_map(Map::iter)
}

fn validate_config_map(map: &Value, errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for (key, value) in entries(map, "data") {
        check_key("data", key, errors);
        if map["binaryData"].get(key).is_some() {
            let detail = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(format!("data[{key}]"), key.as_str(), detail));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in entries(map, "binaryData") {
        check_key("binaryData", key, errors);
        size += decoded_length(value);
    }
    if size > LARGEST {
        // The error is about the whole object, which kube-apiserver prints like this.
        errors.push(FieldError { field: "[]".to_owned(), problem: Problem::TooLong(LARGEST) });
    }
}

fn validate_secret(secret: &Value, errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for (key, value) in entries(secret, "data") {
        check_key("data", key, errors);
        size += decoded_length(value);
    }
    if size > LARGEST {
        errors.push(FieldError { field: "data".to_owned(), problem: Problem::TooLong(LARGEST) });
    }
    let data = &secret["data"];
    let mut require = |key: &str| errors.push(FieldError::required(format!("data[{key}]"), ""));
    match secret["type"].as_str().unwrap_or_default() {
        "kubernetes.io/service-account-token" => {
            const ACCOUNT: &str = "kubernetes.io/service-account.name";
            if secret["metadata"]["annotations"][ACCOUNT].as_str().unwrap_or_default().is_empty() {
                errors.push(FieldError::required(format!("metadata.annotations[{ACCOUNT}]"), ""));
            }
        }
        "kubernetes.io/dockercfg" => check_json(data, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => check_json(data, ".dockerconfigjson", errors),
        "kubernetes.io/basic-auth" if data.get("username").is_none() && data.get("password").is_none() => {
            require("username");
            require("password");
        }
        "kubernetes.io/ssh-auth" if data["ssh-privatekey"].as_str().unwrap_or_default().is_empty() => {
            require("ssh-privatekey");
        }
        "kubernetes.io/tls" => {
            ["tls.crt", "tls.key"].into_iter().filter(|key| data.get(key).is_none()).for_each(require);
        }
        _ => {}
    }
}

fn check_json(data: &Value, key: &str, errors: &mut Vec<FieldError>) {
    let field = format!("data[{key}]");
    let Some(text) = data.get(key).and_then(Value::as_str) else {
        return errors.push(FieldError::required(field, ""));
    };
    let bytes = STANDARD.decode(text).unwrap_or_default();
    if let Err(error) = serde_json::from_slice::<Map<String, Value>>(&bytes) {
        let detail = crate::go_json::message(&bytes, &error);
        errors.push(FieldError::invalid(field, "<secret contents redacted>", detail));
    }
}

fn check_key(field: &str, key: &str, errors: &mut Vec<FieldError>) {
    let mut wrong = |detail: &str| errors.push(FieldError::invalid(format!("{field}[{key}]"), key, detail));
    if key.len() > 253 {
        wrong("must be no more than 253 characters");
    }
    if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')) {
        wrong(KEY_RULE);
    }
    match key {
        "." => wrong("must not be '.'"),
        ".." => wrong("must not be '..'"),
        _ if key.starts_with("..") => wrong("must not start with '..'"),
        _ => {}
    }
}

fn check_frozen(new: &Value, old: &Value, fields: &[&str], errors: &mut Vec<FieldError>) {
    if old["immutable"] != true {
        return;
    }
    if new["immutable"] != true {
        errors.push(FieldError::forbidden("immutable", FROZEN));
    }
    for field in fields.iter().filter(|field| new.get(**field) != old.get(**field)) {
        errors.push(FieldError::forbidden(*field, FROZEN));
    }
}

fn decoded_length(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    text.len() / 4 * 3 - text.bytes().rev().take_while(|byte| *byte == b'=').count().min(text.len() / 4 * 3)
}
