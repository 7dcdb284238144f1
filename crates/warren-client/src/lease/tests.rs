//! Tests leases: names, comparisons with live objects, states and clean-up.

use serde_json::{Value, from_value, json};

use super::*;

pub(super) fn lease() -> Lease {
    let time = |text: &str| text.parse().expect("a time");
    Lease {
        id: "asbx_0123456789abcdef".to_owned(),
        slug: "mine".to_owned(),
        kind: Kind::Claim,
        namespace: "n".to_owned(),
        name: "warren-mine-1".to_owned(),
        scope: "f00".to_owned(),
        home: "context `c`".to_owned(),
        pool: Some("p".to_owned()),
        template: None,
        chosen_container: None,
        workdir: None,
        expires: time("2026-01-01T01:00:00Z"),
        created: time("2026-01-01T00:00:00Z"),
        last_used: time("2026-01-01T00:10:00Z"),
        state: State::Ready,
        uid: Some("root".to_owned()),
        sandbox: Some(Pinned { name: "s".to_owned(), uid: "box".to_owned() }),
        pod: Some(Pinned { name: "s".to_owned(), uid: "pod".to_owned() }),
        container: Some("main".to_owned()),
    }
}

fn claim(change: impl FnOnce(&mut Value)) -> Launched {
    let mut value = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "metadata": {
            "name": "warren-mine-1", "namespace": "n", "uid": "root",
            "labels": { "warren.dev/provider": "agent-sandbox", "warren.dev/lease-id": "asbx_0123456789abcdef" },
            "annotations": { "warren.dev/provider-scope": "f00" },
        },
        "spec": {
            "warmPoolRef": { "name": "p" },
            "lifecycle": { "shutdownTime": "2026-01-01T01:00:00Z", "shutdownPolicy": "Retain" },
        },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "DependenciesReady",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
    });
    change(&mut value);
    Launched::Claim(Box::new(from_value(value).expect("a claim")))
}

fn field_that_differs(change: impl FnOnce(&mut Value)) -> Option<&'static str> {
    check_root(&lease(), &claim(change)).err().map(|mismatch| mismatch.field)
}

#[test]
fn claim_is_the_one_of_the_lease_only_with_every_mark_of_it() {
    assert_eq!(field_that_differs(|_| {}), None);
    let labels = |claim: &mut Value, key: &str| claim["metadata"]["labels"][key] = json!("other");
    assert_eq!(field_that_differs(|claim| claim["metadata"]["uid"] = json!("later")), Some("metadata.uid"));
    assert_eq!(
        field_that_differs(|claim| labels(claim, "warren.dev/provider")),
        Some("label warren.dev/provider")
    );
    assert_eq!(
        field_that_differs(|claim| labels(claim, "warren.dev/lease-id")),
        Some("label warren.dev/lease-id")
    );
    assert_eq!(
        field_that_differs(|claim| claim["metadata"]["annotations"] = json!({})),
        Some("annotation warren.dev/provider-scope")
    );
    assert_eq!(
        field_that_differs(|claim| claim["spec"]["warmPoolRef"]["name"] = json!("q")),
        Some("spec.warmPoolRef.name")
    );
    let lifecycle = |claim: &mut Value, key: &str, to: &str| claim["spec"]["lifecycle"][key] = json!(to);
    assert_eq!(
        field_that_differs(|claim| lifecycle(claim, "shutdownTime", "2026-01-01T02:00:00Z")),
        Some("shutdownTime")
    );
    assert_eq!(
        field_that_differs(|claim| lifecycle(claim, "shutdownPolicy", "Delete")),
        Some("shutdownPolicy")
    );
}

#[test]
fn claim_whose_answer_was_lost_is_adopted_by_its_marks_without_a_uid() {
    let mut creating = lease();
    creating.uid = None;
    assert_eq!(check_root(&creating, &claim(|_| {})), Ok(()));
    check_root(&creating, &claim(|claim| claim["metadata"]["labels"] = json!({}))).expect_err("not ours");
}

fn chain(sandbox: Value, pod: Value, pinned_pod: bool) -> Result<Chain, &'static str> {
    let mut base = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": { "name": "s", "uid": "box", "labels": { "agents.x-k8s.io/claim-uid": "root" },
            "ownerReferences": [{ "apiVersion": "v", "kind": "SandboxClaim", "name": "c", "uid": "root", "controller": true }] },
        "spec": { "podTemplate": { "spec": { "containers": [] } } },
    });
    let mut running = json!({
        "metadata": { "name": "s", "uid": "pod",
            "ownerReferences": [{ "apiVersion": "v", "kind": "Sandbox", "name": "s", "uid": "box", "controller": true }] },
        "spec": { "containers": [{ "name": "side" }, { "name": "main" }] },
    });
    merge(&mut base["metadata"], sandbox);
    merge(&mut running["metadata"], pod);
    let sandbox = from_value(base).expect("a sandbox");
    let pod = from_value(running).expect("a pod");
    let lease = lease();
    let pinned = lease.pod.as_ref().filter(|_| pinned_pod);
    check_chain(&lease, &sandbox, &pod, pinned).map_err(|mismatch| mismatch.field)
}

