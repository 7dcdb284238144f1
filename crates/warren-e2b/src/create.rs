//! Requests for a new sandbox. A field that cannot be honoured is refused by name, never ignored.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::answer::Refusal;

/// The lifetime of a sandbox if its client names none. E2B's SDKs document this value.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest time that a client can ask for.
const LONGEST_TIMEOUT: u64 = 30 * 24 * 3600;
/// The most bytes of metadata, which is kept in an annotation of the object.
const LONGEST_METADATA: usize = 64 << 10;
/// The most environment variables.
const MOST_VARIABLES: usize = 1024;

/// The template of clients that name none.
pub(crate) const DEFAULT_TEMPLATE: &str = "base";

/// A sandbox that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewSandbox {
    pub(crate) template: String,
    pub(crate) timeout: Duration,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) variables: BTreeMap<String, String>,
    /// The client asks for a sandbox without a network.
    pub(crate) offline: bool,
}

/// Reads the body of a create call.
pub(crate) fn new_sandbox(body: &Value) -> Result<NewSandbox, Refusal> {
    let Value::Object(fields) = body else { return Err(Refusal::bad("the body is not a JSON object")) };
    for (field, value) in fields {
        check(field, value)?;
    }
    let template = match fields.get("templateID") {
        None | Some(Value::Null) => DEFAULT_TEMPLATE,
        Some(Value::String(template)) if template.is_empty() => DEFAULT_TEMPLATE,
        Some(Value::String(template)) => template,
        Some(_) => return Err(Refusal::bad("`templateID` is not a string")),
    };
    let metadata = strings(fields, "metadata")?;
    let length: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if length > LONGEST_METADATA {
        return Err(Refusal::bad(format!("`metadata` has more than {LONGEST_METADATA} bytes")));
    }
    let variables = strings(fields, "envVars")?;
    let is_bad = |name: &String| name.is_empty() || name.contains(['=', '\0']);
    if variables.len() > MOST_VARIABLES || variables.keys().any(is_bad) {
        return Err(Refusal::bad("`envVars` has too many variables, or a name that cannot be"));
    }
    Ok(NewSandbox {
        template: template.to_owned(),
        timeout: timeout(body)?.unwrap_or(DEFAULT_TIMEOUT),
        metadata,
        variables,
        offline: fields.get("allow_internet_access") == Some(&Value::Bool(false)),
    })
}

/// Refuses a field that asks for something that there is not.
fn check(field: &str, value: &Value) -> Result<(), Refusal> {
    let is_off = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    match field {
        "templateID" | "timeout" | "metadata" | "envVars" | "allow_internet_access" => Ok(()),
        "secure" if value == &Value::Bool(false) => {
            Err(Refusal::bad("`secure` cannot be false: sandboxes are reached with their token only"))
        }
        "secure" => Ok(()),
        "autoPause" if !is_off => {
            Err(Refusal::bad("`autoPause` is not supported: a sandbox is deleted when its timeout is over"))
        }
        // Which kind of pause follows the timeout says nothing where none does.
        "autoPause" | "autoPauseMemory" => Ok(()),
        "autoResume" if value.get("enabled") == Some(&Value::Bool(false)) => Ok(()),
        // Clients build it from the tunnelling of their own; an empty one asks for nothing.
        _ if is_off => Ok(()),
        _ => Err(Refusal::bad(format!("`{}` is not supported", field.chars().take(64).collect::<String>()))),
    }
}

fn strings(fields: &Map<String, Value>, name: &str) -> Result<BTreeMap<String, String>, Refusal> {
    let wrong = || Refusal::bad(format!("`{name}` is not an object of strings"));
    match fields.get(name) {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::Object(pairs)) => pairs
            .iter()
            .map(|(key, value)| Ok((key.clone(), value.as_str().ok_or_else(wrong)?.to_owned())))
            .collect(),
        Some(_) => Err(wrong()),
    }
}

