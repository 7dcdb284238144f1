//! Tests pools: each case is a pool as data and the resulting plan. Row numbers are those of the
//! table "easy to get wrong".

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use warren_api::{Sandbox, SandboxTemplate};

use super::{Memory, Plan, Settings, World};
use crate::secure_defaults;
use crate::staleness::Hashes;
use crate::step::{Action, Object};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn template(image: &str) -> SandboxTemplate {
    serde_json::from_value(json!({
        "metadata": {"name": "test-template", "namespace": "default", "uid": "tu"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}}},
    }))
    .unwrap()
}

/// Builds a member that was made from a template at a second, ready or not; its uid is its name.
fn member(name: &str, from: &SandboxTemplate, created: i64, ready: bool) -> Sandbox {
    let hashes = Hashes::of(from);
    let mut sandbox: Sandbox = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "3", "creationTimestamp": at(created).to_string(),
            "labels": {"agents.x-k8s.io/warm-pool-sandbox": "59733166", "agents.x-k8s.io/launch-type": "warm",
                "agents.x-k8s.io/sandbox-template-ref-hash": hashes.name, "agents.x-k8s.io/sandbox-template-hash": hashes.blueprint},
            "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1alpha1", "kind": "SandboxWarmPool", "name": "test-pool", "uid": "pu", "controller": true}]},
        "spec": {"podTemplate": {"spec": {"containers": []}}},
        "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }, "reason": "x", "message": "", "lastTransitionTime": at(created).to_string()}]},
    }))
    .unwrap();
    sandbox.spec.blueprint = from.spec.blueprint.clone();
    secure_defaults::apply(&from.spec, Arc::make_mut(&mut sandbox.spec.blueprint.pod_template.spec));
    sandbox
}

fn world(spec: Value, members: Vec<Sandbox>) -> World {
    let mut pool = json!({"metadata": {"name": "test-pool", "namespace": "default", "uid": "pu", "generation": 4},
        "spec": {"sandboxTemplateRef": {"name": "test-template"}}});
    for (key, value) in spec.as_object().unwrap() {
        pool["spec"][key] = value.clone();
    }
    World {
        pool: Arc::new(serde_json::from_value(pool).unwrap()),
        template: Some(Arc::new(template("a"))),
        members: members.into_iter().map(Arc::new).collect(),
        pods: BTreeMap::new(),
        jitter: 0.0,
        uptime: Duration::ZERO,
    }
}

/// Returns the pool with a status of this many members, all of them ready.
fn told(mut world: World, count: usize) -> World {
    let status = json!({"replicas": count, "readyReplicas": count,
        "selector": "agents.x-k8s.io/warm-pool-sandbox=59733166", "observedGeneration": 4});
    Arc::make_mut(&mut world.pool).status = serde_json::from_value(status).unwrap();
    world
}

/// Decides at a moment of both clocks.
fn decide_at(world: &World, memory: &mut Memory, settings: &Settings, now: Timestamp) -> Plan {
    let uptime = Duration::try_from(now.duration_since(at(-1_000))).unwrap();
    super::decide(&World { uptime, ..world.clone() }, memory, settings, now)
}

/// Decides without the deadline of a rollout, which does not affect a pool's size.
fn decide(world: &World, memory: &mut Memory, settings: &Settings, now: Timestamp) -> Plan {
    let settings = Settings { progress_deadline: Duration::MAX, ..settings.clone() };
    decide_at(world, memory, &settings, now)
}

fn render(world: &World, memory: &mut Memory, settings: &Settings, now: Timestamp) -> String {
    let plan = decide(world, memory, settings, now);
    let mut lines: Vec<String> = plan.repairs.iter().map(|step| format!("repair: {}", step.action)).collect();
    if !plan.creations.is_empty() {
        lines.push(format!("create {}", plan.creations.len()));
    }
    lines.extend(plan.removals.iter().map(|step| format!("surplus: {}", step.action)));
    if let Some(step) = &plan.status {
        let Action::MergeStatus { body, .. } = &step.action else { panic!("{step:?}") };
        let count =
            |key: &str| body["status"][key].as_i64().map_or("-".to_owned(), |number| number.to_string());
        lines.push(format!("status: {} of which {} ready", count("replicas"), count("readyReplicas")));
    }
    lines.extend(plan.notes.iter().chain(&plan.verdict_notes).map(|note| format!("event: {note}")));
    lines.extend(plan.look_again.map(|delay| format!("look again in {delay:?}")));
    lines.join("\n")
}

