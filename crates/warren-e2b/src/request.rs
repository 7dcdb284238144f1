//! Which part of the server a request is for: the control API, or a port of a sandbox.

use http::header::HOST;
use http::{HeaderMap, Request};

use warren_proto::envd;

use crate::answer::Refusal;

/// A port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) id: String,
    pub(crate) port: u16,
}

/// Returns the sandbox that a request is for; none if it is for the control API. The host name `PORT-ID.anything` goes
/// before the headers.
pub(crate) fn target<B>(request: &Request<B>) -> Result<Option<Target>, Refusal> {
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    let host = authority.or_else(|| request.headers().get(HOST)?.to_str().ok()).unwrap_or_default();
    match by_host(host) {
        Some(target) => Ok(Some(target)),
        None if is_of_control(request) => Ok(None),
        None => by_headers(request.headers()),
    }
}

/// Returns whether a request is for the control API although its headers name a sandbox: older clients send the headers
/// of a sandbox that they have with all requests. They name the port of the envd API, which has no such path.
fn is_of_control<B>(request: &Request<B>) -> bool {
    let port = request.headers().get("e2b-sandbox-port").and_then(|port| port.to_str().ok()?.parse().ok());
    let path = request.uri().path();
    let first = path.trim_start_matches("/v2").split('/').nth(1).unwrap_or_default();
    port == Some(envd::PORT) && matches!(first, "sandboxes" | "snapshots" | "templates" | "v3")
}

fn by_host(host: &str) -> Option<Target> {
    let (label, _domain) = host.split_once('.')?;
    let (port, id) = label.split_once('-')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    is_id(id).then(|| Target { id: id.to_owned(), port })
}

fn by_headers(headers: &HeaderMap) -> Result<Option<Target>, Refusal> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let (id, port) = match (text("e2b-sandbox-id"), text("e2b-sandbox-port")) {
        (None, _) => return Ok(None),
        (Some(_), None) => return Err(Refusal::bad("the header `E2b-Sandbox-Port` is missing")),
        (Some(id), Some(port)) => (id, port),
    };
    if !is_id(id) {
        return Err(Refusal::gone(&id.chars().take(64).collect::<String>()));
    }
    let port = port.parse().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| Refusal::bad("the header `E2b-Sandbox-Port` is not a port"))?;
    Ok(Some(Target { id: id.to_owned(), port }))
}

/// Returns whether a text can be the id of a sandbox. Nothing else is ever asked for at the API server.
pub(crate) fn is_id(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Returns the decoded parameters of a query.
pub(crate) fn parameters(query: Option<&str>) -> Vec<(String, String)> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(host: &str, headers: &[(&str, &str)]) -> Result<Option<(String, u16)>, u16> {
        let mut request = Request::builder().uri("/").header(HOST, host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let target = target(&request.body(()).expect("a request"));
        target
            .map(|target| target.map(|target| (target.id, target.port)))
            .map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn sandboxes_are_told_by_host_name_or_by_headers() {
        let box_ = |port| Ok(Some(("i1a".to_owned(), port)));
        let headers = [("e2b-sandbox-id", "i1a"), ("e2b-sandbox-port", "49983")];
        assert_eq!(found("127.0.0.1:7983", &[]), Ok(None));
        assert_eq!(found("8080-i1a.localhost:7983", &[]), box_(8080));
        assert_eq!(found("8080-i1a.localhost", &headers), box_(8080));
        assert_eq!(found("127.0.0.1", &headers), box_(49983));
        assert_eq!(found("", &headers), box_(49983));
    }

    #[test]
    fn control_requests_of_older_clients_name_a_sandbox_too() {
        for (path, port, is_control) in [
            ("/v2/sandboxes/i1a", "49983", true),
            ("/sandboxes/i1a/connect", "49983", true),
            ("/sandboxes", "8080", false),
            ("/files?path=sandboxes", "49983", false),
        ] {
            let headers = [("e2b-sandbox-id", "i1a"), ("e2b-sandbox-port", port)];
            let request = headers
                .iter()
                .fold(Request::builder().uri(path), |request, (name, value)| request.header(*name, *value));
            let target = target(&request.body(()).expect("a request")).expect("taken");
            assert_eq!(target.is_none(), is_control, "{path} {port}");
        }
    }

    #[test]
    fn names_that_cannot_be_sandboxes_lead_nowhere() {
        for host in [
            "0-i1a.localhost",
            "99999-i1a.localhost",
            "80-../x.localhost",
            "80-I1A.localhost",
            "80-.localhost",
        ] {
            assert_eq!(found(host, &[]), Ok(None), "{host}");
        }
        assert_eq!(found("x", &[("e2b-sandbox-id", "i1a")]), Err(400));
        assert_eq!(found("x", &[("e2b-sandbox-id", "../x"), ("e2b-sandbox-port", "1")]), Err(502));
        assert_eq!(found("x", &[("e2b-sandbox-id", "i1a"), ("e2b-sandbox-port", "0")]), Err(400));
        assert_eq!(found("x", &[("e2b-sandbox-id", "i1a"), ("e2b-sandbox-port", "x")]), Err(400));
    }
}
