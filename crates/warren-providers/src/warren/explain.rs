//! Explains why a sandbox is in its state, and describes its cluster.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use warren_api::Sandbox;
use warren_client::kube::api::{Api, ListParams};
use warren_client::kube::{Client, ResourceExt as _};
use warren_client::launch::Launched;
use warren_client::sandbox;

use super::server;
use crate::error::{Code, ProviderError};
use crate::provider::{Explanation, Happening, Info, Reason, Status};

/// Returns the events about a sandbox, its claim and its pod, the newest first.
pub(super) async fn events(
    client: &Client,
    launched: &Launched,
    behind: Option<&Sandbox>,
) -> Result<Vec<Event>, ProviderError> {
    let key = launched.key();
    let api: Api<Event> = Api::namespaced(client.clone(), &key.namespace);
    let mut names = std::collections::BTreeSet::from([key.name]);
    if let Some(sandbox) = behind {
        names.insert(sandbox.name_any());
        names.insert(sandbox::pod_name(sandbox));
    }
    let mut events = Vec::new();
    for name in names {
        let parameters = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let listed = api.list(&parameters).await;
        events.extend(listed.map_err(|error| server(Code::ProviderUnavailable, &error))?.items);
    }
    events.sort_by_key(|event| std::cmp::Reverse(last_seen(event)));
    Ok(events)
}

fn last_seen(event: &Event) -> Option<Timestamp> {
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let made = || event.metadata.creation_timestamp.as_ref().map(|time| time.0);
    last.or_else(|| event.event_time.as_ref().map(|time| time.0)).or_else(made)
}

/// Returns an event as clients are shown it.
pub(super) fn happening(event: &Event) -> Happening {
    Happening {
        kind: event.type_.clone().unwrap_or_else(|| "Normal".to_owned()),
        reason: event.reason.clone().unwrap_or_default(),
        message: event.message.clone().unwrap_or_default(),
        count: event.count.unwrap_or(1),
        at: last_seen(event),
    }
}

/// Returns the pod behind a sandbox, if it has one and it can be read.
pub(super) async fn pod(client: &Client, behind: Option<&Sandbox>) -> Option<Pod> {
    let sandbox = behind?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &sandbox.namespace()?);
    pods.get_opt(&sandbox::pod_name(sandbox)).await.ok().flatten()
}

/// Explains a sandbox's state from what is known of it.
pub(super) fn explanation(
    info: &Info,
    launched: &Launched,
    behind: Option<&Sandbox>,
    pod: Option<&Pod>,
    events: &[Event],
) -> Explanation {
    let ready = info.status == Status::Running;
    let name = &info.name;
    let summary = match info.status {
        Status::Running => format!("Sandbox `{name}` runs."),
        Status::Creating => format!("Sandbox `{name}` is not Ready yet."),
        Status::Stopping => format!("Sandbox `{name}` is being stopped or removed."),
        Status::Stopped => format!("Sandbox `{name}` is stopped."),
        Status::Error => format!("Sandbox `{name}` will not become Ready by itself."),
    };
    let mut reasons = Vec::new();
    if !ready {
        let says = pod.and_then(sandbox::describe_pod);
        let message = info.message.clone();
        let next = next_step(info.status, message.as_deref(), says.as_deref());
        if let Some(why) = message {
            let what = match (launched, behind) {
                (Launched::Claim(_), None) => "The claim has no sandbox.",
                _ => "The sandbox is not Ready.",
            };
            reasons.push(Reason { what: what.to_owned(), why, next: next.to_owned() });
        }
        if let Some(why) = says {
            reasons.push(Reason { what: "Its pod has a problem.".to_owned(), why, next: next.to_owned() });
        }
    }
    let warnings = events.iter().filter(|event| event.type_.as_deref() == Some("Warning"));
    for event in warnings.take(3) {
        let what = format!("Warning {}", event.reason.as_deref().unwrap_or_default());
        let why = event.message.clone().unwrap_or_default();
        let next = match event.reason.as_deref() {
            Some("EgressRefused") => {
                "If the sandbox may reach it, allow the host: the Network tab of the page, or `POST …/network/allow`."
            }
            _ => "Look at the events for what happened before.",
        };
        reasons.push(Reason { what, why, next: next.to_owned() });
    }
    Explanation { ready, summary, reasons }
}

fn next_step(status: Status, message: Option<&str>, pod: Option<&str>) -> &'static str {
    let says = |words: &[&str]| {
        [message, pod].into_iter().flatten().any(|text| words.iter().any(|word| text.contains(word)))
    };
    if says(&["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"]) {
        "Check the image's name, or bring the image with `warren image import`."
    } else if says(&["OOMKilled"]) {
        "Make a sandbox with more memory (`memoryMb`)."
    } else if says(&["Evicted"]) {
        "Make a sandbox with more disk (`diskMb`), or write less."
    } else if says(&["WarmPoolNotFound"]) {
        "Create the SandboxWarmPool that the claim names, or name another one."
    } else if says(&["TemplateNotFound"]) {
        "Create the SandboxTemplate that the pool names."
    } else if says(&["no controller has looked at"]) {
        "Check that the controllers run: `warren up` at home, `warren controller` on a cluster."
    } else {
        match status {
            Status::Creating => "Wait; the events show what happens.",
            Status::Stopped => "Start it.",
            _ => "Remove it and make a new one; the events show what happened.",
        }
    }
}

/// Tells whether a controller for our kinds is installed, and which.
pub(super) async fn controller(client: &Client) -> Result<Value, ProviderError> {
    let failed = |error: warren_client::kube::Error| server(Code::ProviderUnavailable, &error);
    let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let kind = kinds.get_opt("sandboxes.agents.x-k8s.io").await.map_err(failed)?;
    let versions = kind.map(|kind| kind.spec.versions).unwrap_or_default();
    let crd_version = versions.iter().find(|version| version.storage).map(|version| version.name.clone());
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "agent-sandbox-system");
    let deployment = deployments.get_opt("agent-sandbox-controller").await.map_err(failed)?;
    let image = deployment.and_then(|deployment| {
        let pod = deployment.spec.template.spec?;
        pod.containers.into_iter().next()?.image
    });
    let tag =
        image.and_then(|image| image.rsplit_once(':').map(|(_, tag)| tag.trim_start_matches('v').to_owned()));
    Ok(json!({
        "installed": crd_version.is_some(),
        "version": tag,
        "crdVersion": crd_version,
        "crdGroup": "agents.x-k8s.io",
        "crdApiVersion": "v1beta1",
    }))
}

/// Tells whether a namespace is there.
pub(super) async fn namespace_exists(client: &Client, namespace: &str) -> bool {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    matches!(namespaces.get_opt(namespace).await, Ok(Some(_)))
}
