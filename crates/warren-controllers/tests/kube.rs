//! Runs the scenarios on a real control plane.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

mod scenarios;
mod support;

use k8s_openapi::api::core::v1::{ResourceQuota, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::json;
use tokio::sync::Mutex;
use warren_api::{Sandbox, annotations};
use warren_controllers::Controllers;
use warren_testkit::kube::ControlPlane;

use scenarios::permissions::Account;
use scenarios::{bad_input, permissions};
use support::{DEADLINE, Place};

/// Controllers watch all namespaces, so a shared control plane runs one scenario at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

async fn place() -> Place {
    let alone = ONE_AT_A_TIME.lock().await;
    let kubeconfig = Kubeconfig::read_from(ControlPlane::start().kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let client = Client::try_from(config.clone()).unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in warren_api::crds() {
        let name = definition.name_any();
        definitions
            .patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&definition))
            .await
            .unwrap();
        let established = await_condition(definitions.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(DEADLINE, established).await.unwrap().unwrap();
    }
    let place = Place::new(
        move |calls| {
            ClientBuilder::try_from(config.clone()).unwrap().with_layer(&support::recording(calls)).build()
        },
        alone,
    )
    .await;
    // Pods cannot be created before it exists.
    let is_there = |account: Option<&ServiceAccount>| account.is_some();
    place.wait::<ServiceAccount>("default", "there", is_there).await;
    place
}

scenarios::tests! { place:
    a_claim_that_lost_its_own_sandbox_makes_another_in_one_try
    a_claim_whose_place_has_somebody_unreadable_says_so_and_backs_off
    a_member_that_cannot_be_read_is_not_handed_out
    a_member_that_cannot_be_taken_keeps_one_claim_waiting
    a_warm_claim_takes_a_waiting_sandbox_in_three_writes
    a_right_that_is_taken_away_is_missed
    a_leader_that_leaves_is_followed_at_once_and_one_that_dies_when_its_lease_ends
    an_outdated_member_of_a_recreate_pool_is_not_handed_out
    an_invalid_pod_is_tried_again_only_when_the_spec_changes
    lasting_errors_are_retried_later_and_later_and_said_once
    metrics_have_the_names_of_agent_sandbox_and_count_what_happened
    sandboxes_that_are_denied_are_tried_later_and_later_and_told_once
    spans_of_passes_are_children_of_the_context_that_a_claim_carries
    the_rights_that_are_handed_out_are_enough
    what_lost_a_child_and_cannot_be_read_says_so_and_gets_no_other
    who_may_not_see_everything_leaves_the_lease_to_others
    who_stands_by_watches_and_works_as_soon_as_the_leader_leaves
    writes_decided_about_another_object_or_an_older_state_are_refused
}

/// Only a real server enforces quotas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_by_quota_is_retried_later_and_later() {
    let place = place().await;
    let quota: ResourceQuota =
        serde_json::from_value(json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}))
            .unwrap();
    place.api::<ResourceQuota>().create(&PostParams::default(), &quota).await.unwrap();
    place
        .wait::<ResourceQuota>("none", "counted", |quota: Option<&ResourceQuota>| {
            quota.and_then(|quota| quota.status.as_ref()?.used.clone()).is_some()
        })
        .await;
    let (client, calls) = place.watched_client();
    let controllers = Controllers::start(client, scenarios::extensions());
    place.create::<Sandbox>(scenarios::sandbox("one", json!({}))).await;
    let told =
        place.wait::<Sandbox>("one", "told", support::is_ready("False/ReconcilerError")).await.unwrap();
    let message = support::condition(&told, "Ready").unwrap()["message"].clone();
    assert!(message.as_str().unwrap().contains("exceeded quota: none"), "{message}");
    let tries = bad_input::tried(&calls, "the denied pod", |call| call.is_creation_of_pod(&place)).await;
    bad_input::assert_backs_off("the denied pod", &tries);
    controllers.shutdown().await;
}

/// Only a real server has the admission plugin that checks these.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_that_only_admission_asks_for_are_missed_too() {
    let place = place().await;
    let account = Account::new(&place).await;
    let core = format!("/api/v1/namespaces/{}", place.namespace);
    let controllers = Controllers::start(account.client.clone(), scenarios::extensions());
    place.create::<Sandbox>(permissions::with_volume()).await;
    permissions::wait_for_owners(&place, 1).await;
    account.hand_out(&place, Some(("persistentvolumeclaims", "delete"))).await;
    place.patch::<Sandbox>("kept", permissions::retention(annotations::RETAIN)).await;
    account.is_refused("PATCH", &format!("{core}/persistentvolumeclaims/data-kept")).await;
    account.hand_out(&place, Some(("sandboxes/finalizers", "update"))).await;
    place.create::<Sandbox>(scenarios::sandbox("one", json!({}))).await;
    account.is_refused("POST", &format!("{core}/pods")).await;
    controllers.shutdown().await;
}
