//! A registry over HTTP: authentication, redirects and answers.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, RANGE, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tokio::sync::Mutex;
use warren_image::reference::Reference;

use super::PullError;
use super::challenge::{Challenge, challenge};
use super::credentials::Credential;
use super::trust;
use crate::config::RegistryConfig;
use crate::worker::chain;

/// The time limit of a connection: long enough for a slow network, short enough that a pod soon
/// reports a missing registry.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The time from a request to the head of its answer.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Registries redirect to a blob store, and that to its nearest copy.
const MOST_REDIRECTS: usize = 5;
/// The longest text answer: tokens and error descriptions are at most some kilobytes.
const LARGEST_ANSWER: usize = 64 << 10;
/// The longest part of a registry's error text that is shown.
const LONGEST_DETAIL: usize = 300;

/// One repository of a registry, as one user.
pub(super) struct Registry {
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// The registry's name in image names.
    name: String,
    origin: String,
    repository: String,
    credential: Option<Credential>,
    /// True if it may be used without TLS, and may redirect to a server without TLS.
    plain: bool,
    /// The authorization that was accepted.
    authorization: Mutex<Option<HeaderValue>>,
}

/// The variable parts of a request.
#[derive(Clone, Copy, Default)]
pub(super) struct Ask<'a> {
    pub(super) path: &'a str,
    pub(super) accept: &'a str,
    pub(super) from: u64,
}

impl Registry {
    pub(super) fn new(
        config: &RegistryConfig,
        image: &Reference,
        credential: Option<Credential>,
    ) -> Result<Self, PullError> {
        let name = image.registry().to_owned();
        // The only registry whose API has another host name.
        let host = if name == "docker.io" { "registry-1.docker.io" } else { &name };
        let plain = is_loopback(&name) || config.insecure.contains(&name);
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(CONNECT_TIME));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let builder = HttpsConnectorBuilder::new().with_tls_config(trust::tls(config, &name)?);
        let builder = if plain { builder.https_or_http() } else { builder.https_only() };
        let connector = builder.enable_http1().wrap_connector(tcp);
        Ok(Self {
            http: Client::builder(TokioExecutor::new()).build(connector),
            origin: format!("{}://{host}", if plain { "http" } else { "https" }),
            name,
            repository: image.repository().to_owned(),
            credential,
            plain,
            authorization: Mutex::new(None),
        })
    }

    /// Fetches `manifests/…` or `blobs/…` of the repository. Any answer but a success becomes an
    /// error.
    pub(super) async fn get(&self, ask: Ask<'_>) -> Result<Response<Incoming>, PullError> {
        let address = format!("{}/v2/{}/{}", self.origin, self.repository, ask.path);
        let known = self.authorization.lock().await.clone();
        let response = self.follow(&address, ask, known.as_ref()).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return self.success(response).await;
        }
        // Not authenticated yet, or a token has expired: try the requested authentication once.
        let Some(authorization) = self.authorize(&response).await? else {
            return self.success(response).await;
        };
        *self.authorization.lock().await = Some(authorization.clone());
        let response = self.follow(&address, ask, Some(&authorization)).await?;
        self.success(response).await
    }

    async fn follow(
        &self,
        address: &str,
        ask: Ask<'_>,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, PullError> {
        let mut uri: Uri = address.parse().map_err(|_| self.protocol("it has no valid address"))?;
        let home = uri.authority().cloned();
        for _ in 0..=MOST_REDIRECTS {
            let mut request = Request::get(uri.clone());
            if !ask.accept.is_empty() {
                request = request.header(ACCEPT, ask.accept);
            }
            if ask.from > 0 {
                request = request.header(RANGE, format!("bytes={}-", ask.from));
            }
            // A redirect's target must not learn the credentials.
            if let Some(authorization) = authorization.filter(|_| uri.authority() == home.as_ref()) {
                request = request.header(AUTHORIZATION, authorization);
            }
            let response = self.send(request, Full::default()).await?;
            if !response.status().is_redirection() || response.status() == StatusCode::NOT_MODIFIED {
                return Ok(response);
            }
            let place = response.headers().get(LOCATION).and_then(|place| place.to_str().ok());
            let place = place.ok_or_else(|| self.protocol("it sends us elsewhere and does not say where"))?;
            uri = self.joined(&uri, place)?;
        }
        Err(self.protocol("it sends us in circles"))
    }

    fn joined(&self, base: &Uri, place: &str) -> Result<Uri, PullError> {
        let wrong = || self.protocol("it sends us to an address that is none");
        let origin = || format!("{}://{}", base.scheme_str().unwrap_or("https"), authority(base));
        let uri: Uri = match place.starts_with('/') {
            true => format!("{}{place}", origin()).parse().map_err(|_| wrong())?,
            false => place.parse().map_err(|_| wrong())?,
        };
        match uri.scheme_str() {
            Some("https") => Ok(uri),
            Some("http") if self.plain => Ok(uri),
            Some("http") => Err(self.protocol("it sends us to an address without TLS")),
            _ => Err(wrong()),
        }
    }

    /// Returns the authorization that the refusal asks for, if we can provide it.
    async fn authorize(&self, refused: &Response<Incoming>) -> Result<Option<HeaderValue>, PullError> {
        let value = match (challenge(refused.headers()), &self.credential) {
            (_, Some(Credential::RegistryToken(token))) => format!("Bearer {token}"),
            (Some(Challenge::Basic), Some(Credential::Password { user, password })) => basic(user, password),
            (Some(Challenge::Bearer { realm, service, scope }), credential) => {
                let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
                let token = self.token(&realm, service.as_deref(), &scope, credential.as_ref()).await?;
                format!("Bearer {token}")
            }
            _ => return Ok(None),
        };
        let mut value =
            HeaderValue::try_from(value).map_err(|_| self.protocol("its token cannot be sent back"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: &str,
        credential: Option<&Credential>,
    ) -> Result<String, PullError> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
        }
        let base = self.joined(&Uri::from_static("https://invalid"), realm)?.to_string();
        let (request, body) = token_request(&base, service, scope, credential);
        let response = self.send(request, body).await?;
        let response = self.success(response).await?;
        let answer: Answer = serde_json::from_slice(&self.text(response).await?)
            .map_err(|_| self.protocol("its token service answers something else than a token"))?;
        let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
        token.ok_or_else(|| self.protocol("its token service gives no token"))
    }

    async fn send(
        &self,
        request: http::request::Builder,
        body: Full<Bytes>,
    ) -> Result<Response<Incoming>, PullError> {
        let request = request
            .header(USER_AGENT, concat!("warren/", env!("CARGO_PKG_VERSION")))
            .body(body)
            .map_err(|_| self.protocol("its answers cannot be followed"))?;
        match tokio::time::timeout(ANSWER_TIME, self.http.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(match tls_problem(&error) {
                Some(problem) => {
                    PullError::Untrusted { registry: self.name.clone(), why: problem.to_string() }
                }
                None => self.unreachable(chain(&error)),
            }),
            Err(_) => Err(self.unreachable(format!("no answer within {} s", ANSWER_TIME.as_secs()))),
        }
    }

    /// Returns a successful answer, or an error.
    async fn success(&self, response: Response<Incoming>) -> Result<Response<Incoming>, PullError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let detail = self.text(response).await.map(|text| detail(&text)).unwrap_or_default();
        Err(PullError::Answer { registry: self.name.clone(), status, detail })
    }

    async fn text(&self, response: Response<Incoming>) -> Result<Bytes, PullError> {
        self.collect(response, LARGEST_ANSWER).await
    }

    /// Reads a whole answer that must be short.
    pub(super) async fn collect(
        &self,
        response: Response<Incoming>,
        largest: usize,
    ) -> Result<Bytes, PullError> {
        let body = Limited::new(response.into_body(), largest).collect();
        match tokio::time::timeout(ANSWER_TIME, body).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) => Err(self.unreachable(chain(&*error))),
            Err(_) => Err(self.unreachable("its answer does not end".to_owned())),
        }
    }

    pub(super) fn unreachable(&self, why: String) -> PullError {
        PullError::Unreachable { registry: self.name.clone(), why }
    }

    pub(super) fn protocol(&self, why: &'static str) -> PullError {
        PullError::Protocol { registry: self.name.clone(), why }
    }
}

