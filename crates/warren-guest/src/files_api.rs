//! sandboxd's REST API: files beneath the base directory, health, and metadata from the environment.

use std::convert::Infallible;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, IF_MODIFIED_SINCE, IF_RANGE, LAST_MODIFIED,
    RANGE,
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt as _;
use warren_proto::files::{Directory, Entry, Health, Metadata, Problem};

use crate::Daemon;
use crate::file_body::FileBody;
use crate::multipart::{Event, Multipart};
use crate::reply::{self, Body, Refusal, json};
use crate::root::{self, Details, Opened, PathError, Root, Upload};

type Answer = Result<Response<Body>, Refusal>;

/// Parts of names of variables that are not for clients to see.
const SECRETS: [&str; 10] =
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CRED", "KEY", "AUTH", "BEARER", "PRIVATE", "CERT"];
/// The variables that clients see begin with this.
const METADATA_PREFIX: &str = "SANDBOX_";
const DEFAULT_MODE: u32 = 0o644;

/// Answers one request. There is always an answer.
pub(crate) async fn answer(
    daemon: Arc<Daemon>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    Ok(respond(&daemon, request).await.unwrap_or_else(|refusal| *refusal))
}

async fn respond(daemon: &Daemon, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
    match path.as_str() {
        "/v1/health" if is_reading => {
            let uptime_seconds = daemon.started.elapsed().as_secs();
            Ok(json(StatusCode::OK, &Health { status: "ok".to_owned(), uptime_seconds }))
        }
        "/v1/metadata" if is_reading => Ok(json(StatusCode::OK, &metadata(std::env::vars_os()))),
        "/v1/health" | "/v1/metadata" => Err(not_allowed()),
        _ => {
            let encoded =
                path.strip_prefix("/v1/files").filter(|rest| rest.is_empty() || rest.starts_with('/'));
            let encoded =
                encoded.ok_or_else(|| problem(StatusCode::NOT_FOUND, "there is no such resource"))?;
            let encoded = encoded.strip_prefix('/').unwrap_or_default();
            let file = daemon.config.root.named(root::decode(encoded.as_bytes()));
            files(&daemon.config.root, file, request).await
        }
    }
}

async fn files(root: &Root, path: PathBuf, request: Request<Incoming>) -> Answer {
    let root = root.clone();
    match *request.method() {
        Method::GET | Method::HEAD => {
            let (is_head, headers) = (request.method() == Method::HEAD, request.headers().clone());
            reply::blocking(move || read(&root, &path, is_head, &headers)).await
        }
        Method::PUT => write(&root, path, request).await,
        Method::DELETE => {
            let recursive = match parameter(&request, "recursive").as_deref() {
                None | Some("false" | "0" | "f" | "F" | "FALSE" | "False") => false,
                Some("true" | "1" | "t" | "T" | "TRUE" | "True") => true,
                Some(other) => {
                    let message = format!("recursive must be true or false, and not {other:?}");
                    return Err(problem(StatusCode::BAD_REQUEST, &message));
                }
            };
            let delete = move || root.remove(&path, recursive).map_err(refused_path);
            reply::blocking(delete).await.map(|()| reply::empty(StatusCode::NO_CONTENT))
        }
        _ => Err(not_allowed()),
    }
}

