//! Resolves external names by the host's own resolver.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::Semaphore;

/// The limit on concurrent lookups: each takes a thread while the host's resolver waits for its
/// servers.
static TURNS: Semaphore = Semaphore::const_new(32);

const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the addresses of a name; at least one.
pub(super) async fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    let asked = async {
        let _turn = TURNS.acquire().await.map_err(io::Error::other)?;
        let found = tokio::net::lookup_host((name, 0)).await?;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in found.map(|address| address.ip()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(addresses) }
    };
    tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|late| Err(late.into()))
}
