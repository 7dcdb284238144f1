//! The verbs `update` and `patch`, including server-side apply.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use warren_store::{Action, Body, Expect, Object, Urgency, Write, WriteError, deletion};

use super::create::Ownership;
use super::{create, refused, track, warn};
use crate::access::check_escalation;
use crate::admission::{self, Decoded};
use crate::allocation::Taken;
use crate::call::{Call, FieldValidation};
use crate::managed_fields::{Tracker, check_options, same_but_for_time};
use crate::metadata::{self, metadata_mut};
use crate::patch::{Format, Patch};
use crate::respond::{self, ResponseBody};
use crate::server::Inner;
use crate::status::{ApiError, FieldError};
use crate::tree::is_equal;

/// The number of attempts of a change that meets conflicts. kube-apiserver is limited by its
/// request timeout only. This many conflicts mean that another client writes in a loop.
const ATTEMPTS: usize = 64;

/// The change that a request asks for.
enum Intent {
    /// Replace the whole object.
    Replace(Value),
    /// Patch the current object.
    Patch(Patch),
}

/// The result of a change.
enum Changed {
    Stored(Arc<Object>),
    DryRun(Value),
}

pub(super) async fn update(
    server: &Inner,
    call: &Call<'_>,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    check_options(call, "UpdateOptions", false)?;
    let Decoded { object, warnings } = admission::decode(call, admission::parse_object(call, body)?)?;
    let name = call.name.unwrap_or_default();
    let sent_name = metadata::text(&object, "name");
    if sent_name.is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    if sent_name != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({sent_name}) does not match the name on the URL ({name})"
        )));
    }
    let sent_namespace = metadata::text(&object, "namespace");
    if call.namespace.is_some_and(|namespace| !sent_namespace.is_empty() && namespace != sent_namespace) {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let behaviour = call.target.definition.behaviour;
    if behaviour.create_on_update && call.subresource.is_none() && server.store.newest(&call.key()?).is_none()
    {
        let uid = metadata::text(&object, "uid");
        if !uid.is_empty() {
            return Err(another(call, uid, ""));
        }
        let mut object = object;
        metadata_mut(&mut object).shift_remove("resourceVersion");
        return create::create_object(server, call, object, Ownership::Update).await;
    }
    let (changed, _) = change(server, call, Intent::Replace(object)).await?;
    Ok(warn(answer(call, &changed), call, &warnings))
}

pub(super) async fn patch(
    server: &Inner,
    call: &Call<'_>,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    let format = Format::from_content_type(call.content_type(), call.target.definition.custom)?;
    check_options(call, "PatchOptions", format == Format::Apply)?;
    let patch = Patch::parse(format, body)?;
    if let Patch::Apply(configuration) = &patch
        && call.subresource.is_none()
        && server.store.newest(&call.key()?).is_none()
    {
        match create_applied(server, call, configuration).await {
            // Another client created it first, so apply to that object.
            Err(error) if error.reason == "AlreadyExists" => {}
            answer => return answer,
        }
    }
    let (changed, warnings) = change(server, call, Intent::Patch(patch)).await?;
    Ok(warn(answer(call, &changed), call, &warnings))
}

async fn create_applied(
    server: &Inner,
    call: &Call<'_>,
    configuration: &Value,
) -> Result<Response<ResponseBody>, ApiError> {
    let name = call.name.unwrap_or_default();
    let applied = Tracker::new(call).apply(None, configuration, call.query.is_on("force"))?;
    let Decoded { object, warnings } = admission::decode(call, applied.tree.into())?;
    if metadata::text(&object, "name").is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    let uid = metadata::text(&object, "uid");
    if !uid.is_empty() {
        let why = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        return Err(ApiError::conflict(call.target.definition.subject(name), &why));
    }
    let ownership = Ownership::Applied(applied.managed_fields);
    let response = create::create_object(server, call, object, ownership).await?;
    Ok(warn(response, call, &warnings))
}

