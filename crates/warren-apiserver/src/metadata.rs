//! Object metadata: generated names, fields set by the server, validation.

use serde_json::{Map, Value};

use crate::definition::Definition;
use crate::kinds::NameRule;
use crate::status::FieldError;

/// The alphabet of generated names, the same as in Kubernetes: no vowels and no look-alikes.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// The longest base that leaves room for five random letters within 63.
const LONGEST_GENERATED_BASE: usize = 58;

pub(crate) const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED_NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// The finalizers that need no domain prefix.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Generates a name from `generateName`.
pub(crate) fn generate_name(base: &str) -> String {
    let mut end = base.len().min(LONGEST_GENERATED_BASE);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = base[..end].to_owned();
    for _ in 0..5 {
        name.push(char::from(NAME_ALPHABET[fastrand::usize(..NAME_ALPHABET.len())]));
    }
    name
}

/// Returns the metadata of an object; creates it if absent.
pub(crate) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let metadata = &mut object["metadata"];
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("made an object just above")
}

pub(crate) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// Validates the metadata of an object that is to be written.
pub(crate) fn validate(object: &Value, definition: &Definition, errors: &mut Vec<FieldError>) {
    let base = text(object, "generateName");
    if !base.is_empty() {
        // A dash at the end is allowed here, because random letters follow it.
        let masked = base.strip_suffix('-').map_or_else(|| base.to_owned(), |start| format!("{start}a"));
        for rule in broken_name_rules(&masked, definition.behaviour.name) {
            errors.push(FieldError::invalid("metadata.generateName", base, rule));
        }
    }
    let name = text(object, "name");
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        for rule in broken_name_rules(name, definition.behaviour.name) {
            errors.push(FieldError::invalid("metadata.name", name, rule));
        }
    }
    validate_contents(object, errors);
    // Definitions and custom resources are served by another program in Kubernetes, which lacks
    // this rule.
    let qualified = !definition.custom && &*definition.group != "apiextensions.k8s.io";
    for (index, finalizer) in object["metadata"]["finalizers"].as_array().into_iter().flatten().enumerate() {
        let finalizer = finalizer.as_str().unwrap_or_default();
        check_qualified_name(finalizer, "metadata.finalizers", errors);
        if qualified && !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(format!("metadata.finalizers[{index}]"), finalizer, detail));
        }
    }
}

pub(crate) fn validate_labels(labels: &Value, field: &str, errors: &mut Vec<FieldError>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        check_qualified_name(key, field, errors);
        let value = value.as_str().unwrap_or_default();
        if value.len() > 63 {
            errors.push(FieldError::invalid(field, value, "must be no more than 63 bytes"));
        }
        if !value.is_empty() && !is_name_part(value) {
            errors.push(FieldError::invalid(field, value, LABEL_VALUE_RULE));
        }
    }
}

/// Validates the parts of the metadata that kube-apiserver checks again at every stage of an
/// update.
pub(crate) fn validate_contents(object: &Value, errors: &mut Vec<FieldError>) {
    validate_labels(&object["metadata"]["labels"], "metadata.labels", errors);
    let mut size = 0;
    for (key, value) in object["metadata"]["annotations"].as_object().into_iter().flatten() {
        check_qualified_name(&key.to_lowercase(), "metadata.annotations", errors);
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    const LARGEST: usize = 256 << 10;
    if size > LARGEST {
        let problem = crate::status::Problem::TooLong(LARGEST);
        errors.push(FieldError { field: "metadata.annotations".to_owned(), problem });
    }
    validate_owners(object, errors);
}

fn validate_owners(object: &Value, errors: &mut Vec<FieldError>) {
    let mut controller: Option<String> = None;
    for owner in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
        let path = "metadata.ownerReferences";
        for (field, detail) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                errors.push(FieldError::invalid(format!("{path}.{field}"), "", detail));
            }
        }
        if owner["controller"] != true {
            continue;
        }
        let word = |field: &str| owner[field].as_str().unwrap_or_default().to_owned();
        let name = format!("{}/{}", word("kind"), word("name"));
        match &controller {
            None => controller = Some(name),
            Some(first) => {
                let owners = object["metadata"]["ownerReferences"].clone();
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                );
                errors.push(FieldError::invalid(path, owners, detail));
            }
        }
    }
}

pub(crate) fn validate_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    if old["metadata"]["deletionTimestamp"].is_string() {
        validate_no_new_finalizers(new, old, errors);
    }
    validate_contents(new, errors);
}