fn read(root: &Root, path: &Path, is_head: bool, headers: &HeaderMap) -> Answer {
    match root.open_any(path).map_err(refused_path)? {
        Opened::Directory(entries) => {
            let entries = entries.into_iter().map(entry).collect();
            let path = format!("/{}", path.display());
            Ok(json(StatusCode::OK, &Directory { path, entries }))
        }
        Opened::File(mut file, details) => {
            let modified = UNIX_EPOCH + Duration::from_secs(details.modified.max(0).cast_unsigned());
            let date = |name| {
                headers.get(name).and_then(|value| httpdate::parse_http_date(value.to_str().ok()?).ok())
            };
            if date(IF_MODIFIED_SINCE).is_some_and(|since| modified <= since) {
                return Ok(reply::empty(StatusCode::NOT_MODIFIED));
            }
            // Of another version, a part is of no use.
            let is_same = !headers.contains_key(IF_RANGE) || date(IF_RANGE) == Some(modified);
            let range = headers.get(RANGE).and_then(|value| value.to_str().ok()).filter(|_| is_same);
            let response = Response::builder()
                .header(CONTENT_TYPE, "application/octet-stream")
                .header(ACCEPT_RANGES, "bytes")
                .header(LAST_MODIFIED, httpdate::fmt_http_date(modified));
            let length = details.size;
            let (response, first, length) = match range.map_or(Some(None), |text| part(text, length)) {
                None => {
                    let refused = response.status(StatusCode::RANGE_NOT_SATISFIABLE);
                    let refused =
                        refused.header(CONTENT_RANGE, format!("bytes */{length}")).body(reply::nothing());
                    return refused.map_err(|error| failed(&io::Error::other(error)));
                }
                Some(None) => (response, 0, length),
                Some(Some((first, last))) => {
                    let shown = format!("bytes {first}-{last}/{length}");
                    let response = response.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, shown);
                    (response, first, last - first + 1)
                }
            };
            io::Seek::seek(&mut file, io::SeekFrom::Start(first)).map_err(|error| failed(&error))?;
            let body = if is_head { reply::nothing() } else { FileBody::new(file, length).boxed_unsync() };
            let response = response.header(CONTENT_LENGTH, length).body(body);
            response.map_err(|error| failed(&io::Error::other(error)))
        }
    }
}

/// Reads a range of bytes: the first and the last. `Some(None)` is the whole, for what is no single
/// range; `None` is outside.
fn part(text: &str, length: u64) -> Option<Option<(u64, u64)>> {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.trim().split_once('-'))
    else {
        return Some(None);
    };
    let range = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last.min(length.saturating_sub(1))),
        (Ok(first), Err(_)) if last.is_empty() => (first, length.saturating_sub(1)),
        (Err(_), Ok(count)) if first.is_empty() => (length.saturating_sub(count), length.saturating_sub(1)),
        _ => return Some(None),
    };
    (range.0 < length && range.0 <= range.1).then_some(Some(range))
}

async fn write(root: &Root, path: PathBuf, request: Request<Incoming>) -> Answer {
    let mode = match parameter(&request, "mode") {
        None => DEFAULT_MODE,
        Some(text) => u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o7777).ok_or_else(|| {
            problem(StatusCode::BAD_REQUEST, &format!("mode must be octal, such as 0644, and not {text:?}"))
        })?,
    };
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let multipart = content_type.filter(|kind| kind.to_ascii_lowercase().starts_with("multipart/form-data"));
    let mut multipart = multipart
        .map(|kind| {
            Multipart::new(kind).map_err(|error| problem(StatusCode::BAD_REQUEST, &error.to_string()))
        })
        .transpose()?;
    let root = root.clone();
    let begin = move || -> Result<(Upload, std::fs::File), Refusal> {
        let upload = root.write(&path).map_err(refused_path)?;
        let file = upload.file().map_err(|error| failed(&error))?;
        Ok((upload, file))
    };
    let (upload, file) = reply::blocking(begin).await?;
    let mut file = tokio::fs::File::from_std(file);
    let mut body = request.into_body();
    let (mut is_file, mut was_file, mut has_ended) =
        (multipart.is_none(), multipart.is_none(), multipart.is_none());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| problem(StatusCode::BAD_REQUEST, &error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        let Some(multipart) = &mut multipart else {
            file.write_all(&data).await.map_err(|error| failed(&error))?;
            continue;
        };
        multipart.push(&data);
        while let Some(event) =
            multipart.event().map_err(|error| problem(StatusCode::BAD_REQUEST, &error.to_string()))?
        {
            match event {
                Event::Part(part) => {
                    is_file = !was_file && part.name.as_deref() == Some("file");
                    was_file |= is_file;
                }
                Event::Data(data) if is_file => {
                    file.write_all(&data).await.map_err(|error| failed(&error))?;
                }
                Event::Data(_) | Event::PartEnd => {}
                Event::End => has_ended = true,
            }
        }
    }
    if !was_file {
        return Err(problem(StatusCode::BAD_REQUEST, "the body has no part named `file`"));
    }
    if !has_ended {
        return Err(problem(StatusCode::BAD_REQUEST, "the body has no closing boundary"));
    }
    file.flush().await.map_err(|error| failed(&error))?;
    let file = file.into_std().await;
    let finish = move || {
        let set = rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(mode)).map_err(io::Error::from);
        let done = set.and_then(|()| file.sync_all()).and_then(|()| upload.commit());
        done.map_err(|error| failed(&error))
    };
    reply::blocking(finish).await.map(|()| reply::empty(StatusCode::NO_CONTENT))
}

