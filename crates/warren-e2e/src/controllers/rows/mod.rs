//! The rows of `docs/compatibility.md`: behaviour of agent-sandbox that clients rely on and that is
//! easy to get wrong. Each row is a scenario of its own, named after it.
//!
//! Some parts cannot be observed through the API alone:
//! - Row 11: that a deadline equal to now has passed, and that a claim wakes exactly at its
//!   deadline, are tests of `warren-decide`. Here stored times are checked: nothing expires early,
//!   a claim that was reconciled before its deadline expires in the deadline's second, and a
//!   sandbox is not reconciled again within two seconds. The latter runs alone, as the status that
//!   shows the reconcile may be delayed while claims leave no room.
//! - Row 21: the retries of a claim with a lasting error are counted where the controller's
//!   requests can be counted, in `warren-controllers`' own tests on both servers (`bad_input`).
//!   Here: reason, message, and which problems resolve by themselves.
//! - Row 30: there is no conversion webhook yet, so no server serves `v1alpha1`. `warren migrate`
//!   converts manifests, and its tests check the result. Here: converted manifests work, and old
//!   owner references count.

mod adoption;
mod bad_input;
mod children;
mod claims;
mod life;
mod old_versions;
mod ours;
mod pools;
mod templates;

use super::runner::Scenario;

/// Returns all rows, scenarios of wrong input, and those of features beyond agent-sandbox.
pub fn scenarios() -> Vec<Scenario> {
    crate::scenarios![
        life::row_01_suspended_is_always_there_and_its_time_moves_only_when_the_pod_is_gone,
        life::row_02_a_terminating_pod_blocks_its_successor_after_a_quick_resume,
        life::row_03_an_ended_pod_is_kept_and_never_replaced,
        life::row_04_metadata_of_the_template_reaches_the_live_pod_and_its_spec_does_not,
        life::row_05_reserved_keys_of_a_template_never_reach_the_pod,
        children::row_06_unowned_children_are_taken_only_with_permission,
        children::row_07_an_unset_service_is_kept_in_order_but_never_made,
        children::row_08_service_ports_are_derived_from_the_containers,
        children::row_09_volume_claim_templates_are_immutable_on_sandboxes_only,
        life::row_10_expiry_is_stored_before_anything_goes_and_can_be_taken_back,
        life::row_11_claims_expire_in_the_second_of_their_deadline,
        life::row_12_scheduling_is_mirrored_word_for_word,
        children::row_13_a_volume_claim_in_the_way_stops_neither_pod_nor_service,
        children::row_13_a_volume_claim_that_is_gone_wakes_nobody,
        children::row_14_two_pods_of_one_sandbox_stop_everything_until_one_goes,
        adoption::row_15_a_warm_claim_takes_the_sandbox_with_its_pod,
        adoption::row_16_a_taken_pod_loses_the_marks_of_the_pool,
        adoption::row_18_a_committed_assignment_is_completed_first,
        adoption::row_19_ready_members_come_first_and_a_member_with_an_address_beats_a_cold_start,
        adoption::row_19_members_without_an_address_make_a_claim_wait_for_two_seconds,
        adoption::row_19_the_node_with_most_members_gives_first,
        adoption::row_20_own_env_or_volumes_bypass_a_full_pool,
        claims::row_21_errors_of_the_user_are_told_apart_from_errors_worth_a_retry,
        claims::row_21_what_is_worth_a_retry_heals_by_itself_and_what_is_not_waits_for_the_user,
        claims::row_22_a_foreign_sandbox_of_the_claim_s_name_blocks_it,
        claims::row_23_a_bound_claim_outlives_its_pool_and_follows_another,
        claims::row_23_a_claim_with_metadata_misses_its_template_alone_too,
        claims::row_24_a_claim_is_ready_since_its_sandbox_is,
        pools::row_25_only_what_makes_another_pod_rolls_a_pool,
        pools::row_25_a_rollout_never_has_more_than_the_pool_s_size,
        pools::row_25_outdated_members_are_not_handed_out_while_a_pool_is_rolled,
        pools::row_25_without_recreate_stale_members_are_handed_out,
        pools::row_27_not_ready_members_go_first_and_then_the_newest,
        pools::row_27_orphans_are_taken_in_if_equal_and_deleted_if_not,
        templates::row_28_a_policy_of_others_is_left_alone,
        templates::row_28_secure_defaults_are_for_derived_sandboxes_that_say_nothing_else,
        claims::row_29_nothing_is_deleted_before_expiry_is_stored,
        claims::row_29_deleting_in_the_foreground_shows_on_claim_sandbox_and_pod,
        claims::row_29_the_earlier_end_counts_and_finished_stays,
        old_versions::row_30_migrated_manifests_work,
        old_versions::row_30_owner_references_of_the_old_version_count,
        ours::a_claim_that_is_not_ready_by_its_deadline_says_why_and_ends,
        ours::a_deadline_that_means_nothing_is_told_and_ignored,
        ours::a_pool_is_never_larger_than_its_cap,
        ours::a_rolling_update_leaves_most_of_a_pool_to_be_claimed,
        ours::a_template_that_does_not_work_is_told_on_the_pool,
        ours::retained_volume_claims_outlive_their_sandbox,
        ours::retained_volume_claims_outlive_an_expired_sandbox,
        ours::a_claim_passes_on_that_its_volumes_are_kept,
        ours::an_edit_that_the_live_pod_does_not_have_is_told,
        bad_input::an_invalid_reference_is_told_and_healed_by_what_was_missing,
        bad_input::a_template_that_cannot_make_a_pod_is_told_with_the_server_s_words,
        bad_input::a_quota_that_is_used_up_is_told_and_healed_by_a_larger_one,
        bad_input::a_quota_of_no_sandboxes_is_told_on_claim_and_pool_and_healed_by_a_larger_one;
        alone:
        life::row_11_a_sandbox_does_not_expire_within_two_seconds_of_a_look,
        adoption::row_17_every_claim_gets_exactly_one_sandbox_across_kills,
        adoption::row_17_as_many_claims_as_members_are_warm_and_the_others_cold_across_a_kill,
        pools::row_26_members_that_turn_not_ready_are_replaced_and_unschedulable_ones_held,
        ours::members_on_a_node_that_is_being_emptied_are_not_handed_out,
    ]
}
