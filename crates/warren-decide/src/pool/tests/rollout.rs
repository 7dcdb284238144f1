//! Tests caps, rolling updates, and the verdict on a template.

use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use warren_api::Sandbox;

use super::{at, decide_at, member, template, world};
use crate::pool::{Memory, Plan, Settings, World};
use crate::step::Action;

/// A simulated pool that keeps its annotations, its memory, and a clock.
struct Pool {
    world: World,
    memory: Memory,
}

impl Pool {
    fn new(spec: Value, annotations: Value, members: Vec<Sandbox>) -> Self {
        let mut world = world(spec, members);
        Arc::make_mut(&mut world.pool).metadata.annotations = serde_json::from_value(annotations).unwrap();
        Self { world, memory: Memory::default() }
    }

    /// Runs one reconcile, after which all its writes have been seen.
    fn pass(&mut self, second: i64) -> Plan {
        let plan = decide_at(&self.world, &mut self.memory, &Settings::default(), at(second));
        (0..plan.creations.len()).for_each(|_| self.memory.expectations.creation_settled());
        if let Some(step) = &plan.verdict {
            let Action::Merge { body, .. } = &step.action else { panic!("{step:?}") };
            let annotations =
                Arc::make_mut(&mut self.world.pool).metadata.annotations.get_or_insert_default();
            for (key, value) in body["metadata"]["annotations"].as_object().unwrap() {
                match value.as_str() {
                    Some(value) => annotations.insert(key.clone(), value.to_owned()),
                    None => annotations.remove(key),
                };
            }
        }
        plan
    }

    fn members(&mut self, members: Vec<Sandbox>) -> &mut Self {
        self.world.members = members.into_iter().map(Arc::new).collect();
        self
    }

    fn check(&mut self, second: i64, expect: Expect) {
        let plan = self.pass(second);
        let mut lines: Vec<String> = plan.repairs.iter().map(|step| step.action.to_string()).collect();
        if !plan.creations.is_empty() {
            lines.push(format!("create {}", plan.creations.len()));
        }
        lines.extend(plan.removals.iter().map(|step| step.action.to_string()));
        if plan.verdict.is_some() {
            lines.push(self.verdict());
        }
        lines.extend(plan.notes.iter().chain(&plan.verdict_notes).map(|note| format!("event: {note}")));
        expect.assert_eq(&lines.join("\n"));
    }

    fn verdict(&self) -> String {
        let annotations = self.world.pool.metadata.annotations.clone().unwrap_or_default();
        let verdict: Value = serde_json::from_str(&annotations["warren.dev/progressing"]).unwrap();
        let text = |key: &str| verdict[key].as_str().unwrap().to_owned();
        let updated = annotations.get("warren.dev/updated-replicas");
        let updated = updated.map_or(String::new(), |count| format!(" ({count} updated)"));
        format!("{} {}{updated}: {}", text("status"), text("reason"), text("message"))
    }
}

fn rolling(max_unavailable: &str) -> Value {
    json!({"warren.dev/update-strategy": "RollingUpdate", "warren.dev/max-unavailable": max_unavailable})
}

/// Builds members by name, each with whether it is of the present template and whether it is ready,
/// in the order of creation.
fn members(all: &[(&str, bool, bool)]) -> Vec<Sandbox> {
    let made = all.iter().enumerate().map(|(number, (name, fresh, ready))| {
        let image = if *fresh { "a" } else { "b" };
        member(name, &template(image), i64::try_from(number).unwrap() - 100, *ready)
    });
    made.collect()
}

#[test]
fn a_cap_holds_for_the_living_and_the_dying() {
    let mut dying = member("dying", &template("a"), 0, true);
    dying.metadata.deletion_timestamp = serde_json::from_value(json!("2027-01-15T08:00:00Z")).unwrap();
    let capped = json!({"warren.dev/max-members": "3"});
    let mut pool =
        Pool::new(json!({"replicas": 50}), capped, vec![dying, member("a", &template("a"), 0, true)]);
    assert_eq!(pool.pass(0).creations.len(), 1);
    pool.members(members(&[("a", true, true), ("b", true, true), ("c", true, true), ("d", true, true)]));
    assert_eq!(pool.pass(1).removals.len(), 1);
}

