//! Tests the checks themselves on small worlds with a single fault.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use warren_api::{Sandbox, annotations};
use warren_controllers::Config;
use warren_decide::step::{Action, Kind, Propagation};
use warren_sim::invariants::Ledger;
use warren_sim::object::Typed as _;
use warren_sim::quiescence;
use warren_sim::server::{Caller, Part, Preconditions, Server};
use warren_sim::wire::{Request, Sent};

const NOW: &str = "2027-01-15T08:00:00Z";
const ONE: Caller = Caller::Process(1);
const TWO: Caller = Caller::Process(2);

/// A server, and a checker of all its writes.
#[derive(Default)]
struct World {
    server: Server,
    ledger: Ledger,
}

impl World {
    fn judge(&mut self) -> Result<(), String> {
        let fresh = std::mem::take(&mut self.server.fresh);
        fresh.iter().try_for_each(|commit| self.ledger.check(&self.server, commit, None, now()))
    }

    /// Makes an object of a name. Returns a controller reference to it.
    fn create(&mut self, kind: Kind, name: &str, owners: &[Value], spec: Value) -> Value {
        let body = json!({"metadata": {"name": name, "ownerReferences": owners}, "spec": spec});
        let made = self.server.create(Caller::User, kind, body, 0, now()).unwrap().unwrap();
        self.judge().unwrap();
        let group = if kind == Kind::Sandbox { "agents.x-k8s.io" } else { "extensions.agents.x-k8s.io" };
        json!({"apiVersion": format!("{group}/v1beta1"), "kind": kind.to_string(), "name": name, "uid": made.uid(), "controller": true})
    }

    fn merge(&mut self, by: Caller, kind: Kind, name: &str, body: &Value) -> Result<(), String> {
        self.server.merge(by, kind, name, body, Part::All).unwrap();
        self.judge()
    }

    fn set_status(&mut self, kind: Kind, name: &str, status: &Value) {
        self.server.merge(Caller::Node, kind, name, &json!({"status": status}), Part::Status).unwrap();
        self.judge().unwrap();
    }

    fn delete(&mut self, by: Caller, kind: Kind, name: &str) -> Result<(), String> {
        let (any, background) = (Preconditions::default(), Propagation::Background);
        self.server.delete(by, kind, name, any, background, now()).unwrap();
        self.judge()
    }

    /// Makes a sandbox at rest that needs no pod: it is suspended.
    fn create_suspended(&mut self, name: &str, owners: &[Value], mut spec: Value) -> Value {
        spec["operatingMode"] = json!("Suspended");
        spec["podTemplate"] = pod_template();
        let reference = self.create(Kind::Sandbox, name, owners, spec);
        let conditions =
            [condition("Suspended", "True", "x"), condition("Ready", "False", "SandboxSuspended")];
        self.set_status(Kind::Sandbox, name, &json!({"conditions": conditions}));
        reference
    }

    fn rest(&self) -> Result<(), String> {
        quiescence::check(&self.server, &Config::default(), now())
    }
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn pod_template() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "v0"}]}})
}

fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": NOW, "observedGeneration": 1})
}

fn claim_spec() -> Value {
    json!({"warmPoolRef": {"name": "p0"}})
}

fn assignment(sandbox: Option<&str>) -> Value {
    json!({"metadata": {"annotations": {annotations::SANDBOX_NAME: sandbox}}})
}

fn check(result: Result<(), String>, wanted: &str) {
    let said = result.err().unwrap_or_default();
    assert_eq!(said.is_empty(), wanted.is_empty(), "{said:?}, not {wanted:?}");
    assert!(said.contains(wanted), "{said:?}, not {wanted:?}");
}

#[test]
fn no_process_deletes_what_is_the_users() {
    let template = json!({"podTemplate": pod_template()});
    let pool = json!({"replicas": 0, "sandboxTemplateRef": {"name": "t0"}});
    for (kind, spec, wanted) in [
        (Kind::PersistentVolumeClaim, json!({}), "which is the user's"),
        (Kind::SandboxTemplate, template, "which is the user's"),
        (Kind::SandboxWarmPool, pool, "which is the user's"),
        (Kind::Service, json!({}), "which is to stay"),
        (Kind::NetworkPolicy, json!({"podSelector": {}}), "which is to stay"),
    ] {
        for (by, wanted) in [(Caller::User, ""), (Caller::Garbage, ""), (ONE, wanted)] {
            let mut world = World::default();
            world.create(kind, "a", &[], spec.clone());
            check(world.delete(by, kind, "a"), wanted);
        }
    }
}

