//! Tests properties that only the controllers themselves can show, on any server: the API requests
//! that their work costs, and leader election. Their behaviour is tested through the API, in
//! `warren-e2e`.

pub mod bad_input;
pub mod guards;
pub mod permissions;
pub mod spoilt;
pub mod telemetry;

pub use bad_input::{
    an_invalid_pod_is_tried_again_only_when_the_spec_changes,
    lasting_errors_are_retried_later_and_later_and_said_once,
    sandboxes_that_are_denied_are_tried_later_and_later_and_told_once,
    what_lost_a_child_and_cannot_be_read_says_so_and_gets_no_other,
};
pub use guards::writes_decided_about_another_object_or_an_older_state_are_refused;
pub use permissions::{a_right_that_is_taken_away_is_missed, the_rights_that_are_handed_out_are_enough};
pub use spoilt::{
    a_claim_that_lost_its_own_sandbox_makes_another_in_one_try,
    a_claim_whose_place_has_somebody_unreadable_says_so_and_backs_off,
    a_member_that_cannot_be_read_is_not_handed_out, a_member_that_cannot_be_taken_keeps_one_claim_waiting,
};
pub use telemetry::{
    metrics_have_the_names_of_agent_sandbox_and_count_what_happened,
    spans_of_passes_are_children_of_the_context_that_a_claim_carries,
    who_may_not_see_everything_leaves_the_lease_to_others,
    who_stands_by_watches_and_works_as_soon_as_the_leader_leaves,
};

use std::time::Duration;

use crate::support::{self, Place};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_controllers::leader::Election;
use warren_controllers::{Config, Controllers};

pub fn extensions() -> Config {
    Config { extensions: true, ..Config::default() }
}

pub fn sandbox(name: &str, spec: serde_json::Value) -> serde_json::Value {
    let mut object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "i"}]}}},
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

pub async fn a_warm_claim_takes_a_waiting_sandbox_in_three_writes(place: Place) {
    let (client, calls) = place.watched_client();
    let controllers = Controllers::start(client, extensions());
    let _nodes = support::nodes(&place).await;
    place.pool("pool", 1, json!({})).await;
    place.full("pool", 1).await;
    let waiting = place.api::<Sandbox>().list(&ListParams::default()).await.unwrap().items.remove(0);
    calls.lock().unwrap().clear();
    place.claim("c", "pool", json!({})).await;
    let sandbox = place.claimed("c").await;
    assert_eq!(sandbox.name_any(), waiting.name_any());
    let claim = place.api::<SandboxClaim>().get("c").await.unwrap();
    for key in ["controller-first-observed-at", "claim-first-ready-at"] {
        assert!(claim.annotations().contains_key(&format!("agents.x-k8s.io/{key}")), "{key}");
    }
    let clean = |pod: Option<&Pod>| {
        pod.is_some_and(|pod| !pod.labels().contains_key("agents.x-k8s.io/warm-pool-sandbox"))
    };
    place.wait::<Pod>(&sandbox.name_any(), "free of the pool's labels", clean).await;

    let about = |name: &str| -> Vec<String> {
        let calls = calls.lock().unwrap();
        calls
            .iter()
            .filter(|call| call.is_in(&place) && call.verb != "GET" && call.path.contains(name))
            .map(|call| call.path.rsplit('/').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(about("/sandboxclaims/"), ["c", "status"], "assignment and status, nothing else");
    // The adoption (tried again if a late status of the warm sandbox came in between). Then, off
    // the path to Ready, the sandbox's status: its last one from before, and the new generation
    // after.
    let (name, written) = (sandbox.name_any(), about(&format!("/sandboxes/{}", sandbox.name_any())));
    let tries = written.iter().filter(|write| **write == name).count();
    assert!((1..=2).contains(&tries), "{written:?}");
    assert!(written.iter().all(|write| *write == name || write == "status"), "{written:?}");
    controllers.shutdown().await;
}

/// Row 25, just before an outdated member is deleted.
pub async fn an_outdated_member_of_a_recreate_pool_is_not_handed_out(place: Place) {
    let (client, _) = place.watched_client();
    let tried = CancellationToken::new();
    let (has_tried, here) = (tried.clone(), format!("/namespaces/{}/sandboxes/", place.namespace));
    let is_removal = move |method: &http::Method, path: &str| {
        let is_removal = method == http::Method::DELETE && path.contains(&here);
        if is_removal {
            tried.cancel();
        }
        is_removal
    };
    let controllers = Controllers::start(support::refusing(client, is_removal), extensions());
    let _nodes = support::nodes(&place).await;
    place.pool("pool", 1, json!({})).await;
    let recreate = json!({"spec": {"updateStrategy": {"type": "Recreate"}}});
    place.patch::<SandboxWarmPool>("pool", recreate).await;
    place.full("pool", 1).await;
    let outdated = place.api::<Sandbox>().list(&ListParams::default()).await.unwrap().items.remove(0);
    let edit = json!({"spec": {"podTemplate": {"spec": {"hostname": "edited"}}}});
    place.patch::<SandboxTemplate>("pool", edit).await;
    // The controllers know of the edit when they try the deletion, which fails.
    tokio::time::timeout(support::DEADLINE, has_tried.cancelled()).await.unwrap();
    place.claim("c", "pool", json!({})).await;
    let taken = place.claimed("c").await;
    assert_ne!(taken.name_any(), outdated.name_any());
    assert_eq!(taken.spec.blueprint.pod_template.spec.hostname.as_deref(), Some("edited"));
    controllers.shutdown().await;
}

pub async fn a_leader_that_leaves_is_followed_at_once_and_one_that_dies_when_its_lease_ends(place: Place) {
    let election = |identity: &str| Election {
        lease_duration: Duration::from_secs(8),
        renew_period: Duration::from_millis(200),
        ..Election::new(place.namespace.clone(), identity)
    };
    let first = election("first").lead(place.client.clone()).await;
    let second = tokio::spawn(election("second").lead(place.client.clone()));
    let held_by = |name: &'static str| {
        move |lease: Option<&Lease>| {
            lease.and_then(|lease| lease.spec.clone()?.holder_identity).is_some_and(|holder| holder == name)
        }
    };
    let lease = "a3317529.agent-sandbox.x-k8s.io";
    place.wait::<Lease>(lease, "the first one's", held_by("first")).await;
    assert!(!second.is_finished());
    first.release().await;
    let second = tokio::time::timeout(support::DEADLINE, second).await.unwrap().unwrap();
    place.wait::<Lease>(lease, "the second one's", held_by("second")).await;

    // The second leader dies; the lease expires, and a third one takes it.
    drop(second);
    let third =
        tokio::time::timeout(support::DEADLINE, election("third").lead(place.client.clone())).await.unwrap();
    // The lease is deleted: the leader makes another.
    place.api::<Lease>().delete(lease, &kube::api::DeleteParams::default()).await.unwrap();
    place.wait::<Lease>(lease, "the third one's again", held_by("third")).await;
    // Another process takes it by force: the leader notices.
    let theft = json!({"spec": {"holderIdentity": "thief"}});
    place.patch::<Lease>(lease, theft).await;
    tokio::time::timeout(support::DEADLINE, third.lost()).await.unwrap();
}

/// Generates tests of scenarios, each in a place that `$place` provides.
macro_rules! tests {
    ($place:path: $($name:ident)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::scenarios::$name($place().await).await;
            }
        )+
    };
}
pub(crate) use tests;
