//! Carries out a container's hooks and probes: by a command, HTTP, a connection or gRPC.

use std::pin::pin;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{
    ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncRead, AsyncWrite};

use super::inside::Inside;

/// The user agent of probes: kubelet's name, which servers may know.
const USER_AGENT: &str = "kube-probe/1.36";
/// The longest part of an answer that is read.
const LONGEST_ANSWER: usize = 10 << 10;

/// Carries out a hook.
pub(super) async fn hook(inside: &Inside, hook: &LifecycleHandler) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        command(inside, exec).await
    } else if let Some(get) = &hook.http_get {
        http(inside, get, true).await
    } else if let Some(socket) = &hook.tcp_socket {
        connect(inside, socket).await
    } else if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
        Ok(())
    } else {
        Err("invalid handler".to_owned())
    }
}

/// Carries out a probe once.
pub(super) async fn probe(inside: &Inside, probe: &Probe, timeout: Duration) -> Result<(), String> {
    let question = async {
        if let Some(exec) = &probe.exec {
            command(inside, exec).await
        } else if let Some(get) = &probe.http_get {
            http(inside, get, false).await
        } else if let Some(socket) = &probe.tcp_socket {
            connect(inside, socket).await
        } else if let Some(grpc) = &probe.grpc {
            health_service(inside, grpc).await
        } else {
            Err("missing probe handler".to_owned())
        }
    };
    tokio::time::timeout(timeout, question)
        .await
        .unwrap_or_else(|_| Err(format!("timeout: no answer within {} s", timeout.as_secs())))
}

async fn command(inside: &Inside, exec: &ExecAction) -> Result<(), String> {
    let (exit, said) = inside.run(exec.command.as_deref().unwrap_or_default()).await?;
    match (exit.code, said.trim_end()) {
        (0, _) => Ok(()),
        (code, "") => Err(format!("command exited with {code}")),
        (_, said) => Err(said.to_owned()),
    }
}

async fn connect(inside: &Inside, socket: &TCPSocketAction) -> Result<(), String> {
    inside.connect(socket.host.as_deref(), &socket.port).await.map(drop)
}

/// Sends an HTTP request. For a hook any answer is a success.
async fn http(inside: &Inside, get: &HTTPGetAction, any_answer: bool) -> Result<(), String> {
    let address = inside.socket_address(get.host.as_deref(), &get.port)?;
    let path = get.path.as_deref().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let mut request = http::Request::get(path);
    let given = get.http_headers.as_deref().unwrap_or_default();
    let is_given = |name: &str| given.iter().any(|header| header.name.eq_ignore_ascii_case(name));
    for (name, value) in
        [("host", address.to_string()), ("user-agent", USER_AGENT.to_owned()), ("accept", "*/*".to_owned())]
    {
        if !is_given(name) {
            request = request.header(name, value);
        }
    }
    for header in given {
        request = request.header(&header.name, &header.value);
    }
    let request = request.body(Full::<Bytes>::default()).map_err(|error| error.to_string())?;
    let failed = |error: hyper::Error| format!("Get \"http://{address}\": {error}");

    let stream = inside.connect(get.host.as_deref(), &get.port).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let asking = async {
        let response = sender.send_request(request).await.map_err(failed)?;
        match response.status() {
            _ if any_answer => Ok(()),
            status if status.is_success() || status.is_redirection() => Ok(()),
            status => Err(format!("HTTP probe failed with statuscode: {}", status.as_u16())),
        }
    };
    with(connection, asking).await
}

/// Waits for an answer while it polls the connection, which makes progress only then. A connection
/// that has ended may still have brought the answer.
async fn with<T>(connection: impl Future, asking: impl Future<Output = T>) -> T {
    let mut asking = pin!(asking);
    tokio::select! {
        answer = &mut asking => answer,
        _ = connection => asking.await,
    }
}