fn validate_no_new_finalizers(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let finalizers = |object: &Value| -> Vec<String> {
        let list = object["metadata"]["finalizers"].as_array();
        list.into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    };
    let before = finalizers(old);
    let added: Vec<_> = finalizers(new).into_iter().filter(|name| !before.contains(name)).collect();
    if !added.is_empty() {
        let shown = added.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{shown}}}"
        );
        errors.push(FieldError::forbidden("metadata.finalizers", detail));
    }
}

fn broken_name_rules(name: &str, rule: NameRule) -> Vec<&'static str> {
    match rule {
        NameRule::Subdomain => {
            let too_long = (name.len() > 253).then_some("must be no more than 253 characters");
            too_long.into_iter().chain((!is_dns_subdomain(name)).then_some(SUBDOMAIN_RULE)).collect()
        }
        NameRule::Label => broken_label_rules(name),
        NameRule::PathSegment => broken_segment_rules(name),
    }
}

/// Returns the rules that a name breaks as a path segment.
pub(crate) fn broken_segment_rules(name: &str) -> Vec<&'static str> {
    match name {
        "." => return vec!["may not be '.'"],
        ".." => return vec!["may not be '..'"],
        _ => {}
    }
    let slash = name.contains('/').then_some("may not contain '/'");
    slash.into_iter().chain(name.contains('%').then_some("may not contain '%'")).collect()
}

/// Returns the rules that a name breaks as an RFC 1123 label.
pub(crate) fn broken_label_rules(name: &str) -> Vec<&'static str> {
    let too_long = (name.len() > 63).then_some("must be no more than 63 bytes");
    let malformed = match (is_dns_word(name), is_dns_subdomain(name)) {
        (true, _) => None,
        (false, true) => Some("must not contain dots"),
        (false, false) => Some(LABEL_RULE),
    };
    too_long.into_iter().chain(malformed).collect()
}

fn is_dns_subdomain(name: &str) -> bool {
    name.split('.').all(is_dns_word)
}

pub(crate) fn is_dns_label(name: &str) -> bool {
    name.len() <= 63 && is_dns_word(name)
}

fn is_dns_word(word: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    word.starts_with(edge) && word.ends_with(edge) && word.chars().all(|c| edge(c) || c == '-')
}

fn is_name_part(word: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    word.starts_with(edge)
        && word.ends_with(edge)
        && word.chars().all(|c| edge(c) || matches!(c, '-' | '_' | '.'))
}

/// Validates a qualified name, such as a label key.
pub(crate) fn check_qualified_name(name: &str, field: &str, errors: &mut Vec<FieldError>) {
    let mut wrong = |detail: String| errors.push(FieldError::invalid(field, name, detail));
    let (prefix, part) = name.split_once('/').map_or((None, name), |(prefix, part)| (Some(prefix), part));
    if part.contains('/') {
        return wrong(format!(
            "a valid label key {QUALIFIED_NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ));
    }
    match prefix {
        Some("") => wrong("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            if prefix.len() > 253 {
                wrong("prefix part must be no more than 253 bytes".to_owned());
            }
            if !is_dns_subdomain(prefix) {
                wrong(format!("prefix part {SUBDOMAIN_RULE}"));
            }
        }
        None => {}
    }
    if part.is_empty() {
        wrong("name part must be non-empty".to_owned());
    } else if part.len() > 63 {
        wrong("name part must be no more than 63 bytes".to_owned());
    }
    if !is_name_part(part) {
        wrong(format!("name part {QUALIFIED_NAME_RULE}"));
    }
}

#[cfg(test)]
mod tests {
    use super::{broken_name_rules, generate_name};
    use crate::kinds::NameRule;

    #[test]
    fn generated_names_fit_a_label() {
        let name = generate_name(&"a".repeat(80));
        assert_eq!(name.len(), 63);
        assert!(generate_name("web-").starts_with("web-"));
    }

    #[test]
    fn name_rules() {
        for (name, rule, good) in [
            ("a.b-c.d", NameRule::Subdomain, true),
            ("a..b", NameRule::Subdomain, false),
            ("A", NameRule::Subdomain, false),
            ("1a", NameRule::Label, true),
            ("a.b", NameRule::Label, false),
            ("a-", NameRule::Label, false),
        ] {
            assert_eq!(broken_name_rules(name, rule).is_empty(), good, "{name}");
        }
    }
}
