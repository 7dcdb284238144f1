use std::sync::Arc;

use serde_json::json;
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations};
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

/// A claim that names a sandbox of its own name, and is Ready or not.
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

/// What a pass over a claim whose sandbox is not in the cache asks of a server with these answers.
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

/// Another leader makes the sandbox anew and says so, just when this one has been told that it is gone.
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
