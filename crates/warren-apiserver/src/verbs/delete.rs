//! The verbs `delete` and `deletecollection`, and evictions.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use warren_store::deletion::{self, Outcome, Propagation};
use warren_store::{Action, Ahead, Body, Expect, Key, List, ListRequest, Object, Urgency, Write, WriteError};

use super::refused;
use crate::admission;
use crate::call::Call;
use crate::definition::Definition;
use crate::disruption;
use crate::respond::{self, ResponseBody};
use crate::server::Inner;
use crate::status::{ApiError, FieldError, Subject};

const ATTEMPTS: usize = 64;
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
/// Deletions of a collection that run concurrently.
const CONCURRENT_DELETIONS: usize = 64;

/// `DeleteOptions`, from the body or the query.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub grace_period: Option<i64>,
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub version: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    fn read(call: &Call<'_>, body: &[u8]) -> Result<DeleteOptions, ApiError> {
        let sent = if body.is_empty() { Value::Null } else { parse_options(call, body)? };
        let invalid = |error: FieldError| {
            let subject = Subject { group: "meta.k8s.io", kind: "DeleteOptions", name: "" };
            ApiError::invalid(subject, vec![error])
        };
        let dry_run: Vec<&str> = match sent["dryRun"].as_array() {
            Some(list) => list.iter().filter_map(Value::as_str).collect(),
            None => call.query.all("dryRun").collect(),
        };
        if dry_run.iter().any(|value| *value != "All") {
            return Err(invalid(FieldError::unsupported("dryRun", dry_run, &["All"])));
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let policy =
            text(&sent["propagationPolicy"]).or(call.query.text("propagationPolicy").map(str::to_owned));
        let orphan =
            sent["orphanDependents"].as_bool().or(call.query.get("orphanDependents").map(|v| v == "true"));
        let propagation = match (policy.as_deref(), orphan) {
            (Some(policy), Some(_)) => {
                let detail = "orphanDependents and deletionPropagation cannot be both set";
                return Err(invalid(FieldError::invalid("propagationPolicy", policy, detail)));
            }
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (None, None) => None,
            (Some(other), _) => {
                let known = ["Foreground", "Background", "Orphan", "nil"];
                return Err(invalid(FieldError::unsupported("propagationPolicy", other, &known)));
            }
        };
        Ok(DeleteOptions {
            grace_period: match sent["gracePeriodSeconds"].as_i64() {
                Some(seconds) => Some(seconds),
                None => call.query.number("gracePeriodSeconds")?,
            },
            propagation,
            uid: text(&sent["preconditions"]["uid"]),
            version: text(&sent["preconditions"]["resourceVersion"]),
            dry_run: !dry_run.is_empty(),
        })
    }
}

fn parse_options(call: &Call<'_>, body: &[u8]) -> Result<Value, ApiError> {
    let sent = admission::parse(call.content_type(), body, DELETE_OPTIONS).map_err(|mut error| {
        // Only here kube-apiserver's message does not name the expected type.
        let prefix = "the object provided is unrecognized (must be of type DeleteOptions): ";
        if let Some(rest) = error.message.strip_prefix(prefix) {
            let cause = rest.rsplit_once(" (").map_or(rest, |(cause, _)| cause);
            error.message = cause.to_owned();
        }
        error
    })?;
    let word = |field: &str| sent[field].as_str().unwrap_or_default();
    let (kind, version) = (word("kind"), word("apiVersion"));
    if !matches!(kind, "" | "DeleteOptions") {
        return Err(ApiError::bad_request(format!(
            "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\""
        )));
    }
    let grace = &sent["gracePeriodSeconds"];
    if !grace.is_null() && !grace.is_i64() {
        let found = crate::schema::type_name(grace);
        return Err(ApiError::bad_request(format!(
            "json: cannot unmarshal {found} into Go struct field DeleteOptions.gracePeriodSeconds of type int64"
        )));
    }
    Ok(sent)
}

pub(crate) enum Removal {
    Gone(Arc<Object>),
    Waiting(Arc<Object>),
    DryRun(Value),
}

