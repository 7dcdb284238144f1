//! The verb `create`.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::Value;
use warren_store::{Action, Body, Expect, Key, Urgency, Write, WriteError};

use super::{refused, track, warn};
use crate::access::check_escalation;
use crate::allocation::Taken;
use crate::call::Call;
use crate::managed_fields::check_options;
use crate::metadata::{self, metadata_mut};
use crate::respond::{self, ResponseBody};
use crate::server::Inner;
use crate::status::ApiError;
use crate::{admission, admit_pods};

/// The number of attempts to find a free generated name.
const GENERATE_ATTEMPTS: usize = 8;

pub(super) async fn create(
    server: &Inner,
    call: &Call<'_>,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    check_options(call, "CreateOptions", false)?;
    let admission::Decoded { object, warnings } =
        admission::decode(call, admission::parse_object(call, body)?)?;
    let response = create_object(server, call, object, Ownership::Update).await?;
    Ok(warn(response, call, &warnings))
}

/// The origin of a new object's managers.
#[derive(Debug)]
pub(super) enum Ownership {
    /// A create: its manager owns all fields that were sent.
    Update,
    /// An apply: it has computed the managers.
    Applied(Bytes),
}

/// Creates a decoded object. Also used by an apply, and by an update for kinds that allow it.
pub(super) async fn create_object(
    server: &Inner,
    call: &Call<'_>,
    mut object: Value,
    ownership: Ownership,
) -> Result<Response<ResponseBody>, ApiError> {
    let definition = &call.target.definition;
    place(call, &mut object)?;
    if !metadata::text(&object, "resourceVersion").is_empty() {
        return Err(ApiError::version_on_create());
    }
    admission::fill_new_metadata(call, &mut object);
    if call.target.version().status
        && let Some(object) = object.as_object_mut()
    {
        object.shift_remove("status");
    }
    let base = metadata::text(&object, "generateName").to_owned();
    let generated = metadata::text(&object, "name").is_empty() && !base.is_empty();
    if generated {
        metadata_mut(&mut object).insert("name".to_owned(), metadata::generate_name(&base).into());
    }
    admission::default(&call.target, &mut object)?;
    // Fields that the server sets from here on have no manager.
    let sent = metadata_mut(&mut object).shift_remove("managedFields");
    let managed_fields = match ownership {
        Ownership::Update => track(call, None, sent.as_ref(), &object)?,
        Ownership::Applied(list) => list,
    };
    admission::default_as_stored(&call.target, &mut object)?;
    admit_pods::admit(server, call, &mut object)?;
    (definition.behaviour.prepare_create)(&mut object);
    admission::check(call, &object, None)?;
    check_escalation(server, call, &object, None)?;
    check_namespace(server, call, metadata::text(&object, "name"))?;
    if call.dry_run()? {
        let taken = allocate(server, call, &mut object)?;
        server.allocation.release(&taken);
        let name = metadata::text(&object, "name");
        if server.store.newest(&call.key_of(name)).is_some() {
            return Err(ApiError::already_exists(definition.subject(name)));
        }
        let whole = Body { tree: object, managed_fields }.whole();
        return Ok(respond::value(StatusCode::CREATED, &call.target, &whole, call.representation, call.now));
    }
    let taken = allocate(server, call, &mut object)?;
    for attempt in 1.. {
        let name = metadata::text(&object, "name").to_owned();
        let may_try_again = generated && attempt < GENERATE_ATTEMPTS;
        let mut writes = Vec::with_capacity(1);
        if &*definition.resource == "namespaces" {
            let created = metadata::text(&object, "creationTimestamp");
            writes.extend(server.namespace_writes(&name, created));
        }
        // Keep a copy only if another attempt is possible.
        let tree = if may_try_again { object.clone() } else { std::mem::take(&mut object) };
        let action = Action::Put(Body { tree, managed_fields: managed_fields.clone() });
        writes.insert(0, Write { key: call.key_of(&name), expect: Expect::Absent, action });
        match server.write(call.ahead, writes, Urgency::Awaited).await.map(|stored| stored.into_iter().next())
        {
            Ok(None) => return Err(ApiError::internal("the store lost a write")),
            Ok(Some(stored)) => {
                server.written(&stored, None);
                if &*definition.resource == crate::crd::RESOURCE {
                    return Ok(crate::crd::created(call, &stored));
                }
                return Ok(respond::object(
                    StatusCode::CREATED,
                    &call.target,
                    &stored,
                    call.representation,
                    call.now,
                ));
            }
            Err(WriteError::Exists(_)) if may_try_again => {
                metadata_mut(&mut object).insert("name".to_owned(), metadata::generate_name(&base).into());
            }
            Err(WriteError::Exists(key)) => {
                server.allocation.release(&taken);
                let subject = definition.subject(&name);
                if !base.is_empty() {
                    return Err(ApiError::generated_name_taken(subject));
                }
                let mut error = ApiError::already_exists(subject);
                if server.store.newest(&key).is_some_and(|current| current.meta.deleting) {
                    error.message.insert_str(0, "object is being deleted: ");
                }
                return Err(error);
            }
            Err(error) => {
                server.allocation.release(&taken);
                return Err(refused(call, &name, error));
            }
        }
    }
    unreachable!("the loop ends by returning")
}

/// Allocates the address and ports of a service.
fn allocate(server: &Inner, call: &Call<'_>, object: &mut Value) -> Result<Taken, ApiError> {
    match &*call.target.definition.resource {
        "services" => server.allocation.allocate(object, None),
        _ => Ok(Taken::default()),
    }
}

/// Sets the namespace of the path on the object.
fn place(call: &Call<'_>, object: &mut Value) -> Result<(), ApiError> {
    let sent = metadata::text(object, "namespace").to_owned();
    if let (Some(name), sent_name) = (call.name, metadata::text(object, "name"))
        && name != sent_name
    {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({sent_name}) does not match the name on the URL ({name})"
        )));
    }
    match call.namespace {
        Some(namespace) if sent.is_empty() || sent == namespace => {
            metadata_mut(object).insert("namespace".to_owned(), namespace.into());
            Ok(())
        }
        Some(_) => Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
        None => {
            metadata_mut(object).shift_remove("namespace");
            Ok(())
        }
    }
}

/// Checks that the namespace of a new object exists and is not being deleted.
fn check_namespace(server: &Inner, call: &Call<'_>, name: &str) -> Result<(), ApiError> {
    let Some(namespace) = call.namespace else { return Ok(()) };
    let found = server.store.newest(&Key::new("namespaces", "", namespace));
    match found {
        None => {
            let subject = crate::status::Subject { group: "", kind: "namespaces", name: namespace };
            Err(ApiError::not_found(subject))
        }
        Some(found) if found.meta.deleting => {
            Err(ApiError::namespace_terminating(call.target.definition.subject(name), namespace))
        }
        Some(_) => Ok(()),
    }
}
