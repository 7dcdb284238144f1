//! Serves this node's images to users: `GET /images` lists them, `POST /images[?name=NAME]` imports
//! those of the archive in its body, `POST /images?pull=NAME[&ifMissing=true]` pulls one from its
//! registry, `DELETE /images?name=NAME` removes one.
//!
//! A pull is answered by lines of JSON: its progress, and at last the image or the error.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};

use super::{Body, json_text, text};
use crate::images::ChangeError;
use crate::node::Shared;
use crate::pull::Progress;
use crate::worker::chain;

/// The interval of progress lines: often enough to look alive, seldom enough to cost nothing.
const BETWEEN_LINES: Duration = Duration::from_millis(200);

pub(super) async fn answer(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let parameter = |wanted: &str| {
        let found = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == wanted);
        found.map(|(_, value)| value.into_owned())
    };
    let name = parameter("name");
    match (request.method().clone(), name) {
        (Method::GET, _) => list(shared),
        (Method::POST, _) if parameter("pull").is_some() => {
            let only_if_missing = parameter("ifMissing").as_deref() == Some("true");
            pull(shared, parameter("pull").unwrap_or_default(), only_if_missing)
        }
        (Method::POST, name) => match import(shared, request.into_body(), name.as_deref()).await {
            Ok(answer) => answer,
            Err(problem) => failed(&problem),
        },
        (Method::DELETE, Some(name)) => match shared.images.remove(&name).await {
            Ok(()) => json_text(&json!({"removed": name})),
            Err(problem) => failed(&problem),
        },
        (Method::DELETE, None) => text(StatusCode::BAD_REQUEST, "the parameter `name` is missing"),
        _ => text(
            StatusCode::METHOD_NOT_ALLOWED,
            "images can be listed (GET), imported (POST) and removed (DELETE)",
        ),
    }
}

fn list(shared: &Shared) -> Response<Body> {
    match shared.images.list() {
        Ok(images) => {
            let row = |named: &warren_image::store::Named| {
                json!({"name": named.name, "digest": named.image.digest, "size": named.image.size,
                    "layers": named.image.layers.len()})
            };
            json_text(&json!({"images": images.iter().map(row).collect::<Vec<_>>()}))
        }
        Err(problem) => text(StatusCode::INTERNAL_SERVER_ERROR, chain(&problem)),
    }
}

/// Pulls an image for as long as the client listens.
fn pull(shared: &Arc<Shared>, name: String, only_if_missing: bool) -> Response<Body> {
    let progress = Arc::new(Progress::default());
    let (images, wanted, shown) = (shared.images.clone(), name.clone(), progress.clone());
    let pulling = Box::pin(async move {
        let result = match images.find(&wanted) {
            Ok(Some(image)) if only_if_missing => Ok(image),
            _ => images.pull(&wanted, Vec::new(), &progress).await,
        };
        match result {
            Ok(image) => json!({"image": {"name": wanted, "digest": image.digest, "size": image.size}}),
            Err(problem) => json!({"error": chain(&problem)}),
        }
    });
    let lines = stream::unfold(Some(pulling), move |pulling| {
        let shown = shown.clone();
        async move {
            let mut pulling = pulling?;
            let (line, rest) = tokio::select! {
                last = &mut pulling => (last, None),
                () = tokio::time::sleep(BETWEEN_LINES) => {
                    let [done, total] = [&shown.done, &shown.total].map(|count| count.load(Ordering::Relaxed));
                    (json!({"progress": {"done": done, "total": total}}), Some(pulling))
                }
            };
            Some((Ok::<_, Infallible>(Frame::data(line_of(&line))), rest))
        }
    });
    let mut response = json_text(&Value::Null);
    *response.body_mut() = StreamBody::new(lines).boxed_unsync();
    response
}

fn line_of(value: &Value) -> Bytes {
    Bytes::from(format!("{value}\n"))
}

/// The error of an archive that was not received.
#[derive(Debug, thiserror::Error)]
enum ReceiveError {
    #[error("receive the archive")]
    Receive(#[source] hyper::Error),
    #[error("keep the archive")]
    Keep(#[source] std::io::Error),
    #[error(transparent)]
    Change(#[from] ChangeError),
}

async fn import(
    shared: &Arc<Shared>,
    mut body: Incoming,
    name: Option<&str>,
) -> Result<Response<Body>, ReceiveError> {
    let file = shared.images.unfinished_archive().map_err(ReceiveError::Keep)?;
    let mut file = tokio::fs::File::from_std(file);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(ReceiveError::Receive)?.into_data() {
            file.write_all(&data).await.map_err(ReceiveError::Keep)?;
        }
    }
    file.flush().await.map_err(ReceiveError::Keep)?;
    file.rewind().await.map_err(ReceiveError::Keep)?;
    let imported = shared.images.import(file.into_std().await, name).await?;
    let row = |image: &warren_image::import::Imported| json!({"name": image.name.to_string(), "digest": image.digest});
    Ok(json_text(&json!({"images": imported.iter().map(row).collect::<Vec<_>>()})))
}

fn failed(problem: &(dyn std::error::Error + 'static)) -> Response<Body> {
    let change =
        problem.downcast_ref::<ChangeError>().or_else(|| match problem.downcast_ref::<ReceiveError>() {
            Some(ReceiveError::Change(change)) => Some(change),
            _ => None,
        });
    let status = match change {
        Some(ChangeError::NotFound(_)) => StatusCode::NOT_FOUND,
        Some(ChangeError::Name(_) | ChangeError::Import(_)) => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    text(status, chain(problem))
}