pub(super) async fn delete(
    server: &Inner,
    call: &Call<'_>,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    let options = DeleteOptions::read(call, body)?;
    let removal = remove(server, &call.target.definition, &call.key()?, &options, call.now, call.ahead)
        .await
        .map_err(|error| error.into_api_error(call, call.name.unwrap_or_default()))?;
    let returns_object = call.target.definition.behaviour.returns_deleted;
    Ok(match removal {
        Removal::Gone(object) if !returns_object => respond::deleted(&call.target, &object),
        Removal::Gone(object) | Removal::Waiting(object) => {
            respond::object(StatusCode::OK, &call.target, &object, call.representation, call.now)
        }
        Removal::DryRun(value) => {
            respond::value(StatusCode::OK, &call.target, &value, call.representation, call.now)
        }
    })
}

/// Serves `pods/eviction`: a deletion, unless a disruption budget forbids it.
pub(super) async fn evict(
    server: &Inner,
    call: &Call<'_>,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    let eviction = admission::parse(call.content_type(), body, "io.k8s.api.policy.v1.Eviction")?;
    let sent = &eviction["deleteOptions"];
    let options = DeleteOptions {
        grace_period: sent["gracePeriodSeconds"].as_i64(),
        uid: sent["preconditions"]["uid"].as_str().map(str::to_owned),
        version: sent["preconditions"]["resourceVersion"].as_str().map(str::to_owned),
        dry_run: call.dry_run()? || sent["dryRun"].as_array().is_some_and(|list| !list.is_empty()),
        propagation: None,
    };
    let key = call.key()?;
    let _evictions = server.evictions.lock().await;
    if let Some(pod) = server.store.newest(&key) {
        disruption::check(server, &pod, call.now)?;
    }
    remove(server, &call.target.definition, &key, &options, call.now, call.ahead)
        .await
        .map_err(|error| error.into_api_error(call, call.name.unwrap_or_default()))?;
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
    });
    Ok(respond::json(StatusCode::CREATED, &status))
}

pub(super) async fn delete_collection(
    server: &Inner,
    call: &Call<'_>,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    let options = DeleteOptions::read(call, body)?;
    let filter = call.filter()?;
    let resource = &call.target.definition.resource;
    let request = ListRequest { resource, filter: &filter, limit: None, after: None, at: None };
    let list = server.store.list(&request).map_err(|error| ApiError::internal(error.to_string()))?;
    let version = list.version;
    let deletions = list.items.into_iter().map(|object| remove_listed(server, call, object, &options));
    let deleted: Vec<Option<Arc<Object>>> =
        futures::stream::iter(deletions).buffered(CONCURRENT_DELETIONS).try_collect().await?;
    let items = deleted.into_iter().flatten().collect();
    let answer = List { items, version, more: false, remaining: None };
    Ok(respond::list(&call.target, &answer, None, call.representation, call.now))
}

async fn remove_listed(
    server: &Inner,
    call: &Call<'_>,
    object: Arc<Object>,
    options: &DeleteOptions,
) -> Result<Option<Arc<Object>>, ApiError> {
    match remove(server, &call.target.definition, &object.key, options, call.now, call.ahead).await {
        // Another client deleted it first, so the goal is reached.
        Err(RemoveError::Write(WriteError::Missing(_))) => Ok(None),
        Err(error) => Err(error.into_api_error(call, &object.key.name)),
        // The answer shows the object as it was found.
        Ok(_) => Ok(Some(object)),
    }
}

