//! Input that stays wrong costs the server next to nothing: what a retry could heal is tried again later and later, what
//! only the user can heal is not tried again at all, and either is told once.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use warren_api::{Sandbox, SandboxClaim};
use warren_controllers::Controllers;

use super::{extensions, sandbox};
use crate::support::{self, Call, Calls, Place, condition, is_ready};

/// Tries that are waited for.
const TRIES: usize = 11;
/// Waits after failures are of this length, then twice, four times and so on.
const FIRST_WAIT: Duration = Duration::from_millis(5);
/// Tries that come sooner, because what the controller itself has written wakes it: the status, and the pod's name taken
/// off. Each of them makes the next wait longer all the same.
const WOKEN: usize = 3;

fn matching(calls: &Calls, wanted: impl Fn(&Call) -> bool) -> Vec<Call> {
    calls.lock().unwrap().iter().filter(|call| wanted(call)).cloned().collect()
}

/// Waits until something was tried that often, and gives when.
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

/// The tries come at the times of doubling waits or later, so that a minute has no more than 17. How much later says only how
/// busy the machine is.
pub fn assert_backs_off(what: &str, tries: &[Instant]) {
    for (number, at) in tries.iter().enumerate().take(TRIES).skip(WOKEN + 1) {
        let waits = u32::try_from(number - WOKEN).unwrap();
        let (least, waited) = (FIRST_WAIT * (2_u32.pow(waits) - 1), *at - tries[0]);
        assert!(waited >= least, "{what}: try {} came after {waited:?}, not {least:?}", number + 1);
    }
}

pub async fn lasting_errors_are_retried_later_and_later_and_said_once(place: Place) {
    let (client, calls) = place.watched_client();
    let controllers = Controllers::start(client, extensions());
    let _nodes = support::nodes(&place).await;
    // The schema of a sandbox takes the name, and the server refuses the pod.
    let unfit = json!({"podTemplate": {"spec": {"containers": [{"name": "Not A Name", "image": "i"}]}}});
    place.create::<Sandbox>(sandbox("unfit", unfit.clone())).await;
    // Somebody else's pod in the way.
    let stranger = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "taken"},
        "spec": {"containers": [{"name": "x", "image": "i"}]}});
    place.create::<Pod>(stranger).await;
    place.create::<Sandbox>(sandbox("taken", json!({}))).await;
    // A claim that asks for a container that there is not, one for a pool that there is not, one that may not be.
    place.pool("pool", 0, json!({"envVarsInjectionPolicy": "Allowed"})).await;
    let claims: [(&str, &str, Value, &str); 4] = [
        (
            "unknown",
            "pool",
            json!({"env": [{"name": "A", "value": "1", "containerName": "none"}]}),
            "ReconcilerError",
        ),
        ("lost", "nowhere", json!({}), "WarmPoolNotFound"),
        (
            "forbidden",
            "pool",
            json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}),
            "VolumeClaimTemplatesError",
        ),
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
    for name in ["unfit", "taken"] {
        place.wait::<Sandbox>(name, "told", is_ready("False/ReconcilerError")).await;
    }

    let creations = |call: &Call| call.is_creation_of_pod(&place);
    let tries = tried(&calls, "the unfit pod", creations).await;
    assert_backs_off("the unfit pod", &tries);

    // The clock of the unfit pod has run for all of them.
    for name in ["unfit", "taken"] {
        let told = matching(&calls, |call| call.path.ends_with(&format!("/sandboxes/{name}/status")));
        assert_eq!(told.len(), 1, "{name} was told once: {told:?}");
    }
    for (name, ..) in &claims {
        let about = matching(&calls, |call| call.path.contains(&format!("/sandboxclaims/{name}")));
        let told = about.iter().filter(|call| call.path.ends_with("/status")).count();
        assert_eq!(told, 1, "{name} was told once: {about:?}");
        assert!(about.len() <= 2, "the status, and when it was first seen: {about:?}");
        let for_it = matching(&calls, |call| call.path.contains(&format!("/sandboxes/{name}")));
        assert!(for_it.is_empty(), "nothing is asked about a sandbox that it does not have: {for_it:?}");
    }
    let about_taken = matching(&calls, |call| call.path.contains("/pods/taken"));
    assert!(about_taken.is_empty(), "what is in the way is known without asking: {about_taken:?}");
    controllers.shutdown().await;
}

/// Whether an owner went before its child is only known by reading it. Where that is refused, nothing is made for an owner that may be
/// gone; but nobody waits without a word.
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
    let here = ["pods", "sandboxes"].map(|kind| format!("/namespaces/{}/{kind}", place.namespace));
    let made =
        |call: &Call| call.verb == "POST" && here.iter().any(|place| call.path.ends_with(place.as_str()));
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
    assert_eq!(matching(&calls, made).len(), 0);
    controllers.shutdown().await;
}
