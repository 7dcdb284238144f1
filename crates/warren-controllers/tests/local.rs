//! Runs the scenarios on our own API server, in process: the local home without its containers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

mod scenarios;
mod support;

use std::sync::Arc;

use kube::Client;
use tower::ServiceBuilder;
use warren_apiserver::{ApiServer, Config, Identity, NoNodes, Storage};

use support::Place;

async fn place() -> Place {
    let crds =
        warren_api::crds().iter().map(|definition| serde_json::to_value(definition).unwrap()).collect();
    let config = Config {
        storage: Storage::Memory,
        crds,
        nodes: Arc::new(NoNodes),
        accounts: None,
        now: jiff::Timestamp::now,
        limits: Default::default(),
        audit: None,
    };
    let server = ApiServer::open(config).await.unwrap();
    Place::new(
        move |calls| {
            let service = server.as_user(Identity::admin());
            Client::new(ServiceBuilder::new().layer(support::recording(calls)).service(service), "default")
        },
        (),
    )
    .await
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
