//! Which headers pass through the router, and which it writes.

use std::net::IpAddr;

use http::header::{
    AUTHORIZATION, CONNECTION, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use warren_decide::route::RoutingHeaders;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const PROXY_AUTHENTICATE: HeaderName = HeaderName::from_static("proxy-authenticate");
const PROXY_AUTHORIZATION: HeaderName = HeaderName::from_static("proxy-authorization");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers between two neighbours, which go no further.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Returns the routing headers. One that is not text counts as one with a value that is refused.
pub(crate) fn routing(headers: &HeaderMap) -> RoutingHeaders<'_> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"));
    RoutingHeaders {
        id: text("x-sandbox-id"),
        namespace: text("x-sandbox-namespace"),
        port: text("x-sandbox-port"),
        pod_ip: text("x-sandbox-pod-ip"),
        uid: text("x-sandbox-uid"),
        timeout: text("x-sandbox-timeout"),
    }
}

/// Returns the protocol that a request wants to change to.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")));
    headers.get(UPGRADE).filter(|_| asked).cloned()
}

/// Removes the headers that are for us alone.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Adds the headers of an upgrade, which were removed as hop-by-hop.
pub(crate) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// The facts about a client that the router knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client<'a> {
    pub(crate) address: IpAddr,
    pub(crate) is_tls: bool,
    /// The name under which the client sees us.
    pub(crate) host: Option<&'a str>,
}

/// Makes a client's headers into those that the sandbox gets.
pub(crate) fn forward(headers: &mut HeaderMap, host: &str, client: &Client<'_>) {
    let upgrade = upgrade(headers);
    strip_hop_by_hop(headers);
    // Credentials are for the router. What the client says of itself is replaced by what we know.
    for name in [AUTHORIZATION, EXPECT, FORWARDED, FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PROTO] {
        headers.remove(name);
    }
    let value = |text: &str| HeaderValue::from_str(text).ok();
    headers.extend(client.host.and_then(value).map(|host| (FORWARDED_HOST, host)));
    headers.extend(value(&client.address.to_string()).map(|client| (FORWARDED_FOR, client)));
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(if client.is_tls { "https" } else { "http" }));
    headers.remove(HOST);
    headers.extend(value(host).map(|host| (HOST, host)));
    if let Some(protocol) = upgrade {
        // Servers of WebSockets compare it with their own name, which the client cannot know.
        headers.remove(ORIGIN);
        set_upgrade(headers, protocol);
    }
}

/// Returns whether a `Host` is a name of loopback, with or without a port. `localhost` and what is below it have no
/// other address than loopback (RFC 6761), and no domain name of anybody is below it.
pub(crate) fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|it| it.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn hop_by_hop_headers_credentials_and_forged_origins_stay_here() {
        let mut map = headers(&[
            ("connection", "close, x-private"),
            ("x-private", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "x"),
            ("authorization", "Bearer secret"),
            ("x-forwarded-for", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("host", "router"),
            ("x-sandbox-id", "box"),
            ("x-request-id", "r"),
            ("origin", "http://page"),
        ]);
        let client = Client { address: [192, 0, 2, 1].into(), is_tls: false, host: Some("router") };
        forward(&mut map, "10.0.0.1:8888", &client);
        assert_eq!(
            map,
            headers(&[
                ("host", "10.0.0.1:8888"),
                ("x-sandbox-id", "box"),
                ("x-request-id", "r"),
                ("origin", "http://page"),
                ("x-forwarded-for", "192.0.2.1"),
                ("x-forwarded-host", "router"),
                ("x-forwarded-proto", "http"),
            ])
        );
    }

    #[test]
    fn an_upgrade_passes_without_its_origin() {
        let mut map =
            headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket"), ("origin", "x")]);
        forward(&mut map, "h", &Client { address: [127, 0, 0, 1].into(), is_tls: true, host: None });
        assert_eq!(map.get("x-forwarded-proto").map(HeaderValue::as_bytes), Some(&b"https"[..]));
        assert_eq!(map.get("connection").map(HeaderValue::as_bytes), Some(&b"upgrade"[..]));
        assert_eq!(map.get("upgrade").map(HeaderValue::as_bytes), Some(&b"websocket"[..]));
        assert_eq!(map.get("origin"), None);
        // Only the two headers together ask for one.
        assert_eq!(upgrade(&headers(&[("upgrade", "websocket")])), None);
        assert_eq!(upgrade(&headers(&[("connection", "upgrade")])), None);
    }

    #[test]
    fn only_names_of_loopback_are_loopback() {
        for good in [
            "127.0.0.1",
            "127.0.0.1:80",
            "localhost:80",
            "LOCALHOST",
            "[::1]:80",
            "[::1]",
            "127.9.9.9",
            "80-box.ns.LocalHost:80",
        ] {
            assert!(is_loopback(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:80",
            "[fe80::1]",
            "10.0.0.1",
        ] {
            assert!(!is_loopback(bad), "{bad}");
        }
    }
}
