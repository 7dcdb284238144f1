//! Tests that permanently bad input costs the server next to nothing. Failures that a retry could
//! fix are retried with backoff. Failures that only the user can fix are not retried. Each is
//! reported once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxTemplate, labels};
use warren_controllers::Controllers;

use super::{extensions, sandbox};
use crate::support::{self, Call, Calls, Place, condition, is_ready};

/// The number of tries that the tests wait for.
const TRIES: usize = 11;
/// The first wait after a failure; it doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(5);
/// The tries that come earlier, because the controller's own writes wake it: the status, and the
/// removal of the pod's name. Each of them still doubles the next wait.
const WOKEN: usize = 3;

fn matching(calls: &Calls, wanted: impl Fn(&Call) -> bool) -> Vec<Call> {
    calls.lock().unwrap().iter().filter(|call| wanted(call)).cloned().collect()
}

/// Returns the matching calls about objects in a place.
fn matching_in(place: &Place, calls: &Calls, wanted: impl Fn(&Call) -> bool) -> Vec<Call> {
    matching(calls, |call| call.is_in(place) && wanted(call))
}

/// Waits until something was tried this many times. Returns the times of the tries.
pub async fn tried(calls: &Calls, what: &str, wanted: impl Fn(&Call) -> bool) -> Vec<Instant> {
    let deadline = Instant::now() + support::DEADLINE;
    loop {
        let tries = matching(calls, &wanted);
        if tries.len() >= TRIES {
            return tries.iter().map(|call| call.at).collect();
        }
        assert!(Instant::now() < deadline, "{what} was tried {} times", tries.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Checks that the tries come at the times of doubling waits or later: at most 17 in a minute. A
/// longer delay only shows a busy machine.
pub fn assert_backs_off(what: &str, tries: &[Instant]) {
    for (number, at) in tries.iter().enumerate().take(TRIES).skip(WOKEN + 1) {
        let waits = u32::try_from(number - WOKEN).unwrap();
        let (least, waited) = (FIRST_WAIT * (2_u32.pow(waits) - 1), *at - tries[0]);
        assert!(waited >= least, "{what}: try {} came after {waited:?}, not {least:?}", number + 1);
    }
}

/// Creates objects that conflict with sandboxes, claims and templates of these names. They exist
/// before the controllers start, so that each has exactly one problem to report.
async fn put_in_the_way(place: &Place) {
    let containers = json!({"containers": [{"name": "x", "image": "i"}]});
    place.create::<Pod>(json!({"metadata": {"name": "taken"}, "spec": containers})).await;
    let service = json!({"clusterIP": "None", "selector": {"app": "theirs"}, "ports": [{"port": 80}]});
    place.create::<Service>(json!({"metadata": {"name": "served"}, "spec": service})).await;
    place
        .create::<PersistentVolumeClaim>(json!({"metadata": {"name": "data-stored"}, "spec": volume()}))
        .await;
    let policy = json!({"podSelector": {"matchLabels": {"app": "theirs"}}});
    place
        .create::<NetworkPolicy>(json!({"metadata": {"name": "walled-network-policy"}, "spec": policy}))
        .await;
    place.create::<Sandbox>(sandbox("occupied", json!({"operatingMode": "Suspended"}))).await;
    let twins = place.create::<Sandbox>(sandbox("twins", json!({}))).await;
    let owner = json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "twins",
        "uid": twins.uid(), "controller": true}]);
    let labels = json!({labels::SANDBOX_NAME_HASH: NameHash::of("twins").to_string()});
    for name in ["twins", "twins-again"] {
        let metadata = json!({"name": name, "labels": labels, "ownerReferences": owner});
        place.create::<Pod>(json!({"metadata": metadata, "spec": containers})).await;
    }
}

fn volume() -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})
}

