//! Shows the home's controllers as a Deployment, for clients that look for agent-sandbox's
//! controller by name. The object has no effect: it starts nothing, and deleting it ends nothing.

use futures::StreamExt as _;
use jiff::{Timestamp, Unit};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Error};
use serde_json::{Value, json};
use warren_controllers::permissions::{NAMESPACE, SERVICE_ACCOUNT};

/// The name of the Deployment. In agent-sandbox it equals that of the service account.
const NAME: &str = SERVICE_ACCOUNT;

/// Creates the Deployment and keeps its status up to date until dropped. If a user deletes it, it
/// comes back at the next start. Errors are only logged, because no sandbox needs it.
pub async fn present(client: Client, version: String) {
    let deployments: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), NAMESPACE, &resource("apps", "Deployment"));
    if let Err(error) = create(&client, &deployments, &version).await {
        tracing::warn!(%error, "the controllers could not be shown as a Deployment");
        return;
    }
    let shown = watcher::watch_object(deployments.clone(), NAME).default_backoff();
    let kept = shown.for_each(|found| async {
        match found {
            Ok(Some(found)) if !is_true(&found) => {
                if let Err(error) = publish(&deployments, &found).await {
                    tracing::debug!(%error, "the status of the controllers' Deployment was not written");
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the controllers' Deployment is watched again"),
        }
    });
    kept.await;
}

fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
}

/// Creates missing objects and repairs changed ones.
async fn create(client: &Client, deployments: &Api<DynamicObject>, version: &str) -> Result<(), Error> {
    let namespaces: Api<DynamicObject> = Api::all_with(client.clone(), &resource("", "Namespace"));
    if namespaces.get_opt(NAMESPACE).await?.is_none() {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        namespaces.create(&PostParams::default(), &object(namespace)?).await?;
    }
    let wanted = deployment(version);
    match deployments.get_opt(NAME).await? {
        None => deployments.create(&PostParams::default(), &object(wanted)?).await?,
        // The server skips a patch without changes.
        Some(_) => deployments.patch(NAME, &PatchParams::default(), &Patch::Merge(wanted)).await?,
    };
    Ok(())
}

fn object(value: Value) -> Result<DynamicObject, Error> {
    serde_json::from_value(value).map_err(Error::SerdeError)
}

fn deployment(version: &str) -> Value {
    let labels = json!({"app": NAME});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": NAME,
            "labels": labels,
            "annotations": {
                "deployment.kubernetes.io/revision": "1",
                "kubernetes.io/description":
                    "Shows the controllers that run in the process of `warren up`; changes of it have no effect.",
            },
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [
                    {"name": NAME, "image": format!("warren:{version}"), "command": ["warren", "up"]},
                ]},
            },
        },
    })
}

/// Returns true if a Deployment says that the controllers run, for its current spec.
fn is_true(deployment: &DynamicObject) -> bool {
    let status = &deployment.data["status"];
    status["observedGeneration"].as_i64() == deployment.metadata.generation && status["readyReplicas"] == 1
}

async fn publish(deployments: &Api<DynamicObject>, deployment: &DynamicObject) -> Result<(), Error> {
    let now = Timestamp::now().round(Unit::Second).unwrap_or_default().to_string();
    let condition = |type_: &str, reason: &str, message: &str| {
        json!({
            "type": type_, "status": "True", "reason": reason, "message": message,
            "lastUpdateTime": now, "lastTransitionTime": now,
        })
    };
    let status = json!({
        "observedGeneration": deployment.metadata.generation,
        "replicas": 1,
        "updatedReplicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "unavailableReplicas": null,
        "conditions": [
            condition("Available", "MinimumReplicasAvailable", "Deployment has minimum availability."),
            condition("Progressing", "NewReplicaSetAvailable", "The controllers run in this process."),
        ],
    });
    // The watch reports a concurrent change, which is then handled.
    let patch = Patch::Merge(json!({"status": status}));
    deployments.patch_status(NAME, &PatchParams::default(), &patch).await.map(drop)
}
