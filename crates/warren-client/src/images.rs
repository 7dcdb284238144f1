//! Manages the images of a local home's node: lists, imports, pulls and removes them.
//!
//! All requests go through the API server to the node's own API (`nodes/proxy`). Only an archive
//! uses a connection of its own: a `kube::Client` collects a body before it sends it, and archives
//! are large.

use std::io;

use bytes::Bytes;
use futures::{AsyncBufReadExt as _, TryStreamExt as _, stream};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use kube::Client;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::UnixStream;

use crate::home::DataDir;

const NODE: &str = "local";
/// The part of an archive that is in memory at a time.
const CHUNK: usize = 256 << 10;
/// The longest answer; an answer has a line for each image.
const LARGEST_ANSWER: usize = 16 << 20;

/// An image on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Its full name.
    pub name: String,
    /// The digest of its manifest.
    pub digest: String,
    /// The compressed size of its layers; unknown after an import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The number of its layers; unknown after an import or a pull.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<usize>,
}

/// The progress of an operation, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Progress {
    /// The finished bytes.
    pub done: u64,
    /// All bytes; 0 while unknown.
    pub total: u64,
}

/// The error of an operation on images.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The server or the node refused.
    #[error("{action}: {message}")]
    Refused {
        /// The operation.
        action: String,
        /// The server's message.
        message: String,
    },
    /// The server did not answer as expected.
    #[error("{action}")]
    Api {
        /// The operation.
        action: String,
        /// The cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// The archive could not be sent.
    #[error("send the archive")]
    Send(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer has the wrong form or is incomplete.
    #[error("{action}: the answer broke off")]
    Answer {
        /// The operation.
        action: String,
    },
}

#[derive(Deserialize)]
struct Images {
    images: Vec<Image>,
}

/// Returns all images of the node.
pub async fn list(client: &Client) -> Result<Vec<Image>, ImageError> {
    let action = || "list images".to_owned();
    let text =
        client.request_text(request(Method::GET, &[])).await.map_err(|error| refused(action(), error))?;
    serde_json::from_str::<Images>(&text)
        .map(|answer| answer.images)
        .map_err(|_| ImageError::Answer { action: action() })
}

/// Removes a name, and the layers that no other image and no container needs.
pub async fn remove(client: &Client, name: &str) -> Result<(), ImageError> {
    let request = request(Method::DELETE, &[("name", name)]);
    let answer = client.request_text(request).await;
    answer.map(drop).map_err(|error| refused(format!("remove image `{name}`"), error))
}

/// Makes the node pull an image, optionally only if it is missing. Dropping the future cancels the
/// pull; fetched layers stay for the next one.
pub async fn pull(
    client: &Client,
    name: &str,
    only_if_missing: bool,
    mut show: impl FnMut(Progress),
) -> Result<Image, ImageError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    enum Line {
        Progress(Progress),
        Image(Image),
        Error(String),
    }
    let action = || format!("pull image `{name}`");
    let missing = if only_if_missing { "true" } else { "false" };
    let request = request(Method::POST, &[("pull", name), ("ifMissing", missing)]);
    let answer = client.request_stream(request).await.map_err(|error| refused(action(), error))?;
    let mut lines = answer.lines();
    while let Ok(Some(line)) = lines.try_next().await {
        match serde_json::from_str(&line) {
            Ok(Line::Progress(progress)) => show(progress),
            Ok(Line::Image(image)) => return Ok(image),
            Ok(Line::Error(message)) => return Err(ImageError::Refused { action: action(), message }),
            Err(_) => break,
        }
    }
    Err(ImageError::Answer { action: action() })
}

