//! Port-forward: connections to the loopback of a pod's network, many over one WebSocket.
//!
//! Clients use one of two protocols. kubectl tunnels a SPDY session ([`tunnel`]); with an API
//! server before 1.36 in between, there is no WebSocket around it. kube-rs and others number their
//! messages ([`channels`]). Both make connections with the functions of this module.

mod channels;
mod tunnel;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use warren_oci::client::CallError;
use warren_oci::protocol::{Call, RefusalReason};

use super::session::CHUNK;
use super::upgrade::{Handshake, SpdyHandshake};
use super::{Body, text};
use crate::network::Lease;
use crate::node::Shared;
use crate::shim::Shim;

/// The messages that may wait for the client, over all connections of a session.
const MESSAGES_AHEAD: usize = 16;
/// The client's messages that may wait for one connection. Then the whole session waits, as the
/// protocol cannot slow down a single connection.
const INPUT_AHEAD: usize = 16;

/// The pod to forward to.
#[derive(Debug, Clone)]
pub(super) struct Target {
    place: Place,
    name: String,
    uid: String,
}

/// The location of a pod's ports.
#[derive(Debug, Clone)]
enum Place {
    /// In the network of the pod; this is its shim's directory.
    Pod(PathBuf),
    /// In this process, which the pod stands for.
    Process(BTreeMap<u16, SocketAddr>),
}

/// The error of a failed connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("the pod is not running")]
    Shim(#[source] io::Error),
    #[error(transparent)]
    Refused(#[from] CallError),
    #[error("the pod's runtime has a network of its own, and the pod has no address")]
    NoAddress,
    #[error("the pod has no port {0}")]
    NoPort(u16),
    #[error("failed to connect to {address}: {source}")]
    Process { address: SocketAddr, source: io::Error },
    #[error("failed to connect to {address}:{port}: {source}")]
    Address { address: Ipv4Addr, port: u16, source: io::Error },
    #[error("failed to connect to localhost:{port} inside the pod: IPv4: {first}, IPv6: {second}")]
    Nobody { port: u16, first: io::Error, second: io::Error },
}

pub(super) fn answer(
    shared: &Shared,
    request: Request<Incoming>,
    namespace: &str,
    pod: &str,
) -> Response<Body> {
    let Some(target) = Target::find(shared, namespace, pod) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist");
    };
    if let Some(handshake) = SpdyHandshake::begun(request.headers()) {
        if !handshake.offers(tunnel::PLAIN_PROTOCOL) {
            let known = tunnel::PLAIN_PROTOCOL;
            return text(StatusCode::FORBIDDEN, format!("port-forward over SPDY needs the protocol {known}"));
        }
        return handshake
            .complete(request, tunnel::PLAIN_PROTOCOL, |stream| tunnel::serve_plain(stream, target));
    }
    let Some(handshake) = Handshake::begun(request.headers()) else {
        return text(StatusCode::BAD_REQUEST, "port-forward needs a WebSocket or SPDY");
    };
    let offered = handshake.offered.clone();
    let offered: Vec<&str> = offered.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if offered.contains(&tunnel::PROTOCOL) {
        return handshake.complete(request, Some(tunnel::PROTOCOL), |stream| tunnel::serve(stream, target));
    }
    // A request without a subprotocol means the same, as in kubelet.
    let protocol = offered.contains(&channels::PROTOCOL).then_some(channels::PROTOCOL);
    if protocol.is_none() && !offered.is_empty() {
        let known = [tunnel::PROTOCOL, channels::PROTOCOL].join(" or ");
        return text(StatusCode::BAD_REQUEST, format!("port-forward needs the subprotocol {known}"));
    }
    match channels::ports(request.uri().query().unwrap_or_default()) {
        Ok(ports) => handshake.complete(request, protocol, |stream| channels::serve(stream, target, ports)),
        Err(problem) => text(StatusCode::BAD_REQUEST, problem),
    }
}

/// Connects to a port of a pod.
pub(crate) async fn connect_to_pod(
    shared: &Shared,
    namespace: &str,
    pod: &str,
    port: u16,
) -> io::Result<TcpStream> {
    let target = Target::find(shared, namespace, pod);
    let target = target.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "pod does not exist"))?;
    target.connect(port).await.map_err(io::Error::other)
}

