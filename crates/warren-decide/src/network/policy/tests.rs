//! Tests the rules of NetworkPolicy objects on three pods.

use serde_json::{Value, json};

use super::*;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const C: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 4);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(8, 8, 8, 8);

fn labelled(key: &str, value: &str) -> Labels {
    [(key.to_owned(), value.to_owned())].into()
}

fn pod<'a>(address: Ipv4Addr, namespace: &'a str, labels: &'a Labels) -> PodFacts<'a> {
    let ports = vec![NamedPort { name: "web", protocol: Protocol::Tcp, number: 8080 }];
    PodFacts { address, namespace, labels, mode: Mode::Full, ports }
}

fn in_one(spec: &Value) -> NetworkPolicy {
    serde_json::from_value(json!({"metadata": {"namespace": "one", "name": "p"}, "spec": spec})).unwrap()
}

/// Computes the rules of these policies for `a` and `b` in `one` and `c` in `two`, which has the
/// label `team: two`.
fn rules_of(policies: Value) -> Rules {
    let [a, b, c] = ["a", "b", "c"].map(|app| labelled("app", app));
    let pods = [pod(A, "one", &a), pod(B, "one", &b), pod(C, "two", &c)];
    let (nothing, team) = (Labels::new(), labelled("team", "two"));
    let namespaces = [("one", &nothing), ("two", &team)].into();
    let policies: Vec<NetworkPolicy> = policies.as_array().unwrap().iter().map(in_one).collect();
    let policies: Vec<&NetworkPolicy> = policies.iter().collect();
    rules(&World { pods: &pods, namespaces: &namespaces, policies: &policies })
}

#[test]
fn without_policies_pods_do_not_reach_each_other_and_all_reach_out() {
    let rules = rules_of(json!([]));
    assert!(!rules.connects(A, B) && !rules.connects(C, A));
    assert!(rules.connects(A, A));
    assert!(rules.allows_egress(A, OUTSIDE, Protocol::Tcp, 443));
    assert!(rules.full.contains(A) && !rules.full.contains(OUTSIDE));
}

#[test]
fn an_ingress_rule_lets_in_whom_it_names() {
    let rules = rules_of(json!([{
        "podSelector": {"matchLabels": {"app": "b"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "a"}}}], "ports": [{"port": 80}]}],
    }]));
    assert!(rules.connects(A, B));
    assert!(!rules.connects(B, A) && !rules.connects(C, B));
    let allow = &rules.ingress[0];
    assert!(allow.covers_port(Protocol::Tcp, 80) && !allow.covers_port(Protocol::Tcp, 81));
    assert!(!allow.covers_port(Protocol::Udp, 80));
    // The policy concerns ingress only.
    assert!(rules.egress_isolated.is_empty());
}