fn merge(into: &mut Value, change: Value) {
    if let (Some(into), Value::Object(change)) = (into.as_object_mut(), change) {
        into.extend(change);
    }
}

#[test]
fn chain_from_claim_to_pod_is_followed_by_owners_and_pinned_uids() {
    let whole = chain(json!({}), json!({}), true).expect("nothing differs");
    assert_eq!((whole.pod.uid.as_str(), whole.container.as_str()), ("pod", "main"));
    assert_eq!(chain(json!({ "labels": {} }), json!({}), true), Err("label agents.x-k8s.io/claim-uid"));
    assert_eq!(chain(json!({ "ownerReferences": [] }), json!({}), true), Err("controlling owner"));
    assert_eq!(chain(json!({ "uid": "later" }), json!({}), true), Err("metadata.uid"));
    assert_eq!(chain(json!({}), json!({ "ownerReferences": [] }), true), Err("controlling owner"));
    assert_eq!(chain(json!({}), json!({ "uid": "later" }), true), Err("metadata.uid"));
    // A resumed sandbox has a new pod; the next command pins it.
    chain(json!({}), json!({ "uid": "later" }), false).expect("the pod is not pinned yet");
}

#[test]
fn expiry_is_told_by_the_clock_and_by_the_controller() {
    let at = |text: &str| text.parse().expect("a time");
    let early = at("2026-01-01T00:30:00Z");
    assert_eq!(judge(&lease(), Some(&claim(|_| {})), early), LeaseStanding::Ready);
    assert_eq!(judge(&lease(), Some(&claim(|_| {})), at("2026-01-01T01:00:00Z")), LeaseStanding::Expired);
    let expired = claim(|claim| {
        claim["status"]["conditions"][0]["status"] = json!("False");
        claim["status"]["conditions"][0]["reason"] = json!("SandboxExpired");
    });
    assert_eq!(judge(&lease(), Some(&expired), early), LeaseStanding::Expired);
    assert_eq!(judge(&lease(), None, early), LeaseStanding::Missing);
}

#[test]
fn clean_up_takes_what_expired_idled_or_never_became_ready() {
    let at = |text: &str| text.parse().expect("a time");
    let idle = Duration::from_secs(30 * 60);
    assert_eq!(due(&lease(), at("2026-01-01T00:39:59Z"), idle), None);
    let (now, ten_to_forty) = (at("2026-01-01T00:40:00Z"), Duration::from_secs(30 * 60));
    assert_eq!(due(&lease(), now, idle), Some(Due::Idle(ten_to_forty)));
    assert_eq!(due(&lease(), at("2026-01-01T01:00:00Z"), idle), Some(Due::Expired));
    let mut recovery = lease();
    recovery.state = State::NotReady;
    assert_eq!(due(&recovery, at("2026-01-01T00:10:00Z"), idle), Some(Due::NotReady));
    // The clock was set back.
    assert_eq!(due(&lease(), at("2025-12-31T00:00:00Z"), idle), None);
}

#[test]
fn fingerprint_tells_every_part_apart_and_shows_none() {
    let scope = |home, context, namespace, pool, container| {
        Scope { home, context, namespace, pool, container }.fingerprint()
    };
    let one = scope("/home/ada/.kube/config", "c", "n", "p", "");
    assert_eq!((one.len(), one.contains("ada")), (64, false));
    for other in [
        scope("/home/ada/.kube/config", "c", "n", "", "p"),
        scope("/home/ada/.kube/config", "c", "np", "", ""),
        scope("/home/ada/.kube/other", "c", "n", "p", ""),
    ] {
        assert_ne!(one, other);
    }
}

#[test]
fn slugs_are_parts_of_names() {
    for slug in ["a", "linux-pool-smoke", "2"] {
        check_slug(slug).expect("a slug");
    }
    for slug in ["", "-a", "a-", "A", "a_b", "a.b", "a/b", &"x".repeat(41)] {
        check_slug(slug).expect_err(slug);
    }
    let name = object_name(&"x".repeat(40), "asbx_1");
    assert!(name.len() <= 63 && name == object_name(&"x".repeat(40), "asbx_1"), "{name}");
    assert_ne!(name, object_name(&"x".repeat(40), "asbx_2"));
}
