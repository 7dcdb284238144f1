//! Tests the claim controller's requests against a server with scripted answers.

use std::sync::Arc;

use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations, labels};
use warren_decide::step::{FailureKind, Kind};

use crate::Config;
use crate::clock::SystemClock;
use crate::cluster::News;
use crate::engine::{Controller, Engine};
use crate::object::Any;
use crate::pretended::{Pretended, object};
use crate::queue::ObjectKey;
use crate::server::{Answer, Refusal};
use crate::telemetry::Telemetry;

/// Builds a claim that names a sandbox of its own name, with this Ready condition.
fn claim(version: u64, ready: &str) -> Any {
    let ready = json!({"type": "Ready", "status": ready, "reason": "DependenciesReady", "message": "",
        "lastTransitionTime": "2020-01-01T00:00:00Z"});
    object::<SandboxClaim>(
        "c",
        version,
        json!({
            "metadata": {"annotations": {annotations::SANDBOX_NAME: "c"}},
            "spec": {"warmPoolRef": {"name": "p"}},
            "status": {"sandbox": {"name": "c"}, "conditions": [ready]},
        }),
    )
}

fn made() -> Any {
    let owner = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "name": "c", "uid": claim(1, "True").uid(), "controller": true});
    object::<Sandbox>(
        "c",
        9,
        json!({"metadata": {"ownerReferences": [owner]}, "spec": {"podTemplate": {"spec": {"containers": []}}}}),
    )
}

/// Reconciles a claim whose sandbox is not in the cache, with these answers of the server. Returns
/// the requests.
async fn pass<const R: usize, const W: usize>(
    seen: Any,
    reads: [(Kind, Answer); R],
    writes: [Answer; W],
) -> Vec<String> {
    let server = Arc::new(Pretended::new(reads, writes));
    let config = Config { extensions: true, ..Config::default() };
    let engine = Engine::new(server.clone(), Arc::new(SystemClock::start()), &config, &Telemetry::default());
    let template =
        object::<SandboxTemplate>("t", 1, json!({"spec": {"podTemplate": {"spec": {"containers": []}}}}));
    let pool = object::<SandboxWarmPool>(
        "p",
        1,
        json!({"spec": {"replicas": 0, "sandboxTemplateRef": {"name": "t"}}}),
    );
    for object in [template, pool, seen] {
        engine.cluster().observe(News::Changed(object));
    }
    let key = ObjectKey { namespace: "default".to_owned(), name: "c".to_owned() };
    engine.reconcile(Controller::Claim, key).await;
    server.asked()
}

fn refused(kind: FailureKind) -> Answer {
    Err(Refusal { kind, text: "no".to_owned() })
}

const LOST: &str = "say that SandboxClaim has lost its sandbox";

#[tokio::test]
async fn what_was_gone_and_is_made_again_is_seen() {
    let asked = pass(claim(5, "True"), [(Kind::Sandbox, Ok(None))], [Ok(Some(made()))]).await;
    assert_eq!(asked[..2], ["read Sandbox c", "create Sandbox c"]);
    assert_eq!(asked.iter().filter(|line| line.starts_with("create")).count(), 1, "{asked:?}");

    let reads = [(Kind::Sandbox, Ok(None)), (Kind::Sandbox, Ok(Some(made())))];
    let asked = pass(claim(5, "True"), reads, [refused(FailureKind::AlreadyExists)]).await;
    assert_eq!(asked[..3], ["read Sandbox c", "create Sandbox c", "read Sandbox c"]);
    assert!(!asked[3..].iter().any(|line| line.starts_with("create") || line == LOST), "{asked:?}");
}

/// Another leader recreates the sandbox and commits to it just after the server has told this one
/// that it is gone.
#[tokio::test]
async fn what_was_gone_is_asked_for_again_when_the_claim_has_changed() {
    let reads = [
        (Kind::Sandbox, Ok(None)),
        (Kind::SandboxClaim, Ok(Some(claim(6, "False")))),
        (Kind::Sandbox, Ok(Some(made()))),
    ];
    let asked = pass(claim(5, "False"), reads, [refused(FailureKind::Conflict)]).await;
    assert_eq!(asked[..4], ["read Sandbox c", LOST, "read SandboxClaim c", "read Sandbox c"]);
    assert!(!asked[4..].iter().any(|line| line == LOST), "{asked:?}");
}

/// Returns the first request of a claim whose pool has one ready member that another claim has
/// committed to.
async fn first_request_beside(deleted: Option<&str>, status: Value) -> String {
    let server = Arc::new(Pretended::new([], []));
    let config = Config { extensions: true, ..Config::default() };
    let engine = Engine::new(server.clone(), Arc::new(SystemClock::start()), &config, &Telemetry::default());
    let pool = object::<SandboxWarmPool>(
        "p",
        1,
        json!({"spec": {"replicas": 1, "sandboxTemplateRef": {"name": "t"}}}),
    );
    let ready = json!({"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "",
        "lastTransitionTime": "2020-01-01T00:00:00Z"});
    let member = object::<Sandbox>(
        "w",
        2,
        json!({
            "metadata": {
                "labels": {labels::WARM_POOL_SANDBOX: NameHash::of("p").to_string(),
                    labels::SANDBOX_TEMPLATE_REF_HASH: NameHash::of("t").to_string()},
                "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
                    "name": "p", "uid": pool.uid(), "controller": true}],
            },
            "spec": {"podTemplate": {"spec": {"containers": []}}},
            "status": {"podIPs": ["10.0.0.7"], "conditions": [ready]},
        }),
    );
    let committed = json!({
        "metadata": {"annotations": {annotations::SANDBOX_NAME: "w"}, "deletionTimestamp": deleted},
        "spec": {"warmPoolRef": {"name": "p"}},
        "status": status,
    });
    let asking = json!({"spec": {"warmPoolRef": {"name": "p"}}});
    for object in
        [pool, member, object::<SandboxClaim>("o", 3, committed), object::<SandboxClaim>("c", 4, asking)]
    {
        engine.cluster().observe(News::Changed(object));
    }
    let key = ObjectKey { namespace: "default".to_owned(), name: "c".to_owned() };
    engine.reconcile(Controller::Claim, key).await;
    server.asked()[0].clone()
}

/// Without a template there is no other sandbox to adopt, and the claim's status says so.
#[tokio::test]
async fn a_sandbox_is_kept_for_who_has_committed_to_it_as_long_as_that_can_take_it() {
    let (takes, waits) = ("patch SandboxClaim", "say how SandboxClaim is");
    let expired = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "ClaimExpired",
        "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z"}]});
    for (deleted, status, wanted) in [
        (None, json!({}), waits),
        (None, json!({"sandbox": {"name": "w"}}), takes),
        (None, expired, takes),
        (Some("2020-01-01T00:00:00Z"), json!({}), takes),
    ] {
        assert_eq!(first_request_beside(deleted, status.clone()).await, wanted, "{deleted:?} {status}");
    }
}