#[test]
fn a_child_is_deleted_when_its_owner_has_no_use_for_it() {
    for (service, wanted) in [(Some(true), "which is to stay"), (None, "which is to stay"), (Some(false), "")]
    {
        let mut world = World::default();
        let spec = json!({"podTemplate": pod_template(), "service": service});
        let owner = world.create(Kind::Sandbox, "a", &[], spec);
        world.create(Kind::Service, "a", &[owner], json!({}));
        check(world.delete(ONE, Kind::Service, "a"), wanted);
    }
    for (management, wanted) in [("Managed", "which is to stay"), ("Unmanaged", "")] {
        let mut world = World::default();
        let spec = json!({"podTemplate": pod_template(), "networkPolicyManagement": management});
        let owner = world.create(Kind::SandboxTemplate, "a", &[], spec);
        world.create(Kind::NetworkPolicy, "a", &[owner], json!({"podSelector": {}}));
        check(world.delete(ONE, Kind::NetworkPolicy, "a"), wanted);
    }
}

/// A past suspension excuses the end of the pod of that time, but not of a later one.
#[test]
fn what_is_made_anew_is_not_excused_by_what_was_before() {
    let delete_late = |kind: Kind, of: Kind, unwanted: Value, wanted: Value, again: bool| {
        let mut world = World::default();
        let spec = json!({"podTemplate": pod_template()});
        let owner = world.create(of, "a", &[], spec);
        world.create(kind, "a", std::slice::from_ref(&owner), json!({"podSelector": {}, "containers": []}));
        world.merge(Caller::User, of, "a", &json!({"spec": unwanted})).unwrap();
        world.merge(Caller::User, of, "a", &json!({"spec": wanted})).unwrap();
        if again {
            world.delete(ONE, kind, "a").unwrap();
            world.create(kind, "a", &[owner], json!({"podSelector": {}, "containers": []}));
        }
        world.delete(TWO, kind, "a")
    };
    for (kind, of, unwanted, wanted, says) in [
        (
            Kind::Pod,
            Kind::Sandbox,
            json!({"operatingMode": "Suspended"}),
            json!({"operatingMode": "Running"}),
            "which is to run",
        ),
        (
            Kind::Pod,
            Kind::Sandbox,
            json!({"shutdownTime": NOW}),
            json!({"shutdownTime": null}),
            "which is to run",
        ),
        (
            Kind::Service,
            Kind::Sandbox,
            json!({"service": false}),
            json!({"service": true}),
            "which is to stay",
        ),
        (
            Kind::NetworkPolicy,
            Kind::SandboxTemplate,
            json!({"networkPolicyManagement": "Unmanaged"}),
            json!({"networkPolicyManagement": "Managed"}),
            "which is to stay",
        ),
    ] {
        check(delete_late(kind, of, unwanted.clone(), wanted.clone(), false), "");
        check(delete_late(kind, of, unwanted, wanted, true), says);
    }
}

/// Once it is assigned again, a dropped sandbox counts like any other.
#[test]
fn what_was_assigned_again_is_not_excused() {
    for (again, wanted) in [(false, ""), (true, "claim c0 has 2 sandboxes")] {
        let mut world = World::default();
        let spec = json!({"podTemplate": pod_template()});
        world.create(Kind::Sandbox, "s1", &[], spec.clone());
        world.create(Kind::Sandbox, "s2", &[], spec);
        let claim = world.create(Kind::SandboxClaim, "c0", &[], claim_spec());
        let assign = |world: &mut World, by, sandbox| {
            world.merge(by, Kind::SandboxClaim, "c0", &assignment(sandbox)).unwrap();
        };
        assign(&mut world, ONE, Some("s1"));
        assign(&mut world, TWO, None);
        if again {
            assign(&mut world, ONE, Some("s1"));
        }
        let taken = json!({"metadata": {"ownerReferences": [claim]}});
        world.merge(ONE, Kind::Sandbox, "s1", &taken).unwrap();
        check(world.merge(ONE, Kind::Sandbox, "s2", &taken), wanted);
    }
}

