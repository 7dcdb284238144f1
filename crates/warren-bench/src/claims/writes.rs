//! Counts the writes of a warm claim. Claims run one after the other, and all events of all objects
//! that a claim touches are counted. In either home, a write with an effect is a watch event.

use std::time::Duration;

use super::observer::Observer;
use super::phase::claim;
use super::place::Place;
use super::pool::{CLAIMS, EVENTS, PODS, SANDBOXES};
use super::report::Writes;

/// The number of claims, one at a time.
const ROUNDS: usize = 40;
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts the writes.
pub async fn count(place: &Place) -> anyhow::Result<Writes> {
    let mut claims = Observer::start(&place.endpoint, CLAIMS).await?;
    let sandboxes = Observer::start(&place.endpoint, SANDBOXES).await?;
    let pods = Observer::start(&place.endpoint, PODS).await?;
    let events = Observer::start(&place.endpoint, EVENTS).await?;
    let mut connection = place.endpoint.connect().await?;
    let mut served = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("writes-{round}");
        connection.create(CLAIMS, claim(&name)).await?;
        served.push((claims.wait_for(&name, PATIENCE).await?, name));
    }
    // Later writes of a claim follow within milliseconds. For all but the last claim, a whole claim
    // has passed since.
    super::pool::quiet(place).await?;
    let (mut until_ready, mut in_all) = (0, 0);
    for (history, name) in &served {
        let first = history.versions.first().copied().unwrap_or_default();
        let ready = history.ready.map_or(u64::MAX, |(_, version)| version);
        let sandbox = history.sandbox.clone().unwrap_or_default();
        let after = |observer: &Observer, name: &str| {
            let mut versions = observer.history(name).versions;
            versions.retain(|version| *version > first);
            versions
        };
        let mut own = after(&claims, name);
        own.extend(after(&sandboxes, &sandbox));
        let about = [format!("{name}."), format!("{sandbox}.")];
        let is_about = |event: &&String| about.iter().any(|start| event.starts_with(start));
        let events = events.names().iter().filter(is_about).count();
        until_ready += own.iter().filter(|version| **version <= ready).count();
        // A sandbox of a pool and its pod have the same name. Writes to the pod run concurrently
        // with the claim.
        in_all += own.len() + after(&pods, &sandbox).len() + events;
    }
    let average = |count: usize| count as f64 / ROUNDS as f64;
    Ok(Writes { home: place.kind, until_ready: average(until_ready), in_all: average(in_all) })
}
