//! `/files`: files as they are, up and down.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use flate2::write::GzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use rustix::fs::OFlags;
use serde_json::{Value, json};

use super::connect::{Code, Failure};
use super::user::{self, User};
use super::{Envd, blocking, paths};
use crate::file_body::FileBody;
use crate::multipart::{Event, Multipart};
use crate::reply::{self, Body};

/// The most files of one upload.
const MOST_FILES: usize = 4096;

/// The parameters of a request.
struct Parameters {
    path: Option<String>,
    user: User,
}

/// Answers one request.
pub(super) async fn answer(envd: Arc<Envd>, request: Request<Incoming>) -> Response<Body> {
    let method = request.method().clone();
    let result = match method {
        Method::GET | Method::HEAD => download(&envd, &request).await,
        Method::POST => upload(envd, request).await,
        _ => return reply::empty(StatusCode::METHOD_NOT_ALLOWED),
    };
    result.unwrap_or_else(|failure| {
        let status = match failure.code {
            Code::ResourceExhausted => StatusCode::INSUFFICIENT_STORAGE,
            code => code.status(),
        };
        reply::json(status, &json!({ "code": status.as_u16(), "message": failure.message }))
    })
}

fn parameters(envd: &Envd, request: &Request<Incoming>) -> Result<Parameters, Failure> {
    let (mut path, mut name) = (None, None);
    for pair in request.uri().query().unwrap_or_default().split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = crate::root::decode(value.replace('+', " ").as_bytes());
        let text = || {
            let text = String::from_utf8(value.clone());
            text.map_err(|_| Failure::new(Code::InvalidArgument, format!("`{key}` is not UTF-8")))
        };
        match key {
            "path" => path = Some(text()?).filter(|path| !path.is_empty()),
            "username" => name = Some(text()?),
            _ => {}
        }
    }
    let name = match name {
        Some(name) => Some(name),
        None => user::of_request(request.headers())?,
    };
    Ok(Parameters { path, user: envd.users.named(name.as_deref())? })
}

async fn download(envd: &Envd, request: &Request<Incoming>) -> Result<Response<Body>, Failure> {
    let Parameters { path, user } = parameters(envd, request)?;
    let path = path.ok_or_else(|| Failure::new(Code::InvalidArgument, "`path` is missing"))?;
    let path = paths::wanted("path", &path, &user)?;
    let (file, length) = blocking(move || {
        let failed = |error: io::Error| Failure::io(&path.to_string_lossy(), &error);
        // Not waiting for the other end of a pipe.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(Failure::new(
                Code::InvalidArgument,
                format!("{} is not a regular file", path.display()),
            ));
        }
        Ok((file, found.len()))
    })
    .await?;
    let body = match *request.method() {
        Method::HEAD => reply::nothing(),
        _ => FileBody::new(file, length).boxed_unsync(),
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    Ok(response)
}

async fn upload(envd: Arc<Envd>, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
    let Parameters { path, user } = parameters(&envd, &request)?;
    let metadata = paths::metadata_of_request(request.headers())?;
    let header = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let is_zipped = match header(CONTENT_ENCODING) {
        None | Some("identity") => false,
        Some("gzip") => true,
        Some(_) => return Err(Failure::new(Code::InvalidArgument, "`Content-Encoding` must be gzip")),
    };
    let kind = header(CONTENT_TYPE).unwrap_or_default().to_owned();
    let to = Destination { envd, user, metadata };
    let written = if kind.to_ascii_lowercase().starts_with("multipart/") {
        if is_zipped {
            return Err(Failure::new(Code::InvalidArgument, "a multipart body cannot be compressed"));
        }
        multipart(&to, &kind, path, request.into_body()).await?
    } else {
        let path = path.ok_or_else(|| Failure::new(Code::InvalidArgument, "`path` is missing"))?;
        vec![plain(&to, &path, is_zipped, request.into_body()).await?]
    };
    Ok(reply::json(StatusCode::OK, &written))
}

/// The daemon, user and metadata that files are written with.
struct Destination {
    envd: Arc<Envd>,
    user: User,
    metadata: BTreeMap<String, String>,
}

/// A file that is being written.
struct Writing {
    path: PathBuf,
    to: Sink,
}

enum Sink {
    Plain(File),
    Zipped(Box<GzDecoder<File>>),
}

