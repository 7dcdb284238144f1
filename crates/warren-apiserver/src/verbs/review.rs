//! Reviews: questions about users and permissions. They are answered from the request's identity
//! and the roles in force.

use http::{Response, StatusCode};
use serde_json::{Map, Value, json};
use warren_store::Body;

use super::track;
use crate::access::{AUDIENCE, Attributes, Decision, REFUSED};
use crate::admission;
use crate::call::Call;
use crate::identity::Identity;
use crate::kinds::Review;
use crate::managed_fields::check_options;
use crate::metadata::{self, metadata_mut};
use crate::respond::{self, ResponseBody};
use crate::server::Inner;
use crate::status::{ApiError, FieldError, Subject};

pub(super) fn review(
    server: &Inner,
    call: &Call<'_>,
    review: Review,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    check_options(call, "CreateOptions", false)?;
    let admission::Decoded { mut object, warnings } =
        admission::decode(call, admission::parse_object(call, body)?)?;
    if let Some(object) = object.as_object_mut() {
        object.shift_remove("status");
    }
    if let Some(namespace) = call.namespace {
        let sent = metadata::text(&object, "namespace");
        if !sent.is_empty() && sent != namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        metadata_mut(&mut object).insert("namespace".to_owned(), namespace.into());
    }
    if review == Review::Oneself {
        let created = warren_store::deletion::timestamp(call.now);
        metadata_mut(&mut object).insert("creationTimestamp".to_owned(), created.into());
    }
    metadata_mut(&mut object).shift_remove("managedFields");
    let managed_fields = track(call, None, None, &object)?;
    let spec = &object["spec"];
    let status = match review {
        Review::Token => token(server, call, spec)?,
        Review::Oneself => json!({"userInfo": user_info(call.identity)}),
        Review::OwnRules => rules(server, call, spec)?,
        Review::OwnAccess => access(server, spec, call.identity)?,
        Review::Access => access(server, spec, &subject(spec)?)?,
        Review::LocalAccess => {
            let wanted = spec["resourceAttributes"]["namespace"].as_str().unwrap_or_default();
            if spec["resourceAttributes"].is_object() && call.namespace != Some(wanted) {
                let detail = "must match metadata.namespace";
                let error = FieldError::invalid("spec.resourceAttributes.namespace", wanted, detail);
                return Err(invalid(error));
            }
            access(server, spec, &subject(spec)?)?
        }
    };
    object["status"] = status;
    let object = Body { tree: object, managed_fields }.whole();
    let response = respond::json(StatusCode::CREATED, &object);
    Ok(super::warn(response, call, &warnings))
}

/// Builds the error of an invalid review. kube-apiserver omits the kind here.
fn invalid(error: FieldError) -> ApiError {
    ApiError::invalid(Subject { group: "authorization.k8s.io", kind: "", name: "" }, vec![error])
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
}

/// Returns the user that a review asks about.
fn subject(spec: &Value) -> Result<Identity, ApiError> {
    let (user, groups) = (spec["user"].as_str().unwrap_or_default(), texts(&spec["groups"]));
    if user.is_empty() && groups.is_empty() {
        let detail = "at least one of user or group must be specified";
        return Err(invalid(FieldError::invalid("spec.user", "", detail)));
    }
    let uid = spec["uid"].as_str().map(str::to_owned);
    let extra = spec["extra"].as_object().into_iter().flatten();
    let extra = extra.map(|(key, values)| (key.clone(), texts(values))).collect();
    Ok(Identity { user: user.to_owned(), groups, uid, extra })
}

fn access(server: &Inner, spec: &Value, identity: &Identity) -> Result<Value, ApiError> {
    let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
    let decision = match (&spec["resourceAttributes"], &spec["nonResourceAttributes"]) {
        (Value::Object(_), path @ Value::Object(_)) => {
            let detail = "cannot be specified in combination with resourceAttributes";
            return Err(invalid(FieldError::invalid("spec.nonResourceAttributes", path.clone(), detail)));
        }
        (resource @ Value::Object(_), _) => {
            let field = |name: &str| text(&resource[name]);
            let (verb, group, name) = (field("verb"), field("group"), field("name"));
            let (plural, subresource, namespace) =
                (field("resource"), field("subresource"), field("namespace"));
            let attributes = Attributes::Resource {
                verb: &verb,
                group: &group,
                resource: &plural,
                subresource: &subresource,
                namespace: &namespace,
                name: &name,
            };
            server.access.decide(&server.store, identity, &attributes)
        }
        (_, path @ Value::Object(_)) => {
            let (verb, path) = (text(&path["verb"]), text(&path["path"]));
            let attributes = Attributes::Path { verb: &verb, path: &path };
            server.access.decide(&server.store, identity, &attributes)
        }
        _ => {
            let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            return Err(invalid(FieldError::invalid("spec.resourceAttributes", Value::Null, detail)));
        }
    };
    let (allowed, reason) = match decision {
        Decision::Allowed { reason } => (true, reason),
        Decision::Denied { reason } => (false, reason),
    };
    let mut status = json!({"allowed": allowed});
    if !reason.is_empty() {
        status["reason"] = reason.into();
    }
    Ok(status)
}

fn rules(server: &Inner, call: &Call<'_>, spec: &Value) -> Result<Value, ApiError> {
    let namespace = spec["namespace"].as_str().unwrap_or_default();
    if namespace.is_empty() {
        return Err(ApiError::bad_request("no namespace on request"));
    }
    let (rules, broken) = server.access.policy(&server.store).rules(call.identity, namespace);
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    for rule in rules {
        if !rule.resources.is_empty() {
            let mut shown =
                json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                shown["resourceNames"] = rule.resource_names.into();
            }
            resources.push(shown);
        } else {
            paths.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    let mut status = json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false});
    if !broken.is_empty() {
        status["evaluationError"] = broken.join(", ").into();
    }
    Ok(status)
}

fn token(server: &Inner, call: &Call<'_>, spec: &Value) -> Result<Value, ApiError> {
    let token = spec["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    let mut audiences = texts(&spec["audiences"]);
    if audiences.is_empty() {
        audiences.push(AUDIENCE.to_owned());
    }
    let meant: Vec<&str> = audiences.iter().map(String::as_str).collect();
    Ok(match server.accounts.authenticate(token, &meant, &server.store, call.now) {
        Some((identity, audiences)) => {
            json!({"authenticated": true, "user": user_info(&identity), "audiences": audiences})
        }
        None => json!({"user": {}, "error": REFUSED}),
    })
}

fn user_info(identity: &Identity) -> Value {
    let mut info = json!({"username": identity.user, "groups": identity.groups});
    if let Some(uid) = &identity.uid {
        info["uid"] = uid.as_str().into();
    }
    if !identity.extra.is_empty() {
        let extra = identity.extra.iter().map(|(key, values)| (key.clone(), Value::from(values.clone())));
        info["extra"] = extra.collect::<Map<_, _>>().into();
    }
    info
}
