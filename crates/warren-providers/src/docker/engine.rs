//! The connection to a Docker engine, its errors, and the one stream that the client library cannot
//! carry.

use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use warren_client::files::chain;

use crate::error::{Code, ProviderError};

/// The address of an engine if none is named.
pub(super) const DEFAULT_ADDRESS: &str = "unix:///var/run/docker.sock";

/// The time limit of a request. Stopping a container takes its grace time, up to ten seconds.
const REQUEST_SECONDS: u64 = 120;

/// The time limit of a start of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of bytes of a refusal that are read.
const MOST_SAID: usize = 16 << 10;

/// The address of an engine. Plain HTTP does not authenticate clients, so only loopback addresses
/// are allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Unix(PathBuf),
    Http { host: String, port: u16 },
}

impl Address {
    fn parse(text: &str) -> Result<Self, ProviderError> {
        let invalid = |problem: String| ProviderError::invalid("dockerHost", problem);
        if let Some(path) = text.strip_prefix("unix://") {
            return match path.starts_with('/') {
                true => Ok(Address::Unix(path.into())),
                false => Err(invalid(format!("is `{text}`; the path of a socket has to be absolute"))),
            };
        }
        let rest = text.strip_prefix("tcp://").or_else(|| text.strip_prefix("http://"));
        let Some(rest) = rest else {
            return Err(invalid(format!(
                "is `{text}`; it has to be `unix://PATH`, or `tcp://ADDRESS:PORT` on loopback"
            )));
        };
        let parsed: Option<http::uri::Authority> = rest.trim_end_matches('/').parse().ok();
        let parts = parsed.as_ref().and_then(|authority| Some((authority.host(), authority.port_u16()?)));
        let Some((host, port)) = parts.filter(|_| !rest.contains('@')) else {
            return Err(invalid(format!("is `{text}`, which is not `tcp://ADDRESS:PORT`")));
        };
        let number = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match number.map_or(host == "localhost", |number| number.is_loopback()) {
            true => Ok(Address::Http { host: host.to_owned(), port }),
            false => Err(invalid(format!(
                "is `{text}`, which is not on loopback: plain HTTP protects nothing; forward its socket, \
                 for example with `ssh -L`"
            ))),
        }
    }
}

/// An engine. It is connected to when it is first used.
#[derive(Debug)]
pub(super) struct Engine {
    address: Address,
    known: Mutex<Option<Docker>>,
}

/// A stream in both directions.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

impl Engine {
    /// Checks the address. Connects to nothing yet.
    pub(super) fn new(address: &str) -> Result<Self, ProviderError> {
        Ok(Self { address: Address::parse(address)?, known: Mutex::default() })
    }

    /// Returns the client, which speaks a version of the API that the engine speaks too.
    pub(super) async fn client(&self) -> Result<Docker, ProviderError> {
        let mut known = self.known.lock().await;
        if let Some(docker) = known.as_ref() {
            return Ok(docker.clone());
        }
        let version = bollard::API_DEFAULT_VERSION;
        let made = match &self.address {
            Address::Unix(path) => {
                Docker::connect_with_unix(&path.display().to_string(), REQUEST_SECONDS, version)
            }
            Address::Http { host, port } => {
                Docker::connect_with_http(&format!("tcp://{host}:{port}"), REQUEST_SECONDS, version)
            }
        };
        let failed = |error: Error| engine_error(Code::ProviderUnavailable, "connect to Docker", &error);
        let asked = made.map_err(failed)?.negotiate_version();
        let docker = match tokio::time::timeout(CONNECT_TIMEOUT, asked).await {
            Ok(asked) => asked.map_err(failed)?,
            Err(_) => {
                let message = "connect to Docker: the engine does not answer";
                return Err(ProviderError::new(Code::ProviderUnavailable, message));
            }
        };
        *known = Some(docker.clone());
        Ok(docker)
    }

    /// Starts a command that was prepared, and returns its stream as the engine sends it: with
    /// frames for two outputs, or the raw bytes of a terminal. bollard takes a terminal's bytes 0
    /// to 2 for the head of a frame, and waits for as much as the next ones say.
    pub(super) async fn start_exec(
        &self,
        exec: &str,
        terminal: bool,
    ) -> Result<Pin<Box<dyn Stream>>, String> {
        tokio::time::timeout(CONNECT_TIMEOUT, self.upgrade(exec, terminal))
            .await
            .unwrap_or_else(|_| Err("the engine does not answer".to_owned()))
    }

    async fn upgrade(&self, exec: &str, terminal: bool) -> Result<Pin<Box<dyn Stream>>, String> {
        let stream: Pin<Box<dyn Stream>> = match &self.address {
            Address::Unix(path) => Box::pin(UnixStream::connect(path).await.map_err(|error| chain(&error))?),
            Address::Http { host, port } => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                Box::pin(TcpStream::connect((host, *port)).await.map_err(|error| chain(&error))?)
            }
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| chain(&error))?;
        tokio::spawn(connection.with_upgrades());
        let body = json!({ "Detach": false, "Tty": terminal }).to_string();
        let request = http::Request::post(format!("/exec/{exec}/start"))
            .header("host", "docker")
            .header("content-type", "application/json")
            .header("connection", "Upgrade")
            .header("upgrade", "tcp")
            .body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| chain(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| chain(&error))?;
        if answer.status() != http::StatusCode::SWITCHING_PROTOCOLS {
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MOST_SAID).collect().await;
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            let said: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            return Err(match said["message"].as_str() {
                Some(message) => message.to_owned(),
                None => format!("the engine answers {status}"),
            });
        }
        let upgraded = hyper::upgrade::on(answer).await.map_err(|error| chain(&error))?;
        Ok(Box::pin(TokioIo::new(upgraded)))
    }
}

/// Returns the HTTP status with which the engine refused a request.
pub(super) fn refusal(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// Makes an error of one that the engine or the way to it gave.
pub(super) fn engine_error(code: Code, action: &str, error: &Error) -> ProviderError {
    let (code, reason) = match error {
        Error::DockerResponseServerError { message, .. } => (code, message.trim().to_owned()),
        Error::DockerStreamError { error } => (code, error.clone()),
        Error::SocketNotFoundError(path) => (
            Code::ProviderUnavailable,
            format!("there is no socket `{path}`; start dockerd, or name it with `--docker-host`"),
        ),
        // The engine could not be asked.
        error => (Code::ProviderUnavailable, chain(error)),
    };
    ProviderError::new(code, format!("{action}: {reason}")).with(json!({ "reason": reason }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_and_loopback_addresses_are_engines() {
        for good in
            ["unix:///run/docker.sock", "tcp://127.0.0.1:2375", "http://[::1]:2375", "tcp://localhost:1/"]
        {
            Address::parse(good).expect(good);
        }
        for bad in [
            "",
            "/run/docker.sock",
            "unix://docker.sock",
            "tcp://10.0.0.1:2375",
            "tcp://127.0.0.1",
            "ssh://localhost",
            "https://127.0.0.1:2376",
            "tcp://localhost.example.com:1",
            "tcp://127.0.0.1@example.com:1",
            "tcp://a b:1",
        ] {
            let error = Address::parse(bad).expect_err(bad);
            assert!(
                error.code == Code::ValidationError && error.message.starts_with("`dockerHost`"),
                "{bad}: {error}"
            );
        }
    }
}
