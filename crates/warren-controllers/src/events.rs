//! Records events (events.k8s.io/v1) in the background: a lost event is logged and blocks nothing.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Resource;
use warren_api::conditions::ReportingController;
use warren_decide::step::{Note, Severity};

use crate::clock::Clock;
use crate::server::Server;

/// The longest event name that the API server accepts.
const LONGEST_NAME: usize = 253;

/// Writes events.
#[derive(Clone)]
pub(crate) struct Recorder {
    server: Arc<dyn Server>,
    clock: Arc<dyn Clock>,
    instance: String,
}

impl Recorder {
    pub(crate) fn new(server: Arc<dyn Server>, clock: Arc<dyn Clock>, instance: String) -> Self {
        Self { server, clock, instance }
    }

    /// Records a note about an object. Returns at once.
    pub(crate) fn record<K: Resource<DynamicType = ()>>(
        &self,
        reporter: ReportingController,
        about: &K,
        note: Note,
    ) {
        self.server.record(self.event(reporter, about, note, self.clock.now()));
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
                name: Some(event_name(&name, now)),
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

/// Builds the event's name as the Kubernetes libraries do: unique by time, found by object.
fn event_name(about: &str, now: Timestamp) -> String {
    let time = format!(".{:x}", now.as_nanosecond());
    // Names are ASCII. The cut may leave a dot or a dash at the end, but a letter or a digit must
    // precede the next dot.
    let start = about.get(..LONGEST_NAME - time.len()).unwrap_or(about);
    format!("{}{time}", start.trim_end_matches(['.', '-']))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::event_name;

    #[test]
    fn a_long_name_leaves_room_for_the_time() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let named = |about: &str| event_name(about, now);
        let time = ".18fae27693b40000";
        assert_eq!(named("box"), format!("box{time}"));
        assert_eq!(named(&"a".repeat(236)), format!("{}{time}", "a".repeat(236)));
        let long = format!("{}.-{}", "a".repeat(234), "b".repeat(17));
        assert_eq!((long.len(), named(&long)), (253, format!("{}{time}", "a".repeat(234))));
    }
}
