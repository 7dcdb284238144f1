//! `serviceaccounts/token`: a new token for an account, bound to it and to the object that the
//! request names.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use warren_store::{Body, Key, Object, deletion};

use crate::access::{AUDIENCE, BoundObject, Claims};
use crate::admission;
use crate::call::Call;
use crate::definition::Target;
use crate::managed_fields::{Tracker, check_options};
use crate::metadata::{self, metadata_mut};
use crate::query::Query;
use crate::respond::{self, ResponseBody};
use crate::server::Inner;
use crate::status::{ApiError, FieldError, Subject};

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
/// One hour, if the request does not say.
const DEFAULT_SECONDS: i64 = 3600;
const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;

pub(super) fn create(
    server: &Inner,
    call: &Call<'_>,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    check_options(call, "CreateOptions", false)?;
    let definition = crate::kinds::token_request();
    let target = Target::new(&definition, "v1").ok_or_else(|| ApiError::internal("no token requests"))?;
    // Decode the body as a TokenRequest and not as a ServiceAccount.
    let request = Call { target, query: Query::parse(&call.query.to_text()), ..*call };
    let decoded = admission::decode(&request, admission::parse_object(&request, body)?)?;
    let admission::Decoded { object: mut token, warnings } = decoded;
    let (namespace, name) = (call.namespace.unwrap_or_default(), call.name.unwrap_or_default());
    for (field, wanted) in [("name", name), ("namespace", namespace)] {
        let sent = metadata::text(&token, field);
        if !sent.is_empty() && sent != wanted {
            let detail = format!("must match the service account {field} if specified");
            let error = FieldError::invalid(format!("metadata.{field}"), sent, detail);
            return Err(ApiError::invalid(Subject { group: GROUP, kind: KIND, name }, vec![error]));
        }
    }
    let account = server.store.newest(&call.key()?).ok_or_else(|| call.not_found())?;
    let uid = metadata::text(&token, "uid");
    if !uid.is_empty() && uid != &*account.meta.uid {
        let why = format!(
            "the UID in the token request ({uid}) does not match the UID of the service account ({})",
            account.meta.uid
        );
        return Err(ApiError::conflict(Subject { group: GROUP, kind: KIND, name }, &why));
    }
    if token["spec"]["expirationSeconds"].is_null() {
        token["spec"]["expirationSeconds"] = DEFAULT_SECONDS.into();
    }
    if let Some(token) = token.as_object_mut() {
        token.shift_remove("status");
    }
    metadata_mut(&mut token).shift_remove("managedFields");
    let managed_fields = Tracker::new(&request).update(None, None, &token)?;
    let seconds = checked_seconds(&token)?;
    let audiences = match token["spec"]["audiences"].as_array() {
        Some(sent) if !sent.is_empty() => {
            sent.iter().filter_map(|audience| Some(audience.as_str()?.to_owned())).collect()
        }
        _ => vec![AUDIENCE.to_owned()],
    };
    let bound = BoundObject { name: name.to_owned(), uid: account.meta.uid.to_string() };
    let mut claims = Claims::new(namespace, bound, audiences.clone(), call.now, seconds);
    if token["spec"]["boundObjectRef"].is_object() {
        bind(server, call, &token["spec"]["boundObjectRef"], &mut claims)?;
    } else {
        token["spec"]["boundObjectRef"] = Value::Null;
    }
    token["spec"]["audiences"] = audiences.into();
    let metadata = metadata_mut(&mut token);
    metadata.insert("name".to_owned(), name.into());
    metadata.insert("namespace".to_owned(), namespace.into());
    metadata.insert("uid".to_owned(), (*account.meta.uid).into());
    metadata.insert("creationTimestamp".to_owned(), deletion::timestamp(call.now).into());
    let expires = call.now.saturating_add(jiff::SignedDuration::from_secs(seconds));
    let expires = expires.map_err(ApiError::internal)?;
    let signed = server.accounts.issue(&claims).map_err(ApiError::internal)?;
    token["status"] = json!({"token": signed, "expirationTimestamp": deletion::timestamp(expires)});
    let token = Body { tree: token, managed_fields }.whole();
    Ok(super::warn(respond::json(StatusCode::CREATED, &token), call, &warnings))
}

fn checked_seconds(token: &Value) -> Result<i64, ApiError> {
    let seconds = token["spec"]["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    let detail = match seconds {
        ..SHORTEST => "may not specify a duration less than 10 minutes",
        SHORTEST..=LONGEST => return Ok(seconds),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let error = FieldError::invalid("spec.expirationSeconds", seconds, detail);
    Err(ApiError::invalid(Subject { group: GROUP, kind: KIND, name: "" }, vec![error]))
}

/// Binds a token to a pod, secret or node. The token becomes invalid when the object is deleted.
fn bind(server: &Inner, call: &Call<'_>, reference: &Value, claims: &mut Claims) -> Result<(), ApiError> {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (kind, name) = (text("kind"), text("name"));
    let namespace = call.namespace.unwrap_or_default();
    let find = |plural: &str, namespace: &str| {
        let subject = Subject { group: "", kind: plural, name };
        server.store.newest(&Key::new(plural, namespace, name)).ok_or_else(|| ApiError::not_found(subject))
    };
    let bound = |object: &Object| {
        let uid = text("uid");
        if !uid.is_empty() && uid != &*object.meta.uid {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            );
            return Err(ApiError::conflict(Subject { group: "", kind, name }, &why));
        }
        Ok(BoundObject { name: name.to_owned(), uid: object.meta.uid.to_string() })
    };
    match (text("apiVersion"), kind) {
        ("v1", "Pod") => {
            let pod = find("pods", namespace)?;
            let value = pod.value();
            let account = call.name.unwrap_or_default();
            if value["spec"]["serviceAccountName"] != account {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            if let Some(node) = value["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
                let found = server.store.newest(&Key::new("nodes", "", node));
                let uid = found.map(|node| node.meta.uid.to_string()).unwrap_or_default();
                claims.kubernetes.node = Some(BoundObject { name: node.to_owned(), uid });
            }
            claims.kubernetes.pod = Some(bound(&pod)?);
        }
        ("v1", "Secret") => claims.kubernetes.secret = Some(bound(&*find("secrets", namespace)?)?),
        ("v1", "Node") => claims.kubernetes.node = Some(bound(&*find("nodes", "")?)?),
        (version, kind) => {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            return Err(ApiError::bad_request(format!(
                "cannot bind token to object of type {group}/{version}, Kind={kind}"
            )));
        }
    }
    Ok(())
}