/// A process may drop the name of a sandbox that another has just adopted only if the server told
/// it that the sandbox has no controller, and nothing newer since.
#[test]
fn an_assignment_is_dropped_only_by_who_cannot_know_better() {
    let read = Request::Read(Kind::Sandbox, "s1".to_owned());
    let taking = Request::Act(Action::Merge {
        kind: Kind::Sandbox,
        name: "s1".to_owned(),
        body: json!({"metadata": {}}),
    });
    let wrong = "dropped its assignment of s1, which it has";
    for (what, asks, takes, drops, wanted) in [
        ("asked before another took it", Some(TWO), ONE, TWO, ""),
        ("took it", Some(ONE), ONE, ONE, wrong),
        ("another asked", Some(TWO), ONE, ONE, wrong),
        ("nobody asked", None, ONE, TWO, wrong),
    ] {
        let mut world = World::default();
        world.create(Kind::Sandbox, "s1", &[], json!({"podTemplate": pod_template()}));
        let claim = world.create(Kind::SandboxClaim, "c0", &[], claim_spec());
        world.merge(ONE, Kind::SandboxClaim, "c0", &assignment(Some("s1"))).unwrap();
        let told = |world: &mut World, by: Caller, request: &Request| {
            let sandbox = Sandbox::of(world.server.get(Kind::Sandbox, "s1").unwrap()).unwrap().clone();
            world.ledger.answer(by, request, &sandbox);
        };
        if let Some(asks) = asks {
            told(&mut world, asks, &read);
        }
        world.merge(takes, Kind::Sandbox, "s1", &json!({"metadata": {"ownerReferences": [claim]}})).unwrap();
        told(&mut world, takes, &taking);
        let dropped = world.merge(drops, Kind::SandboxClaim, "c0", &assignment(None));
        assert_eq!(dropped.err().unwrap_or_default().contains(wrong), wanted == wrong, "{what}");
    }
}

#[test]
fn a_claim_goes_on_naming_the_sandbox_that_it_has() {
    let over = json!([
        condition("Ready", "False", "ClaimExpired"),
        condition("Finished", "True", "DeadlineExceeded")
    ]);
    let named = |name: Option<&str>| json!({"status": {"sandbox": {"name": name}}});
    for (what, next, wanted) in [
        ("kept", named(Some("s1")), ""),
        ("kept", named(Some("s2")), "named sandbox s1, which it has, and now names s2"),
        ("kept", named(None), "and now names none"),
        ("kept", json!({"status": {"sandbox": null, "conditions": over}}), ""),
        ("another's", named(None), ""),
        ("going", named(None), ""),
        ("gone", named(None), ""),
    ] {
        let mut world = World::default();
        let claim = world.create(Kind::SandboxClaim, "c0", &[], claim_spec());
        let owners = if what == "another's" { vec![] } else { vec![claim] };
        world.create(Kind::Sandbox, "s1", &owners, json!({"podTemplate": pod_template()}));
        world.set_status(Kind::SandboxClaim, "c0", &json!({"sandbox": {"name": "s1"}}));
        if what == "going" {
            let held = json!({"metadata": {"finalizers": ["users.io/hold"]}});
            world.merge(Caller::User, Kind::Sandbox, "s1", &held).unwrap();
        }
        if what == "going" || what == "gone" {
            world.delete(Caller::User, Kind::Sandbox, "s1").unwrap();
        }
        world.server.merge(ONE, Kind::SandboxClaim, "c0", &next, Part::Status).unwrap();
        check(world.judge(), wanted);
    }
}

#[test]
fn at_rest_a_claim_has_one_sandbox() {
    for (count, wanted) in [(1, ""), (2, "has 2 sandboxes")] {
        let mut world = World::default();
        let claim = world.create(Kind::SandboxClaim, "c0", &[], claim_spec());
        // As after another process's assignment that was dropped and completed late.
        world.merge(ONE, Kind::SandboxClaim, "c0", &assignment(Some("s2"))).unwrap();
        world.merge(TWO, Kind::SandboxClaim, "c0", &assignment(None)).unwrap();
        world.create_suspended("s1", std::slice::from_ref(&claim), json!({}));
        if count == 2 {
            world.create_suspended("s2", &[], json!({}));
            world
                .merge(ONE, Kind::Sandbox, "s2", &json!({"metadata": {"ownerReferences": [claim]}}))
                .unwrap();
        }
        let status = json!({"sandbox": {"name": "s1"}, "conditions": [condition("Ready", "False", "SandboxSuspended")]});
        world.set_status(Kind::SandboxClaim, "c0", &status);
        check(world.rest(), wanted);
    }
}