fn entry((name, details): (std::ffi::OsString, Details)) -> Entry {
    Entry {
        name: String::from_utf8_lossy(name.as_bytes()).into_owned(),
        size: details.size,
        kind: details.kind,
        modified_at: rfc3339(details.modified),
        mode: format!("{:04o}", details.mode & 0o7777),
    }
}

/// Writes seconds since 1970 as a date and time in UTC.
fn rfc3339(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days are counted from 1 March of the year 0, in spans of 400 years, as in Howard Hinnant's
    // "chrono-Compatible Low-Level Date Algorithms".
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

fn metadata(variables: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>) -> Metadata {
    let is_shown = |name: &str| {
        let name = name.to_ascii_uppercase();
        name.starts_with(METADATA_PREFIX) && !SECRETS.iter().any(|secret| name.contains(secret))
    };
    let texts =
        variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Metadata { env: texts.filter(|(name, _)| is_shown(name)).collect() }
}

fn parameter(request: &Request<Incoming>, wanted: &str) -> Option<String> {
    let pairs = request.uri().query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.into_iter().find(|(name, _)| *name == wanted)?;
    Some(String::from_utf8_lossy(&root::decode(value.as_bytes())).into_owned())
}

fn not_allowed() -> Refusal {
    problem(StatusCode::METHOD_NOT_ALLOWED, "the method is not allowed here")
}

fn refused_path(error: PathError) -> Refusal {
    match error {
        PathError::Escapes => problem(StatusCode::FORBIDDEN, "the path leads out of the base directory"),
        PathError::Io(error) => failed(&error),
    }
}

fn failed(error: &io::Error) -> Refusal {
    let status = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StatusCode::NOT_FOUND,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StatusCode::FORBIDDEN,
        io::ErrorKind::IsADirectory => StatusCode::BAD_REQUEST,
        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::ResourceBusy => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    problem(status, &error.to_string())
}

fn problem(status: StatusCode, message: &str) -> Refusal {
    let code = match status {
        StatusCode::NOT_FOUND => "NOT_FOUND",
        StatusCode::FORBIDDEN => "PERMISSION_DENIED",
        StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED => "INVALID_ARGUMENT",
        StatusCode::CONFLICT => "CONFLICT",
        _ => "INTERNAL",
    };
    Box::new(json(status, &Problem { code: code.to_owned(), message: message.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_790_000_000, "2026-09-21T14:13:20Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }

    #[test]
    fn ranges_are_those_of_http() {
        for (text, expected) in [
            ("bytes=0-3", Some(Some((0, 3)))),
            ("bytes=8-", Some(Some((8, 9)))),
            ("bytes=-4", Some(Some((6, 9)))),
            ("bytes=-40", Some(Some((0, 9)))),
            ("bytes=5-100", Some(Some((5, 9)))),
            ("bytes=10-", None),
            ("bytes=5-3", Some(None)),
            ("bytes=0-1,4-5", Some(None)),
            ("lines=0-1", Some(None)),
        ] {
            assert_eq!(part(text, 10), expected, "{text}");
        }
        assert_eq!(part("bytes=0-", 0), None);
    }

    #[test]
    fn metadata_shows_no_secrets() {
        let variables = [("SANDBOX_NAME", "x"), ("SANDBOX_API_TOKEN", "y"), ("PATH", "z")];
        let found = metadata(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        assert_eq!(found.env.into_iter().collect::<Vec<_>>(), [("SANDBOX_NAME".to_owned(), "x".to_owned())]);
    }
}
