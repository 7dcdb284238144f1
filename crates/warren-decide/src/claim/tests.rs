//! Tests claims: each case is a world as data and the resulting plan. Row numbers are those of the
//! table "easy to get wrong".

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use expect_test::{Expect, expect};
use jiff::Timestamp;
use serde_json::{Value, json};
use warren_api::Sandbox;

use super::{Next, Offer, Plan, Settings, World, decide, give_up};
use crate::step::{Action, Failure, FailureKind, Object, Stage};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn overlay(base: &mut Value, extra: &Value) {
    match (base, extra) {
        (Value::Object(base), Value::Object(extra)) => {
            for (key, value) in extra {
                if value.is_null() {
                    base.remove(key);
                } else {
                    overlay(base.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (base, extra) => *base = extra.clone(),
    }
}

fn with(mut base: Value, extra: Value) -> Value {
    overlay(&mut base, &extra);
    base
}

/// Builds claim `c` (uid `cu`, version 5) on pool `test-pool`, created at second 0.
fn claim(extra: Value) -> Value {
    with(
        json!({
            "metadata": {"name": "c", "namespace": "default", "uid": "cu", "resourceVersion": "5", "generation": 1,
                "creationTimestamp": "2027-01-15T08:00:00Z"},
            "spec": {"warmPoolRef": {"name": "test-pool"}},
        }),
        extra,
    )
}

fn seen(extra: Value) -> Value {
    with(
        claim(json!({"metadata": {"annotations": {"agents.x-k8s.io/controller-first-observed-at": "t"}}})),
        extra,
    )
}

fn assigned(name: &str) -> Value {
    seen(json!({"metadata": {"annotations": {"agents.x-k8s.io/sandbox-name": name}}}))
}

fn template(extra: Value) -> Value {
    with(
        json!({
            "metadata": {"name": "test-template", "namespace": "default", "uid": "tu"},
            "spec": {"podTemplate": {"metadata": {"labels": {"app": "agent"}},
                "spec": {"containers": [{"name": "main", "image": "i"}]}}},
        }),
        extra,
    )
}

fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": "m", "observedGeneration": 9,
        "lastTransitionTime": "2027-01-15T07:00:00Z"})
}

/// Builds a ready member `w` (uid `wu`, version 7) of the pool.
fn member(extra: Value) -> Value {
    with(
        json!({
            "metadata": {"name": "w", "namespace": "default", "uid": "wu", "resourceVersion": "7",
                "labels": {"agents.x-k8s.io/warm-pool-sandbox": "59733166", "agents.x-k8s.io/sandbox-template-ref-hash": "69155462",
                    "agents.x-k8s.io/sandbox-template-hash": "h", "agents.x-k8s.io/sandbox-pod-template-hash": "h",
                    "agents.x-k8s.io/launch-type": "warm", "agents.x-k8s.io/created-by": "controller"},
                "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1alpha1", "kind": "SandboxWarmPool",
                    "name": "test-pool", "uid": "pu", "controller": true}]},
            "spec": {"podTemplate": {
                "metadata": {"labels": {"app": "agent", "agents.x-k8s.io/warm-pool-sandbox": "59733166"},
                    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}},
                "spec": {"containers": [{"name": "main", "image": "i"}]}}},
            "status": {"podIPs": ["10.0.0.7"], "conditions": [condition("Ready", "True", "DependenciesReady")]},
        }),
        extra,
    )
}

/// Builds a sandbox that the claim controls and that needs no change.
fn bound(name: &str, extra: Value) -> Value {
    with(
        json!({
            "metadata": {"name": name, "namespace": "default", "uid": "bu", "resourceVersion": "8",
                "labels": {"agents.x-k8s.io/sandbox-template-ref-hash": "69155462", "agents.x-k8s.io/claim-uid": "cu",
                    "agents.x-k8s.io/launch-type": "warm"},
                "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
                    "name": "c", "uid": "cu", "controller": true}]},
            "spec": {"podTemplate": {
                "metadata": {"labels": {"app": "agent", "agents.x-k8s.io/claim-uid": "cu",
                    "agents.x-k8s.io/sandbox-template-ref-hash": "69155462"}},
                "spec": {"containers": [{"name": "main", "image": "i"}]}}},
            "status": {"podIPs": ["10.0.0.7"], "conditions": [condition("Ready", "True", "DependenciesReady")]},
        }),
        extra,
    )
}

fn world(claim: Value, sandboxes: Vec<Value>) -> World {
    let pool =
        json!({"metadata": {"name": "test-pool"}, "spec": {"sandboxTemplateRef": {"name": "test-template"}}});
    World {
        claim: Arc::new(serde_json::from_value(claim).unwrap()),
        pool: Some(Arc::new(serde_json::from_value(pool).unwrap())),
        template: Some(Arc::new(serde_json::from_value(template(json!({}))).unwrap())),
        sandboxes: sandboxes
            .into_iter()
            .map(|sandbox| serde_json::from_value::<Sandbox>(sandbox).unwrap())
            .map(|sandbox| (sandbox.metadata.name.clone().unwrap(), Arc::new(sandbox)))
            .collect::<BTreeMap<_, _>>(),
        confirmed_gone: BTreeSet::new(),
        confirmed: BTreeSet::new(),
        legacy_policy: None,
        offer: Offer::NotAsked,
        first_seen: at(1),
        refused: None,
    }
}

