//! Tests many sandboxes at once.

use std::collections::BTreeSet;

use anyhow::Result;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::json;
use warren_api::Sandbox;

use crate::controllers::place::{Place, ready};
use crate::controllers::workload;

const SANDBOXES: usize = 100;

/// The number of concurrent creations; the server has other clients.
const IN_FLIGHT: usize = 25;

/// A hundred sandboxes are made, used and removed in parallel: each has a pod, and nothing is left.
pub async fn a_hundred_sandboxes_in_parallel(place: Place) -> Result<()> {
    let names: Vec<String> = (0..SANDBOXES).map(|number| format!("one-of-many-{number}")).collect();
    for some in names.chunks(IN_FLIGHT) {
        let created = some.iter().map(|name| place.create::<Sandbox>(workload::sandbox(name, json!({}))));
        try_join_all(created).await?;
    }
    // The total time depends on the machine; only a standstill is a failure.
    let mut up = 0;
    while up < SANDBOXES {
        up = place
            .eventually(&format!("more than {up} are ready"), async || {
                let sandboxes: Vec<Sandbox> = place.list().await?;
                let count =
                    sandboxes.iter().filter(|sandbox| ready(*sandbox) == "True/DependenciesReady").count();
                Ok((count > up).then_some(count))
            })
            .await?;
    }
    let pods: BTreeSet<String> = place.list::<Pod>().await?.iter().map(|pod| pod.name_any()).collect();
    assert_eq!(pods, names.iter().cloned().collect());
    for some in names.chunks(IN_FLIGHT) {
        try_join_all(some.iter().map(|name| place.delete::<Sandbox>(name))).await?;
    }
    let mut left = usize::MAX;
    while left > 0 {
        left = place
            .eventually("fewer are left", async || {
                let count = place.list::<Sandbox>().await?.len() + place.list::<Pod>().await?.len();
                Ok((count < left).then_some(count))
            })
            .await?;
    }
    Ok(())
}
