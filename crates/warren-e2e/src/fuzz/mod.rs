//! Seeded fuzzing of the embedded API server: requests that are nearly valid, in process, at full
//! speed.
//!
//! A run is a series of *epochs*. Each has a fresh server and a seed of its own that determines
//! everything in it, so an epoch is repeated by its seed alone. A request is a finding if it
//! panics, hangs, gets an internal error, or leaves an unreadable object behind. The caller checks
//! the memory over the whole run. Start reading at [`run_epoch`]; the requests come from [`Kind`]
//! and the generators beside it.

mod mutate;
mod protobuf;
mod requests;
mod seeds;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::Value;
use tower::ServiceExt as _;
use warren_apiserver::{ApiServer, Identity, InProcess, ResponseBody};

/// The time after which a request counts as hanging. Requests take well under a millisecond; a
/// loaded machine may need more.
const HANG: Duration = Duration::from_secs(30);
/// The interval, in requests, at which all stored objects are read.
const LOOK_EVERY: u64 = 50;

/// The kind of generated input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Bodies of creates and updates, as JSON.
    Bodies,
    /// Patches of all four types.
    Patches,
    /// Label and field selectors, pages.
    Selectors,
    /// Parameters of watches and lists.
    WatchParameters,
    /// Bodies as YAML.
    Yaml,
    /// Bodies as protobuf.
    Protobuf,
    /// Paths, methods and headers.
    Paths,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 7] = [
        Kind::Bodies,
        Kind::Patches,
        Kind::Selectors,
        Kind::WatchParameters,
        Kind::Yaml,
        Kind::Protobuf,
        Kind::Paths,
    ];

    /// Returns its word on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bodies => "bodies",
            Kind::Patches => "patches",
            Kind::Selectors => "selectors",
            Kind::WatchParameters => "watch-parameters",
            Kind::Yaml => "yaml",
            Kind::Protobuf => "protobuf",
            Kind::Paths => "paths",
        }
    }
}

/// One request.
#[derive(Debug, Clone, Default)]
pub struct Sent {
    method: Method,
    uri: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl fmt::Display for Sent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 4000;
        writeln!(formatter, "{} {}", self.method, self.uri)?;
        for (name, value) in &self.headers {
            writeln!(formatter, "{name}: {value}")?;
        }
        let shown = &self.body[..self.body.len().min(LONGEST)];
        write!(formatter, "{} ({} bytes)", shown.escape_ascii(), self.body.len())
    }
}

/// The number of answers by status code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(pub BTreeMap<u16, u64>);

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: &Tally) {
        for (code, count) in &other.0 {
            *self.0.entry(*code).or_default() += count;
        }
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.0.values().sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(code, count)| format!("{code}: {count}")).collect();
        formatter.write_str(&parts.join(", "))
    }
}

/// A request with a forbidden result.
#[derive(Debug, thiserror::Error)]
#[error("{kind:?}, epoch seed {seed}, request {number}: {problem}\n{sent}")]
pub struct Finding {
    kind: Kind,
    seed: u64,
    number: u64,
    problem: String,
    sent: Sent,
}

/// A server with some objects, and a way to call it.
pub(crate) struct Home {
    server: ApiServer,
    service: InProcess,
}

impl Home {
    async fn start() -> Self {
        let server = ApiServer::open(crate::embedded::config()).await.expect("a server in memory starts");
        let service = server.as_user(Identity::admin());
        let home = Self { server, service };
        for (path, body) in seeds::objects() {
            let sent = Sent {
                method: Method::POST,
                uri: path,
                body: body.to_string().into_bytes(),
                ..Sent::default()
            };
            let _ = home.answer(&sent).await;
        }
        home
    }

    /// Sends a request and reads the part of the answer that comes at once.
    async fn answer(&self, sent: &Sent) -> Result<(StatusCode, Bytes), String> {
        let mut request = Request::builder().method(sent.method.clone()).uri(&sent.uri);
        for (name, value) in &sent.headers {
            request = request.header(*name, value);
        }
        let Ok(request) = request.body(Full::new(Bytes::from(sent.body.clone()))) else {
            // An invalid request never reaches a server.
            return Ok((StatusCode::BAD_REQUEST, Bytes::new()));
        };
        let service = self.service.clone();
        let answering = tokio::spawn(async move {
            let response = service.oneshot(request).await.map_err(|error| error.to_string())?;
            read(response).await
        });
        match tokio::time::timeout(HANG, answering).await {
            Err(_) => Err(format!("no answer within {} s", HANG.as_secs())),
            Ok(Err(error)) => Err(format!("panic: {error}")),
            Ok(Ok(answer)) => answer,
        }
    }

