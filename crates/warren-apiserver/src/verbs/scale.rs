//! The scale subresource.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use warren_store::{Action, Body, Expect, Object, Urgency, Write, WriteError};

use super::{refused, track};
use crate::admission;
use crate::call::Call;
use crate::definition::Scale;
use crate::label_selector;
use crate::metadata;
use crate::patch::{Format, Patch};
use crate::respond::{self, ResponseBody};
use crate::server::Inner;
use crate::status::ApiError;

const ATTEMPTS: usize = 64;

pub(super) fn get(server: &Inner, call: &Call<'_>) -> Result<Response<ResponseBody>, ApiError> {
    let object = server.store.get(&call.key()?).ok_or_else(|| call.not_found())?;
    Ok(respond::json(StatusCode::OK, &scale_of(paths(call)?, &object)))
}

pub(super) async fn update(
    server: &Inner,
    call: &Call<'_>,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    let sent = admission::parse(call.content_type(), body, "Scale")?;
    change(server, call, |_| Ok(sent.clone())).await
}

pub(super) async fn patch(
    server: &Inner,
    call: &Call<'_>,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    let patch = Patch::parse(Format::from_content_type(call.content_type(), true)?, body)?;
    let schema = call.target.schema()?;
    change(server, call, |scale| {
        let mut scale = scale.clone();
        patch.apply(&mut scale, schema)?;
        Ok(scale)
    })
    .await
}

async fn change(
    server: &Inner,
    call: &Call<'_>,
    wanted: impl Fn(&Value) -> Result<Value, ApiError>,
) -> Result<Response<ResponseBody>, ApiError> {
    let key = call.key()?;
    let name = call.name.unwrap_or_default();
    let paths = paths(call)?;
    for _ in 0..ATTEMPTS {
        let current = server.store.newest(&key).ok_or_else(|| call.not_found())?;
        let scale = wanted(&scale_of(paths, &current))?;
        let version = metadata::text(&scale, "resourceVersion");
        if !version.is_empty() && version != current.version.to_string() {
            return Err(ApiError::modified(call.target.definition.subject(name)));
        }
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            let detail = "must be greater than or equal to 0";
            let error = crate::status::FieldError::invalid("spec.replicas", replicas, detail);
            let subject = crate::status::Subject { group: "autoscaling", kind: "Scale", name };
            return Err(ApiError::invalid(subject, vec![error]));
        }
        let old = current.split();
        let mut new = old.tree.clone();
        set(&mut new, &paths.spec_replicas.fields().unwrap_or_default(), replicas.into());
        let managed_fields = track(call, Some(&old), None, &new)?;
        (call.target.definition.behaviour.prepare_update)(&mut new, &old.tree);
        admission::bump_generation(call, &mut new, &old.tree);
        admission::check(call, &new, Some(&old.tree))?;
        let action = Action::Put(Body { tree: new, managed_fields });
        let write = Write { key: key.clone(), expect: Expect::Version(current.version), action };
        match server.write_one(call.ahead, write, Urgency::Awaited).await {
            Ok(stored) => return Ok(respond::json(StatusCode::OK, &scale_of(paths, &stored))),
            Err(WriteError::Conflict { .. }) => {}
            Err(error) => return Err(refused(call, name, error)),
        }
    }
    Err(ApiError::modified(call.target.definition.subject(name)))
}

fn paths<'a>(call: &'a Call<'_>) -> Result<&'a Scale, ApiError> {
    call.target.version().scale.as_ref().ok_or_else(ApiError::no_such_resource)
}

fn scale_of(paths: &Scale, object: &Object) -> Value {
    let value = object.value();
    let number = |path: &crate::json_path::JsonPath| path.first(&value).and_then(Value::as_i64).unwrap_or(0);
    let mut status = json!({"replicas": number(&paths.status_replicas)});
    let selector = paths.label_selector.as_ref().and_then(|path| path.first(&value));
    match selector {
        Some(Value::String(text)) => status["selector"] = text.as_str().into(),
        Some(selector @ Value::Object(_)) => status["selector"] = label_selector::text(selector).into(),
        _ => {}
    }
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(own) = value["metadata"].get(field) {
            metadata[field] = own.clone();
        }
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": number(&paths.spec_replicas)},
        "status": status,
    })
}

fn set(object: &mut Value, path: &[&str], value: Value) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut at = object;
    for name in parents {
        if !at[*name].is_object() {
            at[*name] = json!({});
        }
        at = &mut at[*name];
    }
    at[*last] = value;
}
