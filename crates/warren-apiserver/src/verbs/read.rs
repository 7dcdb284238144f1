//! The verbs `get` and `list`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use warren_store::{ListError, ListRequest};

use crate::call::Call;
use crate::respond::{self, ResponseBody};
use crate::server::Inner;
use crate::status::{ApiError, FieldError, LIST_OPTIONS};

pub(super) fn get(server: &Inner, call: &Call<'_>) -> Result<Response<ResponseBody>, ApiError> {
    if let Some(text) = call.query.text("resourceVersion")
        && text.parse::<u64>().is_err()
    {
        return Err(ApiError::malformed_version(format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        )));
    }
    let object = server.store.get(&call.key()?).ok_or_else(|| call.not_found())?;
    Ok(respond::object(StatusCode::OK, &call.target, &object, call.representation, call.now))
}

/// The position at which a list continues. Clients treat it as opaque. The field names are those of
/// kube-apiserver's token.
#[derive(Debug, Serialize, Deserialize)]
struct Continue {
    /// The version of the first page. Negative in a token that does not require consistency.
    rv: i64,
    /// Namespace and name of the last object sent.
    start: (String, String),
}

impl Continue {
    fn decode(token: &str) -> Result<Continue, ApiError> {
        let invalid = |why: String| {
            ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).map_err(|error| {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) => at,
                _ => token.len(),
            };
            invalid(format!("illegal base64 data at input byte {at}"))
        })?;
        serde_json::from_slice(&bytes).map_err(|error| {
            // A token may hold any bytes. The message shows the first byte that is not JSON as
            // text.
            let text = String::from_utf8_lossy(&bytes);
            invalid(crate::go_json::message(text.as_bytes(), &error))
        })
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}

pub(super) fn list(server: &Inner, call: &Call<'_>) -> Result<Response<ResponseBody>, ApiError> {
    let filter = call.filter()?;
    let limit =
        call.query.number("limit")?.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0);
    let position = call.query.text("continue").map(Continue::decode).transpose()?;
    if position.is_some() && call.query.text("resourceVersion").is_some_and(|version| version != "0") {
        return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
    }
    let at = match &position {
        Some(position) => u64::try_from(position.rv).ok(),
        None => requested_version(call)?,
    };
    let after = position.as_ref().map(|position| (position.start.0.as_str(), position.start.1.as_str()));
    let request =
        ListRequest { resource: &call.target.definition.resource, filter: &filter, limit, after, at };
    let list = server.store.list(&request).map_err(|error| match (error, position.as_ref()) {
        (ListError::Expired(_), Some(position)) => {
            let inconsistent = Continue { rv: -1, start: position.start.clone() };
            ApiError::expired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
                .with_continue(inconsistent.encode())
        }
        (ListError::Expired(expired), None) => ApiError::expired(expired.to_string()),
        (ListError::Future { requested, current }, _) => ApiError::version_too_large(requested, current),
    })?;
    let token = list.more.then(|| {
        let last =
            list.items.last().map(|object| (object.key.namespace.to_string(), object.key.name.to_string()));
        Continue { rv: i64::try_from(list.version).unwrap_or(i64::MAX), start: last.unwrap_or_default() }
            .encode()
    });
    Ok(respond::list(&call.target, &list, token, call.representation, call.now))
}

/// Returns the version at which a list must hold. Only an exact match needs one: every list is the
/// newest and so satisfies "not older than".
fn requested_version(call: &Call<'_>) -> Result<Option<u64>, ApiError> {
    let version = match call.query.text("resourceVersion") {
        None => None,
        Some(text) => Some(text.parse::<u64>().map_err(|_| {
            ApiError::bad_request(format!("invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"))
        })?),
    };
    const MATCH: &str = "resourceVersionMatch";
    match (call.query.text(MATCH), version) {
        (Some(_), None) => {
            let mut errors = Vec::new();
            if call.query.get("sendInitialEvents").is_some() {
                let detail = "sendInitialEvents is forbidden for list";
                errors.push(FieldError::forbidden("sendInitialEvents", detail));
            }
            let detail = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            errors.insert(0, FieldError::forbidden(MATCH, detail));
            Err(ApiError::invalid(LIST_OPTIONS, errors))
        }
        (None, Some(version)) if version > 0 && call.query.text("limit").is_some() => Ok(Some(version)),
        (None | Some("NotOlderThan"), _) => Ok(None),
        (Some("Exact"), Some(version)) if version > 0 => Ok(Some(version)),
        (Some("Exact"), _) => {
            let detail = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            Err(ApiError::invalid(LIST_OPTIONS, vec![FieldError::forbidden(MATCH, detail)]))
        }
        (Some(other), _) => {
            let error = FieldError::unsupported(MATCH, other, &["Exact", "NotOlderThan", ""]);
            Err(ApiError::invalid(LIST_OPTIONS, vec![error]))
        }
    }
}