impl Target {
    fn find(shared: &Shared, namespace: &str, pod: &str) -> Option<Target> {
        let name = format!("{namespace}/{pod}");
        if let Some(own) = shared.own_pod(namespace, pod) {
            return Some(Target { place: Place::Process(own.ports.clone()), name, uid: String::new() });
        }
        let (entry, object) = shared.registry.named(namespace, pod)?;
        Some(Target {
            place: Place::Pod(entry.directory.0.clone()),
            name,
            uid: object.metadata.uid.clone().unwrap_or_default(),
        })
    }

    /// Connects to a port on the pod's loopback, IPv4 first.
    async fn connect(&self, port: u16) -> Result<TcpStream, ConnectError> {
        let directory = match &self.place {
            Place::Pod(directory) => directory,
            Place::Process(ports) => {
                let address = *ports.get(&port).ok_or(ConnectError::NoPort(port))?;
                let connected = TcpStream::connect(address).await;
                return connected.map_err(|source| ConnectError::Process { address, source });
            }
        };
        let mut shim = Shim::connect(directory).map_err(ConnectError::Shim)?;
        let first = match connect_to(&mut shim, SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(CallError::Refused(refusal)) if refusal.reason == RefusalReason::Unsupported => {
                return connect_from_outside(directory, port).await;
            }
            Err(error) => return Err(error.into()),
        };
        match connect_to(&mut shim, SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(second)) => Err(ConnectError::Nobody { port, first, second }),
            Err(error) => Err(ConnectError::Nobody { port, first, second: io::Error::other(error) }),
        }
    }

    /// Carries one connection until the pod's side has ended: input from the client, and output
    /// that `encode` turns into messages. The error is for the client to read.
    async fn carry(
        &self,
        port: u16,
        mut input: mpsc::Receiver<Bytes>,
        output: &mpsc::Sender<Bytes>,
        encode: impl Fn(&[u8]) -> Bytes,
    ) -> Result<(), String> {
        let told = |error: &dyn std::fmt::Display| {
            format!("error forwarding port {port} to pod {}, uid {}: {error}", self.name, self.uid)
        };
        let stream = self.connect(port).await.map_err(|error| told(&error))?;
        let (mut reader, mut writer) = stream.into_split();
        let to_pod = async {
            while let Some(data) = input.recv().await {
                writer.write_all(&data).await?;
            }
            writer.shutdown().await
        };
        let from_pod = async {
            let mut buffer = vec![0; CHUNK];
            loop {
                let length = reader.read(&mut buffer).await?;
                // Stop when the client is gone.
                if length == 0 || output.send(encode(&buffer[..length])).await.is_err() {
                    return io::Result::Ok(());
                }
            }
        };
        tokio::pin!(to_pod, from_pod);
        let ended = tokio::select! {
            ended = &mut from_pod => ended,
            // The pod may still answer. If a write failed, the pod's end shows it.
            _ = &mut to_pod => from_pod.await,
        };
        match ended {
            // A reset by the pod is not a failure of forwarding.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            ended => ended.map_err(|error| told(&error)),
        }
    }
}

/// Connects to a port on the pod's address: a runtime with its own network has no loopback that the
/// host can reach.
async fn connect_from_outside(directory: &Path, port: u16) -> Result<TcpStream, ConnectError> {
    let address = Lease::read(directory).ok_or(ConnectError::NoAddress)?.address;
    let connected = TcpStream::connect((address, port)).await;
    connected.map_err(|source| ConnectError::Address { address, port, source })
}

/// Connects through the shim. The outer error is ours, the inner one the pod's.
async fn connect_to(shim: &mut Shim, address: SocketAddr) -> Result<io::Result<TcpStream>, CallError> {
    let (_, sockets) = shim.call(Call::Socket { version_6: address.is_ipv6() }).await?;
    let socket = sockets.into_iter().next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    // The socket is not connected yet, despite its type: this is how tokio adopts a socket.
    Ok(TcpSocket::from_std_stream(std::net::TcpStream::from(socket)).connect(address).await)
}
