//! The verbs: the effect of each kind of request on the store.

mod create;
mod delete;
mod measure;
mod read;
mod review;
mod scale;
mod token;
mod update;
mod watch;

use bytes::Bytes;
use http::{HeaderValue, Method, Response};
use serde_json::Value;
use warren_store::{Body, WriteError};

use crate::call::Call;
use crate::managed_fields::Tracker;
use crate::respond::ResponseBody;
use crate::server::Inner;
use crate::status::ApiError;

pub(crate) use delete::{DeleteOptions, remove};

/// Executes a request whose body has been read.
pub(crate) async fn dispatch(
    server: &Inner,
    call: &Call<'_>,
    method: &Method,
    body: &[u8],
) -> Result<Response<ResponseBody>, ApiError> {
    check_subresource(call)?;
    check_verb(call, method)?;
    if let Some(review) = call.target.definition.behaviour.review {
        return review::review(server, call, review, body);
    }
    if call.target.definition.behaviour.measured {
        return match is_watch(call) {
            true => Err(ApiError::method_not_allowed()),
            false => measure::measure(server, call).await,
        };
    }
    match (method, call.name, call.subresource) {
        (&Method::GET, _, _) if is_watch(call) => watch::watch(server, call),
        (&Method::GET, None, None) => read::list(server, call),
        (&Method::GET, Some(_), Some("scale")) => scale::get(server, call),
        (&Method::GET, Some(_), None | Some("status" | "ephemeralcontainers" | "resize")) => {
            read::get(server, call)
        }
        (&Method::POST, None, None) => create::create(server, call, body).await,
        (&Method::POST, Some(_), Some("eviction")) => delete::evict(server, call, body).await,
        (&Method::POST, Some(_), Some("token")) => token::create(server, call, body),
        (&Method::POST, Some(_), Some("binding")) => update::bind(server, call, body).await,
        (&Method::PUT, Some(_), Some("scale")) => scale::update(server, call, body).await,
        (&Method::PUT, Some(_), None | Some("status" | "finalize" | "ephemeralcontainers" | "resize")) => {
            update::update(server, call, body).await
        }
        (&Method::PATCH, Some(_), Some("scale")) => scale::patch(server, call, body).await,
        (&Method::PATCH, Some(_), None | Some("status" | "ephemeralcontainers" | "resize")) => {
            update::patch(server, call, body).await
        }
        (&Method::DELETE, Some(_), None) => delete::delete(server, call, body).await,
        (&Method::DELETE, None, None) => delete::delete_collection(server, call, body).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

fn is_watch(call: &Call<'_>) -> bool {
    // A single object is watched by a field selector on its name. Its own path is never a watch.
    call.watch || (call.name.is_none() && call.query.is_on("watch"))
}

fn check_verb(call: &Call<'_>, method: &Method) -> Result<(), ApiError> {
    let verb = match (method, call.name) {
        _ if call.subresource.is_some() => return Ok(()),
        (&Method::GET, None) => "list",
        (&Method::GET, Some(_)) => "get",
        (&Method::POST, None) => "create",
        (&Method::PUT, Some(_)) => "update",
        (&Method::PATCH, Some(_)) => "patch",
        (&Method::DELETE, None) => "deletecollection",
        (&Method::DELETE, Some(_)) => "delete",
        _ => return Err(ApiError::method_not_allowed()),
    };
    match call.target.definition.behaviour.verbs.contains(&verb) {
        true => Ok(()),
        false => Err(ApiError::method_not_allowed()),
    }
}

/// Checks that the kind has the subresource. If not, the path does not exist.
fn check_subresource(call: &Call<'_>) -> Result<(), ApiError> {
    let version = call.target.version();
    let known = match call.subresource {
        None => true,
        Some("status") => version.status,
        Some("scale") => version.scale.is_some(),
        Some(other) => version.subresources.iter().any(|(name, ..)| *name == other),
    };
    match known {
        true => Ok(()),
        false if call.target.definition.custom => Err(call.not_found()),
        false => Err(ApiError::no_such_resource()),
    }
}

/// Returns the managers after a write that is not an apply, as the text of `managedFields`. `sent`
/// is the client's `managedFields`. Both objects are in stored form, without managers in their
/// trees.
fn track(call: &Call<'_>, old: Option<&Body>, sent: Option<&Value>, new: &Value) -> Result<Bytes, ApiError> {
    let tracker = Tracker::new(call);
    if call.target.version().conversion.is_none() {
        return tracker.update(old, sent, new);
    }
    // Fields are owned under the names of the requested version.
    let asked_for = |stored: &Value| {
        let mut object = stored.clone();
        call.target.convert_from_stored(&mut object);
        object
    };
    let old = old.map(|old| Body { tree: asked_for(&old.tree), managed_fields: old.managed_fields.clone() });
    tracker.update(old.as_ref(), sent, &asked_for(new))
}

/// Converts the error of a refused write for the client.
fn refused(call: &Call<'_>, name: &str, error: WriteError) -> ApiError {
    let subject = call.target.definition.subject(name);
    match error {
        WriteError::Exists(_) => ApiError::already_exists(subject),
        WriteError::Missing(_) => ApiError::not_found(subject),
        WriteError::Conflict { .. } => ApiError::modified(subject),
        WriteError::Commit(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            match error.is_full() {
                true => ApiError::insufficient_storage(format!(
                    "the disk of the store is full, nothing was written: {cause}"
                )),
                false => ApiError::internal(format!("{error}, nothing was written: {cause}")),
            }
        }
        WriteError::Unfounded => ApiError::unavailable(error.to_string()),
        WriteError::Closed => ApiError::unavailable("the server is shutting down"),
    }
}

/// Adds `Warning` headers.
fn warn(
    mut response: Response<ResponseBody>,
    call: &Call<'_>,
    warnings: &[String],
) -> Response<ResponseBody> {
    let version = call.target.version();
    let deprecation = version.deprecated.then(|| match &version.deprecation_warning {
        Some(warning) => warning.to_string(),
        None => format!("{} {} is deprecated", version.api_version, call.target.definition.kind),
    });
    for warning in warnings.iter().chain(&deprecation) {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(http::header::WARNING, value);
        }
    }
    response
}
