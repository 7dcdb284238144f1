//! Events about pods, as kubelet records them: beside the work. One that is lost is logged and holds nothing up.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource as _};
use serde_json::json;
use tokio::sync::mpsc;
use tracing::debug;

/// As many may wait to be written; a pod that makes more loses some.
const WAITING: usize = 256;
/// As many are remembered, so that one that happens again is counted and not written anew.
const REMEMBERED: usize = 1024;
/// What the API takes as a message.
const LONGEST_MESSAGE: usize = 1024;
/// Kubernetes' tools look for kubelet's name.
const COMPONENT: &str = "kubelet";

/// Whether an event is trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Severity {
    Normal,
    Warning,
}

/// Something that happened to a pod.
#[derive(Debug)]
struct Happening {
    about: ObjectReference,
    severity: Severity,
    reason: &'static str,
    message: String,
    at: Timestamp,
}

/// Records events. They are written one after the other, by a task that ends with the last recorder.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    sender: mpsc::Sender<Happening>,
}

impl Events {
    /// Starts the task that writes.
    pub(crate) fn start(client: Client, node_name: String) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(write(client, node_name, receiver));
        Self { sender }
    }

    /// Records an event about a pod, or about one of its containers. Returns at once.
    pub(crate) fn record(
        &self,
        pod: &Pod,
        container: Option<&str>,
        severity: Severity,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let mut about = pod.object_ref(&());
        about.field_path = container.map(|name| format!("spec.containers{{{name}}}"));
        let message = message.into().chars().take(LONGEST_MESSAGE).collect();
        let happening = Happening { about, severity, reason, message, at: Timestamp::now() };
        if let Err(lost) = self.sender.try_send(happening) {
            debug!(reason, %lost, "event lost");
        }
    }
}

/// What makes two events the same.
type Sameness = (Option<String>, Option<String>, &'static str, String);

async fn write(client: Client, node_name: String, mut happenings: mpsc::Receiver<Happening>) {
    let mut known: HashMap<Sameness, (String, i32)> = HashMap::new();
    while let Some(happening) = happenings.recv().await {
        let namespace = happening.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let sameness = (
            happening.about.uid.clone(),
            happening.about.field_path.clone(),
            happening.reason,
            happening.message.clone(),
        );
        if let Some((name, count)) = known.get_mut(&sameness) {
            *count += 1;
            let patch = json!({"count": *count, "lastTimestamp": Time(happening.at)});
            match api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => continue,
                // It has expired, or its namespace is gone: written anew, or lost.
                Err(error) => debug!(%error, "event not counted"),
            }
            known.remove(&sameness);
        }
        let event = event(happening, &node_name);
        let name = event.metadata.name.clone().unwrap_or_default();
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {
                if known.len() >= REMEMBERED {
                    known.clear();
                }
                known.insert(sameness, (name, 1));
            }
            Err(error) => debug!(%error, "event not written"),
        }
    }
}

fn event(happening: Happening, node_name: &str) -> Event {
    let Happening { about, severity, reason, message, at } = happening;
    let pod = about.name.clone().unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            // The form that the Kubernetes libraries give to event names: unique by time, found by object.
            name: Some(format!("{pod}.{:x}", at.as_nanosecond())),
            namespace: about.namespace.clone(),
            ..ObjectMeta::default()
        },
        involved_object: about,
        type_: Some(
            match severity {
                Severity::Normal => "Normal",
                Severity::Warning => "Warning",
            }
            .to_owned(),
        ),
        reason: Some(reason.to_owned()),
        message: Some(message),
        count: Some(1),
        first_timestamp: Some(Time(at)),
        last_timestamp: Some(Time(at)),
        event_time: None::<MicroTime>,
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: Some(node_name.to_owned()) }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node_name.to_owned()),
        ..Event::default()
    }
}
