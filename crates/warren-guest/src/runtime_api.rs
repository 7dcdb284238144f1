//! The runtime API over HTTP/1.1: which request means what, and with which status it is answered.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use tokio::io::AsyncWriteExt as _;
use warren_proto::runtime::{
    AgentRequest, ExecuteRequest, ExecutionResult, Exists, FieldProblem, Health, Message, Unprocessable,
};

use crate::file_body::FileBody;
use crate::multipart::{Event, Multipart};
use crate::reply::{Body, Refusal, blocking, json};
use crate::root::{self, PathError, Root, Upload};
use crate::run::{self, Command};
use crate::words;
use crate::{Config, Daemon};

/// Longer JSON is refused. A single argument cannot be longer than 128 KiB, all of them 2 MiB.
const LONGEST_JSON: usize = 4 << 20;

/// The method that a path names. The rest of the path is still encoded.
#[derive(Debug, Clone, Copy)]
enum Route<'a> {
    Health,
    Execute,
    Agent,
    Upload,
    Download(&'a str),
    List(&'a str),
    Exists(&'a str),
}

impl Route<'_> {
    fn of(path: &str) -> Option<Route<'_>> {
        match path {
            "/" => Some(Route::Health),
            "/execute" => Some(Route::Execute),
            "/agent" => Some(Route::Agent),
            "/upload" => Some(Route::Upload),
            // Clients that resolve `.` before they send ask for `/list/.` like this.
            "/list" => Some(Route::List("")),
            other => match other.strip_prefix('/')?.split_once('/')? {
                ("download", rest) => Some(Route::Download(rest)),
                ("list", rest) => Some(Route::List(rest)),
                ("exists", rest) => Some(Route::Exists(rest)),
                _ => None,
            },
        }
    }

    fn method(self) -> Method {
        match self {
            Route::Execute | Route::Agent | Route::Upload => Method::POST,
            Route::Health | Route::Download(_) | Route::List(_) | Route::Exists(_) => Method::GET,
        }
    }
}

/// Answers one request. There is always an answer.
pub(crate) async fn answer(
    daemon: Arc<Daemon>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    Ok(respond(&daemon.config, request).await.unwrap_or_else(|refusal| *refusal))
}

type Answer = Result<Response<Body>, Refusal>;

async fn respond(config: &Config, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let route = Route::of(&path).ok_or_else(|| detail(StatusCode::NOT_FOUND, "Not Found"))?;
    if *request.method() != route.method() {
        return Err(detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"));
    }
    let root = config.root.clone();
    match route {
        Route::Health => {
            let message = "Sandbox Runtime is active.".to_owned();
            Ok(json(StatusCode::OK, &Health { status: "ok".to_owned(), message }))
        }
        Route::Execute => execute(config, request).await,
        Route::Agent => agent(config, request).await,
        Route::Upload => upload(&root, request).await,
        Route::Download(rest) => {
            let rest = rest.to_owned();
            blocking(move || download(&root, &rest)).await
        }
        Route::List(rest) => {
            let rest = rest.to_owned();
            blocking(move || list(&root, &rest)).await
        }
        Route::Exists(rest) => {
            let rest = rest.to_owned();
            blocking(move || exists(&root, &rest)).await
        }
    }
}

async fn execute(config: &Config, request: Request<Incoming>) -> Answer {
    let ExecuteRequest { command, timeout_seconds } = read_json(request, "command").await?;
    let timeout = match timeout_seconds {
        None => config.timeout,
        Some(seconds) => match Duration::try_from_secs_f64(seconds) {
            Ok(timeout) if !timeout.is_zero() => timeout,
            _ => return Err(unprocessable("value_error", "timeout_seconds", "must be more than 0")),
        },
    };
    Ok(json(StatusCode::OK, &run_line(config, &command, &[], timeout).await))
}

async fn agent(config: &Config, request: Request<Incoming>) -> Answer {
    let Some(program) = &config.agent else {
        return Err(detail(StatusCode::NOT_FOUND, "SANDBOX_AGENT_COMMAND names no agent program here"));
    };
    let AgentRequest { query } = read_json(request, "query").await?;
    Ok(json(StatusCode::OK, &run_line(config, program, &[query], config.timeout).await))
}

async fn run_line(config: &Config, line: &str, more: &[String], timeout: Duration) -> ExecutionResult {
    let words = match words::split(line) {
        Ok(words) if !words.is_empty() => [words.as_slice(), more].concat(),
        Ok(_) => return run::failure("Failed to execute command: the command is empty".to_owned()),
        Err(error) => return run::failure(format!("Failed to execute command: {error}")),
    };
    if let Err(error) = config.root.ensure() {
        return run::failure(format!("Failed to execute command: {error}"));
    }
    run::run(Command { words, directory: config.root.path().to_owned(), timeout }).await
}

async fn read_json<T: DeserializeOwned>(
    request: Request<Incoming>,
    field: &'static str,
) -> Result<T, Refusal> {
    let body = match Limited::new(request.into_body(), LONGEST_JSON).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Err(detail(StatusCode::PAYLOAD_TOO_LARGE, "the body is longer than 4 MiB"));
        }
        Err(error) => return Err(detail(StatusCode::BAD_REQUEST, &error.to_string())),
    };
    serde_json::from_slice(&body).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => unprocessable("missing", field, &error.to_string()),
        _ => unprocessable("json_invalid", field, &error.to_string()),
    })
}