fn token_request(
    realm: &str,
    service: Option<&str>,
    scope: &str,
    credential: Option<&Credential>,
) -> (http::request::Builder, Full<Bytes>) {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(service.map(|service| ("service", service)).into_iter().chain([("scope", scope)]));
    if let Some(Credential::IdentityToken(token)) = credential {
        form.append_pair("grant_type", "refresh_token").append_pair("refresh_token", token);
        form.append_pair("client_id", "warren");
        let request = Request::post(realm).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        return (request, Full::from(form.finish()));
    }
    let joint = if realm.contains('?') { '&' } else { '?' };
    let mut request = Request::get(format!("{realm}{joint}{}", form.finish()));
    if let Some(Credential::Password { user, password }) = credential {
        request = request.header(AUTHORIZATION, basic(user, password));
    }
    (request, Full::default())
}

/// Finds a certificate problem in an error: unlike a broken connection, it is not worth a retry.
fn tls_problem<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(problem) = error.downcast_ref() {
            return Some(problem);
        }
        cause = match error.downcast_ref::<std::io::Error>() {
            // An I/O error's wrapped error is not its source.
            Some(wrapping) => wrapping.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static)),
            None => error.source(),
        };
    }
    None
}

fn authority(uri: &Uri) -> &str {
    uri.authority().map_or("", |authority| authority.as_str())
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// Returns true if a registry is on this machine, where plain HTTP is safe.
fn is_loopback(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Formats a registry's error in one short line: `CODE: message`, or the beginning of its text.
fn detail(text: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let said = match serde_json::from_slice::<Errors>(text) {
        Ok(Errors { errors }) => {
            let lines = errors.iter().map(|entry| format!("{}: {}", entry.code, entry.message));
            lines.collect::<Vec<_>>().join("; ")
        }
        Err(_) => String::from_utf8_lossy(text).trim().to_owned(),
    };
    said.chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .take(LONGEST_DETAIL)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_by_its_name() {
        for (name, expected) in [
            ("localhost:5000", true),
            ("127.0.0.9", true),
            ("127.0.0.1:1", true),
            ("localhost.example", false),
            ("10.0.0.1:5000", false),
        ] {
            assert_eq!(is_loopback(name), expected, "{name}");
        }
    }

    #[test]
    fn errors_are_short_and_printable() {
        let text = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"not here","detail":{"a":1}}]}"#;
        assert_eq!(detail(text), "MANIFEST_UNKNOWN: not here");
        assert_eq!(detail(b" <html>\n\x1b[31m "), "<html>  [31m");
        assert_eq!(detail(&[b'x'; 5000]).len(), LONGEST_DETAIL);
    }
}
