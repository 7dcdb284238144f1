//! Tests the guarantees that plans rely on: how the server treats a write that was decided for
//! another object of that name, or for an older state of it.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use warren_api::Sandbox;

use super::sandbox;
use crate::support::Place;

const ANOTHER: &str = "11111111-2222-3333-4444-555555555555";

pub async fn writes_decided_about_another_object_or_an_older_state_are_refused(place: Place) {
    let sandboxes = place.api::<Sandbox>();
    let made: Sandbox = serde_json::from_value(sandbox("s", json!({}))).unwrap();
    let made = sandboxes.create(&kube::api::PostParams::default(), &made).await.unwrap();
    let version = made.resource_version().unwrap();
    let status = json!({"nodeName": "n"});
    let merge = async |body: Value| sandboxes.patch("s", &PatchParams::default(), &Patch::Merge(body)).await;
    let merge_status =
        async |body: Value| sandboxes.patch_status("s", &PatchParams::default(), &Patch::Merge(body)).await;

    let other = merge(json!({"metadata": {"uid": ANOTHER, "labels": {"a": "b"}}})).await;
    assert_eq!(code(other), 422);
    let older = merge(json!({"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}})).await;
    assert_eq!(code(older), 409);
    let older = merge_status(json!({"metadata": {"resourceVersion": "1"}, "status": status})).await;
    assert_eq!(code(older), 409);

    // A guard alone writes nothing.
    let guard = merge(json!({"metadata": {"resourceVersion": version}})).await.unwrap();
    assert_eq!(guard.resource_version(), Some(version));
    // For a status patch the server ignores the uid, so every status is guarded by its version.
    let unguarded = merge_status(json!({"metadata": {"uid": ANOTHER}, "status": status})).await.unwrap();
    assert_eq!(unguarded.status.unwrap().node_name.as_deref(), Some("n"));
}

fn code(answer: kube::Result<Sandbox>) -> u16 {
    match answer {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("not refused: {other:?}"),
    }
}
