//! Publishes ports of a sandbox on this machine while a command runs.

use std::io::IsTerminal as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use tokio::net::{TcpListener, TcpStream};
use warren_client::kube::Client;
use warren_client::kube::api::Api;
use warren_client::sync::Place;

/// A port of the sandbox, and its address on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The address to listen on; port 0 takes a free one.
    pub here: SocketAddr,
    /// The port in the sandbox.
    pub port: u16,
}

impl std::str::FromStr for Publication {
    type Err = String;

    /// Parses `PORT`, `HERE:PORT` or `ADDRESS:HERE:PORT`. Without an address it is this machine's
    /// loopback.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write `PORT`, `HERE:PORT` or `ADDRESS:HERE:PORT`".to_owned();
        let (before, port) =
            text.rsplit_once(':').map_or((None, text), |(before, port)| (Some(before), port));
        let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        let here = match before {
            None => (IpAddr::from(Ipv4Addr::LOCALHOST), port).into(),
            Some(here) => match here.parse::<u16>() {
                Ok(here) => (IpAddr::from(Ipv4Addr::LOCALHOST), here).into(),
                Err(_) => here.parse().map_err(|_| wrong())?,
            },
        };
        Ok(Self { here, port })
    }
}

/// Listening sockets. Connections wait until [`Listening::serve`] is called.
#[derive(Debug)]
pub struct Listening(Vec<(TcpListener, u16)>);

impl Listening {
    /// Starts to listen, so that a port in use is noticed before a sandbox is created.
    pub async fn begin(publications: &[Publication]) -> anyhow::Result<Self> {
        let mut listeners = Vec::new();
        for Publication { here, port } in publications {
            let listener = TcpListener::bind(here).await;
            let listener = listener.with_context(|| format!("publish port {port} on `{here}`"))?;
            let address = listener.local_addr().context("find the address")?;
            if here.port() == 0 || std::io::stderr().is_terminal() {
                eprintln!("Port {port} of the sandbox is on {address}");
            }
            listeners.push((listener, *port));
        }
        Ok(Self(listeners))
    }

    /// Forwards every connection to the pod, in tasks that end with the runtime.
    pub fn serve(self, client: &Client, place: &Place) {
        for (listener, port) in self.0 {
            let pods: Api<Pod> = Api::namespaced(client.clone(), &place.namespace);
            let pod = place.pod.clone();
            tokio::spawn(async move {
                // An error concerns one connection, or too many of them.
                loop {
                    match listener.accept().await {
                        Ok((connection, _)) => {
                            tokio::spawn(carry(pods.clone(), pod.clone(), port, connection));
                        }
                        Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
                    }
                }
            });
        }
    }
}

async fn carry(pods: Api<Pod>, pod: String, port: u16, mut here: TcpStream) {
    let forwarder = pods.portforward(&pod, &[port]).await;
    let stream = forwarder.map(|mut forwarder| forwarder.take_stream(port).map(|stream| (forwarder, stream)));
    match stream {
        Ok(Some((_forwarder, mut there))) => {
            // Either side may disconnect at any time.
            let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
        }
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, port, "connection not passed on to the sandbox"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publications_are_on_loopback_unless_an_address_is_named() {
        let parsed =
            |text: &str| text.parse::<Publication>().map(|one| format!("{} {}", one.here, one.port)).ok();
        for (text, expected) in [
            ("80", Some("127.0.0.1:80 80")),
            ("8080:80", Some("127.0.0.1:8080 80")),
            ("0:80", Some("127.0.0.1:0 80")),
            ("0.0.0.0:8080:80", Some("0.0.0.0:8080 80")),
            ("[::1]:8080:80", Some("[::1]:8080 80")),
            ("8080:0", None),
            ("host:8080:80", None),
            ("", None),
            ("70000", None),
        ] {
            assert_eq!(parsed(text).as_deref(), expected, "{text}");
        }
    }
}