fn with_template(mut world: World, extra: Value) -> World {
    world.template = Some(Arc::new(serde_json::from_value(template(json!({"spec": extra}))).unwrap()));
    world
}

fn offered(mut world: World, sandbox: Value) -> World {
    world.offer = Offer::Sandbox(Arc::new(serde_json::from_value(sandbox).unwrap()));
    world
}

fn render(plan: &Plan) -> String {
    let mut lines: Vec<String> = plan.steps.iter().map(|step| step.action.to_string()).collect();
    lines.extend(plan.best_effort.iter().map(|step| format!("best effort: {}", step.action)));
    lines.extend(plan.notes.iter().map(|note| format!("event: {note}")));
    lines.push(match &plan.next {
        Next::Settled { look_again: None, retry: false } => "settled".to_owned(),
        Next::Settled { look_again: Some(delay), retry: false } => format!("look again in {delay:?}"),
        Next::Settled { retry: true, .. } => "retry".to_owned(),
        next => format!("{next:?}"),
    });
    lines.join("\n")
}

fn check(world: &World, expect: Expect) {
    check_at(world, at(1), expect);
}

fn check_at(world: &World, now: Timestamp, expect: Expect) {
    expect.assert_eq(&render(&decide(world, &Settings::default(), now)));
}

/// Returns `Ready` as published by a plan.
fn published(world: &World) -> String {
    let plan = decide(world, &Settings::default(), at(1));
    let status = plan.steps.iter().find_map(|step| match &step.action {
        Action::MergeStatus { body, .. } => Some(body["status"].clone()),
        _ => None,
    });
    let conditions = status.map(|status| status["conditions"].clone()).unwrap_or_default();
    let ready =
        conditions.as_array().into_iter().flatten().find(|condition| condition["type"] == "Ready").cloned();
    let retry = matches!(plan.next, Next::Settled { retry: true, .. });
    ready.map_or_else(
        || format!("{:?}", plan.next),
        |ready| {
            let text = |key: &str| ready[key].as_str().unwrap().to_owned();
            format!("{} {}{}", text("reason"), text("message"), if retry { " (retry)" } else { "" })
        },
    )
}

