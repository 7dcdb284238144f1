//! Runs `warren status`.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use warren_client::kube::Client;
use warren_client::launch;
use warren_client::lease::{self, Lease, LeaseStanding, cluster};
use warren_client::sandbox::WaitError;

use super::{Leases, Status};
use crate::cli::Format;
use crate::destination::Destination;
use crate::progress;
use crate::sandboxes::list::cell;

/// A lease's state in one word, and the reason if it is not Ready.
struct Seen {
    state: &'static str,
    reason: String,
}

/// Prints the state of a lease. The exit code is 0 if it is Ready, 1 otherwise.
pub async fn status(arguments: &Status) -> anyhow::Result<i32> {
    let destination = Destination::choose(&arguments.place, Default::default())?;
    let leases = Leases::open(&destination)?;
    let lease = leases.find(&arguments.lease)?;
    let client = destination.connect().await?;
    let mut seen = look(&client, &lease).await?;
    if arguments.wait && seen.state == "waiting" {
        let within = destination.config.duration("sandbox-ready-timeout");
        let what = || format!("waiting for lease `{}` to become Ready", lease.slug);
        seen = progress::show_if_slow(what, wait(&client, &lease, within)).await?;
    }
    let report = json!({
        "lease": lease.slug, "id": lease.id, "state": seen.state, "reason": seen.reason,
        "namespace": lease.namespace, "object": lease.name, "pool": lease.pool, "template": lease.template,
        "sandbox": lease.sandbox.as_ref().map(|sandbox| &sandbox.name),
        "pod": lease.pod.as_ref().map(|pod| &pod.name), "container": lease.container,
        "created": lease.created, "lastUsed": lease.last_used, "expires": lease.expires,
    });
    match arguments.output.output {
        Format::Json => println!("{report}"),
        Format::Text => {
            let lines = [
                ("lease", "lease"),
                ("state", "state"),
                ("reason", "reason"),
                ("object", "object"),
                ("sandbox", "sandbox"),
                ("container", "container"),
                ("last used", "lastUsed"),
                ("expires", "expires"),
            ];
            for (name, key) in lines {
                let value = cell(&report[key]);
                if !value.is_empty() {
                    println!("{:<10} {value}", format!("{name}:"));
                }
            }
        }
    }
    Ok(i32::from(seen.state != "ready"))
}

/// Reads the state of a lease once.
async fn look(client: &Client, lease: &Lease) -> anyhow::Result<Seen> {
    let plain = |state, reason: &str| Seen { state, reason: reason.to_owned() };
    let Some(live) = cluster::get(client, lease).await? else {
        return Ok(plain("missing", "the server has no such object"));
    };
    if let Err(mismatch) = lease::check_root(lease, &live) {
        return Ok(plain("foreign", &mismatch.to_string()));
    }
    Ok(match lease::judge(lease, Some(&live), Timestamp::now()) {
        LeaseStanding::Ready => match cluster::resolve(client, lease, &live, None).await {
            Ok(_) => plain("ready", ""),
            Err(cluster::LeaseError::Server(error)) => return Err(error.into()),
            Err(cluster::LeaseError::Mismatch(mismatch)) => plain("foreign", &mismatch.to_string()),
            Err(error) => plain("waiting", &error.to_string()),
        },
        LeaseStanding::Waiting(standing) => plain("waiting", &standing.to_string()),
        LeaseStanding::Ended(standing) => plain("ended", &standing.to_string()),
        LeaseStanding::Expired => plain("expired", "its time is over; `warren stop` removes it"),
        LeaseStanding::Missing => plain("missing", "the server has no such object"),
    })
}

/// Waits until it is Ready or cannot become Ready. If its object disappears, the wait ends at once.
async fn wait(client: &Client, lease: &Lease, within: Duration) -> anyhow::Result<Seen> {
    let deadline = tokio::time::Instant::now() + within;
    loop {
        let seen = look(client, lease).await?;
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        if seen.state != "waiting" || left.is_zero() {
            return Ok(seen);
        }
        let Some(live) = cluster::get(client, lease).await? else { continue };
        match launch::wait_ready(client, live, left).await {
            Err(WaitError::Server(error)) => return Err(error.into()),
            // A sandbox or pod behind the claim may be missing for a moment.
            _ => tokio::time::sleep(Duration::from_millis(200).min(left)).await,
        }
    }
}