    /// Reads all stored objects.
    async fn look(&self) -> Result<(), String> {
        for path in seeds::collections() {
            let sent = Sent { method: Method::GET, uri: (*path).to_owned(), ..Sent::default() };
            let (status, body) = self.answer(&sent).await?;
            // A CRD may have been deleted, with its objects.
            if status == StatusCode::NOT_FOUND && path.contains("/apis/") {
                continue;
            }
            let list: Value = serde_json::from_slice(&body).map_err(|error| format!("{path}: {error}"))?;
            if status != StatusCode::OK || !list["items"].is_array() {
                return Err(format!("{path} cannot be listed any more: {status}"));
            }
        }
        Ok(())
    }
}

/// Reads an answer; of a stream, only the present part.
async fn read(response: Response<ResponseBody>) -> Result<(StatusCode, Bytes), String> {
    let status = response.status();
    let mut body = response.into_body();
    let mut all = Vec::new();
    let enough = Duration::from_millis(1);
    while let Ok(Some(frame)) = tokio::time::timeout(enough, body.frame()).await {
        let Ok(frame) = frame;
        all.extend_from_slice(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
    }
    Ok((status, all.into()))
}

/// Checks that an answer is allowed, however odd the request is.
fn judge(status: StatusCode, body: &[u8]) -> Result<(), String> {
    if !status.is_server_error() {
        return Ok(());
    }
    // A client that asks for YAML also gets errors in YAML.
    let yaml = || serde_saphyr::from_slice(body).ok();
    let answer: Value = serde_json::from_slice(body).ok().or_else(yaml).unwrap_or_default();
    // Exceptions that the real server makes, too: for some invalid input (a version that is not a
    // number) it answers 500 without a reason, for a list at a future version 504, and for an exec
    // without a node 503.
    let as_the_real_one = match status.as_u16() {
        500 => answer["kind"] == "Status" && answer["reason"].is_null(),
        501 | 503 | 504 => answer["kind"] == "Status",
        _ => false,
    };
    if as_the_real_one { Ok(()) } else { Err(format!("{status}: {}", String::from_utf8_lossy(body))) }
}

/// Sends this number of requests to a fresh server.
///
/// # Errors
///
/// Returns the first request with a forbidden result.
pub async fn run_epoch(kind: Kind, seed: u64, requests: u64) -> Result<Tally, Finding> {
    let mut random = fastrand::Rng::with_seed(seed);
    let home = Home::start().await;
    let mut tally = Tally::default();
    for number in 0..requests {
        let sent = requests::make(kind, &mut random);
        let found = |problem| Finding { kind, seed, number, problem, sent: sent.clone() };
        let (status, body) = home.answer(&sent).await.map_err(found)?;
        judge(status, &body).map_err(found)?;
        *tally.0.entry(status.as_u16()).or_default() += 1;
        if number % LOOK_EVERY == LOOK_EVERY - 1 {
            home.look().await.map_err(found)?;
        }
    }
    home.server.shutdown().await;
    Ok(tally)
}

/// Returns the memory of this process in bytes.
pub fn resident_bytes() -> u64 {
    crate::memory::resident_bytes(std::process::id()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_seeds_are_right() {
        let home = Home::start().await;
        let mut wrong = Vec::new();
        for (path, body) in seeds::objects() {
            let name = body["metadata"]["name"].as_str().unwrap_or_default();
            let sent = Sent { uri: format!("{path}/{name}"), ..Sent::default() };
            let (status, answer) = home.answer(&sent).await.unwrap();
            if status != StatusCode::OK {
                let again =
                    Sent { method: Method::POST, uri: path, body: body.to_string().into_bytes(), ..sent };
                wrong.push((answer, home.answer(&again).await.unwrap().1));
            }
        }
        assert_eq!(wrong, []);
    }

    #[tokio::test]
    async fn an_epoch_is_repeated_by_its_seed() {
        let run = async || run_epoch(Kind::Patches, 7, 60).await.unwrap();
        assert_eq!(run().await, run().await);
    }
}
