//! Publishes the runtime classes of a local home: one object for each runtime that works on this
//! machine. On a cluster the administrator defines them.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tracing::{info, warn};
use warren_decide::pod::RuntimeFacts;
use warren_oci::protocol::{RuntimeKind, RuntimeProgram};

use crate::volume_claims::tolerate;

/// The label of objects that are ours to remove again.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "warren-node");

/// The first delay before a retry; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Returns the properties of the runtimes that decisions need.
pub(crate) fn facts(runtimes: &BTreeMap<String, RuntimeProgram>) -> BTreeMap<String, RuntimeFacts> {
    let fact = |program: &RuntimeProgram| RuntimeFacts { one_at_a_time: program.kind == RuntimeKind::Gvisor };
    runtimes.iter().map(|(name, program)| (name.clone(), fact(program))).collect()
}

/// Creates missing objects and removes those of runtimes that are gone; retries until it succeeds.
pub(crate) async fn publish(client: Client, runtimes: BTreeMap<String, RuntimeProgram>) {
    let mut wait = FIRST_WAIT;
    while let Err(error) = try_publish(&client, &runtimes).await {
        warn!(%error, "runtime classes not published yet");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

async fn try_publish(client: &Client, runtimes: &BTreeMap<String, RuntimeProgram>) -> kube::Result<()> {
    let classes: Api<RuntimeClass> = Api::all(client.clone());
    let there = classes.list(&ListParams::default()).await?.items;
    for name in runtimes.keys().filter(|name| !there.iter().any(|class| class.name_any() == **name)) {
        let class = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {(MANAGED_BY.0): MANAGED_BY.1}},
            "handler": name,
        }));
        let class: RuntimeClass = class.map_err(kube::Error::SerdeError)?;
        tolerate(classes.create(&PostParams::default(), &class).await, 409)?;
        info!(class = %name, "runtime class made");
    }
    for class in there {
        let is_ours = class.labels().get(MANAGED_BY.0).is_some_and(|value| value == MANAGED_BY.1);
        let name = class.name_any();
        if is_ours && !runtimes.contains_key(&name) {
            tolerate(classes.delete(&name, &DeleteParams::default()).await, 404)?;
            info!(class = %name, "runtime class removed: its runtime is gone");
        }
    }
    Ok(())
}
