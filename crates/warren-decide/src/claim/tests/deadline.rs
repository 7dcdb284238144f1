//! Tests claims with a deadline, and the status of waiting claims.

use std::time::Duration;

use expect_test::expect;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{assigned, at, bound, check, condition, member, offered, render, seen, with, world};
use crate::claim::{Next, Plan, Settings, World, decide, give_up};
use crate::step::{Action, Failure, Stage};

fn settings() -> Settings {
    Settings { deadline: Some(Duration::from_secs(300)), ..Settings::default() }
}

fn deadline(value: &str) -> Value {
    json!({"metadata": {"annotations": {"warren.dev/deadline": value}}})
}

fn waiting(reason: &str, second: i64) -> Value {
    let mut ready = condition("Ready", "False", reason);
    ready["lastTransitionTime"] = json!(at(second).to_string());
    json!({"status": {"conditions": [ready]}})
}

/// Returns the conditions that a plan publishes, one line each, then its continuation and events.
fn published(plan: &Plan) -> String {
    let mut lines = Vec::new();
    for step in &plan.steps {
        match &step.action {
            Action::MergeStatus { body, .. } => {
                for condition in body["status"]["conditions"].as_array().into_iter().flatten() {
                    let text = |key: &str| condition[key].as_str().unwrap().to_owned();
                    lines.push(format!(
                        "{}={} {}: {}",
                        text("type"),
                        text("status"),
                        text("reason"),
                        text("message")
                    ));
                }
            }
            action => lines.push(action.to_string()),
        }
    }
    lines.extend(plan.notes.iter().map(|note| format!("event: {note}")));
    lines.push(format!("{:?}", plan.next));
    lines.join("\n")
}

/// Returns when a claim without a sandbox ends, in seconds after its creation.
fn ends(claim: Value, settings: &Settings) -> Option<i64> {
    let world =
        world(claim, vec![bound("c", json!({"status": {"conditions": [condition("Ready", "False", "x")]}}))]);
    let is_over = |second: i64| published(&decide(&world, settings, at(second))).contains("DeadlineExceeded");
    (0..10_000).find(|second| is_over(*second))
}

#[test]
fn the_claims_own_deadline_goes_before_that_of_all() {
    let none = Settings::default();
    assert_eq!(ends(seen(json!({})), &none), None);
    assert_eq!(ends(seen(json!({})), &settings()), Some(300));
    assert_eq!(ends(seen(deadline("90s")), &settings()), Some(90));
    assert_eq!(ends(seen(deadline("1h30m")), &none), Some(5400));
    assert_eq!(ends(seen(deadline(&at(77).to_string())), &settings()), Some(77));
    assert_eq!(ends(seen(deadline("0")), &settings()), None, "none is wanted");
    assert_eq!(ends(seen(deadline("soon")), &settings()), Some(300), "ignored");
    assert_eq!(ends(seen(deadline("soon")), &none), None);
    assert_eq!(ends(seen(deadline("-5s")), &none), None);
    assert_eq!(ends(seen(deadline("2000000h")), &none), None);
}

#[test]
fn it_counts_from_when_the_claim_began_to_wait() {
    assert_eq!(ends(with(seen(json!({})), waiting("SandboxNotReady", -50)), &settings()), Some(300));
    assert_eq!(ends(with(seen(json!({})), waiting("SandboxNotReady", 100)), &settings()), Some(400));
}

