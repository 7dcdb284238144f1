//! A Kubernetes API server, reached by `kube`.

use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::DeserializeGuard;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use warren_decide::step::{Action, FailureKind, Kind, Object, Propagation};

use crate::object::{Any, Typed, with_type};
use crate::server::{Answer, Refusal, Server};

/// The most events that wait to be written. Further ones are lost while the server is slow. A claim
/// makes one or two. (The Kubernetes libraries keep 1,000.)
const WAITING_EVENTS: usize = 10_000;

/// The number of retries of a server that has no room; the number of the Kubernetes libraries.
const ASKED_AGAIN: usize = 10;

/// The number of characters that a server appends to `generateName`.
const MADE_UP: usize = 5;
/// The longest prefix of a generated name, so that the whole fits into a label.
const LONGEST_BASE: usize = 63 - MADE_UP;

/// The server behind a client.
pub(crate) struct KubeServer {
    client: Client,
    events: TaskTracker,
    /// The semaphore that writes events one after the other: they must not slow down the work.
    telling: Arc<Semaphore>,
    /// The room for waiting events.
    untold: Arc<Semaphore>,
    /// The number of events lost for lack of room, since that was last logged.
    lost: Arc<AtomicU64>,
}

/// The part of an object that a patch is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Status,
}

/// The kind of request: the same status code means different things.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Create,
    Other,
}

impl KubeServer {
    /// Creates the server. Events are written by tasks of the tracker.
    pub(crate) fn new(client: Client, events: TaskTracker) -> Self {
        Self {
            client,
            events,
            telling: Arc::new(Semaphore::new(1)),
            untold: Arc::new(Semaphore::new(WAITING_EVENTS)),
            lost: Arc::default(),
        }
    }

    fn api<K: Typed>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn create<K: Typed>(&self, namespace: &str, manager: &str, object: &K) -> Answer {
        let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
        let api = self.api::<K>(namespace);
        let created = patiently(|| api.create(&params, object)).await;
        created.map(|object| Some(object.keep())).map_err(|error| {
            let Refusal { kind, text } = refusal(&error, Verb::Create);
            Refusal { kind, text: without_made_up_name(text, object.meta()) }
        })
    }

    async fn merge<K: Typed>(
        &self,
        namespace: &str,
        manager: &str,
        name: &str,
        body: &Value,
        part: Part,
    ) -> Answer {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        let (api, patch) = (self.api::<K>(namespace), Patch::Merge(body));
        let patched = match part {
            Part::All => patiently(|| api.patch(name, &params, &patch)).await,
            Part::Status => patiently(|| api.patch_status(name, &params, &patch)).await,
        };
        patched.map(|object| Some(object.keep())).map_err(|error| refusal(&error, Verb::Other))
    }

    async fn delete<K: Typed>(
        &self,
        namespace: &str,
        name: &str,
        preconditions: Preconditions,
        propagation: Propagation,
    ) -> Answer {
        let params = DeleteParams {
            preconditions: Some(preconditions),
            propagation_policy: Some(match propagation {
                Propagation::Background => PropagationPolicy::Background,
                Propagation::Foreground => PropagationPolicy::Foreground,
            }),
            ..DeleteParams::default()
        };
        let api = self.api::<K>(namespace);
        match patiently(|| api.delete(name, &params)).await {
            // The answer is the dying object, or just success if it is gone at once.
            Ok(answer) => Ok(answer.left().map(Typed::keep)),
            Err(error) => Err(refusal(&error, Verb::Other)),
        }
    }

    async fn list_all<K: Typed>(
        &self,
        namespace: &str,
        label: &str,
        value: &str,
    ) -> Result<Vec<Any>, Refusal> {
        let params = ListParams::default().labels(&format!("{label}={value}"));
        let api: Api<DeserializeGuard<K>> = Api::namespaced(self.client.clone(), namespace);
        let list = patiently(|| api.list(&params)).await;
        let list = list.map_err(|error| refusal(&error, Verb::Other))?;
        // An item that cannot be parsed must not hide the others.
        Ok(list.items.into_iter().filter_map(|item| item.0.ok()).map(Typed::keep).collect())
    }