#[test]
fn a_rolling_update_keeps_most_of_the_pool_available() {
    let old = [("a", false, true), ("b", false, true), ("c", false, true), ("d", false, true)];
    let mut pool = Pool::new(json!({"replicas": 4}), rolling("2"), members(&old));
    pool.check(
        0,
        expect![[r#"
            delete Sandbox a
            delete Sandbox b
            True Updating (0 updated): members of template test-template are being made"#]],
    );
    // No more go before the deletions are seen, or while the new ones are not ready.
    pool.check(1, expect![""]);
    pool.memory.expectations.deletion_settled("a");
    pool.memory.expectations.deletion_settled("b");
    pool.members(members(&[("c", false, true), ("d", false, true)]));
    pool.check(2, expect!["create 2"]);
    let started = [("c", false, true), ("d", false, true), ("e", true, false), ("f", true, false)];
    pool.members(members(&started));
    pool.check(3, expect!["True Updating (2 updated): members of template test-template are being made"]);
    let half = [("c", false, true), ("d", false, true), ("e", true, true), ("f", true, false)];
    pool.members(members(&half));
    pool.check(4, expect!["delete Sandbox c"]);
    pool.memory.expectations.deletion_settled("c");
    let done = [("e", true, true), ("f", true, true), ("g", true, true), ("h", true, true)];
    pool.members(members(&done));
    pool.check(5, expect!["True Complete: the pool is up to date with template test-template"]);
}

#[test]
fn outdated_members_that_nobody_can_use_go_at_once() {
    let mixed = [("a", false, true), ("b", false, false), ("c", false, false), ("d", false, true)];
    let mut pool = Pool::new(json!({"replicas": 4}), rolling("1"), members(&mixed));
    let plan = pool.pass(0);
    let gone: Vec<String> = plan.repairs.iter().map(|step| step.action.to_string()).collect();
    assert_eq!(gone, ["delete Sandbox b", "delete Sandbox c"]);
}

#[test]
fn a_bad_template_is_told_and_stops_a_rolling_update() {
    let mut pool =
        Pool::new(json!({"replicas": 2}), rolling("1"), members(&[("a", false, true), ("b", false, true)]));
    pool.pass(0);
    pool.memory.expectations.deletion_settled("a");
    let stuck = || members(&[("b", false, true), ("c", true, false)]);
    pool.members(stuck());
    let plan = pool.pass(1);
    assert_eq!(plan.look_again, Some(Duration::from_secs(599)).min(plan.look_again));
    pool.members(vec![member("b", &template("b"), 0, true), member("c", &template("a"), 500, false)]);
    pool.check(599, expect![""]);
    pool.check(
        600,
        expect![[r#"
            False ProgressDeadlineExceeded (1 updated): no member of template test-template has become ready for 10m; c: x: 
            event: Warning ProgressDeadlineExceeded (Reconciling): no member of template test-template has become ready for 10m; c: x: "#]],
    );
    pool.check(601, expect![""]);
    // It becomes ready: the rollout progresses again.
    let mut ready = member("c", &template("a"), 500, true);
    ready.status.as_mut().unwrap().conditions[0].last_transition_time =
        serde_json::from_value(json!(at(700))).unwrap();
    pool.members(vec![member("b", &template("b"), 0, true), ready]);
    pool.check(
        700,
        expect![[r#"
            delete Sandbox b
            True Updating: members of template test-template are being made"#]],
    );
}

#[test]
fn a_complete_rollout_stays_so_while_claims_empty_the_pool() {
    let mut pool = Pool::new(json!({"replicas": 2}), json!(null), vec![]);
    pool.check(
        0,
        expect![[r#"
            create 2
            True Updating: members of template test-template are being made"#]],
    );
    pool.members(members(&[("a", true, true), ("b", true, false)]));
    pool.check(1, expect![""]);
    pool.members(members(&[("a", true, true), ("b", true, true)]));
    pool.check(2, expect!["True Complete: the pool is up to date with template test-template"]);
    pool.members(members(&[("b", true, true)]));
    pool.check(10_000, expect!["create 1"]);
    // A new template starts a new rollout. Outdated members that wait for claims are no failure.
    pool.members(members(&[("b", true, true), ("c", true, true)]));
    pool.world.template = Some(Arc::new(template("new")));
    pool.check(
        10_001,
        expect!["True WaitingForClaims (0 updated): members that are not of the present template test-template go as they are claimed"],
    );
    pool.check(99_999, expect![""]);
    pool.world.template = None;
    pool.check(
        100_000,
        expect![[r#"
            False TemplateNotFound: SandboxTemplate "test-template" not found
            event: Warning TemplateNotFound (Reconciling): SandboxTemplate "test-template" not found"#]],
    );
    pool.check(100_001, expect![""]);
}

#[test]
fn a_template_that_nobody_has_tried_is_not_judged() {
    let mut pool = Pool::new(json!({"replicas": 0}), json!(null), vec![]);
    pool.check(0, expect![""]);
    Arc::make_mut(&mut pool.world.pool).spec.replicas = 2;
    pool.check(
        1000,
        expect![[r#"
            create 2
            True Updating: members of template test-template are being made"#]],
    );
    pool.members(vec![member("a", &template("a"), 1500, false), member("b", &template("a"), 1500, false)]);
    pool.check(1599, expect![""]);
    pool.check(
        1600,
        expect![[r#"
            False ProgressDeadlineExceeded: no member of template test-template has become ready for 10m; a: x: 
            event: Warning ProgressDeadlineExceeded (Reconciling): no member of template test-template has become ready for 10m; a: x: "#]],
    );
    // The template is no longer used: a bad verdict is removed, a good one stays.
    Arc::make_mut(&mut pool.world.pool).spec.replicas = 0;
    pool.members(vec![]).pass(1601);
    assert_eq!(pool.world.pool.metadata.annotations, Some([].into()));
    let mut good = Pool::new(json!({"replicas": 1}), json!(null), members(&[("a", true, true)]));
    good.pass(0);
    Arc::make_mut(&mut good.world.pool).spec.replicas = 0;
    good.members(vec![]).check(1, expect![""]);
    assert!(good.verdict().starts_with("True Complete"));
}

#[test]
fn nonsense_and_refusals_are_told_once() {
    let mut pool = Pool::new(
        json!({"replicas": 1}),
        json!({"warren.dev/max-members": "many"}),
        members(&[("a", true, true)]),
    );
    pool.check(
        0,
        expect![[r#"
            True Complete: the pool is up to date with template test-template
            event: Warning InvalidAnnotation (Reconciling): warren.dev/max-members: "many" is not a number, and is ignored"#]],
    );
    pool.check(1, expect![""]);
    let memory = &mut pool.memory;
    expect!["Warning FailedCreate (Reconciling): exceeded quota"]
        .assert_eq(&memory.creations_tried(Some("exceeded quota")).unwrap().to_string());
    assert_eq!(memory.creations_tried(Some("exceeded quota")), None);
    assert_eq!(memory.creations_tried(None), None);
    assert!(memory.creations_tried(Some("exceeded quota")).is_some());
}