pub async fn lasting_errors_are_retried_later_and_later_and_said_once(place: Place) {
    put_in_the_way(&place).await;
    let containers = json!([{"name": "main", "image": "i", "env": [{"name": "TAKEN", "value": "1"}]}]);
    let pod =
        json!({"metadata": {"labels": {"sandbox.users.io/team": "a"}}, "spec": {"containers": containers}});
    place.pool("pool", 0, json!({"envVarsInjectionPolicy": "Allowed", "podTemplate": pod})).await;
    place.pool("closed", 0, json!({})).await;
    place.pool("bare", 0, json!({})).await;
    place.api::<SandboxTemplate>().delete("bare", &DeleteParams::default()).await.unwrap();
    place.pool("walled", 0, json!({})).await;

    let (client, calls) = place.watched_client();
    let (client, denied) = denying(client, format!("/namespaces/{}/services", place.namespace));
    let controllers = Controllers::start(client, extensions());
    let _nodes = support::nodes(&place).await;
    place.wait::<Sandbox>("occupied", "suspended", is_ready("False/SandboxSuspended")).await;
    let begun = Instant::now();
    // The CRD of a sandbox accepts the name, and the server refuses the pod.
    let unfit = json!({"podTemplate": {"spec": {"containers": [{"name": "Not A Name", "image": "i"}]}}});
    place.create::<Sandbox>(sandbox("unfit", unfit.clone())).await;
    place.create::<Sandbox>(sandbox("taken", json!({}))).await;
    // These have no pod, so they report only their problem.
    let serving = json!({"service": true, "operatingMode": "Suspended"});
    place.create::<Sandbox>(sandbox("served", serving.clone())).await;
    place.create::<Sandbox>(sandbox("denied", serving)).await;
    let volumes = json!([{"metadata": {"name": "data"}, "spec": volume()}]);
    let stored = json!({"volumeClaimTemplates": volumes, "operatingMode": "Suspended"});
    place.create::<Sandbox>(sandbox("stored", stored)).await;
    let team = |team: &str| json!({"additionalPodMetadata": {"labels": {"sandbox.users.io/team": team}}});
    let variable = |name: &str| json!({"env": [{"name": name, "value": "2"}]});
    let claims: [(&str, &str, Value, &str); 9] = [
        (
            "unknown",
            "pool",
            json!({"env": [{"name": "A", "value": "1", "containerName": "none"}]}),
            "ReconcilerError",
        ),
        ("repeated", "pool", variable("TAKEN"), "ReconcilerError"),
        ("overriding", "pool", team("b"), "ReconcilerError"),
        ("occupied", "pool", json!({}), "ReconcilerError"),
        ("lost", "nowhere", json!({}), "WarmPoolNotFound"),
        ("bare", "bare", json!({}), "TemplateNotFound"),
        ("closed", "closed", variable("A"), "EnvVarsInjectionRejected"),
        ("forbidden", "pool", json!({"volumeClaimTemplates": volumes}), "VolumeClaimTemplatesError"),
        (
            "invalid",
            "pool",
            json!({"additionalPodMetadata": {"labels": {"app": "sandbox-router"}}}),
            "InvalidMetadata",
        ),
    ];
    for (name, pool, spec, _) in &claims {
        place.claim(name, pool, spec.clone()).await;
    }
    for (name, _, _, reason) in claims.clone() {
        let wanted = format!("False/{reason}");
        place.wait::<SandboxClaim>(name, reason, is_ready(wanted)).await;
    }
    let sandboxes = ["denied", "taken", "served", "stored"];
    for name in sandboxes {
        place.wait::<Sandbox>(name, "told", is_ready("False/ReconcilerError")).await;
    }
    place.wait::<Sandbox>("unfit", "told", is_ready("False/InvalidConfiguration")).await;
    place.wait::<Sandbox>("twins", "told", is_ready("False/MultiplePods")).await;

    let tries = tried(&denied, "the denied service", |_| true).await;
    assert_backs_off("the denied service", &tries);

    // The wait for the denied service has covered all of them.
    let tries = matching(&calls, |call| call.is_creation_of_pod(&place));
    assert_eq!(tries.len(), 1, "an invalid pod is tried once: {tries:?}");
    for name in sandboxes.into_iter().chain(["twins", "unfit"]) {
        let told =
            matching_in(&place, &calls, |call| call.path.ends_with(&format!("/sandboxes/{name}/status")));
        assert_eq!(told.len(), 1, "{name} was told once: {told:?}");
    }
    for (name, ..) in &claims {
        let about = matching_in(&place, &calls, |call| call.path.contains(&format!("/sandboxclaims/{name}")));
        let told = about.iter().filter(|call| call.path.ends_with("/status")).count();
        assert_eq!(told, 1, "{name} was told once: {about:?}");
        assert!(about.len() <= 2, "the status, and when it was first seen: {about:?}");
        let path = format!("/sandboxes/{name}");
        let for_it = matching_in(&place, &calls, |call| call.at > begun && call.path.contains(&path));
        assert!(for_it.is_empty(), "nothing is asked about a sandbox that it does not have: {for_it:?}");
    }
    let walled = matching_in(&place, &calls, |call| call.path.contains("/sandboxtemplates/walled"));
    assert!(walled.len() <= 1, "it gets its label: {walled:?}");
    for path in [
        "/pods/taken",
        "/pods/twins",
        "/services/served",
        "/persistentvolumeclaims/data-stored",
        "/networkpolicies/walled-network-policy",
    ] {
        let asked = matching_in(&place, &calls, |call| call.path.contains(path));
        assert!(asked.is_empty(), "what is in the way is known without asking: {asked:?}");
    }
    controllers.shutdown().await;

    // After the shutdown all events are written. Each object that cannot be served has exactly one
    // event, and no other object has any.
    let mut expected: Vec<String> =
        sandboxes.iter().map(|name| format!("Sandbox {name}: ReconcilerError")).collect();
    expected.extend(claims.iter().map(|(name, _, _, reason)| format!("SandboxClaim {name}: {reason}")));
    expected.extend(
        [
            "Sandbox twins: MultiplePods",
            "Sandbox unfit: InvalidConfiguration",
            "SandboxTemplate walled: ReconcilerError",
            "SandboxWarmPool bare: TemplateNotFound",
        ]
        .map(str::to_owned),
    );
    expected.sort();
    assert_eq!(events(&place, |_| String::new()).await, expected);
    let written = matching_in(&place, &calls, |call| call.verb == "POST" && call.path.ends_with("/events"));
    assert_eq!(written.len(), expected.len(), "none was refused or written again: {written:?}");
    // No other named object is read or written repeatedly.
    let mut paths: BTreeMap<String, usize> = BTreeMap::new();
    for call in matching_in(&place, &calls, |call| call.verb != "POST") {
        *paths.entry(call.path).or_default() += 1;
    }
    assert!(paths.values().all(|count| *count <= 2), "{paths:#?}");
}

