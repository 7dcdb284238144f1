//! The egress proxy: the only way out of a restricted pod. It serves `CONNECT` and plain HTTP,
//! identifies the pod by its address, resolves names itself, and connects only to addresses that
//! the pod's allow-list and policies permit.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, UPGRADE};
use http::{HeaderName, Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tracing::{debug, warn};
use warren_decide::network::policy::Protocol;
use warren_decide::network::{AllowList, Denial, Kind, Mode, kind};

use super::decisions::Service;
use super::{Lease, Network, resolver};
use crate::events::Severity;
use crate::node::Shared;

/// The most concurrent connections of one pod.
const PER_POD: usize = 256;
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// The delay after the address could not be bound: another daemon may be about to end.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// The time that a client may take to send its request.
const REQUEST_PATIENCE: Duration = Duration::from_secs(30);

type Body = BoxBody<Bytes, hyper::Error>;

pub(super) fn listen(shared: &Arc<Shared>, network: &Arc<Network>, tasks: &mut JoinSet<()>) {
    let (shared, network) = (shared.clone(), network.clone());
    tasks.spawn(async move {
        let address = network.proxy_address();
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(error) => warn!(%error, %address, "no egress proxy for pods; trying again"),
            }
            tokio::time::sleep(AFTER_REFUSAL).await;
        };
        accept(shared, network, listener, None).await;
    });
}

/// Accepts connections until it is dropped. With `pod`, only that pod reaches the listener;
/// otherwise each connection belongs to the pod with its source address.
pub(super) async fn accept(
    shared: Arc<Shared>,
    network: Arc<Network>,
    listener: TcpListener,
    pod: Option<Ipv4Addr>,
) {
    let open = Arc::new(Open::default());
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, peer)) = listener.accept().await else {
            // For example out of descriptors: wait for present connections to end.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let from = match (pod, peer.ip()) {
            (Some(pod), _) => pod,
            (None, IpAddr::V4(address)) => address,
            (None, IpAddr::V6(_)) => continue,
        };
        let Some(place) = open.enter(from) else { continue };
        let (shared, network) = (shared.clone(), network.clone());
        connections.spawn(async move {
            serve(shared, network, stream, from).await;
            drop(place);
        });
    }
}

/// The number of open connections by pod.
#[derive(Debug, Default)]
struct Open(Mutex<HashMap<Ipv4Addr, usize>>);

struct Place(Arc<Open>, Ipv4Addr);

impl Open {
    fn enter(self: &Arc<Self>, from: Ipv4Addr) -> Option<Place> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(from).or_default();
        (*count < PER_POD).then(|| {
            *count += 1;
            Place(self.clone(), from)
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.1);
            }
        }
    }
}