#[test]
fn namespaces_are_selected_by_their_labels() {
    let from = |peer: Value| {
        rules_of(json!([{"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{"from": [peer]}]}]))
    };
    let two = json!({"matchLabels": {"team": "two"}});
    let rules = from(json!({"namespaceSelector": two}));
    assert!(rules.connects(C, B) && !rules.connects(A, B));
    let rules = from(json!({"namespaceSelector": two, "podSelector": {"matchLabels": {"app": "z"}}}));
    assert!(!rules.connects(C, B));
    let rules = from(json!({"namespaceSelector": {}}));
    assert!(rules.connects(C, B) && rules.connects(A, B));
    let rules = from(
        json!({"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}}),
    );
    assert!(!rules.connects(C, B) && rules.connects(A, B));
}

#[test]
fn an_egress_policy_holds_back_whom_it_selects() {
    let rules = rules_of(json!([
        {"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Egress"],
         "egress": [{"to": [{"ipBlock": {"cidr": "8.0.0.0/8", "except": ["8.8.0.0/16"]}}],
                     "ports": [{"port": 443, "endPort": 450}]}]},
        {"podSelector": {}, "ingress": [{}]},
    ]));
    let reaches = |from, to: &str, port| rules.allows_egress(from, to.parse().unwrap(), Protocol::Tcp, port);
    assert!(reaches(A, "8.1.1.1", 443) && reaches(A, "8.1.1.1", 450));
    assert!(!reaches(A, "8.1.1.1", 451) && !reaches(A, "8.8.8.8", 443) && !reaches(A, "9.9.9.9", 443));
    assert!(reaches(B, "9.9.9.9", 1));
    // Ingress is allowed to both, but A has no egress.
    assert!(rules.connects(B, A) && !rules.connects(A, B));
}

#[test]
fn a_policy_without_rules_lets_nothing_through() {
    let rules = rules_of(json!([{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}]));
    assert!(!rules.allows_egress(A, OUTSIDE, Protocol::Tcp, 443));
    assert!(rules.allows_egress(C, OUTSIDE, Protocol::Tcp, 443), "another namespace");
    assert!(rules.ingress.is_empty() && rules.egress.is_empty());
}

#[test]
fn a_port_by_name_is_each_pods_own() {
    let rules =
        rules_of(json!([{"podSelector": {}, "ingress": [{"ports": [{"port": "web"}, {"port": "gone"}]}]}]));
    assert_eq!(rules.ingress.len(), 2);
    assert!(rules.ingress.iter().all(|allow| allow.covers_port(Protocol::Tcp, 8080)));
    assert!(rules.connects(C, A) && !rules.connects(A, C));
}

#[test]
fn labels_matter_only_to_selectors_that_read_them() {
    let matters = |spec: Value, before: &Labels, after: &Labels| {
        let policy = in_one(&spec);
        let there = are_told_apart(&[&policy], before, after);
        assert_eq!(there, are_told_apart(&[&policy], after, before), "the way back matters as much");
        there
    };
    let (nothing, app, claim) = (Labels::new(), labelled("app", "a"), labelled("claim", "x"));
    let is_a = json!({"podSelector": {"matchLabels": {"app": "a"}}});
    assert!(!are_told_apart(&[], &nothing, &app), "nobody asks");
    assert!(!matters(json!({"podSelector": {}, "ingress": [{}], "egress": [{}]}), &nothing, &app));
    assert!(matters(is_a.clone(), &nothing, &app));
    assert!(!matters(is_a.clone(), &nothing, &claim));
    assert!(!matters(is_a.clone(), &labelled("app", "b"), &labelled("app", "c")), "neither is meant");
    assert!(matters(
        json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}, is_a]}]}),
        &app,
        &claim
    ));
    assert!(matters(json!({"podSelector": {}, "egress": [{}, {"to": [is_a]}]}), &app, &claim));
    let unclaimed = json!({"matchExpressions": [{"key": "claim", "operator": "DoesNotExist"}]});
    assert!(matters(json!({"podSelector": unclaimed}), &nothing, &claim));
    assert!(!matters(json!({"podSelector": unclaimed}), &nothing, &app));
}

#[test]
fn sets_are_joined_and_cut() {
    let set = |blocks: &[&str]| {
        Addresses::union(blocks.iter().map(|block| Addresses::block(block.parse().unwrap())))
    };
    assert_eq!(set(&["10.0.0.0/9", "10.128.0.0/9", "10.1.1.1"]), set(&["10.0.0.0/8"]));
    assert_eq!(Addresses::everything().without(&Addresses::everything()), Addresses::default());
    let rest = set(&["10.0.0.0/30"]).without(&set(&["10.0.0.0", "10.0.0.2"]));
    assert_eq!(rest, set(&["10.0.0.1", "10.0.0.3"]));
    let rest = Addresses::everything().without(&set(&["255.255.255.255"]));
    assert!(rest.contains(Ipv4Addr::new(255, 255, 255, 254)) && !rest.contains(Ipv4Addr::BROADCAST));
    assert!(!Addresses::default().contains(A));
}
