//! Which sandbox a request is for: its path, its host or its headers say it, in this order.

use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};
use warren_decide::route::{BadRequest, UrlRoute, Wanted, parse_timeout};

use crate::answer::Failure;
use crate::{Config, headers};

/// The way that a request names its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// By headers, which no web page can send to another origin without being asked.
    Headers,
    /// By its path or its host, as browsers do.
    Url,
}

/// The target of a request.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) wanted: Wanted,
    pub(crate) via: Via,
    /// The beginning of the path that the sandbox does not get.
    pub(crate) base: String,
    /// Path and query as the sandbox gets them, but for our own query parameter.
    pub(crate) path: PathAndQuery,
    /// The name under which the client sees us.
    pub(crate) host: String,
}

impl Target {
    /// Reads the target of a request.
    pub(crate) fn of(config: &Config, uri: &Uri, map: &HeaderMap) -> Result<Target, Failure> {
        let sent = uri.path_and_query().cloned().ok_or(Failure::Unroutable("The request has no path."))?;
        let host = host(uri, map).unwrap_or_default().to_owned();
        let by_path = config.path_routing_prefix.as_deref();
        let by_host = config.host_routing_domain.as_deref();
        let route = by_path.and_then(|prefix| UrlRoute::by_path(prefix, sent.path()));
        let route = route.or_else(|| UrlRoute::by_host(by_host?, &host, sent.path()));
        let Some(route) = route else {
            let wanted = Wanted::parse(headers::routing(map))?;
            return Ok(Target { wanted, via: Via::Headers, base: String::new(), path: sent, host });
        };
        let UrlRoute { mut wanted, base, path } = route?;
        wanted.timeout = map.get("x-sandbox-timeout").and_then(|it| it.to_str().ok()).and_then(parse_timeout);
        let path = match sent.query() {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        let path = PathAndQuery::try_from(path).map_err(|_| BadRequest::Path)?;
        Ok(Target { wanted, via: Via::Url, base, path, host })
    }

    /// Returns the path that the client sent, with another query.
    pub(crate) fn inbound(&self, query: Option<&str>) -> String {
        let path = format!("{}{}", self.base, self.path.path());
        // A path of two slashes would be a host in a `Location`.
        let path = if path.starts_with("//") || path.starts_with("/\\") { format!("/.{path}") } else { path };
        match query.filter(|query| !query.is_empty()) {
            Some(query) => format!("{path}?{query}"),
            None => path,
        }
    }
}

/// Returns the name under which the client sees us.
pub(crate) fn host<'a>(uri: &'a Uri, map: &'a HeaderMap) -> Option<&'a str> {
    let from_uri = uri.authority().map(http::uri::Authority::as_str);
    from_uri.or_else(|| map.get(HOST)?.to_str().ok())
}

/// Returns where a request belongs that names no sandbox but comes from a page of one: web pages have links that begin
/// with `/`, and know nothing of the prefix of path routes.
pub(crate) fn home_of_stray(config: &Config, uri: &Uri, map: &HeaderMap) -> Option<String> {
    let prefix = config.path_routing_prefix.as_deref()?;
    let referer: Uri = map.get(http::header::REFERER)?.to_str().ok()?.parse().ok()?;
    if map.contains_key("x-sandbox-id") || referer.authority()?.as_str() != host(uri, map)? {
        return None;
    }
    let page = UrlRoute::by_path(prefix, referer.path())?.ok()?;
    Some(format!("{}{}", page.base, uri.path_and_query()?))
}