/// Serves a connection and its tunnel to the end.
async fn serve(shared: Arc<Shared>, network: Arc<Network>, stream: TcpStream, from: Ipv4Addr) {
    let tunnels = Arc::new(Mutex::new(Vec::new()));
    let service = service_fn(|request| {
        let (shared, network, tunnels) = (shared.clone(), network.clone(), tunnels.clone());
        async move { Ok::<_, Infallible>(handle(&shared, &network, from, request, &tunnels).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_PATIENCE)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        debug!(%error, "proxy connection ended");
    }
    let tunnel = tunnels.lock().unwrap_or_else(PoisonError::into_inner).pop();
    if let Some(Tunnel { upgrade, mut outside }) = tunnel
        && let Ok(inside) = upgrade.await
    {
        // Either side may disconnect at any time.
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(inside), &mut outside).await;
    }
}

/// The destination of a `CONNECT`, used once its answer is sent.
struct Tunnel {
    upgrade: hyper::upgrade::OnUpgrade,
    outside: TcpStream,
}

/// A reason why a request failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the request names no host: this is a proxy")]
    NotForAProxy,
    #[error("{0}")]
    Denied(#[from] Denial),
    #[error("the name does not resolve: {0}")]
    Resolve(#[source] io::Error),
    #[error("the host does not answer: {0}")]
    Connect(#[source] io::Error),
    #[error("the host broke off: {0}")]
    Exchange(#[source] hyper::Error),
}

impl Failure {
    fn status(&self) -> StatusCode {
        match self {
            Failure::NotForAProxy => StatusCode::BAD_REQUEST,
            Failure::Denied(_) => StatusCode::FORBIDDEN,
            Failure::Resolve(_) | Failure::Connect(_) | Failure::Exchange(_) => StatusCode::BAD_GATEWAY,
        }
    }
}

async fn handle(
    shared: &Shared,
    network: &Network,
    from: Ipv4Addr,
    mut request: Request<Incoming>,
    tunnels: &Mutex<Vec<Tunnel>>,
) -> Response<Body> {
    let done = async {
        let (host, port) = target(&request).ok_or(Failure::NotForAProxy)?;
        let outside = open(shared, network, from, &host, port).await?;
        if request.method() == Method::CONNECT {
            let upgrade = hyper::upgrade::on(&mut request);
            tunnels.lock().unwrap_or_else(PoisonError::into_inner).push(Tunnel { upgrade, outside });
            return Ok(Response::new(text(String::new())));
        }
        pass_on(request, outside).await
    };
    done.await.unwrap_or_else(|failure: Failure| {
        let mut response = Response::new(text(format!("warren: {failure}\n")));
        *response.status_mut() = failure.status();
        response
    })
}

fn text(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed()
}

/// Returns a request's target: `CONNECT` names host and port, others have a whole URL.
fn target(request: &Request<Incoming>) -> Option<(String, u16)> {
    let uri = request.uri();
    let is_connect = request.method() == Method::CONNECT;
    let port = match (uri.port_u16(), uri.scheme_str()) {
        (Some(port), _) => port,
        (None, Some("http")) if !is_connect => 80,
        _ => return None,
    };
    if !is_connect && uri.scheme_str() != Some("http") {
        return None;
    }
    let host = uri.host().filter(|host| !host.is_empty())?;
    Some((host.trim_start_matches('[').trim_end_matches(']').to_owned(), port))
}

/// Connects to a pod's target, if that is allowed.
async fn open(
    shared: &Shared,
    network: &Network,
    from: Ipv4Addr,
    host: &str,
    port: u16,
) -> Result<TcpStream, Failure> {
    let Some((pod, lease)) = network.pod_at(&shared.registry, from) else {
        network.decisions.note(Service::Proxy, None, host, port, Err(Denial::Stranger));
        return Err(Denial::Stranger.into());
    };
    let checked = check(network, &pod, &lease, host, port).await;
    let outcome = match &checked {
        Err(Failure::Denied(denial)) => Err(*denial),
        _ => Ok(()),
    };
    network.decisions.note(Service::Proxy, Some(&pod), host, port, outcome);
    if let Err(denial) = outcome
        && network.decisions.tell(pod.metadata.uid.as_deref().unwrap_or_default(), host)
    {
        let host: String = host.chars().take(253).filter(|letter| !letter.is_control()).collect();
        shared.events.record(
            &pod,
            None,
            Severity::Warning,
            "EgressRefused",
            format!("{host}:{port}: {denial}"),
        );
    }
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in checked? {
        let connecting = TcpStream::connect(SocketAddr::new(address, port));
        match tokio::time::timeout(CONNECT_PATIENCE, connecting).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(late) => last = late.into(),
        }
    }
    Err(Failure::Connect(last))
}

/// Returns the addresses that may be tried.
async fn check(
    network: &Network,
    pod: &k8s_openapi::api::core::v1::Pod,
    lease: &Lease,
    host: &str,
    port: u16,
) -> Result<Vec<IpAddr>, Failure> {
    let list = AllowList::of(pod).map_err(|_| Denial::Host)?;
    let is_full = lease.mode == Mode::Full;
    if !is_full {
        list.check_host(host, port)?;
    }
    let literal = host.parse::<IpAddr>().ok();
    let found = match literal {
        Some(address) => vec![address],
        None => resolver::resolve(host).await.map_err(Failure::Resolve)?,
    };
    let rules = network.rules();
    let may = |address: IpAddr| {
        if is_full && kind(address) == Kind::Local || is_own(network, address) {
            return Err(Denial::LocalAddress);
        }
        if !is_full {
            list.check_address(address, literal.is_some())?;
        }
        let allowed = match address {
            IpAddr::V4(to) => rules.allows_egress(lease.address, to, Protocol::Tcp, port),
            // Policies here cover only IPv4: a pod that they isolate must not bypass them by IPv6.
            IpAddr::V6(_) => !rules.egress_isolated.contains(lease.address),
        };
        if allowed { Ok(()) } else { Err(Denial::Policy) }
    };
    let mut denial = None;
    let mut allowed = Vec::new();
    for address in found {
        match may(address) {
            Ok(()) => allowed.push(address),
            Err(reason) => denial = Some(reason),
        }
    }
    match denial {
        Some(denial) if allowed.is_empty() => Err(denial.into()),
        _ => Ok(allowed),
    }
}

/// Returns true if an address belongs to this machine or to a pod. The kernel decides: a socket
/// connected to an own address gets that address as its source. No packet is sent.
fn is_own(network: &Network, address: IpAddr) -> bool {
    if matches!(address, IpAddr::V4(address) if network.range.contains(address)) {
        return true;
    }
    let any: SocketAddr = match address {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    // Any port will do.
    let from = UdpSocket::bind(any).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    from.is_ok_and(|from| from.ip() == address)
}

/// Hop-by-hop headers.
const OF_THE_CONNECTION: [HeaderName; 6] =
    [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, UPGRADE];

/// Forwards a plain HTTP request over a connection of its own.
async fn pass_on(mut request: Request<Incoming>, outside: TcpStream) -> Result<Response<Body>, Failure> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(outside)).await.map_err(Failure::Exchange)?;
    tokio::spawn(connection);
    let authority = request.uri().authority().cloned().ok_or(Failure::NotForAProxy)?;
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    *request.uri_mut() = path.parse::<Uri>().map_err(|_| Failure::NotForAProxy)?;
    let headers = request.headers_mut();
    for name in OF_THE_CONNECTION {
        headers.remove(name);
    }
    headers.remove("proxy-connection");
    headers.remove("keep-alive");
    // The host that was checked, whatever the client sent in this header.
    let host = authority.as_str().rsplit('@').next().unwrap_or_default();
    headers.insert(HOST, host.parse().map_err(|_| Failure::NotForAProxy)?);
    let mut response = sender.send_request(request).await.map_err(Failure::Exchange)?;
    response.headers_mut().remove(CONNECTION);
    Ok(response.map(|body| body.boxed()))
}
