//! The end-to-end suite of the controllers: what a user of sandboxes, templates, pools and claims
//! observes, in both homes.
//!
//! Most scenarios run twice: undisturbed, several at a time, and once more while the controllers
//! are killed and restarted from time to time (at least once during each), which must not change
//! the final result. Then follow those that need the home alone: competing controllers, and their
//! election. Start reading at [`scenarios`].

pub mod claims;
mod contest;
pub mod expiry;
pub mod network_policy;
mod objects;
pub mod parallel;
pub mod pools;
pub mod process;
mod referee;
pub mod sandbox;
pub mod services;
pub mod volumes;

use super::runner::Scenario;
use crate::scenarios;

/// Returns all of them. Scenarios that only hold without late requests of a dead controller are not
/// disturbed.
pub fn scenarios() -> Vec<Scenario> {
    let mut all = both_ways();
    all.extend(scenarios![
        pools::a_pool_is_never_larger_than_asked_for,
        pools::a_rolling_pool_stays_as_large_as_it_must,
    ]);
    all.extend(both_ways().into_iter().map(Scenario::disturbed));
    all.extend(scenarios![; alone:
        contest::three_controllers_that_fight_give_everything_once,
        contest::a_leader_that_is_killed_or_leaves_is_followed,
    ]);
    all
}

fn both_ways() -> Vec<Scenario> {
    scenarios![
        parallel::a_hundred_sandboxes_in_parallel,
        sandbox::a_sandbox_has_a_pod_and_a_service_and_says_so,
        sandbox::a_sandbox_is_suspended_and_resumed_twice,
        sandbox::a_pod_held_by_a_finalizer_holds_up_suspending_and_resuming,
        sandbox::a_deleted_pod_is_replaced_without_a_suspension,
        sandbox::a_foreign_pod_is_not_deleted_by_a_suspension,
        expiry::an_expired_sandbox_is_kept_without_its_children_and_can_be_revived,
        expiry::an_expired_sandbox_is_deleted_with_its_children,
        expiry::a_finished_sandbox_says_so_after_it_has_expired,
        expiry::an_expired_claim_is_deleted_with_all_it_had,
        expiry::an_expired_claim_waits_for_its_pod_when_deleted_in_the_foreground,
        expiry::an_expired_claim_is_kept_without_its_sandbox_and_can_be_revived,
        expiry::a_finished_claim_ends_after_its_time_to_live,
        expiry::a_finished_claim_with_a_time_to_live_of_zero_keeps_what_it_said,
        expiry::a_finished_claim_is_deleted_in_the_foreground,
        volumes::a_volume_claim_lives_as_long_as_its_sandbox,
        volumes::volume_claim_templates_of_a_sandbox_are_immutable,
        volumes::volume_claims_of_a_claim_follow_the_policy_of_the_template,
        volumes::a_claim_with_volumes_leaves_the_pool_alone,
        services::a_service_is_made_kept_and_removed_as_asked,
        services::a_foreign_service_is_left_alone,
        claims::a_claim_takes_a_waiting_sandbox,
        claims::a_claim_on_an_empty_pool_starts_cold,
        claims::a_claim_waits_for_its_pool_and_its_template,
        claims::variables_of_a_claim_follow_the_policy_of_the_template,
        claims::metadata_of_a_claim_reaches_the_pod_if_it_may,
        claims::many_claims_at_once_get_one_sandbox_each,
        claims::a_claim_tells_what_became_of_its_sandbox,
        network_policy::a_template_without_rules_is_secure_by_default,
        network_policy::a_template_with_rules_manages_its_policy_until_told_not_to,
        network_policy::a_foreign_policy_is_left_alone,
        pools::a_pool_is_scaled_up_and_down,
        pools::a_changed_template_reaches_a_pool_as_members_leave_it,
        pools::a_changed_template_recreates_a_pool,
        pools::a_changed_template_rolls_a_pool_a_few_at_a_time,
        pools::a_change_of_labels_rolls_nothing,
        pools::only_the_pool_of_a_changed_template_rolls,
        pools::a_pool_waits_for_its_template,
    ]
}