impl Destination {
    async fn open(&self, path: &str, is_zipped: bool) -> Result<Writing, Failure> {
        let path = paths::wanted("path", path, &self.user)?;
        let (envd, user) = (self.envd.clone(), self.user.clone());
        blocking(move || {
            let failed = |error: io::Error| Failure::io(&path.to_string_lossy(), &error);
            if path.is_dir() {
                let message = format!("{} is a directory", path.display());
                return Err(Failure::new(Code::InvalidArgument, message));
            }
            if let Some(parent) = path.parent() {
                paths::make_directories(parent, &envd.users, &user).map_err(failed)?;
            }
            let is_new = !path.exists();
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o644).custom_flags(flags);
            let file = options.open(&path).map_err(failed)?;
            if is_new {
                paths::give(&path, &envd.users, &user).map_err(failed)?;
            }
            let to = match is_zipped {
                true => Sink::Zipped(Box::new(GzDecoder::new(file))),
                false => Sink::Plain(file),
            };
            Ok(Writing { path, to })
        })
        .await
    }

    async fn close(&self, writing: Writing) -> Result<Value, Failure> {
        let metadata = self.metadata.clone();
        blocking(move || {
            let Writing { path, to } = writing;
            let failed = |error: io::Error| Failure::io(&path.to_string_lossy(), &error);
            if let Sink::Zipped(decoder) = to {
                decoder.finish().map_err(failed)?;
            }
            paths::set_metadata(&path, &metadata).map_err(failed)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let mut written = json!({ "name": name, "type": "file", "path": path.to_string_lossy() });
            if !metadata.is_empty() {
                written["metadata"] = json!(metadata);
            }
            Ok(written)
        })
        .await
    }
}

impl Writing {
    async fn write(mut self, bytes: Bytes) -> Result<Writing, Failure> {
        blocking(move || {
            let written = match &mut self.to {
                Sink::Plain(file) => file.write_all(&bytes),
                Sink::Zipped(decoder) => decoder.write_all(&bytes),
            };
            written.map_err(|error| Failure::io(&self.path.to_string_lossy(), &error))?;
            Ok(self)
        })
        .await
    }
}

async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Some(Err(error)) => return Err(Failure::new(Code::Internal, format!("read the body: {error}"))),
        }
    }
}

async fn plain(to: &Destination, path: &str, is_zipped: bool, mut body: Incoming) -> Result<Value, Failure> {
    let mut writing = to.open(path, is_zipped).await?;
    while let Some(bytes) = next(&mut body).await? {
        writing = writing.write(bytes).await?;
    }
    to.close(writing).await
}

/// Writes the files of a form. A file is where `path` says, or where its own name says if there is no `path`.
async fn multipart(
    to: &Destination,
    kind: &str,
    path: Option<String>,
    mut body: Incoming,
) -> Result<Vec<Value>, Failure> {
    let malformed = |text: String| Failure::new(Code::InvalidArgument, text);
    let mut reader = Multipart::new(kind).map_err(|error| malformed(error.to_string()))?;
    let (mut written, mut writing) = (Vec::new(), None);
    loop {
        let Some(event) = reader.event().map_err(|error| malformed(error.to_string()))? else {
            match next(&mut body).await? {
                Some(bytes) => reader.push(&bytes),
                None => return Err(malformed("the body ends within a part".to_owned())),
            }
            continue;
        };
        match event {
            Event::Part(part) if part.name.as_deref() == Some("file") => {
                if written.len() >= MOST_FILES {
                    return Err(malformed(format!("more than {MOST_FILES} files in one request")));
                }
                if path.is_some() && !written.is_empty() {
                    return Err(malformed("`path` names one file, and there are more".to_owned()));
                }
                let path = path.clone().or(part.filename).filter(|path| !path.is_empty());
                let path = path.ok_or_else(|| malformed("a part has no file name".to_owned()))?;
                writing = Some(to.open(&path, false).await?);
            }
            Event::Part(_) => {}
            Event::Data(bytes) => {
                if let Some(open) = writing.take() {
                    writing = Some(open.write(bytes).await?);
                }
            }
            Event::PartEnd => {
                if let Some(open) = writing.take() {
                    written.push(to.close(open).await?);
                }
            }
            Event::End => return Ok(written),
        }
    }
}