#[test]
fn the_end_is_stored_before_anything_is_released() {
    let unready = || {
        bound("w", json!({"status": {"conditions": [condition("Ready", "False", "DependenciesNotReady")]}}))
    };
    let waited = with(assigned("w"), waiting("DependenciesNotReady", 0));
    let plan = decide(&world(waited.clone(), vec![unready()]), &settings(), at(299));
    assert!(
        matches!(plan.next, Next::Settled { look_again: Some(delay), retry: false } if delay == Duration::from_secs(1))
    );
    let first = decide(&world(waited, vec![unready()]), &settings(), at(300));
    expect![[r#"
        Finished=True DeadlineExceeded: Claim was not ready by its deadline 2027-01-15T08:05:00Z; it was waiting on DependenciesNotReady: m
        Ready=False ClaimExpired: Claim was not ready by its deadline 2027-01-15T08:05:00Z; it was waiting on DependenciesNotReady: m
        event: Warning DeadlineExceeded (Claim Expired): Claim was not ready by its deadline 2027-01-15T08:05:00Z; it was waiting on DependenciesNotReady: m
        Settled { look_again: Some(1ms), retry: false }"#]]
    .assert_eq(&published(&first));

    let over = |extra: Value| {
        let text = "Claim was not ready";
        let mut conditions =
            [condition("Finished", "True", "DeadlineExceeded"), condition("Ready", "False", "ClaimExpired")];
        conditions.iter_mut().for_each(|condition| {
            condition["message"] = json!(text);
            condition["observedGeneration"] = json!(1);
            condition["lastTransitionTime"] = json!(at(300).to_string());
        });
        let status =
            json!({"status": {"conditions": conditions, "sandbox": {"name": "w", "podIPs": ["10.0.0.7"]}}});
        with(with(assigned("w"), status), extra)
    };
    let second = decide(&world(over(json!({})), vec![unready()]), &settings(), at(301));
    expect![[r#"
        patch SandboxClaim c {"metadata":{"resourceVersion":"5"}}
        delete Sandbox w
        settled"#]]
    .assert_eq(&render(&second));
    // The sandbox is gone: the status no longer names it, and the plan is settled.
    let third = decide(&world(over(json!({})), vec![]), &settings(), at(302));
    expect![[r#"
        patch SandboxClaim/status c {"metadata":{"resourceVersion":"5"},"status":{"sandbox":null}}
        settled"#]]
    .assert_eq(&render(&third));
    let rest = decide(&world(over(json!({"status": {"sandbox": null}})), vec![]), &settings(), at(302));
    expect!["settled"].assert_eq(&render(&rest));
    // An assigned member stays where it is. If it becomes the claim's after all, it is released.
    let promised = decide(
        &world(over(json!({"status": {"sandbox": null}})), vec![member(json!({}))]),
        &settings(),
        at(302),
    );
    expect!["settled"].assert_eq(&render(&promised));
    // The time after finishing counts from the end.
    let ttl =
        over(json!({"spec": {"lifecycle": {"ttlSecondsAfterFinished": 60, "shutdownPolicy": "Delete"}}}));
    let kept = decide(&world(ttl.clone(), vec![]), &settings(), at(302));
    assert_eq!(kept.next, Next::Settled { look_again: Some(Duration::from_secs(58)), retry: false });
    expect![[r#"
        delete SandboxClaim c
        event: Normal ClaimExpired (Deleting): deleting the claim (policy Delete)
        settled"#]]
    .assert_eq(&render(&decide(&world(ttl, vec![]), &settings(), at(360))));
    // A later deadline brings it back.
    let moved = over(
        json!({"metadata": {"annotations": {"warren.dev/deadline": "1h"}}, "status": {"sandbox": null}}),
    );
    expect![[r#"Confirm("w")"#]].assert_eq(&render(&decide(&world(moved, vec![]), &settings(), at(301))));
}

#[test]
fn a_claim_that_was_served_or_has_a_result_is_never_ended() {
    let late = at(100_000);
    let is_over = |world: &World| published(&decide(world, &settings(), late)).contains("DeadlineExceeded");
    let broken = || {
        bound("w", json!({"status": {"conditions": [condition("Ready", "False", "DependenciesNotReady")]}}))
    };
    let stamped = json!({"metadata": {"annotations": {"agents.x-k8s.io/claim-first-ready-at": "t"}}});
    assert!(is_over(&world(assigned("w"), vec![broken()])));
    assert!(!is_over(&world(with(assigned("w"), stamped.clone()), vec![broken()])));
    // The stamp is only a promise until the claim has the sandbox.
    assert!(is_over(&world(with(assigned("w"), stamped), vec![member(json!({}))])));
    let ready = json!({"status": {"conditions": [condition("Ready", "True", "DependenciesReady")]}});
    assert!(!is_over(&world(with(assigned("w"), ready), vec![broken()])));
    let done = bound(
        "w",
        json!({"status": {"conditions": [
        condition("Ready", "False", "PodSucceeded"), condition("Finished", "True", "PodSucceeded")]}}),
    );
    assert!(!is_over(&world(assigned("w"), vec![done])));
    // The sandbox is usable, and only the status is behind.
    let usable =
        bound("w", json!({"status": {"conditions": [condition("Ready", "True", "DependenciesReady")]}}));
    assert!(!is_over(&world(assigned("w"), vec![usable])));
}

/// The replacement of a lost sandbox has not served the claim yet.
#[test]
fn the_replacement_of_a_lost_sandbox_has_a_deadline_too() {
    let stamp =
        json!({"metadata": {"annotations": {"agents.x-k8s.io/claim-first-ready-at": at(10).to_string()}}});
    let made = |second: i64| {
        let made = json!({"metadata": {"creationTimestamp": at(second).to_string()},
            "status": {"conditions": [condition("Ready", "False", "DependenciesNotReady")]}});
        let claim = with(with(assigned("c"), stamp.clone()), waiting("DependenciesNotReady", 1000));
        world(claim, vec![bound("c", made)])
    };
    let is_over =
        |world: &World| published(&decide(world, &settings(), at(1300))).contains("DeadlineExceeded");
    assert!(!is_over(&made(5)));
    assert!(is_over(&made(1000)));
}

#[test]
fn a_claim_whose_time_was_extended_after_its_end_begins_to_wait_anew() {
    let extended = with(seen(json!({})), waiting("ClaimExpired", 10));
    let mut lost = world(extended, vec![]);
    (lost.pool, lost.template) = (None, None);
    let plan = decide(&lost, &settings(), at(100_000));
    let Action::MergeStatus { body, .. } = &plan.steps[0].action else { panic!("{plan:?}") };
    let ready = &body["status"]["conditions"][0];
    assert_eq!(
        (ready["reason"].as_str(), ready["lastTransitionTime"].as_str()),
        (Some("WarmPoolNotFound"), Some(at(100_000).to_string().as_str()))
    );
    assert_eq!(plan.next, Next::Settled { look_again: Some(Duration::from_secs(60)), retry: false });
    assert_eq!(ends(with(seen(json!({})), waiting("WarmPoolNotFound", 1000)), &settings()), Some(1300));
}

/// The stamp marks a served claim, also for a deadline that is set later, and even if latency
/// annotations are switched off.
#[test]
fn the_stamp_is_always_written() {
    let quiet = Settings { disable_observability_annotations: true, ..Settings::default() };
    let stamps = |world: &World| {
        render(&decide(world, &quiet, at(1))).contains("agents.x-k8s.io/claim-first-ready-at")
    };
    assert!(stamps(&offered(world(seen(json!({})), vec![]), member(json!({})))));
    assert!(stamps(&world(assigned("w"), vec![bound("w", json!({}))])));
}

#[test]
fn a_sandbox_at_rest_is_not_waited_for() {
    let sandbox = |mode: &str, suspended: &str, since: i64| {
        let mut suspended = condition("Suspended", suspended, "x");
        suspended["lastTransitionTime"] = json!(at(since).to_string());
        let conditions = [condition("Ready", "False", "SandboxSuspended"), suspended];
        bound("w", json!({"spec": {"operatingMode": mode}, "status": {"conditions": conditions}}))
    };
    let claim = || with(assigned("w"), waiting("SandboxSuspended", 0));
    let decided = |sandbox: Value, second| decide(&world(claim(), vec![sandbox]), &settings(), at(second));
    for resting in [sandbox("Suspended", "False", 0), sandbox("Running", "True", 100)] {
        let plan = decided(resting, 10_000);
        assert_eq!(plan.next, Next::Settled { look_again: None, retry: false }, "{}", published(&plan));
        assert!(!published(&plan).contains("DeadlineExceeded"));
    }
    // A resumed sandbox has its whole time again.
    let resumed = || sandbox("Running", "False", 9_000);
    assert!(!published(&decided(resumed(), 9_299)).contains("DeadlineExceeded"));
    assert!(published(&decided(resumed(), 9_300)).contains("DeadlineExceeded"));
}

/// A sandbox that was no longer ready when the claim got it has not served the claim.
#[test]
fn a_promise_that_was_not_kept_is_taken_back() {
    let stamped =
        json!({"metadata": {"annotations": {"agents.x-k8s.io/claim-first-ready-at": at(1).to_string()}}});
    let claim = |extra: Value| with(with(assigned("w"), stamped.clone()), extra);
    let broken = || bound("w", json!({"status": {"conditions": [condition("Ready", "False", "x")]}}));
    expect![[r#"
        patch SandboxClaim c {"metadata":{"resourceVersion":"5","annotations":{"agents.x-k8s.io/claim-first-ready-at":null}}}
        DecideAgain"#]]
    .assert_eq(&render(&decide(&world(claim(json!({})), vec![broken()]), &settings(), at(2))));
    let used = claim(json!({"status": {"sandbox": {"name": "w"}}}));
    let kept = render(&decide(&world(used, vec![broken()]), &settings(), at(2)));
    assert!(kept.starts_with("patch SandboxClaim/status"), "{kept}");
    let ready = render(&decide(&world(claim(json!({})), vec![bound("w", json!({}))]), &settings(), at(2)));
    assert!(ready.starts_with("patch SandboxClaim/status"), "{ready}");
}

#[test]
fn a_claim_that_cannot_be_ready_without_its_template_is_not_promised_to_be() {
    let added = json!({"spec": {"additionalPodMetadata": {"labels": {"sandbox.users.io/team": "a"}}}});
    let bare = |claim: Value, sandboxes| World { template: None, ..world(claim, sandboxes) };
    check(
        &offered(bare(seen(added.clone()), vec![]), member(json!({}))),
        expect![[r#"
            patch SandboxClaim c {"metadata":{"resourceVersion":"5","annotations":{"agents.x-k8s.io/sandbox-name":"w"}}}
            DecideAgain"#]],
    );
    // The template may also be deleted after the promise.
    let stamped =
        json!({"metadata": {"annotations": {"agents.x-k8s.io/claim-first-ready-at": at(1).to_string()}}});
    check(
        &bare(with(with(assigned("w"), added), stamped), vec![bound("w", json!({}))]),
        expect![[r#"
            patch SandboxClaim c {"metadata":{"resourceVersion":"5","annotations":{"agents.x-k8s.io/claim-first-ready-at":null}}}
            DecideAgain"#]],
    );
}

/// A claim that loses its sandbox gets a new one, even if the lost one was not ready for a long
/// time.
#[test]
fn a_claim_that_loses_its_sandbox_begins_to_wait_then() {
    let named = json!({"status": {"sandbox": {"name": "w"}}});
    let claim = with(with(seen(json!({})), waiting("PodFailed", 0)), named);
    let mut lost = world(claim.clone(), vec![]);
    expect![[r#"Confirm("w")"#]].assert_eq(&render(&decide(&lost, &settings(), at(10_000))));
    lost.confirmed_gone.insert("w".to_owned());
    let told = decide(&lost, &settings(), at(10_000));
    expect![[r#"
        patch SandboxClaim/status c {"metadata":{"resourceVersion":"5"},"status":{"sandbox":null,"conditions":[{"lastTransitionTime":"2027-01-15T10:46:40Z","message":"Sandbox does not exist","observedGeneration":1,"reason":"SandboxMissing","status":"False","type":"Ready"}]}}
        DecideAgain"#]]
    .assert_eq(&render(&told));
    let waiting = || world(with(seen(json!({})), waiting("SandboxMissing", 10_000)), vec![]);
    expect!["AskForOffer"].assert_eq(&render(&decide(&waiting(), &settings(), at(10_299))));
    assert!(published(&decide(&waiting(), &settings(), at(10_300))).contains("DeadlineExceeded"));
    // The same holds if a foreign object blocks the replacement.
    let blocked = bound("c", json!({"metadata": {"ownerReferences": null}}));
    let mut blocked = world(claim.clone(), vec![blocked]);
    blocked.confirmed_gone.insert("w".to_owned());
    let plan = decide(&blocked, &settings(), at(10_000));
    assert_eq!(plan.next, Next::Settled { look_again: Some(Duration::from_secs(300)), retry: true });
    assert!(render(&plan).contains(r#""sandbox":null"#), "{}", render(&plan));
    // Without the server's confirmation the loss is not known, and no deadline is due.
    let failure = Failure::found(Stage::Subject, "timed out");
    let unknown = give_up(&world(claim, vec![]), &[failure], &settings(), at(10_000));
    assert_eq!(unknown.next, Next::Settled { look_again: None, retry: true });
    // A Ready claim is never late: the replacement is made without a status in between.
    let ready =
        json!({"status": {"conditions": [condition("Ready", "True", "x")], "sandbox": {"name": "w"}}});
    let mut ready = offered(world(with(seen(json!({})), ready), vec![]), member(json!({})));
    ready.confirmed_gone.insert("w".to_owned());
    let taken = render(&decide(&ready, &settings(), at(10_000)));
    assert!(taken.contains(r#""agents.x-k8s.io/sandbox-name":"w""#), "{taken}");
}

#[test]
fn a_deadline_that_means_nothing_is_said_once_and_ignored() {
    let odd = with(assigned("w"), deadline("5 minutes"));
    let plan = decide(&world(odd.clone(), vec![bound("w", json!({}))]), &Settings::default(), at(1));
    expect![[r#"
        Ready=True DependenciesReady: m
        warren.dev/InvalidAnnotation=True ValueIgnored: warren.dev/deadline: "5 minutes" is neither a duration such as 90s or 5m nor a time (RFC 3339), and is ignored
        patch SandboxClaim c {"metadata":{"uid":"cu","annotations":{"agents.x-k8s.io/claim-first-ready-at":"2027-01-15T08:00:01Z"}}}
        event: Warning InvalidAnnotation (Reconciling): warren.dev/deadline: "5 minutes" is neither a duration such as 90s or 5m nor a time (RFC 3339), and is ignored
        Settled { look_again: None, retry: false }"#]]
    .assert_eq(&published(&plan));
    let Some(Action::MergeStatus { body, .. }) = plan.steps.first().map(|step| &step.action) else {
        panic!("{plan:?}")
    };
    let told = |claim: Value| {
        let claim = with(claim, json!({"status": body["status"]}));
        published(&decide(&world(claim, vec![bound("w", json!({}))]), &Settings::default(), at(2)))
    };
    assert!(!told(odd).contains("Invalid"), "nothing new");
    let repaired = told(with(assigned("w"), deadline("5m")));
    assert!(!repaired.contains("Invalid") && repaired.contains("Ready=True"), "{repaired}");
}

#[test]
fn a_claim_says_what_it_waits_on() {
    let stuck = bound(
        "w",
        json!({"status": {"conditions": [
        condition("Ready", "False", "DependenciesNotReady"), condition("PodScheduled", "False", "Unschedulable"),
        condition("warren.dev/PodWaiting", "True", "ImagePullBackOff")]}}),
    );
    expect![[r#"
        PodScheduled=False Unschedulable: m
        Ready=False DependenciesNotReady: m
        warren.dev/PodWaiting=True ImagePullBackOff: m
        Settled { look_again: None, retry: false }"#]]
    .assert_eq(&published(&decide(&world(assigned("w"), vec![stuck]), &Settings::default(), at(1))));
    let fine = bound(
        "w",
        json!({"status": {"conditions": [
        condition("Ready", "True", "DependenciesReady"), condition("PodScheduled", "True", "PodScheduled")]}}),
    );
    let plan = decide(&world(assigned("w"), vec![fine]), &Settings::default(), at(1));
    assert!(!published(&plan).contains("PodScheduled="), "that it has its place goes without saying");
}

#[test]
fn trouble_is_an_event_until_it_is_known() {
    let mut missing = world(seen(json!({})), vec![]);
    missing.pool = None;
    missing.template = None;
    let first = published(&decide(&missing, &Settings::default(), at(1)));
    expect![[r#"
        Ready=False WarmPoolNotFound: SandboxWarmPool "test-pool" not found
        event: Warning WarmPoolNotFound (Reconciling): SandboxWarmPool "test-pool" not found
        Settled { look_again: Some(60s), retry: false }"#]]
    .assert_eq(&first);
    let known = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "WarmPoolNotFound",
        "message": "SandboxWarmPool \"test-pool\" not found", "observedGeneration": 1, "lastTransitionTime": at(0).to_string()}]}});
    missing.claim = std::sync::Arc::new(serde_json::from_value(with(seen(json!({})), known)).unwrap());
    expect!["Settled { look_again: Some(60s), retry: false }"].assert_eq(&published(&decide(
        &missing,
        &Settings::default(),
        at(2),
    )));
    // The deadline also holds while the reconcile is retried.
    let blocked = world(seen(json!({})), vec![member(json!({"metadata": {"name": "c"}}))]);
    let plan = decide(&blocked, &settings(), at(10));
    let expected = Next::Settled { look_again: Some(Duration::from_secs(300)), retry: true };
    assert_eq!(plan.next, expected, "{}", published(&plan));
}

#[test]
fn the_word_about_volumes_is_passed_on() {
    let key = "warren.dev/pvc-retention";
    let retained = |plan: &Plan| -> Value {
        match &plan.steps[0].action {
            Action::Merge { body, .. } => body["metadata"]["annotations"][key].clone(),
            Action::Create(object) => {
                json!(object.metadata().annotations.as_ref().and_then(|all| all.get(key)))
            }
            other => panic!("{other}"),
        }
    };
    let says = |value: &str| json!({"metadata": {"annotations": {key: value}}});
    let templated = |mut world: World, value: &str| {
        let template = super::template(says(value));
        world.template = Some(std::sync::Arc::new(serde_json::from_value(template).unwrap()));
        world
    };
    let decided = |world: &World| retained(&decide(world, &Settings::default(), at(1)));
    let taken = |claim: Value| world(with(assigned("w"), claim), vec![member(json!({}))]);
    let made = |claim: Value| world(with(assigned("c"), claim), vec![]);
    for world in [taken, made] {
        assert_eq!(decided(&world(json!({}))), Value::Null);
        assert_eq!(decided(&world(says("Retain"))), json!("Retain"));
        assert_eq!(decided(&templated(world(json!({})), "Retain")), json!("Retain"));
        assert_eq!(decided(&templated(world(says("Delete")), "Retain")), json!("Delete"));
    }
    // The same holds later. A value that a user set on the sandbox itself stays if neither claim
    // nor template sets one.
    let later = world(with(assigned("w"), says("Retain")), vec![bound("w", json!({}))]);
    assert_eq!(decided(&later), json!("Retain"));
    let own = bound("w", says("Retain"));
    let plan = decide(&world(assigned("w"), vec![own]), &Settings::default(), at(1));
    assert!(!render(&plan).contains(key), "{}", render(&plan));
}

#[test]
fn late_times_do_no_harm() {
    let far = with(seen(deadline("2562047h")), json!({}));
    let _ = decide(&world(far, vec![]), &Settings::default(), Timestamp::MAX);
    let past = with(seen(deadline("0001-01-01T00:00:00Z")), json!({}));
    let plan = decide(&world(past, vec![]), &Settings::default(), at(1));
    assert!(published(&plan).contains("DeadlineExceeded"));
}

#[test]
fn a_time_to_live_ends_the_claim_so_long_after_its_creation() {
    let living = |ttl: &str| {
        let metadata = json!({"metadata": {
            "creationTimestamp": "2027-01-15T08:00:00Z", "annotations": {"warren.dev/ttl": ttl},
        }});
        world(with(assigned("w"), metadata), vec![bound("w", json!({}))])
    };
    let plan = |ttl: &str, second: i64| decide(&living(ttl), &Settings::default(), at(second));
    let told = |ttl: &str, second: i64| published(&plan(ttl, second));
    assert_eq!(
        plan("1h", 1).next,
        Next::Settled { look_again: Some(Duration::from_secs(3599)), retry: false }
    );
    assert!(told("1h", 3599).contains("Ready=True"), "{}", told("1h", 3599));
    assert!(told("1h", 3600).contains("Ready=False ClaimExpired"), "{}", told("1h", 3600));
    let odd = told("soon", 100_000);
    let text = "warren.dev/ttl: \"soon\" is not a duration such as 90s or 1h, and is ignored";
    assert!(odd.contains(&format!("warren.dev/InvalidAnnotation=True ValueIgnored: {text}")), "{odd}");
    assert!(odd.contains("Ready=True"), "{odd}");
}