/// Returns the error for an object that has the name but another UID.
fn another(call: &Call<'_>, meant: &str, present: &str) -> ApiError {
    let name = call.name.unwrap_or_default();
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {meant}, UID in object meta: {present}",
        call.registry_path(name)
    );
    ApiError::conflict(call.target.definition.subject(name), &why)
}

fn answer(call: &Call<'_>, changed: &Changed) -> Response<ResponseBody> {
    match changed {
        Changed::Stored(object) => {
            respond::object(StatusCode::OK, &call.target, object, call.representation, call.now)
        }
        Changed::DryRun(value) => {
            respond::value(StatusCode::OK, &call.target, value, call.representation, call.now)
        }
    }
}

/// Reads, changes and writes an object. Starts again after a conflict, unless the client insists on
/// a version. Neither tree contains the managers: they stay text and are parsed only if they
/// change.
async fn change(
    server: &Inner,
    call: &Call<'_>,
    mut intent: Intent,
) -> Result<(Changed, Vec<String>), ApiError> {
    let key = call.key()?;
    let name = call.name.unwrap_or_default();
    let subject = call.target.definition.subject(name);
    for _ in 0..ATTEMPTS {
        let current = server.store.newest(&key).ok_or_else(|| call.not_found())?;
        let old = current.split();
        let Proposed { object: mut new, owners, insists, warnings } = proposed(call, &mut intent, &old)?;
        let wanted = metadata::text(&new, "resourceVersion");
        if insists && wanted.parse::<u64>().is_err() {
            return Err(ApiError::malformed_version(format!(
                "strconv.ParseUint: parsing {wanted:?}: invalid syntax"
            )));
        }
        if insists && wanted != current.version.to_string() {
            return Err(ApiError::modified(subject));
        }
        let sent_uid = metadata::text(&new, "uid");
        let is_applied = matches!(intent, Intent::Patch(Patch::Apply(_)));
        let is_patched = matches!(intent, Intent::Patch(_)) && !is_applied;
        // On a status update of a custom resource, all fields but the status are discarded first.
        let is_ignored = is_patched && call.subresource == Some("status") && call.target.definition.custom;
        if !sent_uid.is_empty() && sent_uid != &*current.meta.uid && !is_ignored {
            if is_patched {
                let error = FieldError::invalid("metadata.uid", sent_uid, "field is immutable");
                return Err(ApiError::invalid(subject, vec![error]));
            }
            return Err(another(call, sent_uid, &current.meta.uid));
        }
        let managed_fields = if call.subresource == Some("finalize") {
            let finalizers = new["spec"]["finalizers"].take();
            new = old.tree.clone();
            new["spec"]["finalizers"] = finalizers;
            old.managed_fields.clone()
        } else {
            admission::combine_update(call, &mut new, &old.tree);
            admission::default(&call.target, &mut new)?;
            let managed_fields = match owners {
                Owners::Applied(list) => list,
                Owners::Tracked { sent } => track(call, Some(&old), sent.as_ref(), &new)?,
            };
            admission::default_as_stored(&call.target, &mut new)?;
            let behaviour = call.target.definition.behaviour;
            match call.subresource {
                Some("status") => (behaviour.prepare_status)(&mut new, &old.tree),
                _ => (behaviour.prepare_update)(&mut new, &old.tree),
            }
            managed_fields
        };
        admission::bump_generation(call, &mut new, &old.tree);
        admission::check(call, &new, Some(&old.tree))?;
        check_escalation(server, call, &new, Some(&old.tree))?;
        if call.dry_run()? {
            return Ok((Changed::DryRun(Body { tree: new, managed_fields }.whole()), warnings));
        }
        let taken = match &*call.target.definition.resource {
            "services" => server.allocation.allocate(&mut new, Some(&old.tree))?,
            _ => Taken::default(),
        };
        // Skip a write that would change only the times of managers.
        if is_equal(&new, &old.tree) && same_but_for_time(&old.managed_fields, &managed_fields) {
            // The current state may be recent and not yet on disk.
            if call.ahead.is_none() {
                server
                    .store
                    .reaches_disk(current.version)
                    .await
                    .map_err(|error| refused(call, name, error))?;
            }
            return Ok((Changed::Stored(current), warnings));
        }
        let holds_namespace = new["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
            && &*call.target.definition.resource == "namespaces";
        let finished = deletion::is_finished(&new) && !holds_namespace;
        // If an update clears the last finalizer, the answer shows what it wrote, although that is
        // never stored.
        let body = Body { tree: new, managed_fields };
        let (action, last) = match finished {
            true => (Action::Delete, Some(body.whole())),
            false => (Action::Put(body), None),
        };
        let urgency = urgency(call, &action);
        let write = Write { key: key.clone(), expect: Expect::Version(current.version), action };
        match server.write_one(call.ahead, write, urgency).await {
            Ok(stored) => {
                server.written(&stored, Some(&current));
                return Ok((last.map_or(Changed::Stored(stored), Changed::DryRun), warnings));
            }
            Err(WriteError::Conflict { .. }) if !insists => server.allocation.release(&taken),
            Err(error) => {
                server.allocation.release(&taken);
                return Err(refused(call, name, error));
            }
        }
    }
    Err(ApiError::modified(subject))
}

/// Returns how soon a change must be on disk for a client that writes ahead of it. Custom objects
/// can wait, because only the answer depends on the change. A status cannot, because other clients
/// read it.
fn urgency(call: &Call<'_>, action: &Action) -> Urgency {
    match action {
        Action::Put(_) if call.target.definition.custom => match call.subresource {
            Some("status") => Urgency::Shown,
            _ => Urgency::CanWait,
        },
        Action::Put(_) | Action::Delete => Urgency::Awaited,
    }
}

/// The requested object, in stored form and without managers.
struct Proposed {
    object: Value,
    owners: Owners,
    /// True if the client insists on the version that it names.
    insists: bool,
    warnings: Vec<String>,
}

/// The origin of a proposed object's managers.
enum Owners {
    /// The apply has computed them.
    Applied(Bytes),
    /// They follow from the changed fields, starting from the list that the client sent, or else
    /// from the current one.
    Tracked { sent: Option<Value> },
}

fn proposed(call: &Call<'_>, intent: &mut Intent, old: &Body) -> Result<Proposed, ApiError> {
    let patch = match intent {
        Intent::Patch(patch) => &*patch,
        Intent::Replace(object) => {
            let insists = !metadata::text(object, "resourceVersion").is_empty();
            if !insists && !call.target.definition.behaviour.unconditional_update {
                let error =
                    FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
                let subject = call.target.definition.subject(call.name.unwrap_or_default());
                return Err(ApiError::invalid(subject, vec![error]));
            }
            // A client that insists on a version gets one attempt.
            let mut object = if insists { std::mem::take(object) } else { object.clone() };
            let sent = metadata_mut(&mut object).shift_remove("managedFields");
            let owners = Owners::Tracked { sent };
            return Ok(Proposed { object, owners, insists, warnings: Vec::new() });
        }
    };
    // Computed again for an error message, so that other patches do not pay for the text.
    let on_whole = || patched(call, patch, &old.clone().whole().into());
    let shown = || match patch {
        Patch::Strategic(patch) => crate::go_json::printed(patch),
        Patch::Apply(_) => patched(call, patch, old).unwrap_or_default().whole().to_string(),
        _ => on_whole().unwrap_or_default().tree.to_string(),
    };
    let patched = if patch.may_touch_managers() { on_whole()? } else { patched(call, patch, old)? };
    let decoded = admission::decode(call, patched.tree.into());
    let Decoded { mut object, mut warnings } = decoded.map_err(|error| patch_error(error, shown))?;
    if let Patch::Json { unknown, .. } = patch {
        let validation = call.field_validation()?;
        if let Some(first) = unknown.first().filter(|_| validation == FieldValidation::Strict) {
            let error = ApiError::bad_request(format!("strict decoding error: {first}"));
            return Err(patch_error(error, shown));
        }
        if validation == FieldValidation::Warn {
            warnings.extend(unknown.iter().cloned());
        }
    }
    let version = metadata::text(&object, "resourceVersion");
    let insists = !version.is_empty() && version != metadata::text(&old.tree, "resourceVersion");
    if metadata::text(&object, "name") != call.name.unwrap_or_default() {
        let sent = metadata::text(&object, "name");
        return Err(ApiError::bad_request(format!(
            "the name of the object ({sent}) does not match the name on the URL ({})",
            call.name.unwrap_or_default()
        )));
    }
    if call.namespace.is_some_and(|namespace| namespace != metadata::text(&object, "namespace")) {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let sent = metadata_mut(&mut object).shift_remove("managedFields");
    let owners = match patch {
        Patch::Apply(_) => Owners::Applied(patched.managed_fields),
        _ => Owners::Tracked { sent },
    };
    Ok(Proposed { object, owners, insists, warnings })
}

/// Applies a patch to an object, in the form that the client sees.
fn patched(call: &Call<'_>, patch: &Patch, old: &Body) -> Result<Body, ApiError> {
    let mut object = old.clone();
    call.target.convert_from_stored(&mut object.tree);
    match patch {
        Patch::Apply(configuration) => {
            let force = call.query.is_on("force");
            object = Tracker::new(call).apply(Some(&object), configuration, force)?;
        }
        patch => patch.apply(&mut object.tree, call.target.schema()?)?,
    }
    Ok(object)
}

/// Turns a decoding error of the patched object into an error about the patch.
fn patch_error(error: ApiError, shown: impl FnOnce() -> String) -> ApiError {
    let detail =
        ["strict decoding error: ", "json: cannot unmarshal ", "parsing time ", "illegal base64 data "];
    match detail.iter().find_map(|start| error.message.find(start)) {
        Some(start) => {
            let nothing = crate::status::Subject { group: "", kind: "", name: "" };
            let detail = error.message[start..].to_owned();
            ApiError::invalid(nothing, vec![FieldError::invalid("patch", shown(), detail)])
        }
        None => error,
    }
}

/// Serves `pods/binding`: a scheduler assigns a pod to a node.
pub(super) async fn bind(
    server: &Inner,
    call: &Call<'_>,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    let binding = admission::parse(call.content_type(), body, "io.k8s.api.core.v1.Binding")?;
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    let name = call.name.unwrap_or_default();
    let subject = call.target.definition.subject(name);
    let binding_subject = crate::status::Subject { group: "", kind: "pods/binding", name };
    if node.is_empty() {
        let error = FieldError::required("target.name", "");
        let kind = crate::status::Subject { group: "", kind: "Binding", name };
        return Err(ApiError::invalid(kind, vec![error]));
    }
    let key = call.key()?;
    for _ in 0..ATTEMPTS {
        let current = server.store.newest(&key).ok_or_else(|| call.not_found())?;
        let Body { tree: mut pod, managed_fields } = current.split();
        let assigned = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if !assigned.is_empty() {
            let why = format!("pod {name} is already assigned to node {assigned:?}");
            return Err(ApiError::conflict(binding_subject, &why));
        }
        if current.meta.deleting {
            let why = format!("pod {name} is being deleted, cannot be assigned to a host");
            return Err(ApiError::conflict(binding_subject, &why));
        }
        pod["spec"]["nodeName"] = node.as_str().into();
        let scheduled = json!({
            "type": "PodScheduled", "status": "True", "lastProbeTime": null,
            "lastTransitionTime": deletion::timestamp(call.now),
        });
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let others = conditions.into_iter().filter(|condition| condition["type"] != "PodScheduled");
        pod["status"]["conditions"] = others.chain([scheduled]).collect();
        let action = Action::Put(Body { tree: pod, managed_fields });
        let write = Write { key: key.clone(), expect: Expect::Version(current.version), action };
        match server.write_one(call.ahead, write, Urgency::Awaited).await {
            Ok(_) => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
                return Ok(respond::json(StatusCode::CREATED, &status));
            }
            Err(WriteError::Conflict { .. }) => {}
            Err(error) => return Err(refused(call, name, error)),
        }
    }
    Err(ApiError::modified(subject))
}
