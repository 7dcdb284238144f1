//! Runs `warren cleanup`: removes leases that have expired or are unused, and reports the outcome
//! and the reason for each.

use jiff::Timestamp;
use serde_json::{Value, json};
use warren_client::kube::Client;
use warren_client::lease::{self, Due, Lease, LeaseStanding};

use super::stop::{Ended, end, examine, is_gone};
use super::{Cleanup, Leases};
use crate::cli::Format;
use crate::destination::Destination;
use crate::sandboxes::list::{cell, table};

struct Outcome {
    action: &'static str,
    reason: String,
}

/// Cleans up. The exit code is 1 if the server refused a deletion or could not be reached.
pub async fn cleanup(arguments: &Cleanup) -> anyhow::Result<i32> {
    let mut flags = arguments.forget.flags();
    flags.extend(arguments.idle_timeout.map(|idle| ("idle-timeout", format!("{}ms", idle.as_millis()))));
    let destination = Destination::choose(&arguments.place, flags)?;
    let leases = Leases::open(&destination)?;
    let listed = leases.list()?;
    let mut rows = Vec::new();
    let mut failed = false;
    if !listed.is_empty() {
        let client = destination.connect().await?;
        for listed in listed {
            let _lock = leases.lock(&listed).await?;
            // It may have ended while this command waited for its lock.
            let Some(lease) = leases.store.get(&listed.id)? else { continue };
            let outcome = match clean(&client, &leases, &lease, &destination, arguments.dry_run).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    failed = true;
                    Outcome { action: "failed", reason: crate::report::chain(&error) }
                }
            };
            rows.push(json!({
                "lease": lease.slug, "object": lease.name, "action": outcome.action, "reason": outcome.reason,
            }));
        }
    }
    print(&rows, arguments);
    Ok(i32::from(failed))
}

async fn clean(
    client: &Client,
    leases: &Leases,
    lease: &Lease,
    destination: &Destination,
    dry_run: bool,
) -> anyhow::Result<Outcome> {
    let (removed, forgotten) =
        if dry_run { ("would remove", "would forget") } else { ("removed", "forgotten") };
    let forget = destination.config.is("forget-missing");
    // First of all, so that a preview never names a foreign object.
    let live = match examine(client, lease).await {
        Ok(live) => live,
        Err(error) if is_gone(&error) && forget => {
            if !dry_run {
                leases.store.remove(lease)?;
            }
            return Ok(Outcome { action: forgotten, reason: error.to_string() });
        }
        Err(lease::cluster::LeaseError::Server(error)) => return Err(error.into()),
        Err(error) => return Ok(Outcome { action: "skipped", reason: error.to_string() }),
    };
    let now = Timestamp::now();
    let due = match lease::judge(lease, Some(&live), now) {
        LeaseStanding::Expired => Some(Due::Expired),
        _ => lease::due(lease, now, destination.config.duration("idle-timeout")),
    };
    let Some(due) = due else {
        let reason = format!("last used {}, ends at {}", lease.last_used, lease.expires);
        return Ok(Outcome { action: "skipped", reason });
    };
    let reason = match due {
        Due::Expired => format!("it expired at {}", lease.expires),
        Due::Idle(idle) => format!("not used for {} min", idle.as_secs() / 60),
        Due::NotReady => "it never became Ready".to_owned(),
    };
    if !dry_run && end(client, leases, lease, forget).await? == Ended::Forgotten {
        return Ok(Outcome { action: forgotten, reason });
    }
    Ok(Outcome { action: removed, reason })
}

fn print(rows: &[Value], arguments: &Cleanup) {
    match arguments.output.output {
        Format::Json => println!("{}", json!({ "dryRun": arguments.dry_run, "leases": rows })),
        Format::Text if rows.is_empty() => println!("There are no leases."),
        Format::Text => {
            let rows: Vec<[String; 3]> =
                rows.iter().map(|row| ["lease", "action", "reason"].map(|key| cell(&row[key]))).collect();
            print!("{}", table(&["LEASE", "ACTION", "REASON"], &rows));
        }
    }
}
