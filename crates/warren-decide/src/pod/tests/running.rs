//! Tests the status of a running pod.

use super::*;

#[test]
fn a_running_container_makes_the_pod_ready() {
    check(
        &plan(&pod(json!({})), &present(running(0, 1)), None, 2),
        expect![[r#"
        Running | ip 100::ab31:5c78:67a8:2425
          PodReadyToStartContainers=True
          Initialized=True
          Ready=True
          ContainersReady=True
          PodScheduled=True
          warren.dev/isolation=True | Namespaces | user, pid, mount
          main ready=true restarts=0 {"running":{"startedAt":"2026-09-21T14:13:21Z"}}
    "#]],
    );
}

#[test]
fn the_whole_status_of_a_running_pod() {
    let status = plan(&pod(json!({})), &present(running(0, 1)), None, 2).status.unwrap();
    expect![[r#"
        {
          "conditions": [
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "observedGeneration": 1,
              "status": "True",
              "type": "PodReadyToStartContainers"
            },
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "observedGeneration": 1,
              "status": "True",
              "type": "Initialized"
            },
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "observedGeneration": 1,
              "status": "True",
              "type": "Ready"
            },
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "observedGeneration": 1,
              "status": "True",
              "type": "ContainersReady"
            },
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "observedGeneration": 1,
              "status": "True",
              "type": "PodScheduled"
            },
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "message": "user, pid, mount",
              "observedGeneration": 1,
              "reason": "Namespaces",
              "status": "True",
              "type": "warren.dev/isolation"
            }
          ],
          "containerStatuses": [
            {
              "containerID": "warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-0",
              "image": "warren.dev/host",
              "imageID": "warren.dev/host",
              "name": "main",
              "ready": true,
              "restartCount": 0,
              "started": true,
              "state": {
                "running": {
                  "startedAt": "2026-09-21T14:13:21Z"
                }
              }
            }
          ],
          "hostIP": "127.0.0.1",
          "hostIPs": [
            {
              "ip": "127.0.0.1"
            }
          ],
          "observedGeneration": 1,
          "phase": "Running",
          "podIP": "100::ab31:5c78:67a8:2425",
          "podIPs": [
            {
              "ip": "100::ab31:5c78:67a8:2425"
            }
          ],
          "qosClass": "BestEffort",
          "startTime": "2026-09-21T14:13:22Z"
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&status).unwrap());
}

#[test]
fn transitions_keep_their_time_and_equal_statuses_are_equal() {
    let machine = present(running(0, 1));
    let first = plan(&pod(json!({})), &machine, None, 2).status;
    let second = plan(&published(pod(json!({})), first.clone()), &machine, None, 500).status;
    let (first, mut second) = (first.unwrap(), second.unwrap());
    assert!(same_status(&first, &second));
    // A server in Go returns it like this.
    second.container_statuses.as_mut().unwrap()[0].last_state = Some(Default::default());
    assert!(same_status(&first, &second));
    second.phase = Some("Pending".to_owned());
    assert!(!same_status(&first, &second));
}

#[test]
fn a_readiness_gate_keeps_the_pod_from_being_ready() {
    let mut pod = pod(json!({"readinessGates": [{"conditionType": "example.com/warm"}]}));
    check(
        &plan(&pod, &present(running(0, 1)), None, 2),
        expect![[r#"
        Running | ip 100::ab31:5c78:67a8:2425
          PodReadyToStartContainers=True
          Initialized=True
          Ready=False | ReadinessGatesNotReady | corresponding condition of pod readiness gate "example.com/warm" does not exist.
          ContainersReady=True
          PodScheduled=True
          warren.dev/isolation=True | Namespaces | user, pid, mount
          main ready=true restarts=0 {"running":{"startedAt":"2026-09-21T14:13:21Z"}}
    "#]],
    );
    pod.status = Some(
        serde_json::from_value(json!({"conditions": [{"type": "example.com/warm", "status": "True"}]}))
            .unwrap(),
    );
    let opened = plan(&pod, &present(running(0, 1)), None, 2).status.unwrap();
    let ready = opened.conditions.iter().flatten().find(|condition| condition.type_ == "Ready").unwrap();
    assert_eq!(ready.status, "True");
    assert!(opened.conditions.iter().flatten().any(|condition| condition.type_ == "example.com/warm"));
}

#[test]
fn quantities_are_read_as_the_api_server_reads_them() {
    let read =
        |text: &str| text.parse::<Quantity>().map(|quantity| (quantity.thousandths(), quantity.units()));
    assert_eq!(read("500m"), Ok((500, 1)));
    assert_eq!(read("2Gi"), Ok((2 << 30) * 1000).map(|thousandths: i128| (thousandths, 2 << 30)));
    assert_eq!(read("1.5"), Ok((1500, 2)));
    assert_eq!(read("1e3"), Ok((1_000_000, 1000)));
    assert_eq!(read("100u"), Ok((1, 1)));
    assert_eq!(read("-1"), Ok((-1000, -1)));
    for bad in ["", ".", "1.2.3", "1x", "e3", "1e99", "99999999999999999999999999", "１"] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

#[test]
fn qos_class_follows_requests_and_limits() {
    let class = |resources: Value| {
        let pod = pod(
            json!({"containers": [{"name": "main", "image": "warren.dev/host", "resources": resources}]}),
        );
        plan(&pod, &Machine::Absent, None, 0).status.unwrap().qos_class.unwrap()
    };
    assert_eq!(class(json!({})), "BestEffort");
    assert_eq!(class(json!({"requests": {"cpu": "1"}})), "Burstable");
    assert_eq!(class(json!({"limits": {"cpu": "1", "memory": "1Gi"}})), "Guaranteed");
    assert_eq!(
        class(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})),
        "Burstable"
    );
}

#[test]
fn addresses_without_network_are_in_the_discard_prefix_and_differ() {
    let one = address_without_network(UID);
    assert!(one.to_string().starts_with("100:0:0:0:") || one.to_string().starts_with("100::"), "{one}");
    assert_ne!(one, address_without_network("6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f02"));
}