/// Reads `timeout`, in seconds.
pub(crate) fn timeout(body: &Value) -> Result<Option<Duration>, Refusal> {
    match body.get("timeout") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().filter(|seconds| *seconds <= LONGEST_TIMEOUT) {
            Some(seconds) => Ok(Some(Duration::from_secs(seconds))),
            None => {
                Err(Refusal::bad(format!("`timeout` must be a number of seconds, at most {LONGEST_TIMEOUT}")))
            }
        },
    }
}

/// Checks the body of a pause or connect call: memory is not kept.
pub(crate) fn check_memory(body: &Value, user_agent: Option<&str>) -> Result<(), Refusal> {
    match body.get("memory") {
        Some(Value::Bool(true)) if !user_agent.is_some_and(always_says_memory) => Err(Refusal::bad(
            "`memory` cannot be true: a pause keeps files and ends processes; leave it out or send false",
        )),
        _ => Ok(()),
    }
}

/// Returns whether a client sends `memory: true` also when its program has not asked for it. Versions before 2.51 do.
fn always_says_memory(user_agent: &str) -> bool {
    let version = user_agent.strip_prefix("e2b-").and_then(|rest| rest.split_once("-sdk/"));
    let mut numbers = version.map_or("", |(_, version)| version).split(['.', ' ']);
    let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
    number().zip(number()).is_some_and(|version| version < (2, 51))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bodies_of_the_published_clients_are_taken() {
        let sandbox = new_sandbox(&json!({
            "templateID": "base", "metadata": {"a": "b"}, "timeout": 60, "envVars": {"K": "v"},
            "secure": true, "allow_internet_access": true, "autoPause": false, "autoPauseMemory": true,
            "autoResume": {"enabled": false}, "volumeMounts": [], "mcp": null,
        }))
        .expect("taken");
        assert_eq!(sandbox.timeout, Duration::from_secs(60));
        assert_eq!(sandbox.variables["K"], "v");
        assert!(!sandbox.offline);
        let least = new_sandbox(&json!({})).expect("taken");
        assert_eq!((least.template.as_str(), least.timeout), ("base", DEFAULT_TIMEOUT));
        assert!(new_sandbox(&json!({"allow_internet_access": false})).expect("taken").offline);
    }

    #[test]
    fn memory_is_refused_where_the_program_has_asked_for_it() {
        let body = json!({"memory": true});
        for (agent, is_taken) in [
            (Some("e2b-python-sdk/2.50.0"), true),
            (Some("e2b-python-sdk/2.25.1 integration/x"), true),
            (Some("e2b-python-sdk/2.51.0"), false),
            (Some("e2b-js-sdk/3.0"), false),
            (Some("curl/8"), false),
            (None, false),
        ] {
            assert_eq!(check_memory(&body, agent).is_ok(), is_taken, "{agent:?}");
        }
        assert!(check_memory(&json!({"memory": false}), None).is_ok());
    }

    #[test]
    fn what_cannot_be_given_is_refused_by_name() {
        for (body, field) in [
            (json!({"autoPause": true}), "autoPause"),
            (json!({"autoResume": {"enabled": true}}), "autoResume"),
            (json!({"network": {"denyOut": ["0.0.0.0/0"]}}), "network"),
            (json!({"iam": {"tokens": {}}}), "iam"),
            (json!({"mcp": {"x": {}}}), "mcp"),
            (json!({"volumeMounts": [{"name": "v"}]}), "volumeMounts"),
            (json!({"secure": false}), "secure"),
            (json!({"later": 1}), "later"),
            (json!({"timeout": -1}), "timeout"),
            (json!({"timeout": 1e12}), "timeout"),
            (json!({"metadata": {"a": 1}}), "metadata"),
            (json!({"envVars": {"a=b": "c"}}), "envVars"),
            (json!({"templateID": 7}), "templateID"),
            (json!([]), "body"),
        ] {
            let refusal = new_sandbox(&body).expect_err("refused");
            assert_eq!(refusal.status, 400);
            assert!(refusal.message.contains(field), "{body} {}", refusal.message);
        }
    }
}
