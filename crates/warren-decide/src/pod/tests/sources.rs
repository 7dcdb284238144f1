//! Tests that pods wait for the objects that they refer to, and name them.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

fn check(pod: &Pod, sources: &Sources, expected: Expect) {
    expected.assert_eq(&brief(&plan_of(pod, &Machine::Absent, sources, &[], &[], 0)));
}

#[test]
fn a_variable_whose_source_is_missing_blocks_the_container() {
    let variable =
        json!({"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}});
    let pod = pod(json!({"containers": [{"name": "main", "image": "warren.dev/host", "env": [variable]}]}));
    assert_eq!(references(&pod), [Reference::ConfigMap("settings".to_owned())].into());
    let mut sources = Sources::default();
    check(
        &pod,
        &sources,
        expect![[r#"
        Pending containers with unready status: [main]
          main waits: ContainerCreating  [] restarts=0
    "#]],
    );
    sources.config_maps.insert("settings".to_owned(), None);
    check(
        &pod,
        &sources,
        expect![[r#"
        Pending containers with unready status: [main]
          main waits: CreateContainerConfigError configmap "settings" not found [] restarts=0
    "#]],
    );
    let found = serde_json::from_value(json!({"data": {"mode": "fast"}})).unwrap();
    sources.config_maps.insert("settings".to_owned(), Some(Arc::new(found)));
    check(
        &pod,
        &sources,
        expect![[r#"
        do StartSandbox
        do StartContainer { name: "main", attempt: 0 }
        Pending containers with unready status: [main]
          main waits: ContainerCreating  [] restarts=0
    "#]],
    );
}

#[test]
fn a_volume_whose_source_is_missing_keeps_the_pod_waiting() {
    let pod = pod(json!({"volumes": [
        {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]}));
    let mut sources = Sources::default();
    check(
        &pod,
        &sources,
        expect![[r#"
        Pending containers with unready status: [main]
          main waits: ContainerCreating  [] restarts=0
    "#]],
    );
    sources.secrets.insert("keys".to_owned(), None);
    let claim = json!({"spec": {}, "status": {"phase": "Pending"}});
    sources.claims.insert("data".to_owned(), Some(Arc::new(serde_json::from_value(claim).unwrap())));
    check(
        &pod,
        &sources,
        expect![[r#"
        say FailedMount | MountVolume.SetUp failed for volume "keys" : secret "keys" not found
        say FailedMount | MountVolume.SetUp failed for volume "data" : persistentvolumeclaim "data" is not bound
        Pending containers with unready status: [main]
          main waits: ContainerCreating  [] restarts=0
    "#]],
    );
    sources.secrets.insert("keys".to_owned(), Some(Arc::default()));
    let claim = json!({"spec": {"volumeName": "pvc-1"}, "status": {"phase": "Bound"}});
    sources.claims.insert("data".to_owned(), Some(Arc::new(serde_json::from_value(claim).unwrap())));
    check(
        &pod,
        &sources,
        expect![[r#"
        do StartSandbox
        do StartContainer { name: "main", attempt: 0 }
        Pending containers with unready status: [main]
          main waits: ContainerCreating  [] restarts=0
    "#]],
    );
}

#[test]
fn a_volume_claim_that_is_bound_within_moments_is_no_warning() {
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}});
    let mut pod = pod(json!({"volumes": [volume]}));
    pod.metadata.creation_timestamp = Some(Time(at(0)));
    let mut sources = Sources::default();
    let claim = json!({"spec": {}, "status": {"phase": "Pending"}});
    sources.claims.insert("data".to_owned(), Some(Arc::new(serde_json::from_value(claim).unwrap())));
    let plan_at = |second| plan_of(&pod, &Machine::Absent, &sources, &[], &[], second);
    assert!(plan_at(1).notices.is_empty());
    assert_eq!(plan_at(1).look_again, Some(at(3)), "it is said then, if it still holds");
    assert_eq!(plan_at(3).notices.len(), 1);
}
