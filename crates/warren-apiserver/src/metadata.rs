//! Object metadata: names, what the server fills in, what it refuses.

use serde_json::{Map, Value};

use crate::definition::Definition;
use crate::kinds::NameRule;
use crate::status::FieldError;

/// Letters for generated names: no vowels and nothing that is easily misread, as Kubernetes has them.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// The longest base that leaves room for the five random letters within 63.
const LONGEST_GENERATED_BASE: usize = 58;

pub(crate) const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED_NAME_RULE: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// A name from `generateName`.
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

/// The metadata of an object, made if it is absent.
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

/// Checks the metadata of an object that is about to be written.
pub(crate) fn validate(object: &Value, definition: &Definition, errors: &mut Vec<FieldError>) {
    let name = text(object, "name");
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if let Some(rule) = broken_name_rule(name, definition.behaviour.name) {
        errors.push(FieldError::invalid("metadata.name", name, rule));
    }
    for (key, value) in object["metadata"]["labels"].as_object().into_iter().flatten() {
        check_qualified_name(key, "metadata.labels", errors);
        let value = value.as_str().unwrap_or_default();
        if value.len() > 63 {
            errors.push(FieldError::invalid("metadata.labels", value, "must be no more than 63 bytes"));
        } else if !value.is_empty() && !is_name_part(value) {
            errors.push(FieldError::invalid("metadata.labels", value, LABEL_VALUE_RULE));
        }
    }
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
    for finalizer in object["metadata"]["finalizers"].as_array().into_iter().flatten() {
        check_qualified_name(finalizer.as_str().unwrap_or_default(), "metadata.finalizers", errors);
    }
}

fn validate_owners(object: &Value, errors: &mut Vec<FieldError>) {
    let mut controllers = 0;
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
        controllers += usize::from(owner["controller"] == true);
    }
    if controllers > 1 {
        let owners = object["metadata"]["ownerReferences"].clone();
        let detail = "Only one reference can have Controller set to true. Found \"true\" in references";
        errors.push(FieldError::invalid("metadata.ownerReferences", owners, detail));
    }
}

/// What an update may not do to metadata.
pub(crate) fn validate_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    if !old["metadata"]["deletionTimestamp"].is_string() {
        return;
    }
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

fn broken_name_rule(name: &str, rule: NameRule) -> Option<&'static str> {
    match rule {
        NameRule::Subdomain if name.len() > 253 => Some("must be no more than 253 bytes"),
        NameRule::Subdomain => (!name.split('.').all(is_dns_word)).then_some(SUBDOMAIN_RULE),
        NameRule::Label if name.len() > 63 => Some("must be no more than 63 bytes"),
        NameRule::Label => (!is_dns_word(name)).then_some(LABEL_RULE),
    }
}

/// An RFC 1123 label.
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

fn check_qualified_name(name: &str, field: &str, errors: &mut Vec<FieldError>) {
    let (prefix, part) = name.rsplit_once('/').map_or((None, name), |(prefix, part)| (Some(prefix), part));
    if let Some(prefix) = prefix
        && (prefix.len() > 253 || !prefix.split('.').all(is_dns_word))
    {
        errors.push(FieldError::invalid(field, name, format!("prefix part {SUBDOMAIN_RULE}")));
    }
    if part.is_empty() {
        errors.push(FieldError::invalid(field, name, "name part must be non-empty"));
    } else if part.len() > 63 {
        errors.push(FieldError::invalid(field, name, "name part must be no more than 63 bytes"));
    } else if !is_name_part(part) {
        errors.push(FieldError::invalid(field, name, QUALIFIED_NAME_RULE));
    }
}

#[cfg(test)]
mod tests {
    use super::{broken_name_rule, generate_name};
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
            assert_eq!(broken_name_rule(name, rule).is_none(), good, "{name}");
        }
    }
}