fn check(world: &World, expect: Expect) {
    expect.assert_eq(&render(world, &mut Memory::default(), &Settings::default(), at(0)));
}

#[test]
fn an_empty_pool_is_filled_and_what_is_expected_is_waited_for() {
    let empty = world(json!({"replicas": 3}), vec![]);
    let mut memory = Memory::default();
    expect![[r#"
        create 3
        status: - of which - ready"#]]
    .assert_eq(&render(&empty, &mut memory, &Settings::default(), at(0)));
    // None of the three creations has been seen yet: no more are made.
    expect![[r#"
        status: - of which - ready
        look again in 30s"#]]
    .assert_eq(&render(&empty, &mut memory, &Settings::default(), at(1)));
    (0..3).for_each(|_| memory.expectations.creation_settled());
    let members = ["a", "b", "c"].map(|name| member(name, &template("a"), 0, false)).to_vec();
    expect![[r#"
        status: 3 of which - ready
        look again in 300s"#]]
    .assert_eq(&render(&world(json!({"replicas": 3}), members), &mut memory, &Settings::default(), at(2)));
    // If the events never come, the wait ends after five minutes, and the server is asked for the
    // count.
    let mut forgotten = Memory::default();
    let _ = decide(&empty, &mut forgotten, &Settings::default(), at(0));
    assert!(render(&empty, &mut forgotten, &Settings::default(), at(299)).contains("look again"));
    let overdue = decide(&empty, &mut forgotten, &Settings::default(), at(300));
    assert!(overdue.recount && overdue.creations.is_empty());
    forgotten.expectations.recounted();
    assert!(render(&empty, &mut forgotten, &Settings::default(), at(300)).contains("create 3"));
}

#[test]
fn a_new_member() {
    let plan = decide(&world(json!({}), vec![]), &mut Memory::default(), &Settings::default(), at(0));
    let Action::Create(Object::Sandbox(member)) = &plan.creations[0].action else { panic!("{plan:?}") };
    expect![[r#"{"annotations":{"agents.x-k8s.io/sandbox-template-ref":"test-template"},"generateName":"test-pool-","labels":{"agents.x-k8s.io/created-by":"controller","agents.x-k8s.io/launch-type":"warm","agents.x-k8s.io/sandbox-pod-template-hash":"5b81ef1e","agents.x-k8s.io/sandbox-template-hash":"9f63c75d","agents.x-k8s.io/sandbox-template-ref-hash":"69155462","agents.x-k8s.io/warm-pool-sandbox":"59733166"},"namespace":"default","ownerReferences":[{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","blockOwnerDeletion":true,"controller":true,"kind":"SandboxWarmPool","name":"test-pool","uid":"pu"}]}"#]]
        .assert_eq(&crate::merge::json(&member.metadata).to_string());
    expect![[r#"{"labels":{"agents.x-k8s.io/sandbox-pod-template-hash":"5b81ef1e","agents.x-k8s.io/sandbox-template-hash":"9f63c75d","agents.x-k8s.io/sandbox-template-ref-hash":"69155462","agents.x-k8s.io/warm-pool-sandbox":"59733166"},"annotations":{"cluster-autoscaler.kubernetes.io/safe-to-evict":"true"}}"#]]
        .assert_eq(&crate::merge::json(&member.spec.blueprint.pod_template.metadata).to_string());
}

#[test]
fn the_dying_count_until_they_are_gone() {
    let mut dying = member("a", &template("a"), 0, true);
    dying.metadata.deletion_timestamp = serde_json::from_value(json!("2027-01-15T08:00:00Z")).unwrap();
    check(
        &world(json!({"replicas": 2}), vec![dying, member("b", &template("a"), 0, true)]),
        expect!["status: 1 of which 1 ready"],
    );
}

#[test]
fn a_member_that_does_not_end_holds_up_nobody_else() {
    let mut memory = Memory::default();
    let members = ["a", "b"].map(|name| member(name, &template("a"), 0, true)).to_vec();
    let surplus =
        render(&world(json!({"replicas": 1}), members.clone()), &mut memory, &Settings::default(), at(0));
    assert!(surplus.contains("surplus: "), "{surplus}");
    // A finalizer keeps it. The pool grows meanwhile.
    let dying = |mut member: Sandbox| {
        member.metadata.deletion_timestamp = serde_json::from_value(json!("2027-01-15T08:00:00Z")).unwrap();
        member
    };
    let members = members.into_iter().map(|member| {
        match memory.expectations.is_deleting(member.metadata.uid.as_deref().unwrap()) {
            true => dying(member),
            false => member,
        }
    });
    let larger = world(json!({"replicas": 4}), members.collect());
    assert_eq!(decide(&larger, &mut memory, &Settings::default(), at(1)).creations.len(), 2);
}

#[test]
fn row_25_recreate_rolls_stale_members_and_on_replenish_keeps_them() {
    let members = || vec![member("old", &template("b"), 0, true), member("new", &template("a"), 0, true)];
    check(&world(json!({"replicas": 2}), members()), expect!["status: 2 of which 2 ready"]);
    let recreate = |members| world(json!({"replicas": 2, "updateStrategy": {"type": "Recreate"}}), members);
    let mut memory = Memory::default();
    expect![[r#"
        repair: delete Sandbox old
        status: 1 of which 1 ready"#]]
    .assert_eq(&render(&recreate(members()), &mut memory, &Settings::default(), at(0)));
    // Its deletion has not been seen: it still counts, and is not deleted twice.
    expect!["status: 1 of which 1 ready"].assert_eq(&render(
        &recreate(members()),
        &mut memory,
        &Settings::default(),
        at(1),
    ));
    memory.expectations.deletion_settled("old");
    expect![[r#"
        create 1
        status: 1 of which 1 ready"#]]
    .assert_eq(&render(
        &recreate(vec![member("new", &template("a"), 0, true)]),
        &mut memory,
        &Settings::default(),
        at(2),
    ));
}

#[test]
fn row_26_a_member_has_its_grace_from_creation_and_an_unschedulable_one_is_held() {
    let old =
        || vec![member("stuck", &template("a"), -301, false), member("fine", &template("a"), -301, true)];
    let mut stuck = world(json!({"replicas": 2}), old());
    // A member that was ready for a while does not get more time.
    let conditions = &mut Arc::make_mut(&mut stuck.members[0]).status.as_mut().unwrap().conditions;
    conditions[0].last_transition_time = Time(at(-1));
    check(
        &stuck,
        expect![[r#"
        repair: delete Sandbox stuck
        status: 1 of which 1 ready"#]],
    );
    let pod = json!({"metadata": {"name": "stuck"}, "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}});
    stuck.pods.insert("stuck".to_owned(), Arc::new(serde_json::from_value(pod).unwrap()));
    let mut memory = Memory::default();
    expect![[r#"
        status: 2 of which 1 ready
        event: Warning WarmPoolNotProgressing (Reconciling): 1 sandboxes of pool test-pool cannot be scheduled
        look again in 60s"#]]
    .assert_eq(&render(&stuck, &mut memory, &Settings::default(), at(0)));
    expect![[r#"
        status: 2 of which 1 ready
        look again in 60s"#]]
    .assert_eq(&render(&stuck, &mut memory, &Settings::default(), at(1)));
    // Once it is scheduled, it has the usual time to start.
    let placed = |since| {
        let condition =
            json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": at(since).to_string()});
        let pod = json!({"metadata": {"name": "stuck"}, "status": {"conditions": [condition]}});
        Arc::new(serde_json::from_value(pod).unwrap())
    };
    let mut found = stuck.clone();
    found.pods.insert("stuck".to_owned(), placed(1));
    check(
        &found,
        expect![[r#"
        status: 2 of which 1 ready
        look again in 302s"#]],
    );
    found.pods.insert("stuck".to_owned(), placed(-301));
    check(
        &found,
        expect![[r#"
        repair: delete Sandbox stuck
        status: 1 of which 1 ready"#]],
    );
    let fine = ["stuck", "fine"].map(|name| member(name, &template("a"), -301, true)).to_vec();
    expect![[r#"
        status: 2 of which 2 ready
        event: Normal WarmPoolProgressing (Reconciling): the sandboxes of pool test-pool can be scheduled again"#]]
    .assert_eq(&render(&world(json!({"replicas": 2}), fine), &mut memory, &Settings::default(), at(2)));
}

#[test]
fn row_27_the_surplus_goes_not_ready_first_then_newest() {
    let members = vec![
        member("oldest", &template("a"), -40, true),
        member("newest", &template("a"), -10, true),
        member("unready", &template("a"), -30, false),
        member("middle", &template("a"), -20, true),
    ];
    check(
        &world(json!({"replicas": 1}), members),
        expect![[r#"
            surplus: delete Sandbox unready
            surplus: delete Sandbox newest
            surplus: delete Sandbox middle
            status: 4 of which 3 ready
            look again in 272s"#]],
    );
}

#[test]
fn row_27_orphans_are_taken_in_if_they_are_what_the_template_says() {
    let orphan = |name: &str, image: &str| {
        let mut orphan = member(name, &template(image), 0, true);
        orphan.metadata.owner_references = None;
        orphan
    };
    let mut forged = orphan("forged", "b");
    forged.metadata.labels = member("x", &template("a"), 0, true).metadata.labels;
    let mut foreign = member("foreign", &template("a"), 0, true);
    foreign.metadata.owner_references.as_mut().unwrap()[0].uid = "other".to_owned();
    check(
        &world(json!({"replicas": 1}), vec![orphan("fresh", "a"), forged, foreign]),
        expect![[r#"
            repair: patch Sandbox fresh {"metadata":{"ownerReferences":[{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","blockOwnerDeletion":true,"controller":true,"kind":"SandboxWarmPool","name":"test-pool","uid":"pu"}],"labels":{"agents.x-k8s.io/launch-type":"warm"},"resourceVersion":"3","uid":"fresh"}}
            repair: delete Sandbox forged
            status: 1 of which 1 ready"#]],
    );
    // Until the deletion of an orphan is under way, another owner may adopt it. After that its end
    // is not awaited.
    let (mut memory, settings) = (Memory::default(), Settings::default());
    let mut of_old = orphan("old", "b");
    let mut decided = |old: &Sandbox| {
        render(&world(json!({"replicas": 1}), vec![old.clone()]), &mut memory, &settings, at(0))
    };
    assert!(!decided(&of_old).contains("create"));
    of_old.metadata.deletion_timestamp = Some(Time(at(1)));
    assert!(decided(&of_old).contains("create 1"));
}

#[test]
fn without_a_template_nothing_is_created_or_judged() {
    let mut world = world(
        json!({"replicas": 2, "updateStrategy": {"type": "Recreate"}}),
        vec![member("old", &template("b"), 0, true)],
    );
    world.template = None;
    check(
        &world,
        expect![[r#"
        status: 1 of which 1 ready
        event: Warning TemplateNotFound (Reconciling): SandboxTemplate "test-template" not found"#]],
    );
}

#[test]
fn batches_tokens_and_holds_pace_the_refill() {
    let empty = world(json!({"replicas": 1000}), vec![]);
    let capped = Settings { max_batch_size: 20, ..Settings::default() };
    expect![[r#"
        create 20
        status: - of which - ready"#]]
    .assert_eq(&render(&empty, &mut Memory::default(), &capped, at(0)));

    let empty = told(empty, 0);
    let paced = Settings { max_refill_rate: 2.0, ..Settings::default() };
    let mut memory = Memory::default();
    let mut creations = |second| {
        let plan = decide(&empty, &mut memory, &paced, at(second));
        (0..plan.creations.len()).for_each(|_| memory.expectations.creation_settled());
        (plan.creations.len(), plan.look_again)
    };
    assert_eq!(creations(0), (2, None));
    assert_eq!(creations(0), (0, Some(Duration::from_millis(500))));
    assert_eq!(creations(1), (2, None));
    assert_eq!(creations(60), (2, None), "the bucket holds no more than a second's worth");
    let (slowest, mut memory) =
        (Settings { max_refill_rate: 1e-20, ..Settings::default() }, Memory::default());
    assert_eq!(memory.take_tokens(1, &slowest, Duration::ZERO), Ok(1));
    assert_eq!(
        memory.take_tokens(1, &slowest, Duration::ZERO),
        Err(Duration::MAX),
        "longer than there are seconds"
    );

    let delayed = Settings { replenish_delay: Duration::from_secs(5), ..Settings::default() };
    let mut memory = Memory::default();
    let pool = |count: usize| {
        world(
            json!({"replicas": 3}),
            (0..count).map(|number| member(&number.to_string(), &template("a"), 0, true)).collect(),
        )
    };
    let mut pass = |count, second| {
        let plan = decide(&pool(count), &mut memory, &delayed, at(second));
        (0..plan.creations.len()).for_each(|_| memory.expectations.creation_settled());
        (plan.creations.len(), plan.look_again.map(|delay| delay.as_secs()))
    };
    assert_eq!(pass(1, 0), (2, None), "the first look never waits");
    assert_eq!(pass(3, 1), (0, None));
    assert_eq!(pass(2, 2), (0, Some(5)), "one has left");
    assert_eq!(pass(1, 4), (0, Some(5)), "another one");
    assert_eq!(pass(1, 8), (0, Some(1)));
    assert_eq!(pass(1, 9), (2, None));

    let mut memory = Memory::default();
    let mut refused = |second| {
        let plan = decide(&pool(1), &mut memory, &delayed, at(second));
        plan.creations.iter().for_each(|_| memory.creation_failed());
        plan.creations.len()
    };
    assert_eq!([refused(0), refused(1)], [2, 2], "what was never made has not left");
}

#[test]
fn what_claims_do_not_find_is_missing() {
    let missing = |spec: Value, members: Vec<Sandbox>| {
        decide(&world(spec, members), &mut Memory::default(), &Settings::default(), at(10)).missing
    };
    let ready = |count: usize| -> Vec<Sandbox> {
        (0..count).map(|number| member(&number.to_string(), &template("a"), 0, true)).collect()
    };
    assert_eq!(missing(json!({"replicas": 4}), ready(1)), 0.75);
    assert_eq!(missing(json!({"replicas": 4}), ready(6)), 0.0);
    assert_eq!(missing(json!({"replicas": 0}), vec![]), 0.0);
    let starting = |created| [ready(1), vec![member("new", &template("a"), created, false)]].concat();
    assert_eq!(missing(json!({"replicas": 2}), starting(9)), 0.5);
    assert_eq!(
        missing(json!({"replicas": 2}), starting(0)),
        0.0,
        "no hurry helps one that waits for something"
    );
    let mut capped = world(json!({"replicas": 1000}), ready(2));
    Arc::make_mut(&mut capped.pool).metadata.annotations =
        Some([("warren.dev/max-members".to_owned(), "2".to_owned())].into());
    assert_eq!(decide(&capped, &mut Memory::default(), &Settings::default(), at(10)).missing, 0.0);
}

#[test]
fn few_members_are_started_at_a_time_and_a_low_pool_does_not_wait() {
    let few = Settings { max_starting: Some(2), ..Settings::default() };
    let pass = |starting: usize, second| {
        let mut members = vec![member("ready", &template("a"), 9, true)];
        members.extend((0..starting).map(|number| member(&number.to_string(), &template("a"), 9, false)));
        let plan = decide(&world(json!({"replicas": 9}), members), &mut Memory::default(), &few, at(second));
        (plan.creations.len(), plan.look_again)
    };
    assert_eq!(pass(0, 10).0, 2);
    assert_eq!(pass(1, 10).0, 1);
    assert_eq!(pass(2, 10), (0, Some(Duration::from_secs(2))), "looked at again when their time is over");
    assert_eq!(pass(3, 10).0, 0);
    assert_eq!(pass(2, 12).0, 2, "what is not ready by then waits for something else");
    assert_eq!(pass(2, 8).0, 2, "nor does one from the future count");

    let waiting = Settings { replenish_delay: Duration::from_secs(5), reserve: 0.5, ..Settings::default() };
    let passes_of = |replicas: usize, settings: &Settings, counts: &[usize]| -> Vec<usize> {
        let mut memory = Memory::default();
        let creations = counts.iter().zip(0..).map(|(count, second)| {
            let members =
                (0..*count).map(|number| member(&number.to_string(), &template("a"), 0, true)).collect();
            let pool = world(json!({"replicas": replicas}), members);
            let plan = decide(&pool, &mut memory, settings, at(second));
            (0..plan.creations.len()).for_each(|_| memory.expectations.creation_settled());
            plan.creations.len()
        });
        creations.collect()
    };
    let passes = |settings: &Settings, counts: &[usize]| passes_of(4, settings, counts);
    assert_eq!(
        passes(&waiting, &[4, 3, 2, 1]),
        [0, 0, 0, 3],
        "claims are taking them, until they have taken too many"
    );
    let slowly = Settings { max_starting: Some(8), ..waiting };
    assert_eq!(passes(&slowly, &[4, 1]), [0, 2], "which is made up for slowly while they go on");
    assert_eq!(
        passes_of(80, &slowly, &[80, 40, 39, 30, 25, 15, 5, 0]),
        [0, 0, 1, 1, 2, 4, 7, 8],
        "the emptier it is, the faster"
    );
    let brief = Settings { replenish_delay: Duration::from_secs(1), reserve: 0.0, ..slowly.clone() };
    assert_eq!(
        passes_of(80, &brief, &[80, 40, 40, 41, 43, 47, 55, 54]),
        [0, 0, 1, 2, 4, 8, 8, 0],
        "after a pause at first one at a time"
    );
    assert_eq!(passes_of(80, &brief, &[0, 8]), [8, 8], "but not after a start");
    let never = Settings { replenish_delay: Duration::ZERO, ..slowly };
    assert_eq!(passes(&never, &[4, 1]), [0, 3]);
}

#[test]
fn what_claims_take_is_looked_at_late_until_nothing_is_left() {
    let delay = Duration::from_millis(400);
    let settings = Settings { replenish_delay: delay, ..Settings::default() };
    let mut memory = Memory::default();
    assert!(memory.member_taken(&settings).is_zero(), "nobody has looked yet");
    let members = (0..2).map(|number| member(&number.to_string(), &template("a"), 0, true)).collect();
    let pool = world(json!({"replicas": 6}), members);
    decide(&pool, &mut memory, &settings, at(0));
    let mut taken = || memory.member_taken(&settings).as_millis();
    assert_eq!([taken(), taken(), taken(), taken()], [200, 200, 0, 0]);
    decide(&pool, &mut memory, &Settings::default(), at(1));
    assert_eq!(memory.member_taken(&Settings::default()).as_millis(), 100, "the claim comes first");
    let patient = Settings { replenish_delay: Duration::from_secs(60), ..Settings::default() };
    assert_eq!(memory.member_taken(&patient).as_secs(), 1, "the status is not left behind for long");
}

#[test]
fn a_converged_pool_costs_no_write() {
    let settled = world(json!({"replicas": 1}), vec![member("a", &template("a"), 0, true)]);
    check(&told(settled, 1), expect![""]);
}

#[test]
fn statuses_keep_their_distance() {
    let mut memory = Memory::default();
    let mut publishes = |milliseconds: i64| {
        let now = at(0) + jiff::SignedDuration::from_millis(milliseconds);
        let members = vec![member("a", &template("a"), 0, true)];
        let plan = decide(&world(json!({"replicas": 1}), members), &mut memory, &Settings::default(), now);
        (plan.status.is_some(), plan.look_again.map(|delay| delay.as_millis()))
    };
    assert_eq!(publishes(0), (true, None));
    assert_eq!(publishes(100), (false, Some(150)));
    assert_eq!(publishes(250), (true, None));
}

mod rollout;
