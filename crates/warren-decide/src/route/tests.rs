//! Tests routing: headers, addresses, routes of pods, and the resolution of requests.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;

fn parse(change: impl FnOnce(&mut RoutingHeaders<'static>)) -> Result<Wanted, BadRequest> {
    let mut headers = RoutingHeaders { id: Some("box"), ..RoutingHeaders::default() };
    change(&mut headers);
    Wanted::parse(headers)
}

#[test]
fn headers_that_are_missing_have_defaults_except_the_id() {
    let wanted = parse(|_| {}).unwrap();
    assert_eq!((wanted.namespace.as_str(), wanted.port), ("default", 8888));
    assert_eq!((wanted.pod_ip, wanted.uid, wanted.timeout), (None, None, None));
    assert_eq!(parse(|headers| headers.id = None), Err(BadRequest::NoId));
    assert_eq!(parse(|headers| headers.id = Some("")), Err(BadRequest::NoId));
}

#[test]
fn names_must_be_dns_labels() {
    let long: &'static str = "a".repeat(64).leak();
    for bad in ["Box", "a.b", "-a", "a-", "a/b", "a b", "ä", "a%2fb", "127.0.0.1", "a@b", long] {
        assert_eq!(parse(|headers| headers.id = Some(bad)), Err(BadRequest::Id), "{bad}");
        assert_eq!(parse(|headers| headers.namespace = Some(bad)), Err(BadRequest::Namespace), "{bad}");
    }
    assert!(parse(|headers| headers.id = Some(&long[1..])).is_ok());
}

#[test]
fn ports_are_plain_numbers_from_1_to_65535() {
    for bad in ["0", "65536", "-1", "+80", "0x50", "80 ", "http", "8888,22"] {
        assert_eq!(parse(|headers| headers.port = Some(bad)), Err(BadRequest::Port), "{bad}");
    }
    assert_eq!(parse(|headers| headers.port = Some("65535")).unwrap().port, 65535);
}

#[test]
fn addresses_that_no_pod_can_have_are_refused_in_every_notation() {
    for bad in [
        "127.0.0.1",
        "127.1.2.3",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:7f00:1",
        "::127.0.0.1",
        "0:0:0:0:0:0:0:1",
        "::ffff:0:127.0.0.1",
        "64:ff9b::127.0.0.1",
        "2002:7f00:1::",
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe",
        "64:ff9b::a9fe:a9fe",
        "fe80::1",
        "febf::1",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "::ffff:0.0.0.0",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        // Not a standard notation of an address, even if some resolvers accept it.
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "localhost",
        "10.0.0.1:80",
        "[::1]",
        "fe80::1%eth0",
        "10.0.0.1 ",
        "10.0.0.256",
        "http://10.0.0.1",
        "10.0.0.1@example",
    ] {
        assert_eq!(parse(|headers| headers.pod_ip = Some(bad)), Err(BadRequest::PodIp), "{bad}");
    }
    for (good, read) in [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fd00::5", "fd00::5")] {
        let wanted = parse(|headers| headers.pod_ip = Some(good)).unwrap();
        assert_eq!(wanted.pod_ip, Some(read.parse::<IpAddr>().unwrap()));
    }
}

#[test]
fn a_timeout_is_a_positive_number_of_seconds_and_anything_else_is_ignored() {
    let timeout = |text| parse(|headers| headers.timeout = Some(text)).unwrap().timeout;
    assert_eq!(timeout("60"), Some(Duration::from_secs(60)));
    assert_eq!(timeout("2.5"), Some(Duration::from_millis(2500)));
    for bad in ["0", "-1", "nan", "inf", "1e400", "1e300", "soon", ""] {
        assert_eq!(timeout(bad), None, "{bad}");
    }
}

/// Builds a Ready pod of a sandbox; `change` edits its JSON.
fn pod(name: &str, uid: &str, address: &str, change: impl FnOnce(&mut Value)) -> Pod {
    let mut value = json!({
        "metadata": {
            "namespace": "default", "name": name, "uid": uid,
            "labels": {"agents.x-k8s.io/sandbox-name-hash": "0"},
            "ownerReferences": [{
                "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name,
                "uid": format!("sandbox-of-{uid}"), "controller": true,
            }],
        },
        "status": {
            "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

fn table(pods: &[Pod]) -> RouteTable {
    let mut table = RouteTable::default();
    pods.iter().for_each(|pod| table.update(pod, false));
    table
}

fn warm(value: &mut Value) {
    value["metadata"]["labels"]["agents.x-k8s.io/warm-pool-sandbox"] = "0".into();
}

fn pod_of(resolution: Resolution) -> String {
    match resolution {
        Resolution::Found(route) => route.pod_uid.clone(),
        other => format!("{other:?}"),
    }
}

#[test]
fn only_ready_pods_of_sandboxes_with_an_address_are_routed_to() {
    let routed = |change: fn(&mut Value)| Route::of(&pod("box", "p", "10.0.0.1", change), false).is_some();
    assert!(routed(|_| {}));
    assert!(routed(|pod| pod["metadata"]["ownerReferences"][0]["apiVersion"] = "agents.x-k8s.io/v9".into()));
    assert!(!routed(|pod| pod["metadata"]["labels"] = json!({})));
    assert!(!routed(|pod| pod["metadata"]["ownerReferences"][0]["controller"] = false.into()));
    assert!(!routed(|pod| pod["metadata"]["ownerReferences"][0]["kind"] = "ReplicaSet".into()));
    assert!(!routed(|pod| pod["metadata"]["ownerReferences"][0]["apiVersion"] = "apps/v1".into()));
    assert!(!routed(|pod| pod["status"]["conditions"][0]["status"] = "False".into()));
    assert!(!routed(|pod| pod["status"] = json!({"conditions": pod["status"]["conditions"]})));
    // An address of the router's own machine is ignored.
    assert_eq!(Route::of(&pod("box", "p", "127.0.0.1", |_| {}), false), None);
    let without = pod("box", "p", "", |_| {});
    assert_eq!(Route::of(&without, true).map(|route| route.address), Some(None));
}

#[test]
fn ipv4_goes_before_ipv6() {
    let both = pod("box", "p", "fd00::1", |pod| {
        pod["status"]["podIPs"] = json!([{"ip": "fd00::1"}, {"ip": "10.0.0.1"}]);
    });
    assert_eq!(Route::of(&both, false).unwrap().address, Some("10.0.0.1".parse().unwrap()));
}

#[test]
fn a_request_goes_to_the_pod_of_its_name_and_namespace() {
    let elsewhere = pod("box", "b", "10.0.0.2", |pod| pod["metadata"]["namespace"] = "other".into());
    let table = table(&[pod("box", "a", "10.0.0.1", |_| {}), elsewhere]);
    assert_eq!(pod_of(table.resolve(&parse(|_| {}).unwrap())), "a");
    let other = parse(|headers| headers.namespace = Some("other")).unwrap();
    assert_eq!(pod_of(table.resolve(&other)), "b");
    let nowhere = parse(|headers| headers.namespace = Some("nowhere")).unwrap();
    assert_eq!(table.resolve(&nowhere), Resolution::Unknown);
}

#[test]
fn an_address_must_be_that_of_the_sandbox_that_is_named() {
    let elsewhere = pod("other", "c", "10.0.0.3", |pod| pod["metadata"]["namespace"] = "other".into());
    let table =
        table(&[pod("box", "a", "10.0.0.1", |_| {}), pod("other", "b", "10.0.0.2", |_| {}), elsewhere]);
    for (address, outcome) in [
        ("10.0.0.1", "a"),
        ("::ffff:10.0.0.1", "a"),
        // An address of another sandbox, of one in another namespace, of none.
        ("10.0.0.2", "AnotherAddress"),
        ("10.0.0.3", "AnotherAddress"),
        ("8.8.8.8", "AnotherAddress"),
    ] {
        let wanted = parse(|headers| headers.pod_ip = Some(address)).unwrap();
        assert_eq!(pod_of(table.resolve(&wanted)), outcome, "{address}");
    }
}

#[test]
fn a_member_of_a_pool_is_reached_by_uid_or_address_and_not_by_name() {
    let table = table(&[pod("box", "a", "10.0.0.1", warm)]);
    assert_eq!(table.resolve(&parse(|_| {}).unwrap()), Resolution::InPool);
    let by_uid = parse(|headers| headers.uid = Some("sandbox-of-a")).unwrap();
    assert_eq!(pod_of(table.resolve(&by_uid)), "a");
    let by_address = parse(|headers| headers.pod_ip = Some("10.0.0.1")).unwrap();
    assert_eq!(pod_of(table.resolve(&by_address)), "a");
}

#[test]
fn a_uid_does_not_lead_to_another_namespace_and_an_unknown_one_falls_back_to_the_name() {
    let elsewhere = pod("box", "b", "10.0.0.2", |pod| pod["metadata"]["namespace"] = "other".into());
    let table = table(&[pod("box", "a", "10.0.0.1", |_| {}), elsewhere]);
    for uid in ["sandbox-of-b", "nobody"] {
        let wanted = parse(|headers| headers.uid = Some(uid)).unwrap();
        assert_eq!(pod_of(table.resolve(&wanted)), "a", "{uid}");
    }
}

#[test]
fn a_pod_that_is_removed_late_does_not_take_its_successor_along() {
    let mut table = table(&[pod("box", "a", "10.0.0.1", |_| {}), pod("box", "b", "10.0.0.2", |_| {})]);
    table.remove("a");
    assert_eq!(pod_of(table.resolve(&parse(|_| {}).unwrap())), "b");
    table.update(&pod("box", "b", "10.0.0.2", |pod| pod["status"]["conditions"] = json!([])), false);
    assert_eq!(table.resolve(&parse(|_| {}).unwrap()), Resolution::Unknown);
    assert!(table.is_empty());
}

#[test]
fn a_new_list_of_pods_drops_those_that_are_gone() {
    let mut table = table(&[pod("box", "a", "10.0.0.1", |_| {}), pod("two", "b", "10.0.0.2", |_| {})]);
    table.retain(|uid| uid == "b");
    assert_eq!(table.len(), 1);
}
