//! Records events about pods, as kubelet does, in the background. A lost event is logged and blocks
//! nothing.
//!
//! Warnings are written at once. Ordinary events (scheduled, pulled, created, started, stopped) are
//! written a moment later, when the node is not busy with starting pods: an event is a write, and
//! four for each pod would slow down a pool's refilling and `warren run`. While many pods come and
//! go, the oldest ordinary events are dropped. A pod that is gone before any of its events was
//! written leaves none.

mod backlog;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource as _};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::debug;

use backlog::{Backlog, Next};

/// The capacity of the channel to the writing task, which receives while it writes.
const WAITING: usize = 1024;
/// The number of remembered events. A repeated event is counted instead of written again.
const REMEMBERED: usize = 1024;
/// The longest message that the API accepts.
const LONGEST_MESSAGE: usize = 1024;
/// The reporting component: Kubernetes' tools look for kubelet's name.
const KUBELET: &str = "kubelet";
/// The reporting component of `Scheduled`: a node that takes unassigned pods replaces the
/// scheduler.
const SCHEDULER: &str = "default-scheduler";

/// An event's severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Severity {
    Normal,
    Warning,
}

/// An event about a pod.
#[derive(Debug)]
struct Happening {
    about: ObjectReference,
    component: &'static str,
    severity: Severity,
    reason: &'static str,
    message: String,
    at: Timestamp,
}

impl Happening {
    fn uid(&self) -> &str {
        self.about.uid.as_deref().unwrap_or_default()
    }
}

/// A message to the writing task.
#[derive(Debug)]
enum Told {
    /// Write this at once.
    Now(Happening),
    /// Write this when there is nothing more urgent.
    Later(Happening),
    /// The pod with this uid is gone.
    Gone(String),
}

/// Records events. They are written one after the other, by a task that ends with the last
/// recorder.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    sender: mpsc::Sender<Told>,
}

impl Events {
    /// Starts the writing task.
    pub(crate) fn start(client: Client, node_name: String) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(Writer { client, node_name, known: HashMap::new() }.run(receiver));
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
        self.tell(Told::Now(happening(pod, container, KUBELET, severity, reason, message.into())));
    }

    /// Records an ordinary event of a container, to be written later. Returns at once.
    pub(crate) fn record_later(
        &self,
        pod: &Pod,
        container: &str,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let normal = Severity::Normal;
        self.tell(Told::Later(happening(pod, Some(container), KUBELET, normal, reason, message.into())));
    }

    /// Records that a pod was placed on this node, to be written later. Returns at once.
    pub(crate) fn scheduled(&self, pod: &Pod, node_name: &str) {
        let ObjectMeta { name, namespace, .. } = &pod.metadata;
        let (name, namespace) =
            (name.as_deref().unwrap_or_default(), namespace.as_deref().unwrap_or_default());
        let message = format!("Successfully assigned {namespace}/{name} to {node_name}");
        self.tell(Told::Later(happening(pod, None, SCHEDULER, Severity::Normal, "Scheduled", message)));
    }

    /// Records that a pod is gone.
    pub(crate) fn gone(&self, uid: &str) {
        self.tell(Told::Gone(uid.to_owned()));
    }

    fn tell(&self, told: Told) {
        if let Err(lost) = self.sender.try_send(told) {
            debug!(%lost, "event lost");
        }
    }
}

fn happening(
    pod: &Pod,
    container: Option<&str>,
    component: &'static str,
    severity: Severity,
    reason: &'static str,
    message: String,
) -> Happening {
    let mut about = pod.object_ref(&());
    about.field_path = container.map(|name| field_path(pod, name));
    let message = message.chars().take(LONGEST_MESSAGE).collect();
    Happening { about, component, severity, reason, message, at: Timestamp::now() }
}

/// Returns the container's path in its pod, in kubelet's notation.
fn field_path(pod: &Pod, name: &str) -> String {
    let mut first = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let list = if first.any(|container| container.name == name) { "initContainers" } else { "containers" };
    format!("spec.{list}{{{name}}}")
}

/// The key by which two events are the same.
type Sameness = (Option<String>, Option<String>, &'static str, String);

struct Writer {
    client: Client,
    node_name: String,
    /// Written events by their key, with their names and counts.
    known: HashMap<Sameness, (String, i32)>,
}

/// A running write. It returns the writer when it is done.
type Write = Pin<Box<dyn Future<Output = Writer> + Send>>;

impl Writer {
    async fn run(self, mut receiver: mpsc::Receiver<Told>) {
        let mut backlog = Backlog::new();
        let mut idle = Some(self);
        let mut write: Option<Write> = None;
        loop {
            let mut wake = None;
            if let Some(writer) = idle.take() {
                match backlog.next(Instant::now()) {
                    Next::Write(happening) => write = Some(Box::pin(writer.write(*happening))),
                    Next::Wait(until) => {
                        wake = Some(until);
                        idle = Some(writer);
                    }
                    Next::Nothing => idle = Some(writer),
                }
            }
            tokio::select! {
                told = receiver.recv() => match told {
                    Some(told) => backlog.take(told, Instant::now()),
                    None => return,
                },
                writer = finished(&mut write) => {
                    write = None;
                    idle = Some(writer);
                }
                () = sleep_until(wake) => {}
            }
        }
    }

    async fn write(mut self, happening: Happening) -> Self {
        let namespace = happening.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let sameness = (
            happening.about.uid.clone(),
            happening.about.field_path.clone(),
            happening.reason,
            happening.message.clone(),
        );
        if let Some((name, count)) = self.known.get_mut(&sameness) {
            *count += 1;
            let patch = json!({"count": *count, "lastTimestamp": Time(happening.at)});
            match api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => return self,
                // The event has expired, or its namespace is gone: write it again, or lose it.
                Err(error) => debug!(%error, "event not counted"),
            }
            self.known.remove(&sameness);
        }
        let event = event(happening, &self.node_name);
        let name = event.metadata.name.clone().unwrap_or_default();
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {
                if self.known.len() >= REMEMBERED {
                    self.known.clear();
                }
                self.known.insert(sameness, (name, 1));
            }
            Err(error) => debug!(%error, "event not written"),
        }
        self
    }
}

async fn finished(write: &mut Option<Write>) -> Writer {
    match write {
        Some(write) => write.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn event(happening: Happening, node_name: &str) -> Event {
    let Happening { about, component, severity, reason, message, at } = happening;
    let pod = about.name.clone().unwrap_or_default();
    let host = (component == KUBELET).then(|| node_name.to_owned());
    Event {
        metadata: ObjectMeta {
            // The event name's form in the Kubernetes libraries: unique by time, found by object.
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
        source: Some(EventSource { component: Some(component.to_owned()), host }),
        reporting_component: Some(component.to_owned()),
        reporting_instance: Some(node_name.to_owned()),
        ..Event::default()
    }
}