/// Returns the events about our kinds in a place, each as `kind name: reason` and more, in order. A
/// real control plane has further events, about pods and volumes.
async fn events(place: &Place, more: impl Fn(&Event) -> String) -> Vec<String> {
    let events = place.api::<Event>().list(&ListParams::default()).await.unwrap();
    let line = |event: &Event| {
        let about = event.regarding.clone().unwrap();
        let (kind, reason) = (about.kind.unwrap(), event.reason.as_deref().unwrap());
        format!("{kind} {}: {reason}{}", about.name.unwrap(), more(event))
    };
    let mut lines: Vec<String> = events.iter().map(line).collect();
    lines.retain(|line| line.starts_with("Sandbox"));
    lines.sort();
    lines
}

fn note(event: &Event) -> String {
    format!(": {}", event.note.as_deref().unwrap_or_default())
}

/// Returns a client that may create nothing at a path, and the denied calls.
fn denying(client: kube::Client, path: String) -> (kube::Client, Calls) {
    let denied = Calls::default();
    let log = denied.clone();
    let is_denied = move |method: &http::Method, asked: &str| {
        let is_denied = method == http::Method::POST && asked.ends_with(&path);
        if is_denied {
            let call = Call { at: Instant::now(), verb: method.to_string(), path: asked.to_owned() };
            log.lock().unwrap().push(call);
        }
        is_denied
    };
    (support::refusing(client, is_denied), denied)
}

/// Starts controllers that may create no sandboxes; returns their calls and the denied ones.
fn without_sandboxes(place: &Place) -> (Controllers, Calls, Calls) {
    let (client, calls) = place.watched_client();
    let (client, denied) = denying(client, format!("/namespaces/{}/sandboxes", place.namespace));
    (Controllers::start(client, extensions()), calls, denied)
}

/// After the server has refused a pod as invalid, no controller tries it again until the spec
/// changes.
pub async fn an_invalid_pod_is_tried_again_only_when_the_spec_changes(place: Place) {
    let containers = |name: &str| json!({"containers": [{"name": name, "image": "i"}]});
    let (client, calls) = place.watched_client();
    let tries = || matching(&calls, |call| call.is_creation_of_pod(&place)).len();
    let controllers = Controllers::start(client.clone(), extensions());
    let _nodes = support::nodes(&place).await;
    let unfit = json!({"podTemplate": {"spec": containers("Not A Name")}});
    place.create::<Sandbox>(sandbox("unfit", unfit)).await;
    let is_told = is_ready("False/InvalidConfiguration");
    let told = place.wait::<Sandbox>("unfit", "told", is_told).await.unwrap();
    let ready = condition(&told, "Ready").unwrap();
    let message = ready["message"].as_str().unwrap();
    assert!(message.starts_with("Refused by the API server as invalid: "), "{message}");
    assert!(message.contains("spec.containers[0].name"), "{message}");
    controllers.shutdown().await;
    assert_eq!(tries(), 1);

    // Another controller process reads the published state; it is also woken for other reasons.
    let controllers = Controllers::start(client, extensions());
    place.patch::<Sandbox>("unfit", json!({"metadata": {"labels": {"looked": "at"}}})).await;
    place.create::<Sandbox>(sandbox("next", json!({}))).await;
    place.wait::<Sandbox>("next", "ready", is_ready("True/DependenciesReady")).await;
    assert_eq!(tries(), 2, "one for the other sandbox");
    place.patch::<Sandbox>("unfit", json!({"spec": {"podTemplate": {"spec": containers("main")}}})).await;
    place.wait::<Sandbox>("unfit", "ready", is_ready("True/DependenciesReady")).await;
    controllers.shutdown().await;
}

