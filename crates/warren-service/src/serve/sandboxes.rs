//! Sandboxes: made, used and removed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH};
use http::{HeaderValue, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use warren_providers::{Command, LARGEST_WRITE, ProviderError, Status, Wanted};

use super::Service;
use super::answer::{Body, Failure, data, data_with, stream_response};
use super::request::Request;
use super::settings::{self, Defaults, Mode};

type Answer = Result<Response<Body>, Failure>;

/// The range of a command's timeout, and the timeout if the client names none.
const TIMEOUT_MS: std::ops::RangeInclusive<u64> = 1..=86_400_000;
const DEFAULT_TIMEOUT_MS: u64 = 3_600_000;

/// Creates a sandbox. Where projects share one, a project's sandbox is that one.
pub async fn create(service: &Service, request: Request) -> Answer {
    let mut wanted: Wanted = request.json().await?;
    let mode: Mode = settings::read(&service.database, settings::MODE).await?;
    if mode == Mode::Shared && wanted.project_id.is_some() {
        wanted.project_id = Some(settings::SHARED_PROJECT.to_owned());
        if let Some(shared) = service.provider.get(settings::SHARED_PROJECT).await? {
            return data(&shared);
        }
    }
    let defaults: Defaults = settings::read(&service.database, settings::DEFAULTS).await?;
    let info = service.provider.create(settings::apply(wanted, &defaults)).await?;
    data_with(StatusCode::CREATED, &info)
}

/// Shows one.
pub async fn one(service: &Service, id: &str) -> Answer {
    let found = service.provider.get_by_id(id).await?;
    data(&found.ok_or_else(|| ProviderError::not_found(id))?)
}

/// Removes one, and returns it as it was last seen.
pub async fn remove(service: &Service, id: &str) -> Answer {
    let found = service.provider.get_by_id(id).await?;
    let mut info = found.ok_or_else(|| ProviderError::not_found(id))?;
    service.provider.remove(id).await?;
    info.status = Status::Stopping;
    data(&info)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Exec {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    timeout_ms: Option<u64>,
}

/// Runs a command to its end.
pub async fn exec(service: &Service, id: &str, request: Request) -> Answer {
    let exec: Exec = request.json().await?;
    let timeout = exec.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS);
    if !TIMEOUT_MS.contains(&timeout) {
        let problem = format!("is {timeout}; it can be {} to {}", TIMEOUT_MS.start(), TIMEOUT_MS.end());
        return Err(Failure::invalid("timeoutMs", problem));
    }
    let command = Command {
        program: exec.cmd,
        arguments: exec.args,
        directory: exec.cwd,
        env: exec.env,
        ..Command::default()
    };
    data(&service.provider.exec(id, command, Duration::from_millis(timeout)).await?)
}

fn path(request: &Request) -> Result<String, Failure> {
    request.parameter("path").ok_or_else(|| Failure::invalid("path", "is missing"))
}

/// Lists a directory.
pub async fn list_files(service: &Service, id: &str, request: &Request) -> Answer {
    data(&service.provider.list_files(id, &path(request)?).await?)
}

/// Streams a file. Whatever it is, a browser saves it and does not show it.
pub async fn read(service: &Service, id: &str, request: &Request) -> Answer {
    let path = path(request)?;
    let file = service.provider.read(id, &path).await?;
    let mut response =
        stream_response("application/octet-stream", file.parts.map(|part| part.map(Bytes::from)));
    let name = attachment(&path);
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&name) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
    headers.insert(CONTENT_LENGTH, HeaderValue::from(file.size));
    Ok(response)
}

/// Returns the header by which a browser saves a file under its own name.
pub fn attachment(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut encoded = String::new();
    for byte in name.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) => encoded.push(byte as char),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("attachment; filename*=UTF-8''{encoded}")
}

/// Writes a file.
pub async fn write(service: &Service, id: &str, request: Request) -> Answer {
    let path = warren_providers::check_path(&path(&request)?)?;
    let content = request.bytes(LARGEST_WRITE).await?;
    let size = content.len();
    service.provider.write(id, &path, content.to_vec()).await?;
    data(&json!({ "path": path, "size": size }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachment_has_no_characters_of_its_own() {
        assert_eq!(attachment("/a/b c\"\r\nü.txt"), "attachment; filename*=UTF-8''b%20c%22%0D%0A%C3%BC.txt");
    }
}
