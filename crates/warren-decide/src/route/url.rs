//! Parses URLs that name a sandbox, in the path or in the host name. Browsers need this, because a
//! page cannot add headers to navigations and WebSocket handshakes.

use super::{BadRequest, Wanted, is_label, parse_port};

/// A sandbox named by a URL, and the part of the path that is for the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlRoute {
    /// The requested sandbox and port. A URL carries no address, UID or timeout.
    pub wanted: Wanted,
    /// The prefix of the path, which is not sent to the sandbox. Empty if the host names the
    /// sandbox.
    pub base: String,
    /// The path that is sent to the sandbox, byte for byte as received. It begins with `/`.
    pub path: String,
}

impl UrlRoute {
    /// Parses `<prefix>/<namespace>/<id>/<port>/…`. `None`: the path does not begin with the
    /// prefix. For a path that does, headers are never used, even if it is malformed.
    pub fn by_path(prefix: &str, path: &str) -> Option<Result<UrlRoute, BadRequest>> {
        let rest = path.strip_prefix(prefix)?.strip_prefix('/')?;
        let mut parts = rest.splitn(4, '/');
        let mut part = || parts.next().filter(|part| !part.is_empty());
        let (Some(namespace), Some(id), Some(port)) = (part(), part(), part()) else {
            return Some(Err(BadRequest::Path));
        };
        let wanted = match wanted(namespace, id, port) {
            Ok(wanted) => wanted,
            Err(error) => return Some(Err(error)),
        };
        let base = format!("{prefix}/{namespace}/{id}/{port}");
        let path = format!("/{}", parts.next().unwrap_or_default());
        Some(Ok(UrlRoute { wanted, base, path }))
    }

    /// Parses the host `<port>-<sandbox>.<namespace>.<domain>`, with or without a port of its own.
    /// `None`: the host is not below the domain.
    pub fn by_host(domain: &str, host: &str, path: &str) -> Option<Result<UrlRoute, BadRequest>> {
        // An IPv6 address in brackets is never below a domain.
        let name = host.split(':').next().unwrap_or_default().to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        let labels = name.strip_suffix(domain)?.strip_suffix('.')?;
        let parsed = labels
            .split_once('.')
            .and_then(|(first, namespace)| Some((first.split_once('-')?, namespace)))
            .ok_or(BadRequest::Host);
        let route = parsed.and_then(|((port, id), namespace)| wanted(namespace, id, port));
        Some(route.map(|wanted| UrlRoute { wanted, base: String::new(), path: path.to_owned() }))
    }
}

fn wanted(namespace: &str, id: &str, port: &str) -> Result<Wanted, BadRequest> {
    if !is_label(namespace) {
        return Err(BadRequest::Namespace);
    }
    if !is_label(id) {
        return Err(BadRequest::Id);
    }
    Ok(Wanted {
        id: id.to_owned(),
        namespace: namespace.to_owned(),
        port: parse_port(port).ok_or(BadRequest::Port)?,
        pod_ip: None,
        uid: None,
        timeout: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Namespace, sandbox, port, base and the rest of the path.
    type Read = (String, String, u16, String, String);

    fn path(path: &str) -> Option<Result<Read, BadRequest>> {
        let route = UrlRoute::by_path("/s", path)?;
        Some(route.map(|it| (it.wanted.namespace, it.wanted.id, it.wanted.port, it.base, it.path)))
    }

    #[test]
    fn a_path_names_a_sandbox_and_its_rest_is_kept_as_sent() {
        for (sent, rest) in [
            ("/s/ns/box/80", "/"),
            ("/s/ns/box/80/", "/"),
            ("/s/ns/box/80/a%2Fb/%252e%252e//../c", "/a%2Fb/%252e%252e//../c"),
            ("/s/ns/box/80/../../other/90/x", "/../../other/90/x"),
            ("/s/ns/box/80//evil.example", "//evil.example"),
        ] {
            let (namespace, id, port, base, path) = path(sent).expect("matches").expect("is well-formed");
            assert_eq!((namespace.as_str(), id.as_str(), port), ("ns", "box", 80));
            assert_eq!((base.as_str(), path.as_str()), ("/s/ns/box/80", rest), "{sent}");
        }
    }

    #[test]
    fn a_malformed_path_below_the_prefix_is_an_error_and_others_are_not_its_business() {
        for (sent, error) in [
            ("/s/", BadRequest::Path),
            ("/s/ns", BadRequest::Path),
            ("/s/ns/box", BadRequest::Path),
            ("/s/ns/box/", BadRequest::Path),
            ("/s//box/80", BadRequest::Path),
            ("/s/../box/80", BadRequest::Namespace),
            ("/s/n%73/box/80", BadRequest::Namespace),
            ("/s/ns/127.0.0.1/80", BadRequest::Id),
            ("/s/ns/box@evil/80", BadRequest::Id),
            ("/s/ns/box/0", BadRequest::Port),
            ("/s/ns/box/+80", BadRequest::Port),
            ("/s/ns/box/65536", BadRequest::Port),
            ("/s/ns/box/0x50", BadRequest::Port),
        ] {
            assert_eq!(path(sent), Some(Err(error)), "{sent}");
        }
        for other in ["/", "/s", "/sx/ns/box/80", "//s/ns/box/80", "/%73/ns/box/80", ""] {
            assert_eq!(path(other), None, "{other}");
        }
    }

    #[test]
    fn a_host_names_a_sandbox() {
        let host = |host: &str| {
            let route = UrlRoute::by_host("box.example", host, "/x")?;
            Some(route.map(|it| (it.wanted.namespace, it.wanted.id, it.wanted.port)))
        };
        let good = Some(Ok(("ns".to_owned(), "my-box".to_owned(), 3000)));
        for name in
            ["3000-my-box.ns.box.example", "3000-MY-box.NS.box.Example:8080", "3000-my-box.ns.box.example."]
        {
            assert_eq!(host(name), good, "{name}");
        }
        for (name, error) in [
            ("ns.box.example", BadRequest::Host),
            ("x.box.example", BadRequest::Host),
            ("box.ns.box.example", BadRequest::Host),
            ("3000-a.b.c.box.example", BadRequest::Namespace),
            ("3000-.ns.box.example", BadRequest::Id),
            ("0-a.ns.box.example", BadRequest::Port),
            ("99999-a.ns.box.example", BadRequest::Port),
        ] {
            assert_eq!(host(name), Some(Err(error)), "{name}");
        }
        for name in
            ["box.example", "3000-a.nsbox.example", "3000-a.ns.box.example.evil", "[::1]:80", "127.0.0.1", ""]
        {
            assert_eq!(host(name), None, "{name}");
        }
    }
}