#[test]
fn at_rest_everything_has_its_children_and_no_others() {
    let volumes = json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]});
    for (spec, child, wanted) in [
        (json!({}), None, ""),
        (json!({"service": true}), None, "and lacks one"),
        (json!({"service": false}), Some(Kind::Service), "and has one"),
        (json!({}), Some(Kind::Service), "shows the service None"),
        (volumes.clone(), None, "lacks its volume data-a"),
        (volumes, Some(Kind::PersistentVolumeClaim), ""),
    ] {
        let mut world = World::default();
        let owner = world.create_suspended("a", &[], spec);
        if let Some(kind) = child {
            let name = if kind == Kind::Service { "a" } else { "data-a" };
            world.create(kind, name, &[owner], json!({}));
        }
        check(world.rest(), wanted);
    }
    for (management, has, wanted) in [
        ("Managed", false, "lacks its network policy"),
        ("Managed", true, ""),
        ("Unmanaged", false, ""),
        ("Unmanaged", true, "that it does not want"),
    ] {
        let mut world = World::default();
        let spec = json!({"podTemplate": pod_template(), "networkPolicyManagement": management});
        let owner = world.create(Kind::SandboxTemplate, "a", &[], spec);
        if has {
            world.create(Kind::NetworkPolicy, "a-network-policy", &[owner], json!({"podSelector": {}}));
        }
        check(world.rest(), wanted);
    }
}

#[test]
fn a_claim_does_not_wait_beyond_its_deadline() {
    let mut world = World::default();
    world.create(Kind::SandboxClaim, "c0", &[], claim_spec());
    let own = json!({"metadata": {"annotations": {annotations::DEADLINE: "20s"}}});
    world.merge(Caller::User, Kind::SandboxClaim, "c0", &own).unwrap();
    let at = |seconds| now().checked_add(Duration::from_secs(seconds)).unwrap();
    for (seconds, wanted) in [(19, ""), (21, "and waits on")] {
        check(quiescence::check_deadlines(&world.server, &Config::default(), at(seconds)), wanted);
    }
    // An idle process reconciles it then; or at any time, if it is late already.
    let wrong = "and is looked at again at";
    for (seconds, due, wanted) in
        [(0, Some(20), ""), (0, Some(60), wrong), (0, None, wrong), (25, Some(60), ""), (25, None, wrong)]
    {
        let judged = quiescence::check_wakes(&world.server, &Config::default(), at(seconds), |_| due.map(at));
        check(judged, wanted);
    }
    world.set_status(
        Kind::SandboxClaim,
        "c0",
        &json!({"conditions": [
            condition("Ready", "False", "ClaimExpired"), condition("Finished", "True", "DeadlineExceeded"),
        ]}),
    );
    check(quiescence::check_deadlines(&world.server, &Config::default(), at(21)), "");
}

#[test]
fn a_member_of_a_lost_node_is_not_assigned() {
    let mut world = World::default();
    let pool = json!({"replicas": 1, "sandboxTemplateRef": {"name": "t0"}});
    let pool = world.create(Kind::SandboxWarmPool, "p0", &[], pool);
    world.create(Kind::Sandbox, "s1", &[pool], json!({"podTemplate": pod_template()}));
    let assign = |lost: &[&str]| Sent {
        request: Request::Act(Action::Merge {
            kind: Kind::SandboxClaim,
            name: "c0".to_owned(),
            body: assignment(Some("s1")),
        }),
        intent: None,
        is_unasked: false,
        lost_nodes: lost.iter().map(|node| (*node).to_owned()).collect::<BTreeSet<String>>(),
    };
    let wrong = "although its node is lost";
    let steps: [(&str, &[&str], &str); 4] =
        [("n1", &["n2"], ""), ("n1", &["n1"], wrong), ("n2", &["n2"], ""), ("n2", &["n1", "n2"], wrong)];
    for (node, lost, wanted) in steps {
        world.set_status(Kind::Sandbox, "s1", &json!({"nodeName": node}));
        check(world.ledger.check_node(&world.server, ONE, &assign(lost)), wanted);
    }
}
