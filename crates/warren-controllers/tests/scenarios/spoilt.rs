//! Tests sandboxes that cannot be adopted, or not even be parsed: each costs at most one claim, and
//! the server next to nothing.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use warren_api::{Sandbox, SandboxClaim};
use warren_controllers::Controllers;

use super::bad_input::{assert_backs_off, tried};
use super::{extensions, sandbox};
use crate::support::{self, Call, Place, condition, is_ready};

/// Builds a probe on a port that the CRD accepts although no pod can have it. None of our types can
/// hold the number.
fn unreadable() -> Value {
    let probe = json!({"tcpSocket": {"port": 1_u64 << 40}});
    json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "i", "readinessProbe": probe}]}}})
}

/// Returns an untyped API of sandboxes.
fn raw(place: &Place) -> Api<DynamicObject> {
    Api::namespaced_with(place.client.clone(), &place.namespace, &ApiResource::erase::<Sandbox>(&()))
}

pub async fn a_member_that_cannot_be_taken_keeps_one_claim_waiting(place: Place) {
    let (client, _) = place.watched_client();
    let spoilt = Arc::new(OnceLock::new());
    let (first, here) = (spoilt.clone(), format!("/namespaces/{}/sandboxes/", place.namespace));
    let is_spoilt = move |method: &http::Method, path: &str| {
        let is_change = method == http::Method::PATCH && path.contains(&here);
        is_change && !path.ends_with("/status") && first.get_or_init(|| path.to_owned()) == path
    };
    let controllers = Controllers::start(support::refusing(client, is_spoilt), extensions());
    let _nodes = support::nodes(&place).await;
    place.pool("pool", 3, json!({})).await;
    place.full("pool", 3).await;
    place.claim("first", "pool", json!({})).await;
    place.wait::<SandboxClaim>("first", "told", is_ready("False/ReconcilerError")).await;
    for name in ["second", "third"] {
        place.claim(name, "pool", json!({})).await;
        let taken = place.claimed(name).await;
        assert_ne!(taken.name_any(), name, "there are members for all of them");
        assert!(!spoilt.get().unwrap().ends_with(&taken.name_any()));
    }
    controllers.shutdown().await;
}

pub async fn a_member_that_cannot_be_read_is_not_handed_out(place: Place) {
    let (client, calls) = place.watched_client();
    let controllers = Controllers::start(client, extensions());
    let _nodes = support::nodes(&place).await;
    place.pool("pool", 1, json!({})).await;
    place.full("pool", 1).await;
    let member = place.api::<Sandbox>().list(&ListParams::default()).await.unwrap().items.remove(0);
    calls.lock().unwrap().clear();
    let edit = Patch::Merge(json!({"spec": unreadable()}));
    raw(&place).patch(&member.name_any(), &PatchParams::default(), &edit).await.unwrap();
    let here = format!("/namespaces/{}/events", place.namespace);
    let is_told = |call: &Call| call.verb == "POST" && call.path.ends_with(&here);
    let deadline = Instant::now() + support::DEADLINE;
    while !calls.lock().unwrap().iter().any(is_told) {
        assert!(
            Instant::now() < deadline,
            "nobody is told that it cannot be read: {:?}",
            calls.lock().unwrap()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    place.claim("c", "pool", json!({})).await;
    assert_ne!(place.claimed("c").await.name_any(), member.name_any());
    controllers.shutdown().await;
}

pub async fn a_claim_whose_place_has_somebody_unreadable_says_so_and_backs_off(place: Place) {
    let (client, calls) = place.watched_client();
    let controllers = Controllers::start(client, extensions());
    place.pool("empty", 0, json!({})).await;
    let object: DynamicObject = serde_json::from_value(sandbox("c", unreadable())).unwrap();
    raw(&place).create(&PostParams::default(), &object).await.unwrap();
    place.claim("c", "empty", json!({})).await;
    let told = place.wait::<SandboxClaim>("c", "told", is_ready("False/ReconcilerError")).await.unwrap();
    let message = condition(&told, "Ready").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("Sandbox c cannot be read"), "{message}");
    let here = format!("/namespaces/{}/sandboxes", place.namespace);
    let is_try = |call: &Call| call.verb == "POST" && call.path.ends_with(&here);
    assert_backs_off("the sandbox of a claim", &tried(&calls, "the sandbox of a claim", is_try).await);
    controllers.shutdown().await;
}

pub async fn a_claim_that_lost_its_own_sandbox_makes_another_in_one_try(place: Place) {
    let (client, calls) = place.watched_client();
    let controllers = Controllers::start(client, extensions());
    let _nodes = support::nodes(&place).await;
    place.pool("empty", 0, json!({})).await;
    place.claim("c", "empty", json!({})).await;
    let lost = place.claimed("c").await;
    place.api::<Sandbox>().delete("c", &DeleteParams::default()).await.unwrap();
    let is_another = |sandbox: Option<&Sandbox>| sandbox.is_some_and(|another| another.uid() != lost.uid());
    place.wait::<Sandbox>("c", "made again", is_another).await;
    place.wait::<Sandbox>("c", "ready", is_ready("True/DependenciesReady")).await;
    place.wait::<SandboxClaim>("c", "served again", is_ready("True/DependenciesReady")).await;
    let here = format!("/namespaces/{}/sandboxes", place.namespace);
    let is_try = |call: &&Call| call.verb == "POST" && call.path.ends_with(&here);
    let tries = calls.lock().unwrap().iter().filter(is_try).count();
    assert_eq!(tries, 2, "one for each of the two");
    controllers.shutdown().await;
}