pub(crate) enum RemoveError {
    Precondition(String),
    Write(WriteError),
    Forbidden(&'static str),
}

impl RemoveError {
    fn into_api_error(self, call: &Call<'_>, name: &str) -> ApiError {
        let subject = call.target.definition.subject(name);
        match self {
            RemoveError::Precondition(why) => {
                ApiError::conflict(call.target.definition.kind_subject(name), &why)
            }
            RemoveError::Forbidden(why) => ApiError::forbidden(subject, why),
            RemoveError::Write(error) => refused(call, name, error),
        }
    }
}

/// Deletes an object like a client's request: finalizers and grace periods are respected. The
/// garbage collector uses it too.
pub(crate) async fn remove(
    server: &Inner,
    definition: &Definition,
    key: &Key,
    options: &DeleteOptions,
    now: jiff::Timestamp,
    ahead: Option<&Ahead>,
) -> Result<Removal, RemoveError> {
    for _ in 0..ATTEMPTS {
        let current =
            server.store.newest(key).ok_or_else(|| RemoveError::Write(WriteError::Missing(key.clone())))?;
        if let Some(uid) = options.uid.as_deref().filter(|uid| **uid != *current.meta.uid) {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
                current.meta.uid
            );
            return Err(RemoveError::Precondition(why));
        }
        let version = current.version.to_string();
        if let Some(wanted) = options.version.as_deref().filter(|wanted| *wanted != version) {
            let why = format!(
                "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({version}). The object might have been modified"
            );
            return Err(RemoveError::Precondition(why));
        }
        let Body { tree: object, managed_fields } = current.split();
        let with_managers = |tree: Value| Body { tree, managed_fields: managed_fields.clone() };
        let is_namespace = &*definition.resource == "namespaces";
        if is_namespace && matches!(&*key.name, "default" | "kube-system" | "kube-public") {
            return Err(RemoveError::Forbidden("this namespace may not be deleted"));
        }
        let grace = (definition.behaviour.grace_period)(&object, options.grace_period);
        let propagation = options.propagation.unwrap_or(Propagation::Background);
        let mut outcome = deletion::delete(&object, propagation, grace, now);
        if let Outcome::Mark(definition) = &mut outcome
            && &*key.resource == crate::crd::RESOURCE
            && let Some(metadata) = definition.get_mut("metadata").and_then(Value::as_object_mut)
        {
            // Definitions wait for their objects, not for a period.
            metadata.shift_remove("deletionGracePeriodSeconds");
        }
        if is_namespace && outcome == Outcome::Remove {
            outcome = terminate_namespace(object.clone(), now);
        }
        if options.dry_run {
            return Ok(match outcome {
                Outcome::Remove => Removal::Gone(current),
                Outcome::Mark(marked) => Removal::DryRun(with_managers(marked).whole()),
                Outcome::Unchanged => Removal::DryRun(with_managers(object).whole()),
            });
        }
        let action = match outcome {
            Outcome::Unchanged => {
                // The mark may be recent and not yet on disk.
                server.store.reaches_disk(current.version).await.map_err(RemoveError::Write)?;
                return Ok(Removal::Waiting(current));
            }
            Outcome::Remove => Action::Delete,
            Outcome::Mark(marked) => Action::Put(with_managers(marked)),
        };
        let gone = matches!(action, Action::Delete);
        let write = |expect, action| Write { key: key.clone(), expect, action };
        let expect = Expect::Version(current.version);
        let last_state = (gone && definition.behaviour.marks_before_removal)
            .then(|| deletion::last_state(&object, now))
            .flatten();
        let writes = match last_state {
            Some(marked) => {
                vec![write(expect, Action::Put(with_managers(marked))), write(Expect::Present, action)]
            }
            None => vec![write(expect, action)],
        };
        match server.write(ahead, writes, Urgency::Awaited).await.map(|mut stored| stored.pop()) {
            Ok(Some(stored)) => {
                server.written(&stored, Some(&current));
                return Ok(if gone { Removal::Gone(stored) } else { Removal::Waiting(stored) });
            }
            Ok(None) => return Err(RemoveError::Write(WriteError::Missing(key.clone()))),
            Err(WriteError::Conflict { .. }) => {}
            Err(error) => return Err(RemoveError::Write(error)),
        }
    }
    Err(RemoveError::Write(WriteError::Conflict { key: key.clone(), actual: 0 }))
}

/// Marks a namespace as terminating. It stays until the garbage collector has emptied it.
fn terminate_namespace(mut namespace: Value, now: jiff::Timestamp) -> Outcome {
    let held = namespace["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    if !held {
        return Outcome::Remove;
    }
    if namespace["metadata"]["deletionTimestamp"].is_string() {
        return Outcome::Unchanged;
    }
    namespace["metadata"]["deletionTimestamp"] = deletion::timestamp(now).into();
    namespace["status"]["phase"] = "Terminating".into();
    Outcome::Mark(namespace)
}
