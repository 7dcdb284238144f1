//! Tests the checks before writes about children, against a server with scripted answers.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, SandboxTemplate, labels};
use warren_decide::step::{FailureKind, Kind};

use super::News;
use crate::Config;
use crate::clock::SystemClock;
use crate::engine::{Controller, Engine};
use crate::object::{Any, Typed};
use crate::pretended::{Pretended, object};
use crate::queue::{ObjectKey, Outcome};
use crate::server::{Answer, Refusal};
use crate::telemetry::Telemetry;

fn child<K: Typed>(name: &str, owner: &Any) -> Any {
    let group = if owner.kind() == Kind::Sandbox { "agents.x-k8s.io" } else { "extensions.agents.x-k8s.io" };
    let reference = json!({"apiVersion": format!("{group}/v1beta1"), "kind": owner.kind().to_string(),
        "name": owner.name(), "uid": owner.uid(), "controller": true});
    let labels = json!({labels::SANDBOX_NAME_HASH: NameHash::of(owner.name()).to_string()});
    object::<K>(name, 1, json!({"metadata": {"ownerReferences": [reference], "labels": labels}, "spec": {}}))
}

/// Reconciles an owner against a server with this answer. Returns the requests and the outcome.
async fn pass(seen: &Any, child: Any, owner: Answer) -> (Vec<String>, Outcome) {
    let server = Arc::new(Pretended::new([(seen.kind(), owner)], []));
    let config = Config { extensions: true, ..Config::default() };
    let engine = Engine::new(server.clone(), Arc::new(SystemClock::start()), &config, &Telemetry::default());
    for object in [seen.clone(), child] {
        engine.cluster().observe(News::Changed(object));
    }
    let controller = if seen.kind() == Kind::Sandbox { Controller::Sandbox } else { Controller::Template };
    let key = ObjectKey { namespace: "default".to_owned(), name: seen.name().to_owned() };
    let outcome = engine.reconcile(controller, key).await;
    (server.asked(), outcome)
}

fn sandbox(version: u64, spec: Value, reason: &str) -> Any {
    let ready = json!({"type": "Ready", "status": "False", "reason": reason, "message": "",
        "lastTransitionTime": "2020-01-01T00:00:00Z"});
    let mut value = json!({"spec": spec, "status": {"conditions": [ready]}});
    value["spec"]["podTemplate"] = json!({"spec": {"containers": []}});
    object::<Sandbox>("s", version, value)
}

fn template(version: u64, management: &str) -> Any {
    let spec = json!({"podTemplate": {"spec": {"containers": []}}, "networkPolicyManagement": management});
    let labels = json!({labels::SANDBOX_TEMPLATE_REF_HASH: NameHash::of("t").to_string()});
    object::<SandboxTemplate>("t", version, json!({"metadata": {"labels": labels}, "spec": spec}))
}

/// The watch of owners is behind the watch of their children, and the child was made for a newer
/// state of its owner.
#[tokio::test]
async fn a_child_is_deleted_only_if_the_server_still_shows_why() {
    let suspended = || sandbox(5, json!({"operatingMode": "Suspended"}), "SandboxSuspended");
    let past = || sandbox(5, json!({"shutdownTime": "2020-01-01T00:00:00Z"}), "SandboxExpired");
    let without = || sandbox(5, json!({"service": false, "operatingMode": "Suspended"}), "x");
    let with = || sandbox(6, json!({"service": true, "operatingMode": "Suspended"}), "x");
    let running = || sandbox(6, json!({"operatingMode": "Running"}), "SandboxSuspended");
    let later = || sandbox(6, json!({"shutdownTime": "2200-01-01T00:00:00Z"}), "SandboxExpired");
    let (pod, service) = (child::<Pod>("s", &suspended()), child::<Service>("s", &suspended()));
    let policy = child::<NetworkPolicy>("t-network-policy", &template(5, "Managed"));
    for (what, seen, child, present) in [
        ("suspended", suspended(), &pod, running()),
        ("expired", past(), &pod, later()),
        ("expired, with a service", past(), &service, later()),
        ("without a service", without(), &service, with()),
        ("without a policy", template(5, "Unmanaged"), &policy, template(6, "Managed")),
    ] {
        let (read, delete) = (
            format!("read {} {}", seen.kind(), seen.name()),
            format!("delete {} {}", child.kind(), child.name()),
        );
        let (asked, _) = pass(&seen, child.clone(), Ok(Some(seen.clone()))).await;
        assert_eq!(asked.first_chunk(), Some(&[read.clone(), delete.clone()]), "{what}, still");
        assert_eq!(asked.iter().filter(|line| **line == read).count(), 1, "{what}, still: {asked:?}");

        let (asked, _) = pass(&seen, child.clone(), Ok(Some(present))).await;
        assert_eq!(asked.first(), Some(&read), "{what}, once");
        assert!(!asked.contains(&delete), "{what}, once: {asked:?}");

        let (asked, outcome) = pass(&seen, child.clone(), Ok(None)).await;
        assert_eq!(asked, [read.as_str()], "{what}, and gone");
        assert!(matches!(outcome, Outcome::Done | Outcome::Gone), "{what}, and gone: {outcome:?}");

        let refusal = Refusal { kind: FailureKind::Unknown, text: "timed out".to_owned() };
        let (asked, outcome) = pass(&seen, child.clone(), Err(refusal)).await;
        assert!(!asked.contains(&delete), "{what}, and not known: {asked:?}");
        assert_eq!(outcome, Outcome::Retry, "{what}, and not known: {asked:?}");
    }
}