    async fn get<K: Typed>(&self, namespace: &str, name: &str) -> Answer {
        let api = self.api::<K>(namespace);
        match patiently(|| api.get(name)).await.map_err(|error| refusal(&error, Verb::Other)) {
            Ok(live) => Ok(Some(live.keep())),
            Err(refusal) if refusal.kind == FailureKind::NotFound => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }
}

impl Server for KubeServer {
    fn write<'a>(
        &'a self,
        namespace: &'a str,
        manager: &'static str,
        action: &'a Action,
    ) -> BoxFuture<'a, Answer> {
        match action {
            Action::Create(object) => match object {
                Object::Sandbox(object) => self.create(namespace, manager, &**object).boxed(),
                Object::SandboxClaim(object) => self.create(namespace, manager, &**object).boxed(),
                Object::Pod(object) => self.create(namespace, manager, &**object).boxed(),
                Object::Service(object) => self.create(namespace, manager, &**object).boxed(),
                Object::PersistentVolumeClaim(object) => self.create(namespace, manager, &**object).boxed(),
                Object::NetworkPolicy(object) => self.create(namespace, manager, &**object).boxed(),
            },
            Action::Merge { kind, name, body } => {
                with_type!(kind, K => self.merge::<K>(namespace, manager, name, body, Part::All).boxed())
            }
            Action::MergeStatus { kind, name, body } => {
                with_type!(kind, K => self.merge::<K>(namespace, manager, name, body, Part::Status).boxed())
            }
            Action::Delete { kind, name, uid, version, propagation } => {
                let preconditions =
                    Preconditions { uid: Some(uid.clone()), resource_version: version.clone() };
                with_type!(kind, K => self.delete::<K>(namespace, name, preconditions, *propagation).boxed())
            }
        }
    }

    fn read<'a>(&'a self, namespace: &'a str, kind: Kind, name: &'a str) -> BoxFuture<'a, Answer> {
        with_type!(kind, K => self.get::<K>(namespace, name).boxed())
    }

    fn list<'a>(
        &'a self,
        namespace: &'a str,
        kind: Kind,
        label: &'static str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Any>, Refusal>> {
        with_type!(kind, K => self.list_all::<K>(namespace, label, value).boxed())
    }

    fn record(&self, event: Event) {
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let events = Api::<Event>::namespaced(self.client.clone(), &namespace);
        let (telling, lost) = (Arc::clone(&self.telling), Arc::clone(&self.lost));
        let Ok(room) = Arc::clone(&self.untold).try_acquire_owned() else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.events.spawn(async move {
            let _room = room;
            // Never closed, so there is always a turn.
            let _turn = telling.acquire().await;
            match lost.swap(0, Ordering::Relaxed) {
                0 => {}
                lost => tracing::warn!(lost, "events were not recorded, because too many waited"),
            }
            let params = PostParams::default();
            if let Err(error) = patiently(|| events.create(&params, &event)).await {
                let reason = event.reason.as_deref().unwrap_or_default();
                tracing::warn!(reason, error = &error as &dyn std::error::Error, "event was not recorded");
            }
        });
    }
}

/// Sends a request, and again while the server says that it has no room: then it has not looked at
/// the request. After any other error it may have carried the request out, so a decision has to
/// choose the next action.
async fn patiently<T, F>(mut ask: impl FnMut() -> F) -> kube::Result<T>
where
    F: Future<Output = kube::Result<T>>,
{
    for _ in 0..ASKED_AGAIN {
        match ask().await {
            Err(kube::Error::Api(status)) if status.code == 429 => {
                let seconds = status.details.map_or(0, |details| details.retry_after_seconds).max(1);
                tokio::time::sleep(Duration::from_secs(seconds.into())).await;
            }
            answer => return answer,
        }
    }
    ask().await
}