#[test]
fn a_warm_claim_asks_commits_takes_and_publishes() {
    check(&world(claim(json!({})), vec![]), expect!["AskForOffer"]);
    check(
        &offered(world(claim(json!({})), vec![]), member(json!({}))),
        expect![[r#"
            patch SandboxClaim c {"metadata":{"resourceVersion":"5","annotations":{"agents.x-k8s.io/controller-first-observed-at":"2027-01-15T08:00:01Z","agents.x-k8s.io/sandbox-name":"w","agents.x-k8s.io/claim-first-ready-at":"2027-01-15T08:00:01Z"}}}
            DecideAgain"#]],
    );
    check(
        &offered(world(assigned("w"), vec![member(json!({}))]), member(json!({}))),
        expect![[r#"
            patch Sandbox w {"metadata":{"labels":{"agents.x-k8s.io/created-by":null,"agents.x-k8s.io/sandbox-pod-template-hash":null,"agents.x-k8s.io/sandbox-template-hash":null,"agents.x-k8s.io/warm-pool-sandbox":null,"agents.x-k8s.io/claim-uid":"cu"},"annotations":{"agents.x-k8s.io/pod-name":"w"},"ownerReferences":[{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","blockOwnerDeletion":true,"controller":true,"kind":"SandboxClaim","name":"c","uid":"cu"}],"resourceVersion":"7","uid":"wu"},"spec":{"podTemplate":{"metadata":{"labels":{"agents.x-k8s.io/warm-pool-sandbox":null,"agents.x-k8s.io/claim-uid":"cu","agents.x-k8s.io/sandbox-template-ref-hash":"69155462"},"annotations":{"cluster-autoscaler.kubernetes.io/safe-to-evict":null}}}}}
            event: Normal SandboxAdopted (Adoption): took sandbox w from pool test-pool
            DecideAgain"#]],
    );
    let stamped = json!({"metadata": {"annotations": {"agents.x-k8s.io/claim-first-ready-at": "t"}}});
    check(
        &world(with(assigned("w"), stamped), vec![bound("w", json!({}))]),
        expect![[r#"
            patch SandboxClaim/status c {"metadata":{"resourceVersion":"5"},"status":{"conditions":[{"lastTransitionTime":"2027-01-15T08:00:00Z","message":"m","observedGeneration":1,"reason":"DependenciesReady","status":"True","type":"Ready"}],"sandbox":{"name":"w","podIPs":["10.0.0.7"]}}}
            settled"#]],
    );
}

#[test]
fn a_claim_that_was_pointed_at_another_pool_takes_nothing_of_the_one_before() {
    let elsewhere = json!({"spec": {"warmPoolRef": {"name": "other-pool"}}});
    check(&offered(world(claim(elsewhere), vec![]), member(json!({}))), expect!["AskForOffer"]);
}

#[test]
fn row_16_a_safe_to_evict_of_the_template_or_the_claim_stays() {
    let after = |world: World| {
        let plan = decide(&world, &Settings::default(), at(1));
        let Action::Merge { body, .. } = &plan.steps[0].action else { panic!("{plan:?}") };
        body["spec"]["podTemplate"]["metadata"]["annotations"].clone()
    };
    let key = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    let own = json!({"podTemplate": {"metadata": {"annotations": {key: "true"}}}});
    assert_eq!(
        after(with_template(world(assigned("w"), vec![member(json!({}))]), own)),
        Value::Null,
        "unchanged"
    );
    let asked = json!({"spec": {"additionalPodMetadata": {"annotations": {key: "false"}}}});
    assert_eq!(after(world(with(assigned("w"), asked), vec![member(json!({}))])), json!({key: "false"}));
    let mut no_template = world(assigned("w"), vec![member(json!({}))]);
    no_template.template = None;
    assert_eq!(after(no_template), json!({key: null}));
}

#[test]
fn row_18_a_commitment_is_finished_or_dropped() {
    let pending = member(json!({"status": {"podIPs": [], "conditions": []}}));
    let finished = render(&decide(&world(assigned("w"), vec![pending]), &Settings::default(), at(1)));
    assert!(finished.starts_with("patch Sandbox w ") && !finished.contains("event"), "{finished}");
    let dropped = concat!(
        r#"patch SandboxClaim c {"metadata":{"resourceVersion":"5","annotations":"#,
        r#"{"agents.x-k8s.io/sandbox-name":null,"agents.x-k8s.io/claim-first-ready-at":null}}}"#,
        "\nDecideAgain"
    );
    let plan = |world: &World| render(&decide(world, &Settings::default(), at(1)));
    let other_pool = json!({"metadata": {"ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxWarmPool", "name": "other", "uid": "x", "controller": true}]}});
    let other_claim = json!({"metadata": {"ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim", "name": "d", "uid": "x", "controller": true}]}});
    let unlabelled = json!({"metadata": {"labels": {"agents.x-k8s.io/warm-pool-sandbox": null}}});
    let dying = json!({"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}});
    for extra in [other_pool, other_claim, unlabelled, dying] {
        // The cache may be old: the server is asked first.
        let mut invalid = world(assigned("w"), vec![member(extra)]);
        assert_eq!(plan(&invalid), r#"Confirm("w")"#);
        invalid.confirmed.insert("w".to_owned());
        assert_eq!(plan(&invalid), dropped);
    }
    // The server is asked before a sandbox that is missing in the cache counts as gone.
    let mut missing = world(assigned("w"), vec![]);
    check(&missing, expect![[r#"Confirm("w")"#]]);
    missing.confirmed_gone.insert("w".to_owned());
    assert_eq!(plan(&missing), dropped);
    // The server is not asked for invalid names.
    for nonsense in ["my sandbox", "a/b", "w/status", "..", "W", "a".repeat(254).as_str()] {
        assert_eq!(plan(&world(assigned(nonsense), vec![])), dropped, "{nonsense}");
    }
    // No claim may adopt an orphan. The reference goes before the claim commits to another.
    let mut orphan = world(assigned("w"), vec![member(json!({"metadata": {"ownerReferences": null}}))]);
    orphan.confirmed.insert("w".to_owned());
    assert_eq!(plan(&orphan), dropped);
}

#[test]
fn row_19_members_on_their_way_are_waited_for_and_then_it_starts_cold() {
    let mut waiting = world(claim(json!({})), vec![]);
    waiting.offer = Offer::Pending;
    check_at(&waiting, at(0), expect!["look again in 2s"]);
    let late = render(&decide(&waiting, &Settings::default(), at(2)));
    waiting.offer = Offer::Empty;
    check_at(
        &waiting,
        at(0),
        expect![[r#"
            patch SandboxClaim c {"metadata":{"resourceVersion":"5","annotations":{"agents.x-k8s.io/controller-first-observed-at":"2027-01-15T08:00:01Z","agents.x-k8s.io/sandbox-name":"c"}}}
            DecideAgain"#]],
    );
    assert_eq!(
        late,
        render(&decide(&waiting, &Settings::default(), at(0))),
        "after its grace it starts cold as well"
    );
    // A clock that is behind the server's does not lengthen the grace period.
    (waiting.offer, waiting.first_seen) = (Offer::Pending, at(-60));
    check_at(&waiting, at(-59), expect!["look again in 1s"]);
    // The grace period does not delay an earlier end.
    let ending = json!({"spec": {"lifecycle": {"shutdownTime": "2027-01-15T08:00:01Z"}}});
    let mut ending = world(claim(ending), vec![]);
    ending.offer = Offer::Pending;
    check_at(&ending, at(0), expect!["look again in 1s"]);
}

#[test]
fn row_21_a_claim_that_cannot_take_a_member_does_not_keep_it_from_others() {
    let clash = json!({"spec": {"additionalPodMetadata": {"labels": {"sandbox.users.io/team": "b"}}}});
    let team = json!({"podTemplate": {"metadata": {"labels": {"sandbox.users.io/team": "a"}},
        "spec": {"containers": [{"name": "main", "image": "i"}]}}});
    // It asks for no offer: an offered sandbox would be reserved and so unavailable to others.
    let clashing = with_template(world(seen(clash), vec![]), team);
    expect!["ReconcilerError Error seen: label sandbox.users.io/team is set by the template and cannot be changed by the claim (retry)"]
        .assert_eq(&published(&clashing));
    assert!(!render(&decide(&clashing, &Settings::default(), at(1))).contains("sandbox-name"));
}

#[test]
fn a_cold_start_is_committed_and_then_made() {
    let committed = world(assigned("c"), vec![]);
    check(
        &committed,
        expect![[r#"
            create Sandbox c
            event: Normal SandboxProvisioned (Provisioning): created sandbox c
            DecideAgain"#]],
    );
    let plan = decide(&committed, &Settings::default(), at(1));
    let Action::Create(Object::Sandbox(sandbox)) = &plan.steps[0].action else { panic!("{plan:?}") };
    expect![[r#"{"apiVersion":"agents.x-k8s.io/v1beta1","kind":"Sandbox","metadata":{"annotations":{"agents.x-k8s.io/sandbox-template-ref":"test-template"},"labels":{"agents.x-k8s.io/claim-uid":"cu","agents.x-k8s.io/launch-type":"cold","agents.x-k8s.io/sandbox-template-ref-hash":"69155462"},"name":"c","namespace":"default","ownerReferences":[{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","blockOwnerDeletion":true,"controller":true,"kind":"SandboxClaim","name":"c","uid":"cu"}]},"spec":{"podTemplate":{"spec":{"automountServiceAccountToken":false,"containers":[{"image":"i","name":"main"}],"dnsConfig":{"nameservers":["8.8.8.8","1.1.1.1"]},"dnsPolicy":"None"},"metadata":{"labels":{"agents.x-k8s.io/claim-uid":"cu","agents.x-k8s.io/sandbox-template-ref-hash":"69155462","app":"agent"}}},"shutdownPolicy":"Retain","operatingMode":"Running"}}"#]]
        .assert_eq(&crate::merge::json(&**sandbox).to_string());
    // A refusal does not end the commitment: another leader may be making the sandbox at this
    // moment.
    let failure = |kind| Failure { stage: Stage::Subject, kind, message: "exceeded quota".to_owned() };
    let refused = give_up(&committed, &[failure(FailureKind::Refused)], &Settings::default(), at(1));
    expect![[r#"
        patch SandboxClaim/status c {"metadata":{"resourceVersion":"5"},"status":{"conditions":[{"lastTransitionTime":"2027-01-15T08:00:01Z","message":"Error seen: exceeded quota","observedGeneration":1,"reason":"ReconcilerError","status":"False","type":"Ready"}]}}
        event: Warning ReconcilerError (Reconciling): Error seen: exceeded quota
        retry"#]]
    .assert_eq(&render(&refused));
    let exists = give_up(&committed, &[failure(FailureKind::AlreadyExists)], &Settings::default(), at(1));
    expect![[r#"
        patch SandboxClaim/status c {"metadata":{"resourceVersion":"5"},"status":{"conditions":[{"lastTransitionTime":"2027-01-15T08:00:01Z","message":"Sandbox creation is pending","observedGeneration":1,"reason":"SandboxCreatePending","status":"False","type":"Ready"}]}}
        look again in 200ms"#]]
    .assert_eq(&render(&exists));
}

#[test]
fn a_cold_start_that_failed_is_tried_again_whatever_is_offered() {
    for reason in ["SandboxCreatePending", "ReconcilerError", "SandboxMissing"] {
        let ready = condition("Ready", "False", reason);
        let committed = world(with(assigned("c"), json!({"status": {"conditions": [ready]}})), vec![]);
        let plan = render(&decide(&offered(committed, member(json!({}))), &Settings::default(), at(1)));
        // Another leader may be making it at this moment, whatever the claim says.
        assert!(plan.starts_with("create Sandbox c\n"), "{plan}");
    }
}

/// Another process, or a late request, may complete an assignment that was dropped.
#[test]
fn a_claim_keeps_one_sandbox_of_all_that_are_its_own() {
    let plan = |world: &World| render(&decide(world, &Settings::default(), at(1)));
    let published = |name: &str| json!({"status": {"conditions": [condition("Ready", "True", "x")], "sandbox": {"name": name}}});
    let own = |name: &str| bound(name, json!({"metadata": {"uid": format!("{name}u")}}));
    // An unreferenced sandbox is still the claim's, and it gets no other.
    assert!(plan(&world(seen(json!({})), vec![own("x")])).starts_with("patch SandboxClaim/status c "));
    assert!(plan(&world(assigned("c"), vec![own("x")])).starts_with("patch SandboxClaim/status c "));
    // A commitment wins over an unreferenced sandbox. The spare one goes when the claim names only
    // the one that it keeps.
    let both = || vec![own("x"), own("w")];
    assert!(plan(&world(assigned("x"), both())).contains(r#""sandbox":{"name":"x""#));
    let mut served = world(with(assigned("x"), published("x")), both());
    assert_eq!(plan(&served), r#"Confirm("x")"#);
    served.confirmed.insert("x".to_owned());
    let guard = r#"patch SandboxClaim c {"metadata":{"resourceVersion":"5"}}"#;
    assert_eq!(plan(&served), format!("{guard}\ndelete Sandbox w\nDecideAgain"));
    let Action::Delete { uid, version, .. } = &decide(&served, &Settings::default(), at(1)).steps[1].action
    else {
        panic!("{}", plan(&served))
    };
    assert_eq!((uid.as_str(), version.as_deref()), ("wu", Some("8")));
    // The spare one stays while the claim is committed to it: first the reference goes. The
    // first-ready time stays.
    let mut torn = world(with(assigned("w"), published("x")), both());
    torn.confirmed.insert("x".to_owned());
    assert_eq!(
        plan(&torn),
        "patch SandboxClaim c {\"metadata\":{\"resourceVersion\":\"5\",\"annotations\":{\"agents.x-k8s.io/sandbox-name\":null}}}\nDecideAgain"
    );
    // Its sandbox may be missing from our cache only.
    let mut cold = world(with(seen(json!({})), published("c")), vec![]);
    assert_eq!(plan(&cold), r#"Confirm("c")"#);
    cold.sandboxes.extend(world(seen(json!({})), vec![own("w")]).sandboxes);
    assert_eq!(plan(&cold), r#"Confirm("c")"#);
    let over = json!({"spec": {"lifecycle": {"shutdownTime": "2027-01-15T08:00:01Z"}},
        "status": {"conditions": [condition("Ready", "False", "ClaimExpired")], "sandbox": {"name": "x"}}});
    let ended = plan(&world(with(assigned("x"), over), both()));
    assert!(ended.starts_with(&format!("{guard}\ndelete Sandbox w\n{guard}\ndelete Sandbox x\n")), "{ended}");
}

/// Row 24: trouble while adopting.
#[test]
fn trouble_with_a_claim_that_has_its_sandbox_takes_nothing_of_it_away() {
    let ended = json!({"status": {"conditions": [condition("Finished", "True", "PodSucceeded"),
        condition("Ready", "False", "PodSucceeded")]}});
    let world = world(assigned("w"), vec![bound("w", ended)]);
    let failure = Failure::found(Stage::Subject, "timed out");
    let given_up = give_up(&world, &[failure], &Settings::default(), at(1));
    let mut forbidden = world.clone();
    Arc::make_mut(&mut forbidden.claim).spec.additional_pod_metadata.labels =
        [("team".to_owned(), "a".to_owned())].into();
    let forbidden = decide(&forbidden, &Settings::default(), at(1));
    for (plan, reason) in [(given_up, "ReconcilerError"), (forbidden, "InvalidMetadata")] {
        let Action::MergeStatus { body, .. } = &plan.steps[0].action else { panic!("{plan:?}") };
        let reasons = body["status"]["conditions"].as_array().unwrap().iter().map(|it| it["reason"].clone());
        assert_eq!(reasons.collect::<Vec<_>>(), ["PodSucceeded", reason]);
        assert_eq!(body["status"]["sandbox"]["name"], "w");
    }
}

#[test]
fn row_20_own_env_or_volumes_go_past_a_full_pool() {
    let env = json!({"spec": {"env": [{"name": "A", "value": "1"}]}});
    let world =
        with_template(world(with(assigned("c"), env), vec![]), json!({"envVarsInjectionPolicy": "Allowed"}));
    check(
        &world,
        expect![[r#"
            create Sandbox c
            event: Normal SandboxProvisioned (Provisioning): created sandbox c
            DecideAgain"#]],
    );
}

#[test]
fn row_21_what_the_user_must_change_is_not_retried() {
    let env = |policy: &str, container: Value, env: Value| {
        let world = world(seen(json!({"spec": {"env": env}})), vec![]);
        published(&with_template(
            world,
            json!({"envVarsInjectionPolicy": policy, "podTemplate": {"spec": {"containers": [container]}}}),
        ))
    };
    let plain = json!({"name": "main", "env": [{"name": "A", "value": "0"}]});
    let from = json!({"name": "main", "envFrom": [{"secretRef": {"name": "s"}}]});
    let a = json!([{"name": "A", "value": "1"}]);
    expect!["EnvVarsInjectionRejected the template does not allow env in a claim"].assert_eq(&env(
        "Disallowed",
        plain.clone(),
        a.clone(),
    ));
    expect![
        "EnvVarsInjectionRejected container main uses envFrom, so a claim may not add to its environment"
    ]
    .assert_eq(&env("Allowed", from, a.clone()));
    expect!["ReconcilerError Error seen: variable A of container main is set already (retry)"]
        .assert_eq(&env("Allowed", plain.clone(), a));
    expect!["ReconcilerError Error seen: no container is named x (retry)"].assert_eq(&env(
        "Overrides",
        plain,
        json!([{"name": "A", "value": "1", "containerName": "x"}]),
    ));

    let volumes = |policy: &str, own: Value, claimed: Value| {
        let world = world(seen(json!({"spec": {"volumeClaimTemplates": claimed}})), vec![]);
        published(&with_template(
            World { offer: Offer::Empty, ..world },
            json!({"volumeClaimTemplatesPolicy": policy, "volumeClaimTemplates": own}),
        ))
    };
    let volume = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
    expect!["VolumeClaimTemplatesError the template does not allow volumeClaimTemplates in a claim"]
        .assert_eq(&volumes("Disallowed", json!([]), json!([volume("a")])));
    expect!["VolumeClaimTemplatesError volumeClaimTemplate a is in the template and cannot be replaced"]
        .assert_eq(&volumes("Allowed", json!([volume("a")]), json!([volume("a")])));
    expect!["VolumeClaimTemplatesError the claim has two volumeClaimTemplates named b"].assert_eq(&volumes(
        "Overrides",
        json!([]),
        json!([volume("b"), volume("b")]),
    ));
    expect!["VolumeClaimTemplatesError the template has two volumeClaimTemplates named b"]
        .assert_eq(&volumes("Disallowed", json!([volume("b"), volume("b")]), json!([])));

    let added = |labels: Value| {
        published(&world(seen(json!({"spec": {"additionalPodMetadata": {"labels": labels}}})), vec![]))
    };
    expect!["InvalidMetadata label key team is not in an allowed domain (sandbox.users.io)"]
        .assert_eq(&added(json!({"team": "a"})));
    let clash = with_template(
        offered(
            world(
                seen(json!({"spec": {"additionalPodMetadata": {"labels": {"sandbox.users.io/a": "1"}}}})),
                vec![],
            ),
            member(json!({})),
        ),
        json!({"podTemplate": {"metadata": {"labels": {"sandbox.users.io/a": "2"}}}}),
    );
    let assigned = World {
        claim: Arc::new({
            let mut claim = (*clash.claim).clone();
            claim
                .metadata
                .annotations
                .get_or_insert_default()
                .insert("agents.x-k8s.io/sandbox-name".to_owned(), "w".to_owned());
            claim
        }),
        sandboxes: [("w".to_owned(), Arc::new(serde_json::from_value(member(json!({}))).unwrap()))].into(),
        ..clash
    };
    expect!["ReconcilerError Error seen: label sandbox.users.io/a is set by the template and cannot be changed by the claim (retry)"].assert_eq(&published(&assigned));
}

#[test]
fn row_22_a_foreign_sandbox_of_the_claims_name_blocks_it() {
    let foreign = bound("c", json!({"metadata": {"ownerReferences": null}}));
    expect!["ReconcilerError Error seen: sandbox c exists and is not controlled by this claim (retry)"]
        .assert_eq(&published(&offered(world(seen(json!({})), vec![foreign]), member(json!({})))));
}

#[test]
fn row_23_a_bound_claim_survives_its_pool_unless_it_adds_metadata() {
    let ready = json!({"status": {"conditions": [condition("Ready", "True", "DependenciesReady")], "sandbox": {"name": "w", "podIPs": ["10.0.0.7"]}},
        "metadata": {"annotations": {"agents.x-k8s.io/claim-first-ready-at": "t"}}});
    let mut alone = world(with(assigned("w"), ready.clone()), vec![bound("w", json!({}))]);
    alone.pool = None;
    alone.template = None;
    // Only the generation of the copied condition differs from the claim's own.
    check(
        &alone,
        expect![[r#"
            patch SandboxClaim/status c {"metadata":{"resourceVersion":"5"},"status":{"conditions":[{"lastTransitionTime":"2027-01-15T08:00:00Z","message":"m","observedGeneration":1,"reason":"DependenciesReady","status":"True","type":"Ready"}]}}
            settled"#]],
    );
    let added = json!({"spec": {"additionalPodMetadata": {"annotations": {"note": "x"}}}});
    let mut asking = world(with(with(assigned("w"), ready), added), vec![bound("w", json!({}))]);
    asking.pool = None;
    asking.template = None;
    check(
        &asking,
        expect![[r#"
            patch SandboxClaim/status c {"metadata":{"resourceVersion":"5"},"status":{"conditions":[{"lastTransitionTime":"2027-01-15T08:00:01Z","message":"SandboxWarmPool \"test-pool\" not found","observedGeneration":1,"reason":"WarmPoolNotFound","status":"False","type":"Ready"}]}}
            event: Warning WarmPoolNotFound (Reconciling): SandboxWarmPool "test-pool" not found
            look again in 60s"#]],
    );
    // A new template re-labels the sandbox and its pod template, and leaves the pod's spec alone.
    let mut repointed = world(assigned("w"), vec![bound("w", json!({}))]);
    let other = with(
        template(json!({})),
        json!({"metadata": {"name": "other"}, "spec": {"podTemplate": {"spec": {"containers": [{"name": "x", "image": "y"}]}}}}),
    );
    repointed.template = Some(Arc::new(serde_json::from_value(other).unwrap()));
    check(
        &repointed,
        expect![[r#"
            patch Sandbox w {"metadata":{"labels":{"agents.x-k8s.io/sandbox-template-ref-hash":"c87d8df5"},"uid":"bu"},"spec":{"podTemplate":{"metadata":{"labels":{"agents.x-k8s.io/sandbox-template-ref-hash":"c87d8df5"}}}}}
            DecideAgain"#]],
    );
}

#[test]
fn row_24_ready_is_copied_with_its_time_and_the_claims_generation() {
    let since = json!({"lastTransitionTime": "2027-01-15T08:00:01Z"});
    let ready = with(condition("Ready", "True", "DependenciesReady"), since);
    let sandbox = bound("w", json!({"status": {"conditions": [ready]}}));
    let plan = decide(&world(assigned("w"), vec![sandbox]), &Settings::default(), at(2));
    let Action::MergeStatus { body, .. } = &plan.steps[0].action else { panic!("{plan:?}") };
    let ready = &body["status"]["conditions"][0];
    assert_eq!(
        (&ready["lastTransitionTime"], &ready["observedGeneration"]),
        (&json!("2027-01-15T08:00:01Z"), &json!(1))
    );
    let silent = bound("w", json!({"status": {"conditions": []}}));
    expect!["SandboxNotReady Sandbox is not ready"]
        .assert_eq(&published(&world(assigned("w"), vec![silent])));
    let expired =
        bound("w", json!({"status": {"conditions": [condition("Ready", "False", "SandboxExpired")]}}));
    expect!["SandboxExpired m"].assert_eq(&published(&world(assigned("w"), vec![expired])));
}

#[test]
fn a_legacy_reference_is_followed_and_moved() {
    let legacy = seen(
        json!({"metadata": {"labels": {"agents.x-k8s.io/sandbox-name": "w"}, "annotations": {"agents.x-k8s.io/claim-first-ready-at": "t"}}}),
    );
    let plan = render(&decide(&world(legacy, vec![bound("w", json!({}))]), &Settings::default(), at(1)));
    assert!(plan.contains(r#"best effort: patch SandboxClaim c {"metadata":{"uid":"cu","labels":{"agents.x-k8s.io/sandbox-name":null},"annotations":{"agents.x-k8s.io/sandbox-name":"w"}}}"#), "{plan}");
    let newer =
        with(assigned("w"), json!({"metadata": {"labels": {"agents.x-k8s.io/sandbox-name": "older"}}}));
    let plan = render(&decide(&world(newer, vec![bound("w", json!({}))]), &Settings::default(), at(1)));
    assert!(plan.contains(r#""labels":{"agents.x-k8s.io/sandbox-name":null},"annotations":{"agents.x-k8s.io/sandbox-name":"w"}"#), "{plan}");
}

#[test]
fn row_29_expiry() {
    let lifecycle = |extra: Value| json!({"spec": {"lifecycle": with(json!({"shutdownTime": "2027-01-15T08:00:01Z"}), extra)}});
    let bound_claim = |extra: Value| {
        with(
            with(assigned("w"), lifecycle(extra)),
            json!({
        "status": {"conditions": [condition("Ready", "True", "DependenciesReady")], "sandbox": {"name": "w"}},
        "metadata": {"annotations": {"agents.x-k8s.io/claim-first-ready-at": "t"}}}),
        )
    };
    let told = |extra: Value| {
        with(
            bound_claim(extra),
            json!({"status": {"conditions": [condition("Ready", "False", "ClaimExpired")]}}),
        )
    };
    check_at(
        &world(bound_claim(json!({})), vec![bound("w", json!({}))]),
        at(0),
        expect![[r#"
            patch SandboxClaim/status c {"metadata":{"resourceVersion":"5"},"status":{"conditions":[{"lastTransitionTime":"2027-01-15T08:00:00Z","message":"m","observedGeneration":1,"reason":"DependenciesReady","status":"True","type":"Ready"}],"sandbox":{"podIPs":["10.0.0.7"]}}}
            look again in 1s"#]],
    );
    // Nothing is deleted before the reason is stored.
    check(
        &world(bound_claim(json!({"shutdownPolicy": "Delete"})), vec![bound("w", json!({}))]),
        expect![[r#"
        patch SandboxClaim/status c {"metadata":{"resourceVersion":"5"},"status":{"conditions":[{"lastTransitionTime":"2027-01-15T08:00:01Z","message":"Claim has expired","observedGeneration":1,"reason":"ClaimExpired","status":"False","type":"Ready"}],"sandbox":{"podIPs":["10.0.0.7"]}}}
        event: Normal ClaimExpired (Claim Expired): the claim has expired
        look again in 1ms"#]],
    );
    check(
        &world(told(json!({"shutdownPolicy": "Delete"})), vec![bound("w", json!({}))]),
        expect![[r#"
        delete SandboxClaim c
        event: Normal ClaimExpired (Deleting): deleting the claim (policy Delete)
        settled"#]],
    );
    check(
        &world(told(json!({"shutdownPolicy": "DeleteForeground"})), vec![bound("w", json!({}))]),
        expect![[r#"
        delete SandboxClaim c in the foreground
        event: Normal ClaimExpired (Deleting): deleting the claim (policy DeleteForeground)
        settled"#]],
    );
    let kept =
        render(&decide(&world(told(json!({})), vec![bound("w", json!({}))]), &Settings::default(), at(1)));
    let guard = r#"patch SandboxClaim c {"metadata":{"resourceVersion":"5"}}"#;
    assert!(kept.starts_with(&format!("{guard}\ndelete Sandbox w\n")), "{kept}");
    let foreign = bound("w", json!({"metadata": {"ownerReferences": null}}));
    expect!["ClaimExpired Claim has expired; deletion of the sandbox was skipped, as the claim does not control it"]
        .assert_eq(&published(&world(told(json!({})), vec![foreign])));
    // Finished outlives the sandbox. Its pending conditions do not.
    let finished = json!({"status": {"conditions": [condition("Finished", "True", "PodSucceeded"), condition("PodScheduled", "False", "x"),
        condition("Ready", "False", "ClaimExpired"), condition("warren.dev/PodWaiting", "True", "x")]}});
    let after = decide(&world(with(told(json!({})), finished), vec![]), &Settings::default(), at(1));
    let Action::MergeStatus { body, .. } = &after.steps[0].action else { panic!("{after:?}") };
    assert!(
        body["status"]["sandbox"].is_null() && body["status"]["conditions"][0]["type"] == "Finished",
        "{body}"
    );
    assert_eq!(body["status"]["conditions"].as_array().unwrap().len(), 2, "{body}");
}

#[test]
fn row_29_the_earlier_of_shutdown_time_and_ttl_wins_and_a_finish_can_expire_at_once() {
    let finished = bound(
        "w",
        json!({"status": {"conditions": [
        condition("Finished", "True", "PodSucceeded"), condition("Ready", "False", "PodSucceeded")]}}),
    );
    let ttl = |seconds: i32| {
        with(
            assigned("w"),
            json!({"spec": {"lifecycle": {"ttlSecondsAfterFinished": seconds, "shutdownTime": "2027-01-15T09:00:00Z"}}}),
        )
    };
    expect!["ClaimExpired Claim has expired"].assert_eq(&published(&world(ttl(0), vec![finished.clone()])));
    let plan = decide(&world(ttl(30), vec![finished.clone()]), &Settings::default(), at(1));
    assert_eq!(
        plan.next,
        Next::Settled { look_again: Some(std::time::Duration::from_secs(29)), retry: false }
    );
    let none = with(assigned("w"), json!({"spec": {"lifecycle": {}}}));
    expect!["PodSucceeded m"].assert_eq(&published(&world(none, vec![finished])));
}

#[test]
fn a_converged_claim_costs_no_write() {
    let published = json!({"observedGeneration": 1, "lastTransitionTime": "2027-01-15T08:00:00Z"});
    let ready = with(condition("Ready", "True", "DependenciesReady"), published);
    let settled = with(
        assigned("w"),
        json!({
        "status": {"conditions": [ready], "sandbox": {"name": "w", "podIPs": ["10.0.0.7"]}},
        "metadata": {"annotations": {"agents.x-k8s.io/claim-first-ready-at": "t"}}}),
    );
    check(&world(settled, vec![bound("w", json!({}))]), expect!["settled"]);
}

#[test]
fn a_missing_pool_or_template_is_said() {
    let mut missing = world(seen(json!({})), vec![]);
    missing.offer = Offer::Empty;
    missing.template = None;
    expect![[r#"TemplateNotFound SandboxTemplate "test-template" not found"#]]
        .assert_eq(&published(&missing));
    missing.pool = None;
    expect![[r#"WarmPoolNotFound SandboxWarmPool "test-pool" not found"#]].assert_eq(&published(&missing));
}

#[test]
fn a_policy_of_an_older_controller_is_removed() {
    let mut world = world(seen(json!({"metadata": {"deletionTimestamp": null}})), vec![]);
    world.legacy_policy = Some(Arc::new(serde_json::from_value(json!({"metadata": {"name": "c-network-policy", "uid": "n",
        "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1alpha1", "kind": "SandboxClaim", "name": "c", "uid": "cu", "controller": true}]}})).unwrap()));
    check(
        &world,
        expect![[r#"
        best effort: delete NetworkPolicy c-network-policy
        AskForOffer"#]],
    );
}

mod deadline;

#[test]
fn what_the_server_refuses_as_invalid_is_final_for_a_claim() {
    let failure =
        Failure { stage: Stage::Subject, kind: FailureKind::Invalid, message: "its image".to_owned() };
    let tried = world(claim(json!({})), vec![]);
    let plan = give_up(&tried, &[failure], &Settings::default(), at(1));
    assert_eq!(plan.next, Next::Settled { look_again: None, retry: false });
    assert!(plan.notes[0].to_string().contains("InvalidConfiguration"), "{:?}", plan.notes);

    let committed = json!({"metadata": {"annotations": {"agents.x-k8s.io/sandbox-name": "c"}}});
    let mut tried = world(claim(committed), vec![]);
    tried.confirmed_gone.insert("c".to_owned());
    assert!(render(&decide(&tried, &Settings::default(), at(1))).starts_with("create Sandbox c"));
    tried.refused = Some("its image".to_owned());
    assert_eq!(
        published(&tried),
        "InvalidConfiguration Refused by the API server as invalid: its image",
        "the same is not asked for again"
    );
}

#[test]
fn a_warm_claim_is_ready_since_it_exists_and_not_since_its_sandbox_is() {
    let created = json!({"metadata": {"creationTimestamp": "2027-01-15T08:00:00Z", "generation": 3},
        "status": {"sandbox": {"name": "w"}}});
    let world = world(claim(created), vec![bound("w", json!({}))]);
    let plan = decide(&world, &Settings::default(), at(1));
    let Action::MergeStatus { body, .. } = &plan.steps[0].action else { panic!("{plan:?}") };
    let ready = &body["status"]["conditions"][0];
    assert_eq!(ready["status"], "True");
    assert_eq!(ready["lastTransitionTime"], "2027-01-15T08:00:00Z", "the sandbox is ready since 07:00");
    assert_eq!(ready["observedGeneration"], 3);
}
