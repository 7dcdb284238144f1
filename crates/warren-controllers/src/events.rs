//! Records events (events.k8s.io/v1) beside the work: a lost event is logged and never holds anything up.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use tokio_util::task::TaskTracker;
use warren_api::conditions::ReportingController;
use warren_decide::step::{Note, Severity};

/// Writes events.
#[derive(Clone)]
pub(crate) struct Recorder {
    client: Client,
    instance: String,
    tasks: TaskTracker,
}

impl Recorder {
    pub(crate) fn new(client: Client, instance: String, tasks: TaskTracker) -> Self {
        Self { client, instance, tasks }
    }

    /// Records a note about an object. Returns at once.
    pub(crate) fn record<K: Resource<DynamicType = ()>>(
        &self,
        reporter: ReportingController,
        about: &K,
        note: Note,
    ) {
        let event = self.event(reporter, about, note, Timestamp::now());
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let events = Api::<Event>::namespaced(self.client.clone(), &namespace);
        self.tasks.spawn(async move {
            if let Err(error) = events.create(&PostParams::default(), &event).await {
                let reason = event.reason.as_deref().unwrap_or_default();
                tracing::warn!(reason, error = &error as &dyn std::error::Error, "event was not recorded");
            }
        });
    }

    fn event<K: Resource<DynamicType = ()>>(
        &self,
        reporter: ReportingController,
        about: &K,
        note: Note,
        now: Timestamp,
    ) -> Event {
        let metadata = about.meta();
        let name = metadata.name.clone().unwrap_or_default();
        Event {
            metadata: ObjectMeta {
                // The form that the Kubernetes libraries give to event names: unique by time, found by object.
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: metadata.namespace.clone(),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            type_: Some(match note.severity {
                Severity::Normal => "Normal".to_owned(),
                Severity::Warning => "Warning".to_owned(),
            }),
            reason: Some(note.reason.to_owned()),
            action: Some(note.action.to_owned()),
            note: Some(note.text),
            reporting_controller: Some(reporter.into()),
            reporting_instance: Some(self.instance.clone()),
            regarding: Some(ObjectReference {
                api_version: Some(K::api_version(&()).into_owned()),
                kind: Some(K::kind(&()).into_owned()),
                name: Some(name),
                namespace: metadata.namespace.clone(),
                uid: metadata.uid.clone(),
                resource_version: metadata.resource_version.clone(),
                ..ObjectReference::default()
            }),
            ..Event::default()
        }
    }
}