/// Writes the part named `file` beneath the base directory, at the path that its file name is.
async fn upload(root: &Root, request: Request<Incoming>) -> Answer {
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let mut multipart = Multipart::new(content_type.unwrap_or_default())
        .map_err(|error| unprocessable("missing", "file", &error.to_string()))?;
    let mut body = request.into_body();
    let mut writing: Option<(Upload, tokio::fs::File)> = None;
    let mut written = None;
    let mut has_ended = false;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| detail(StatusCode::BAD_REQUEST, &error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        multipart.push(&data);
        while let Some(event) =
            multipart.event().map_err(|error| detail(StatusCode::BAD_REQUEST, &error.to_string()))?
        {
            match event {
                Event::Part(part) if part.name.as_deref() == Some("file") && written.is_none() => {
                    if let Some(filename) = part.filename {
                        let (root, path) = (root.clone(), root::relative(filename.clone().into_bytes()));
                        let begun = blocking(move || {
                            let upload = root.write(&path).map_err(refused_path)?;
                            let file = upload.file().map_err(|error| failed(&error))?;
                            Ok((upload, file))
                        });
                        let (upload, file) = begun.await?;
                        writing = Some((upload, tokio::fs::File::from_std(file)));
                        written = Some(filename);
                    }
                }
                Event::Part(_) => {}
                Event::Data(data) => {
                    if let Some((_, file)) = &mut writing {
                        file.write_all(&data).await.map_err(|error| failed(&error))?;
                    }
                }
                Event::PartEnd => {
                    if let Some((upload, mut file)) = writing.take() {
                        file.flush().await.map_err(|error| failed(&error))?;
                        blocking(move || upload.commit().map_err(|error| failed(&error))).await?;
                    }
                }
                Event::End => has_ended = true,
            }
        }
    }
    match written {
        Some(name) if has_ended => {
            let message = format!("File '{name}' uploaded successfully.");
            Ok(json(StatusCode::OK, &Message { message }))
        }
        Some(_) => Err(detail(StatusCode::BAD_REQUEST, "the body has no closing boundary")),
        None => Err(unprocessable("missing", "file", "Field required")),
    }
}

fn download(root: &Root, rest: &str) -> Answer {
    let path = root::requested(rest);
    let (file, length) = match root.read(&path) {
        Err(error) if error.is_not_found() => return Err(message(StatusCode::NOT_FOUND, "File not found")),
        other => other.map_err(refused_path)?,
    };
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let response = Response::builder()
        .header(CONTENT_TYPE, "application/octet-stream")
        .header(CONTENT_LENGTH, length)
        .header(CONTENT_DISPOSITION, attachment(&name))
        .body(FileBody::new(file, length).boxed_unsync());
    response.map_err(|error| detail(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()))
}

/// Names the file as it is, or encoded if that could not be in a header.
fn attachment(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-~".contains(&byte);
    if name.bytes().all(|byte| is_plain(byte) || b" ()[]+,@".contains(&byte)) {
        return format!("attachment; filename=\"{name}\"");
    }
    let encoded: String = name
        .bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    format!("attachment; filename*=utf-8''{encoded}")
}

fn list(root: &Root, rest: &str) -> Answer {
    match root.list(&root::requested(rest)) {
        Ok(entries) => Ok(json(StatusCode::OK, &entries)),
        Err(error) if error.is_not_found() => Err(message(StatusCode::NOT_FOUND, "Path is not a directory")),
        Err(error) => Err(refused_path(error)),
    }
}

fn exists(root: &Root, rest: &str) -> Answer {
    let path = root::requested(rest);
    let exists = root.exists(&path).map_err(refused_path)?;
    Ok(json(StatusCode::OK, &Exists { path: shown(&path), exists }))
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn refused_path(error: PathError) -> Refusal {
    match error {
        PathError::Escapes => message(StatusCode::FORBIDDEN, "Access denied"),
        PathError::Io(error) => failed(&error),
    }
}

fn failed(error: &io::Error) -> Refusal {
    message(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
}

fn message(status: StatusCode, text: &str) -> Refusal {
    Box::new(json(status, &Message { message: text.to_owned() }))
}

fn unprocessable(kind: &str, field: &str, text: &str) -> Refusal {
    let problem = FieldProblem {
        kind: kind.to_owned(),
        loc: vec!["body".to_owned(), field.to_owned()],
        msg: text.to_owned(),
    };
    Box::new(json(StatusCode::UNPROCESSABLE_ENTITY, &Unprocessable { detail: vec![problem] }))
}

fn detail(status: StatusCode, text: &str) -> Refusal {
    Box::new(json(status, &serde_json::json!({ "detail": text })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_directory_is_listed_with_and_without_a_slash() {
        for path in ["/list", "/list/"] {
            assert!(matches!(Route::of(path), Some(Route::List(""))), "{path}");
        }
        assert!(Route::of("/download").is_none());
    }

    #[test]
    fn names_are_encoded_where_a_header_could_not_have_them() {
        assert_eq!(attachment("a b.txt"), "attachment; filename=\"a b.txt\"");
        assert_eq!(attachment("ü\r\n\""), "attachment; filename*=utf-8''%C3%BC%0D%0A%22");
    }
}
