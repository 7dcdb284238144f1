//! Many at once.

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

/// Creates in flight at the same time; the server has other guests.
const IN_FLIGHT: usize = 25;

/// A hundred sandboxes are made, used and removed side by side: a pod for each and nothing left.
pub async fn a_hundred_sandboxes_in_parallel(place: Place) -> Result<()> {
    let names: Vec<String> = (0..SANDBOXES).map(|number| format!("one-of-many-{number}")).collect();
    for some in names.chunks(IN_FLIGHT) {
        let created = some.iter().map(|name| place.create::<Sandbox>(workload::sandbox(name, json!({}))));
        try_join_all(created).await?;
    }
    place
        .eventually("a hundred are ready", async || {
            let sandboxes: Vec<Sandbox> = place.list().await?;
            let count =
                sandboxes.iter().filter(|sandbox| ready(*sandbox) == "True/DependenciesReady").count();
            Ok((count == SANDBOXES).then_some(()))
        })
        .await?;
    let pods: BTreeSet<String> = place.list::<Pod>().await?.iter().map(|pod| pod.name_any()).collect();
    assert_eq!(pods, names.iter().cloned().collect());
    for some in names.chunks(IN_FLIGHT) {
        try_join_all(some.iter().map(|name| place.delete::<Sandbox>(name))).await?;
    }
    place
        .eventually("nothing left", async || {
            Ok((place.list::<Sandbox>().await?.is_empty() && place.list::<Pod>().await?.is_empty())
                .then_some(()))
        })
        .await
}