/// Sends an archive (an OCI layout, or the output of `docker save`) to the node. The node imports
/// its images under the names in it, or its only one under `name`.
pub async fn import(
    data_dir: &DataDir,
    archive: impl AsyncRead + Send + Unpin + 'static,
    name: Option<&str>,
    show: impl FnMut(u64) + Send + 'static,
) -> Result<Vec<Image>, ImageError> {
    let action = || "import the archive".to_owned();
    let send = |error: Box<dyn std::error::Error + Send + Sync>| ImageError::Send(error);
    let stream = UnixStream::connect(data_dir.api_socket()).await.map_err(|error| send(error.into()))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| send(error.into()))?;
    tokio::spawn(connection);
    let (mut parts, _) =
        request(Method::POST, &name.map(|name| ("name", name)).into_iter().collect::<Vec<_>>()).into_parts();
    parts.headers.insert(header::HOST, http::HeaderValue::from_static("localhost"));
    parts.headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/x-tar"));
    let request = Request::from_parts(parts, StreamBody::new(frames(archive, show)));
    let response = sender.send_request(request).await;
    let response = response.map_err(|error| send(error.into()))?;
    let status = response.status();
    let text = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await;
    let text = text.map_err(|_| ImageError::Answer { action: action() })?.to_bytes();
    if status != StatusCode::OK {
        return Err(ImageError::Refused { action: action(), message: message(&text) });
    }
    serde_json::from_slice::<Images>(&text)
        .map(|answer| answer.images)
        .map_err(|_| ImageError::Answer { action: action() })
}

fn frames(
    archive: impl AsyncRead + Send + Unpin + 'static,
    show: impl FnMut(u64) + Send + 'static,
) -> impl futures::Stream<Item = io::Result<Frame<Bytes>>> + Send {
    stream::try_unfold((archive, show, 0), |(mut archive, mut show, sent)| async move {
        let mut chunk = Vec::with_capacity(CHUNK);
        if (&mut archive).take(CHUNK as u64).read_to_end(&mut chunk).await? == 0 {
            return Ok(None);
        }
        let sent = sent + chunk.len() as u64;
        show(sent);
        Ok(Some((Frame::data(Bytes::from(chunk)), (archive, show, sent))))
    })
}

fn request(method: Method, parameters: &[(&str, &str)]) -> Request<Vec<u8>> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(parameters);
    let mut request = Request::new(Vec::new());
    *request.method_mut() = method;
    // An encoded query is a valid URI.
    if let Ok(uri) = format!("/api/v1/nodes/{NODE}/proxy/images?{}", query.finish()).parse() {
        *request.uri_mut() = uri;
    }
    request
}

fn refused(action: String, error: kube::Error) -> ImageError {
    match error {
        kube::Error::Api(status) => ImageError::Refused { action, message: status.message.trim().to_owned() },
        source => ImageError::Api { action, source: Box::new(source) },
    }
}

/// Returns the error text: the node answers in plain text, the server with a `Status`.
fn message(text: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    match serde_json::from_slice::<Status>(text) {
        Ok(status) => status.message,
        Err(_) => String::from_utf8_lossy(text).trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_survive_the_query() {
        let request = request(Method::DELETE, &[("name", "host:5000/a/b:c@d&e=f")]);
        let path = "/api/v1/nodes/local/proxy/images?name=host%3A5000%2Fa%2Fb%3Ac%40d%26e%3Df";
        assert_eq!(request.uri().to_string(), path);
    }

    #[test]
    fn a_refusal_is_a_status_or_plain_text() {
        assert_eq!(message(br#"{"kind":"Status","message":"no"}"#), "no");
        assert_eq!(message(b" no image \n"), "no image");
    }

    #[tokio::test]
    async fn an_archive_is_sent_in_pieces_and_counted() {
        let archive: Vec<u8> = (0..3 * CHUNK + 5).map(|number| number as u8).collect();
        let (sender, receiver) = std::sync::mpsc::channel();
        let show = move |sent| sender.send(sent).expect("somebody listens");
        let frames: Vec<_> =
            frames(io::Cursor::new(archive.clone()), show).try_collect().await.expect("no error");
        let sent: Vec<u8> =
            frames.into_iter().flat_map(|frame| frame.into_data().expect("data").to_vec()).collect();
        assert_eq!(sent, archive);
        assert_eq!(receiver.try_iter().last(), Some(archive.len() as u64));
    }
}
