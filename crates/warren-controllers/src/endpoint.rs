//! A small HTTP or HTTPS server for probes and metrics.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::secure_serving::Tls;

/// The time after which a client that has not sent its headers is disconnected.
const HEADER_PATIENCE: Duration = Duration::from_secs(10);

/// The delay after a failed accept, which usually means that there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An address to listen on, in Go's notation: `:8080` is every address of the machine,
/// `127.0.0.1:8080` and `[::1]:8080` are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindAddress {
    host: Option<String>,
    port: u16,
}

/// The error of a text that is not such an address.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not an address such as `:8080` or `127.0.0.1:8080`")]
pub struct BindAddressError(String);

impl FromStr for BindAddress {
    type Err = BindAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || BindAddressError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let host = match host.strip_prefix('[') {
            Some(host) => host.strip_suffix(']').ok_or_else(wrong)?,
            None if host.contains(':') => return Err(wrong()),
            None => host,
        };
        Ok(Self { host: Some(host.to_owned()).filter(|host| !host.is_empty()), port })
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) if host.contains(':') => write!(formatter, "[{host}]:{}", self.port),
            host => write!(formatter, "{}:{}", host.as_deref().unwrap_or_default(), self.port),
        }
    }
}

/// The answer to a path; `None` is `404 page not found`.
pub(crate) struct Answer {
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

/// A bound listener.
pub(crate) struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Tls>,
}

impl Endpoint {
    /// Binds the address early, so that one in use is found before anything else happens.
    pub(crate) async fn bind(address: &BindAddress) -> io::Result<Self> {
        let listener = match &address.host {
            Some(host) => TcpListener::bind((host.as_str(), address.port)).await?,
            None => match TcpListener::bind(("::", address.port)).await {
                // A machine without IPv6.
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    TcpListener::bind(("0.0.0.0", address.port)).await?
                }
                bound => bound?,
            },
        };
        let address = listener.local_addr()?;
        Ok(Self { listener, address, tls: None })
    }

    /// Serves HTTPS instead of HTTP.
    pub(crate) fn over_tls(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Returns the address with the real port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers `GET` and `HEAD` until told to stop. Connections that are open then are cut off.
    pub(crate) async fn serve(
        self,
        stop: CancellationToken,
        answer: impl Fn(&str) -> Option<Answer> + Clone + Send + Sync + 'static,
    ) {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let (answer, stop, tls) = (answer.clone(), stop.clone(), self.tls.clone());
            tokio::spawn(stop.run_until_cancelled_owned(async move {
                match tls {
                    None => converse(stream, answer).await,
                    Some(tls) => match tokio::time::timeout(HEADER_PATIENCE, tls.accept(stream)).await {
                        Ok(Ok(stream)) => converse(stream, answer).await,
                        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                        Err(_) => {}
                    },
                }
            }));
        }
    }
}

/// Answers the requests of one connection. A client that disconnects loses only its answer.
async fn converse<S>(stream: S, answer: impl Fn(&str) -> Option<Answer>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |request: http::Request<Incoming>| {
        let response = respond(&request, &answer);
        async move { Ok::<_, Infallible>(response) }
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_PATIENCE)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn respond<B>(request: &http::Request<B>, answer: impl Fn(&str) -> Option<Answer>) -> Response<Full<Bytes>> {
    let plain = "text/plain; charset=utf-8";
    let (status, answer) = match *request.method() {
        Method::GET | Method::HEAD => match answer(request.uri().path()) {
            Some(answer) => (StatusCode::OK, answer),
            None => {
                let body = "404 page not found\n".to_owned();
                (StatusCode::NOT_FOUND, Answer { content_type: plain, body })
            }
        },
        _ => {
            let body = "Method Not Allowed\n".to_owned();
            (StatusCode::METHOD_NOT_ALLOWED, Answer { content_type: plain, body })
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(answer.content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::BindAddress;

    #[test]
    fn addresses_are_read_as_go_reads_them() {
        for text in [":8080", "127.0.0.1:8080", "[::1]:0", "localhost:1"] {
            let address: BindAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for text in ["", "8080", ":", ":x", ":70000", "::1:80", "[::1:80"] {
            assert!(text.parse::<BindAddress>().is_err(), "{text} was taken");
        }
    }
}