/// Queries the gRPC health service.
async fn health_service(inside: &Inside, grpc: &GRPCAction) -> Result<(), String> {
    let service = grpc.service.as_deref().unwrap_or_default();
    let port = IntOrString::Int(grpc.port);
    let address = inside.socket_address(None, &port)?;
    let stream = inside.connect(None, &port).await?;
    ask_health_service(stream, &address.to_string(), service).await
}

async fn ask_health_service<S>(stream: S, authority: &str, service: &str) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = |error: hyper::Error| format!("error: health rpc probe failed: {error}");
    let request = http::Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", USER_AGENT)
        .body(Full::new(health_request(service)))
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(failed)?;
    let asking = async {
        let response = sender.send_request(request).await.map_err(failed)?;
        let refused = response.headers().get("grpc-status").filter(|code| code.as_bytes() != b"0").cloned();
        if let Some(code) = refused {
            return Err(format!("error: health rpc failed with code {}", code.to_str().unwrap_or("?")));
        }
        let answer = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await;
        let answer = answer.map_err(|error| format!("error: health rpc probe failed: {error}"))?;
        match health_answer(answer.to_bytes()) {
            Some(1) => Ok(()),
            status => Err(format!("service unhealthy (responded with {:?})", status_name(status))),
        }
    };
    with(connection, asking).await
}

/// Encodes `HealthCheckRequest { service = 1 }` in a gRPC frame.
fn health_request(service: &str) -> Bytes {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), &message].concat().into()
}

/// Decodes the status in a `HealthCheckResponse`: its only field, a small number, which is left out
/// when it is 0.
fn health_answer(mut frame: Bytes) -> Option<u8> {
    if frame.remaining() < 5 || frame.get_u8() != 0 {
        return None;
    }
    let length = usize::try_from(frame.get_u32()).ok()?;
    match frame.get(..length)? {
        [] => Some(0),
        [0x08, status, ..] => Some(*status),
        _ => None,
    }
}

fn status_name(status: Option<u8>) -> &'static str {
    match status {
        Some(0) => "UNKNOWN",
        Some(1) => "SERVING",
        Some(2) => "NOT_SERVING",
        Some(3) => "SERVICE_UNKNOWN",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_messages_have_their_form_on_the_wire() {
        assert_eq!(health_request(""), Bytes::from_static(&[0, 0, 0, 0, 0]));
        assert_eq!(health_request("db"), Bytes::from_static(&[0, 0, 0, 0, 4, 0x0a, 2, b'd', b'b']));
        for (frame, wanted) in [
            (&[0, 0, 0, 0, 2, 8, 1][..], Some(1)),
            (&[0, 0, 0, 0, 0], Some(0)),
            (&[0, 0, 0, 0, 9, 8, 1], None),
            (&[1, 0, 0, 0, 2, 8, 1], None),
            (&[], None),
        ] {
            assert_eq!(health_answer(Bytes::copy_from_slice(frame)), wanted, "{frame:?}");
        }
    }

    /// Runs a probe against a server that answers every health check like this.
    async fn asked(answer: &'static [u8]) -> Result<(), String> {
        let (client, server) = tokio::io::duplex(4096);
        let respond = move |request: http::Request<hyper::body::Incoming>| async move {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            let asked = request.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(asked, health_request("db"));
            let response = http::Response::builder().header("content-type", "application/grpc");
            Ok::<_, std::convert::Infallible>(response.body(Full::new(Bytes::from_static(answer))).unwrap())
        };
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(server), hyper::service::service_fn(respond));
        tokio::spawn(serving);
        ask_health_service(client, "127.0.0.1:1", "db").await
    }

    #[tokio::test]
    async fn the_health_service_is_asked_and_believed() {
        assert_eq!(asked(&[0, 0, 0, 0, 2, 8, 1]).await, Ok(()));
        let unwell = asked(&[0, 0, 0, 0, 2, 8, 2]).await;
        assert_eq!(unwell, Err("service unhealthy (responded with \"NOT_SERVING\")".to_owned()));
    }
}