pub async fn sandboxes_that_are_denied_are_tried_later_and_later_and_told_once(place: Place) {
    place.pool("empty", 0, json!({})).await;
    let (controllers, calls, denied) = without_sandboxes(&place);
    place.claim("c", "empty", json!({})).await;
    let claim = place.wait::<SandboxClaim>("c", "told", is_ready("False/ReconcilerError")).await.unwrap();
    let message = format!("Error seen: {}", support::FORBIDDEN);
    assert_eq!(condition(&claim, "Ready").unwrap()["message"], message);
    let tries = tried(&denied, "the sandbox of a claim", |_| true).await;
    assert_backs_off("the sandbox of a claim", &tries);
    let told = matching_in(&place, &calls, |call| call.path.ends_with("/sandboxclaims/c/status"));
    assert_eq!(told.len(), 1, "{told:?}");
    controllers.shutdown().await;
    let of_claim = format!("SandboxClaim c: ReconcilerError: {message}");
    assert_eq!(events(&place, note).await, [of_claim.as_str()]);
    place.api::<SandboxClaim>().delete("c", &DeleteParams::default()).await.unwrap();

    let (controllers, calls, denied) = without_sandboxes(&place);
    place.pool("full", 1, json!({})).await;
    let tries = tried(&denied, "the member of a pool", |_| true).await;
    assert_backs_off("the member of a pool", &tries);
    let told = matching_in(&place, &calls, |call| call.path.ends_with("/sandboxwarmpools/full/status"));
    assert!(told.len() <= 1, "{told:?}");
    controllers.shutdown().await;
    let of_pool = format!("SandboxWarmPool full: FailedCreate: {}", support::FORBIDDEN);
    assert_eq!(events(&place, note).await, [of_claim, of_pool], "each said once");
}

/// Only a read can tell that an owner was deleted before its child. If that is refused, no child is
/// made for an owner that may be gone, and the problem is reported.
pub async fn what_lost_a_child_and_cannot_be_read_says_so_and_gets_no_other(place: Place) {
    let (client, calls) = place.watched_client();
    let unread = ["/sandboxclaims/c", "/sandboxes/s", "/sandboxwarmpools/full"]
        .map(|path| format!("/{}{path}", place.namespace));
    let is_unread = move |method: &http::Method, path: &str| {
        method == http::Method::GET && unread.iter().any(|unread| path.ends_with(unread))
    };
    let controllers = Controllers::start(support::refusing(client, is_unread), extensions());
    let _nodes = support::nodes(&place).await;
    place.pool("empty", 0, json!({})).await;
    place.claim("c", "empty", json!({})).await;
    let first = place.claimed("c").await;
    place.create::<Sandbox>(sandbox("s", json!({}))).await;
    place.wait::<Sandbox>("s", "ready", is_ready("True/DependenciesReady")).await;
    place.pool("full", 1, json!({})).await;
    place.full("full", 1).await;
    let all = place.api::<Sandbox>().list(&ListParams::default()).await.unwrap().items;
    let member = all.iter().map(|sandbox| sandbox.name_any()).find(|name| name.starts_with("full-")).unwrap();
    let made = |call: &Call| {
        call.verb == "POST" && ["/pods", "/sandboxes"].iter().any(|kind| call.path.ends_with(kind))
    };
    calls.lock().unwrap().clear();

    place.api::<Sandbox>().delete(&first.name_any(), &DeleteParams::default()).await.unwrap();
    place.api::<Pod>().delete("s", &DeleteParams::default()).await.unwrap();
    place.api::<Sandbox>().delete(&member, &DeleteParams::default()).await.unwrap();
    let claim = place.wait::<SandboxClaim>("c", "told", is_ready("False/ReconcilerError")).await.unwrap();
    let sandbox = place.wait::<Sandbox>("s", "told", is_ready("False/ReconcilerError")).await.unwrap();
    let message = |ready: Option<Value>| ready.unwrap()["message"].as_str().unwrap().to_owned();
    let told = [message(condition(&claim, "Ready")), message(condition(&sandbox, "Ready"))];
    let expected = ["SandboxClaim c", "Sandbox s"]
        .map(|owner| format!("Error seen: read {owner}, which may be gone: {}", support::FORBIDDEN));
    assert_eq!(told, expected);
    // A pool has no condition for it.
    let deadline = Instant::now() + support::DEADLINE;
    let is_told = |event: &Event| {
        let note = event.note.as_deref().unwrap_or_default();
        event.reason.as_deref() == Some("FailedCreate")
            && note.starts_with("read SandboxWarmPool full, which")
    };
    while !place.api::<Event>().list(&ListParams::default()).await.unwrap().iter().any(is_told) {
        assert!(Instant::now() < deadline, "the pool says nothing");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(matching_in(&place, &calls, made).len(), 0);
    controllers.shutdown().await;
}
