//! Checks the labels and annotations that a claim adds to its pod, and merges them with the
//! template's.

use std::collections::BTreeMap;

use warren_api::blueprint::PodMetadata;

/// Annotation domains that are reserved for Kubernetes and Warren.
const RESERVED_DOMAINS: [&str; 4] = ["kubernetes.io", "k8s.io", "agents.x-k8s.io", "warren.dev"];

/// Checks a claim's additions. The error text is shown in the claim's condition.
pub(super) fn validate(added: &PodMetadata, allowed_domains: &[String]) -> Result<(), String> {
    for (key, value) in &added.labels {
        check_key("label", key)?;
        let allowed = domain(key).is_some_and(|domain| {
            allowed_domains.iter().any(|allowed| is_within(&domain.to_ascii_lowercase(), allowed))
        });
        if key.eq_ignore_ascii_case("app") && value.eq_ignore_ascii_case("sandbox-router") {
            return Err(format!("label {key}={value} is reserved for the router"));
        }
        if !allowed {
            return Err(format!(
                "label key {key} is not in an allowed domain ({})",
                allowed_domains.join(", ")
            ));
        }
        check_label_value(key, value)?;
    }
    for key in added.annotations.keys() {
        check_key("annotation", key)?;
        let reserved = domain(key).is_some_and(|domain| {
            RESERVED_DOMAINS.iter().any(|reserved| is_within(&domain.to_ascii_lowercase(), reserved))
        });
        if reserved && key != warren_api::annotations::SAFE_TO_EVICT {
            return Err(format!("annotation key {key} is in a reserved domain"));
        }
    }
    Ok(())
}

/// Adds a claim's entries to a template's. A claim may not change the template's values.
pub(super) fn add(
    what: &str,
    target: &mut BTreeMap<String, String>,
    added: &BTreeMap<String, String>,
) -> Result<(), String> {
    for (key, value) in added {
        match target.get(key) {
            Some(present) if present != value => {
                return Err(format!(
                    "{what} {key} is set by the template and cannot be changed by the claim"
                ));
            }
            _ => {
                target.insert(key.clone(), value.clone());
            }
        }
    }
    Ok(())
}

fn domain(key: &str) -> Option<&str> {
    key.split_once('/').map(|(domain, _)| domain)
}

fn is_within(domain: &str, parent: &str) -> bool {
    domain == parent || domain.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

/// Checks a qualified name: an optional DNS subdomain, a slash, and a name of at most 63
/// characters.
fn check_key(what: &str, key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let prefix_ok = prefix.is_none_or(is_object_name);
    if prefix_ok && !name.is_empty() && name.len() <= 63 && is_name(name) {
        return Ok(());
    }
    Err(format!("{what} key {key:?} is not a qualified name"))
}

fn check_label_value(key: &str, value: &str) -> Result<(), String> {
    if value.is_empty() || (value.len() <= 63 && is_name(value)) {
        return Ok(());
    }
    Err(format!("value {value:?} of label {key} is not a label value"))
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Returns true if the text is a valid object name.
pub(super) fn is_object_name(text: &str) -> bool {
    text.len() <= 253 && is_subdomain(text)
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(|part| {
        let bytes = part.as_bytes();
        let edge =
            |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::{Value, json};

    use super::validate;

    fn check(added: Value, expect: Expect) {
        let added = serde_json::from_value(added).unwrap();
        let domains = ["sandbox.users.io".to_owned()];
        expect.assert_eq(&validate(&added, &domains).err().unwrap_or_default());
    }

    #[test]
    fn what_a_claim_may_add() {
        check(json!({"labels": {"sandbox.users.io/team": "a", "x.sandbox.users.io/team": ""}}), expect![""]);
        check(json!({"annotations": {"note": "free text!", "example.com/x": "y"}}), expect![""]);
        check(
            json!({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}),
            expect![""],
        );
        check(
            json!({"labels": {"team": "a"}}),
            expect!["label key team is not in an allowed domain (sandbox.users.io)"],
        );
        check(
            json!({"labels": {"evilsandbox.users.io/team": "a"}}),
            expect!["label key evilsandbox.users.io/team is not in an allowed domain (sandbox.users.io)"],
        );
        check(
            json!({"labels": {"app": "Sandbox-Router"}}),
            expect!["label app=Sandbox-Router is reserved for the router"],
        );
        check(
            json!({"labels": {"sandbox.users.io/team": "no spaces"}}),
            expect![[r#"value "no spaces" of label sandbox.users.io/team is not a label value"#]],
        );
        check(
            json!({"labels": {"sandbox.users.io/": "a"}}),
            expect![[r#"label key "sandbox.users.io/" is not a qualified name"#]],
        );
        check(
            json!({"annotations": {"x.k8s.io/y": "z"}}),
            expect!["annotation key x.k8s.io/y is in a reserved domain"],
        );
        check(
            json!({"annotations": {"agents.x-k8s.io/pod-name": "z"}}),
            expect!["annotation key agents.x-k8s.io/pod-name is in a reserved domain"],
        );
        // Only the template may set a pod's network mode.
        check(
            json!({"annotations": {"warren.dev/network": "full"}}),
            expect!["annotation key warren.dev/network is in a reserved domain"],
        );
    }
}