fn refusal(error: &kube::Error, verb: Verb) -> Refusal {
    let kube::Error::Api(status) = error else {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            text = format!("{text}: {source}");
            cause = source.source();
        }
        return Refusal { kind: FailureKind::Unknown, text };
    };
    let of_another = || {
        status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.field == "metadata.uid")
    };
    // Without a name, the kind or its status was not found: its CRD is not served yet. Its objects
    // may exist.
    let of_object = || status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    let kind = match status.code {
        409 if verb == Verb::Create && status.is_already_exists() => FailureKind::AlreadyExists,
        // A create also gets a conflict when requests compete for a quota. Nothing has changed in
        // the cluster; it can only wait.
        409 if verb == Verb::Create => FailureKind::Refused,
        409 => FailureKind::Conflict,
        // Another object has the name by now, and the patch was not for it.
        422 if verb == Verb::Other && of_another() => FailureKind::Conflict,
        422 if status.reason == "Invalid" => FailureKind::Invalid,
        // A create gets this when its namespace is gone, which is an ordinary refusal.
        404 if verb == Verb::Other && of_object() => FailureKind::NotFound,
        // The server may have failed after it had written.
        429 | 500.. => FailureKind::Unknown,
        _ => FailureKind::Refused,
    };
    Refusal { kind, text: status.message.clone() }
}

