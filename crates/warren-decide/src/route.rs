//! Decides which sandbox pod a request to the router is for.
//!
//! [`Wanted::parse`] reads the routing headers, [`UrlRoute`] reads URLs that name a sandbox,
//! [`RouteTable`] holds the pods that can be routed to, and [`RouteTable::resolve`] joins the two.
//! A target is always a pod that the table knows: a header never adds an address to it. Start with
//! [`RouteTable::resolve`].

mod table;
#[cfg(test)]
mod tests;
mod url;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

pub use table::{Resolution, Route, RouteTable};
pub use url::UrlRoute;

/// The namespace of a request that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// The port of a request that names none: the one of agent-sandbox's runtime API.
pub const DEFAULT_PORT: u16 = 8888;

/// The longest DNS-1123 label.
const LONGEST_LABEL: usize = 63;

/// The routing headers of a request, as text. `None`: the header is missing.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoutingHeaders<'a> {
    /// `X-Sandbox-ID`.
    pub id: Option<&'a str>,
    /// `X-Sandbox-Namespace`.
    pub namespace: Option<&'a str>,
    /// `X-Sandbox-Port`.
    pub port: Option<&'a str>,
    /// `X-Sandbox-Pod-IP`.
    pub pod_ip: Option<&'a str>,
    /// `X-Sandbox-UID`.
    pub uid: Option<&'a str>,
    /// `X-Sandbox-Timeout`.
    pub timeout: Option<&'a str>,
}

/// A request whose routing headers cannot be used. The text is the answer's `detail`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// There is no `X-Sandbox-ID`.
    #[error("X-Sandbox-ID header is required.")]
    NoId,
    /// `X-Sandbox-ID` is not a DNS-1123 label.
    #[error("Invalid sandbox ID format.")]
    Id,
    /// `X-Sandbox-Namespace` is not a DNS-1123 label.
    #[error("Invalid namespace format.")]
    Namespace,
    /// `X-Sandbox-Port` is not a number from 1 to 65535.
    #[error("Invalid port format.")]
    Port,
    /// `X-Sandbox-Pod-IP` is not an address, or is one that no pod can have.
    #[error("Invalid pod IP format.")]
    PodIp,
    /// A path with the prefix of path routes does not name a sandbox.
    #[error("Path-routed request must have the form <prefix>/<namespace>/<id>/<port>/...")]
    Path,
    /// A host below the domain of host routes does not name a sandbox.
    #[error("Host-routed request must have the host <port>-<id>.<namespace>.<domain>.")]
    Host,
}

/// The target and the options that a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The Sandbox's name.
    pub id: String,
    /// Its namespace.
    pub namespace: String,
    /// The port in the pod.
    pub port: u16,
    /// The address that the client believes the pod to have.
    pub pod_ip: Option<IpAddr>,
    /// The Sandbox's UID, if the client knows it.
    pub uid: Option<String>,
    /// The longest time that the client is willing to wait. Values that are not a positive number
    /// of seconds are ignored.
    pub timeout: Option<Duration>,
}

impl Wanted {
    /// Reads the routing headers.
    pub fn parse(headers: RoutingHeaders<'_>) -> Result<Wanted, BadRequest> {
        let id = headers.id.filter(|id| !id.is_empty()).ok_or(BadRequest::NoId)?;
        let namespace = headers.namespace.filter(|it| !it.is_empty()).unwrap_or(DEFAULT_NAMESPACE);
        if !is_label(id) {
            return Err(BadRequest::Id);
        }
        if !is_label(namespace) {
            return Err(BadRequest::Namespace);
        }
        let port = match headers.port.filter(|port| !port.is_empty()) {
            None => DEFAULT_PORT,
            Some(port) => parse_port(port).ok_or(BadRequest::Port)?,
        };
        let pod_ip = match headers.pod_ip.filter(|ip| !ip.is_empty()) {
            None => None,
            Some(ip) => Some(parse_pod_ip(ip).ok_or(BadRequest::PodIp)?),
        };
        Ok(Wanted {
            id: id.to_owned(),
            namespace: namespace.to_owned(),
            port,
            pod_ip,
            uid: headers.uid.filter(|uid| !uid.is_empty()).map(str::to_owned),
            timeout: headers.timeout.and_then(parse_timeout),
        })
    }
}

/// Returns whether a text is a DNS-1123 label in lower case.
pub fn is_label(text: &str) -> bool {
    let edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= LONGEST_LABEL
        && bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(|byte| edge(byte) || *byte == b'-')
}

/// Parses a port. `+80` is refused, although `u16::from_str` accepts it.
fn parse_port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port > 0)
}

/// Parses an address that a pod can have. Only the standard notations are valid: octal, decimal and
/// shortened ones are not. An IPv4-mapped IPv6 address counts as its IPv4 address.
fn parse_pod_ip(text: &str) -> Option<IpAddr> {
    let address = text.parse::<IpAddr>().ok()?.to_canonical();
    can_be_a_pods(address).then_some(address)
}

/// Returns true if a pod can have this address: not loopback, link-local, multicast, unspecified or
/// broadcast. An IPv4 address that is embedded in an IPv6 one is checked, too.
pub fn can_be_a_pods(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !(address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                || address.octets()[0] == 0)
        }
        IpAddr::V6(address) => {
            let [.., high, low] = address.segments();
            let [a, b] = high.to_be_bytes();
            let [c, d] = low.to_be_bytes();
            let embedded = match address.segments() {
                // Compatible (`::a.b.c.d`, with `::1` and `::`), mapped, translated, NAT64.
                [0, 0, 0, 0, 0, 0, _, _]
                | [0, 0, 0, 0, 0, 0xffff, _, _]
                | [0, 0, 0, 0, 0xffff, 0, _, _]
                | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => Some(Ipv4Addr::new(a, b, c, d)),
                // 6to4.
                [0x2002, high, low, ..] => {
                    let [a, b] = high.to_be_bytes();
                    let [c, d] = low.to_be_bytes();
                    Some(Ipv4Addr::new(a, b, c, d))
                }
                _ => None,
            };
            !(address.is_loopback()
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_unicast_link_local()
                || embedded.is_some_and(|embedded| !can_be_a_pods(embedded.into())))
        }
    }
}

/// Parses a number of seconds, such as `60` or `2.5`.
pub fn parse_timeout(text: &str) -> Option<Duration> {
    let seconds = text.trim().parse::<f64>().ok().filter(|seconds| seconds.is_finite() && *seconds > 0.0)?;
    Duration::try_from_secs_f64(seconds).ok()
}
