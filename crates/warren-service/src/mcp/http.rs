//! `warren mcp --listen`: MCP clients over HTTP on loopback. Checks `Host`, `Origin` and the key of
//! a request, and hands it to [`warren_mcp::http`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use warren_mcp::http::{Body, Clients, Credential, Refusal};

use super::keys::Keys;
use crate::listen;
use crate::serve::access;

/// The path of the server.
pub const PATH: &str = "/mcp";

/// The interval at which keys are checked that were removed while their clients are silent.
const KEYS_LOOKED_AT: Duration = Duration::from_secs(2);

/// Serves until the shutdown, and deletes the sandboxes of all clients.
pub async fn serve(clients: Clients, keys: Keys, socket: TcpListener, shutdown: CancellationToken) {
    let door = Arc::new(Door { clients: clients.clone(), keys: keys.clone() });
    let answer = move |request| {
        let door = door.clone();
        async move { door.answer(request).await }
    };
    let stopped = shutdown.clone();
    let closed = async {
        stopped.cancelled().await;
        // Ends the streams, too, so that their connections end.
        clients.close().await;
    };
    let serving = async { tokio::join!(listen::serve(answer, socket, shutdown), closed) };
    tokio::select! {
        _ = serving => {}
        never = clients.sweep() => match never {},
        never = end_removed(&clients, &keys) => match never {},
    }
}

/// Ends the clients of keys that are removed.
async fn end_removed(clients: &Clients, keys: &Keys) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(KEYS_LOOKED_AT).await;
        let credentials = clients.credentials();
        if credentials.is_empty() {
            continue;
        }
        match keys.hashes() {
            Ok(valid) => {
                for credential in credentials.iter().filter(|credential| !valid.contains(credential)) {
                    clients.end(credential);
                }
            }
            Err(error) => tracing::warn!(error = format!("{error:#}"), "removed keys not looked for"),
        }
    }
}

/// Prints where the server is, and a key that was made for the first start.
pub fn greet(address: SocketAddr, key: Option<&str>) {
    println!("http://{address}{PATH}");
    if let Some(key) = key {
        println!("Authorization: Bearer {key}");
        eprintln!("The key is shown this once; `warren mcp key add NAME` makes another one.");
    }
}

struct Door {
    clients: Clients,
    keys: Keys,
}

impl Door {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        match self.admit(request.headers(), request.uri().path()) {
            Ok(credential) => self.clients.answer(credential, request).await,
            Err(refusal) => refusal.response(),
        }
    }

    /// Lets a request in, or says why not.
    fn admit(&self, headers: &HeaderMap, path: &str) -> Result<Credential, Refusal> {
        if !access::is_own_host(headers, &[]) {
            let message =
                "`Host` is not a loopback address or `localhost`; use the URL that the server has printed";
            return Err(Refusal::new(StatusCode::FORBIDDEN, message));
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        let foreign =
            origins.next().is_some() && (origins.next().is_some() || !access::is_same_origin(headers));
        if foreign {
            let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
            let message = format!(
                "`Origin` is not `http://{host}`: web pages of others may not use this server; send no `Origin`"
            );
            return Err(Refusal::new(StatusCode::FORBIDDEN, message));
        }
        if path != PATH {
            return Err(Refusal::new(StatusCode::NOT_FOUND, format!("the server is at `{PATH}`")));
        }
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let value = given.next().filter(|_| given.next().is_none()).and_then(|value| value.to_str().ok());
        let key = value
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        key.and_then(|(_, key)| self.keys.check(key.trim())).ok_or_else(|| {
            let message = "send `Authorization: Bearer KEY` with a key of this server; `warren mcp key add NAME` makes one";
            Refusal::new(StatusCode::UNAUTHORIZED, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::HeaderName;

    use super::*;

    #[test]
    fn request_needs_a_loopback_host_its_own_origin_and_one_key() {
        let directory = tempfile::tempdir().expect("make a directory");
        let keys = Keys::open(directory.path()).expect("open");
        let key = format!("Bearer {}", keys.add("a").expect("a key"));
        let lower = key.replace("Bearer", "bearer");
        let nothing = || -> warren_mcp::Server { unreachable!("no request is passed on") };
        let door = Door { clients: Clients::new(nothing, Duration::from_secs(1)), keys };
        let admit = |pairs: &[(HeaderName, &str)], path: &str| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(name, HeaderValue::from_str(value).expect("a value"));
            }
            door.admit(&headers, path).map(drop).map_err(|refusal| refusal.response().status().as_u16())
        };
        let host = (HOST, "127.0.0.1:7984");
        let own = (AUTHORIZATION, key.as_str());
        assert_eq!(admit(&[host.clone(), own.clone()], PATH), Ok(()));
        assert_eq!(admit(&[host.clone(), (AUTHORIZATION, lower.as_str())], PATH), Ok(()));
        assert_eq!(admit(&[host.clone(), own.clone(), (ORIGIN, "http://127.0.0.1:7984")], PATH), Ok(()));
        for foreign in ["http://evil.example", "http://127.0.0.1:7985", "null", ""] {
            assert_eq!(admit(&[host.clone(), own.clone(), (ORIGIN, foreign)], PATH), Err(403), "{foreign}");
        }
        let two = [(ORIGIN, "http://127.0.0.1:7984"), (ORIGIN, "http://evil.example")];
        assert_eq!(admit(&[&[host.clone(), own.clone()], &two[..]].concat(), PATH), Err(403));
        assert_eq!(admit(&[(HOST, "evil.example"), own.clone()], PATH), Err(403));
        assert_eq!(admit(std::slice::from_ref(&own), PATH), Err(403));
        assert_eq!(admit(&[host.clone(), own.clone()], "/"), Err(404));
        assert_eq!(admit(std::slice::from_ref(&host), PATH), Err(401));
        assert_eq!(admit(&[host.clone(), (AUTHORIZATION, &key.replace("Bearer", "Basic"))], PATH), Err(401));
        assert_eq!(admit(&[host, own.clone(), own], PATH), Err(401));
    }
}