/// Removes a generated name from an error text. It differs in each try. Without it the same refusal
/// has the same text, so that it is reported once.
fn without_made_up_name(text: String, metadata: &ObjectMeta) -> String {
    let (None, Some(base)) = (&metadata.name, &metadata.generate_name) else { return text };
    let base = base.get(..LONGEST_BASE).unwrap_or(base);
    let is_of_names = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let mut pieces = text.split(base);
    let mut said = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let is_begun = said.bytes().next_back().is_some_and(is_of_names);
        let length = piece.bytes().take_while(|byte| is_of_names(*byte)).count();
        said.push_str(base);
        said.push_str(if length == MADE_UP && !is_begun { &piece[MADE_UP..] } else { piece });
    }
    said
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use kube::client::Body;
    use kube::core::Status;
    use serde_json::{Value, json};
    use tokio_util::task::TaskTracker;
    use warren_decide::step::{FailureKind, Kind};

    use super::{
        ASKED_AGAIN, KubeServer, LONGEST_BASE, ObjectMeta, Verb, patiently, refusal, without_made_up_name,
    };
    use crate::server::Server;

    /// Returns how many requests a server gets that answers with these codes.
    async fn asked(codes: &[u16]) -> usize {
        let mut asked = 0;
        let _ = patiently(|| {
            let code = codes.get(asked).or(codes.last()).copied().unwrap();
            asked += 1;
            let status = json!({"status": "Failure", "code": code, "message": "", "reason": ""});
            std::future::ready(match code {
                200 => Ok(()),
                _ => Err(kube::Error::Api(serde_json::from_value(status).unwrap())),
            })
        })
        .await;
        asked
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_server_without_room_is_asked_again() {
        assert_eq!(asked(&[200]).await, 1);
        assert_eq!(asked(&[429, 429, 200]).await, 3);
        assert_eq!(asked(&[429]).await, ASKED_AGAIN + 1);
        for maybe_done in [500, 503, 504, 409] {
            assert_eq!(asked(&[maybe_done]).await, 1);
        }
    }

    #[tokio::test]
    async fn an_object_that_cannot_be_read_does_not_hide_others_from_a_list() {
        let sandbox = |name: &str, port: u64| {
            let container = json!({"name": "c", "readinessProbe": {"httpGet": {"port": port}}});
            json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"podTemplate": {"spec": {"containers": [container]}}}})
        };
        let list = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "SandboxList", "metadata": {},
            "items": [sandbox("good", 80), sandbox("bad", 1 << 40)]});
        let answer = move |_: http::Request<Body>| {
            let body = Body::from(list.to_string().into_bytes());
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        };
        let client = Client::new(tower::service_fn(answer), "default");
        let listed = KubeServer::new(client, TaskTracker::new()).list("n", Kind::Sandbox, "l", "v").await;
        let names: Vec<String> = listed.unwrap().iter().map(|object| object.key().name).collect();
        assert_eq!(names, ["good"]);
    }

    fn kind_of(status: Value, verb: Verb) -> FailureKind {
        let status: Status = serde_json::from_value(status).unwrap();
        refusal(&kube::Error::Api(Box::new(status)), verb).kind
    }

    #[test]
    fn only_an_object_that_is_named_is_gone() {
        let of_object = json!({"status": "Failure", "reason": "NotFound", "code": 404,
            "message": "sandboxes.agents.x-k8s.io \"a\" not found",
            "details": {"name": "a", "group": "agents.x-k8s.io", "kind": "sandboxes"}});
        let of_kind = json!({"status": "Failure", "reason": "NotFound", "code": 404,
            "message": "the server could not find the requested resource", "details": {}});
        assert_eq!(kind_of(of_object.clone(), Verb::Other), FailureKind::NotFound);
        assert_eq!(kind_of(of_kind, Verb::Other), FailureKind::Refused);
        assert_eq!(kind_of(of_object, Verb::Create), FailureKind::Refused, "its namespace");
    }

    #[test]
    fn a_create_that_lost_a_quarrel_about_something_else_has_nothing_in_its_way() {
        let exists = json!({"status": "Failure", "reason": "AlreadyExists", "code": 409,
            "message": "pods \"a\" already exists", "details": {"name": "a", "kind": "pods"}});
        let quota = json!({"status": "Failure", "reason": "Conflict", "code": 409,
            "message": "Operation cannot be fulfilled on resourcequotas \"q\": the object has been modified; \
                please apply your changes to the latest version and try again",
            "details": {"name": "q", "kind": "resourcequotas"}});
        assert_eq!(kind_of(exists, Verb::Create), FailureKind::AlreadyExists);
        assert_eq!(kind_of(quota.clone(), Verb::Create), FailureKind::Refused);
        assert_eq!(kind_of(quota, Verb::Other), FailureKind::Conflict);
    }

    #[test]
    fn an_invalid_object_is_told_from_one_that_is_not_allowed() {
        let invalid = json!({"status": "Failure", "reason": "Invalid", "code": 422,
            "message": "Pod \"a\" is invalid: spec.containers[0].name: Invalid value: \"Not A Name\"",
            "details": {"name": "a", "kind": "Pod", "causes": [{"field": "spec.containers[0].name"}]}});
        let another = json!({"status": "Failure", "reason": "Invalid", "code": 422, "message": "",
            "details": {"name": "a", "kind": "Pod", "causes": [{"field": "metadata.uid"}]}});
        let forbidden = json!({"status": "Failure", "reason": "Forbidden", "code": 403, "message": ""});
        assert_eq!(kind_of(invalid.clone(), Verb::Create), FailureKind::Invalid);
        assert_eq!(kind_of(invalid, Verb::Other), FailureKind::Invalid);
        assert_eq!(kind_of(another, Verb::Other), FailureKind::Conflict, "another object has the name");
        assert_eq!(kind_of(forbidden, Verb::Create), FailureKind::Refused);
    }

    #[test]
    fn the_same_refusal_reads_the_same_whatever_name_was_made_up() {
        let told = |base: &str, text: &str| {
            let metadata = ObjectMeta { generate_name: Some(base.to_owned()), ..ObjectMeta::default() };
            without_made_up_name(text.to_owned(), &metadata)
        };
        let quota = |name: &str| format!("sandboxes \"{name}\" is forbidden: exceeded quota: small");
        assert_eq!(told("full-", &quota("full-n69ml")), quota("full-"));
        assert_eq!(told("full-", "denied: Sandbox/n/full-n69ml"), "denied: Sandbox/n/full-");
        for other in ["full-policy-x", "full-long", "full-", "full-N69ML", "a-full-n69ml"] {
            assert_eq!(told("full-", other), other);
        }
        let (long, left) = ("a".repeat(80), "a".repeat(LONGEST_BASE));
        assert_eq!(told(&long, &quota(&format!("{left}n69ml"))), quota(&left));
        let named = ObjectMeta { name: Some("full-n69ml".to_owned()), ..ObjectMeta::default() };
        assert_eq!(without_made_up_name(quota("full-n69ml"), &named), quota("full-n69ml"));
    }
}
