//! Sends requests to pods: over HTTP/1.1, or over HTTP/2 without TLS for gRPC.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tracing::debug;
use warren_decide::route::{Route, Wanted};

use crate::Shared;
use crate::answer::Failure;
use crate::body::RequestBody;
use crate::dial::Stream;
use crate::pool::{Connection, PortOfPod};

/// The longest head of an answer.
const LONGEST_HEAD: usize = 64 << 10;
/// The most headers of an answer.
const MOST_HEADERS: usize = 256;

/// The most connections that a request is handed to. It is handed to another one if the last one
/// had just been closed, so that nothing of the request was sent.
const MOST_CLOSED: u32 = 4;

impl Shared {
    /// Sends a request on a connection that waits, or on a new one. Once something of it may have been
    /// sent it is not sent again.
    pub(crate) async fn send(
        &self,
        mut request: Request<RequestBody>,
        wanted: &Wanted,
        route: &Arc<Route>,
        upgrades: bool,
    ) -> Result<Response<Incoming>, Failure> {
        let key: PortOfPod = (route.pod_uid.clone(), wanted.port);
        for _ in 0..MOST_CLOSED {
            let mut connection = match self.pool.take(&key) {
                Some(connection) => connection,
                None => self.connect(wanted, route).await?,
            };
            match connection.try_send_request(request).await {
                Ok(response) => {
                    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                    if switched && !upgrades {
                        return Err(failed(wanted, "other"));
                    }
                    if !switched {
                        self.pool.give_back(key, connection);
                    }
                    return Ok(response);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(no_answer(wanted, &error.into_error())),
                },
            }
        }
        Err(failed(wanted, "eof"))
    }

    /// Sends a call of gRPC. Calls to one port of a pod share a connection.
    pub(crate) async fn send_call(
        &self,
        mut request: Request<RequestBody>,
        wanted: &Wanted,
        route: &Arc<Route>,
    ) -> Result<Response<Incoming>, Failure> {
        let key: PortOfPod = (route.pod_uid.clone(), wanted.port);
        for _ in 0..MOST_CLOSED {
            let mut connection = match self.pool.shared(&key) {
                Some(connection) => connection,
                None => {
                    let stream = self.dial(wanted, route).await?;
                    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
                    builder.timer(TokioTimer::new()).max_header_list_size(LONGEST_HEAD as u32);
                    let handshake = builder.handshake(TokioIo::new(stream)).await;
                    let (sender, connection) = handshake.map_err(|error| no_answer(wanted, &error))?;
                    tokio::spawn(async move {
                        if let Err(error) = connection.await {
                            debug!(%error, "connection to a sandbox ended");
                        }
                    });
                    self.pool.share(key.clone(), sender.clone());
                    sender
                }
            };
            if connection.ready().await.is_err() {
                continue;
            }
            match connection.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(no_answer(wanted, &error.into_error())),
                },
            }
        }
        Err(failed(wanted, "eof"))
    }

    /// Makes a connection for HTTP/1.1.
    async fn connect(&self, wanted: &Wanted, route: &Arc<Route>) -> Result<Connection, Failure> {
        let stream = self.dial(wanted, route).await?;
        let handshake = hyper::client::conn::http1::Builder::new()
            .max_headers(MOST_HEADERS)
            .max_header_size(LONGEST_HEAD)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) = handshake.map_err(|_| failed(wanted, "other"))?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                debug!(%error, "connection to a sandbox ended");
            }
        });
        Ok(sender)
    }

    /// Connects to a pod. Nothing has been sent if that fails, so it is tried again.
    async fn dial(&self, wanted: &Wanted, route: &Arc<Route>) -> Result<Box<dyn Stream>, Failure> {
        let config = &self.config;
        let mut delay = config.retry_initial_delay;
        let mut retries = 0;
        loop {
            let dialled =
                tokio::time::timeout(config.dial_timeout, self.dialer.dial(route, wanted.port)).await;
            let error = match dialled {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "timed out".to_owned(),
            };
            debug!(error, sandbox = wanted.id, namespace = wanted.namespace, "not connected");
            if retries == config.max_retries {
                return Err(failed(wanted, "dial"));
            }
            retries += 1;
            self.metrics.retry(&route.namespace);
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(config.retry_max_delay);
        }
    }
}

fn failed(wanted: &Wanted, reason: &'static str) -> Failure {
    Failure::Unreachable { id: wanted.id.clone(), reason }
}

fn no_answer(wanted: &Wanted, error: &hyper::Error) -> Failure {
    debug!(%error, sandbox = wanted.id, namespace = wanted.namespace, "no answer");
    failed(wanted, if error.is_incomplete_message() { "eof" } else { "other" })
}
