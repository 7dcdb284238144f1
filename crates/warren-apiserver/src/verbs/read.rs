use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use warren_store::{ListError, ListRequest};

use crate::call::Call;
use crate::respond::{self, ResponseBody};
use crate::server::Inner;
use crate::status::ApiError;

pub(super) fn get(server: &Inner, call: &Call<'_>) -> Result<Response<ResponseBody>, ApiError> {
    let object = server.store.get(&call.key()?).ok_or_else(|| call.not_found())?;
    Ok(respond::object(StatusCode::OK, &call.target, &object, call.representation, call.now))
}

/// Where a list goes on. Opaque to clients; the letters are those of the real server's token.
#[derive(Debug, Serialize, Deserialize)]
struct Continue {
    /// The version of the first page; negative in a token that gave up on consistency.
    rv: i64,
    /// Namespace and name of the last object sent.
    start: (String, String),
}

impl Continue {
    fn decode(token: &str) -> Result<Continue, ApiError> {
        let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok();
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).ok_or_else(|| {
            ApiError::bad_request("invalid continue token: continue key is not valid: illegal base64 data or unexpected contents")
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

/// The version at which a list must hold: only an exact match pins one, since every list here is the newest and so
/// satisfies "not older than" by itself.
fn requested_version(call: &Call<'_>) -> Result<Option<u64>, ApiError> {
    let version = match call.query.text("resourceVersion") {
        None => None,
        Some(text) => Some(text.parse::<u64>().map_err(|_| {
            ApiError::bad_request(format!("invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"))
        })?),
    };
    match (call.query.text("resourceVersionMatch"), version) {
        (None, Some(version)) if version > 0 && call.query.text("limit").is_some() => Ok(Some(version)),
        (None | Some("NotOlderThan"), _) => Ok(None),
        (Some("Exact"), Some(version)) if version > 0 => Ok(Some(version)),
        (Some("Exact"), _) => Err(ApiError::bad_request(
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        )),
        (Some(other), _) => {
            Err(ApiError::bad_request(format!("unknown resourceVersionMatch value {other:?}")))
        }
    }
}
