//! Pod disruption budgets: refuses evictions that violate one, and keeps their status up to date.
//! On a real cluster the second is the work of a controller.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use warren_store::{Filter, ListRequest, Object, WatchFrom, deletion};

use crate::collect;
use crate::label_selector;
use crate::server::Inner;
use crate::status::ApiError;

/// The resource under which budgets are stored.
const BUDGETS: &str = "poddisruptionbudgets.policy";
/// The time in which changes of pods are collected before the budgets are counted again.
const SETTLE: Duration = Duration::from_millis(50);

/// Refuses the eviction of a pod that a budget protects. The caller holds the lock on evictions
/// until the pod is marked as deleted, so that two evictions never use the same allowance.
pub(crate) fn check(server: &Inner, pod: &Object, now: Timestamp) -> Result<(), ApiError> {
    let namespace = &*pod.key.namespace;
    let budgets = list(server, BUDGETS, namespace);
    if budgets.is_empty() || is_disrupted(&pod.value()) {
        return Ok(());
    }
    let pod = pod.value();
    let matching: Vec<Value> =
        budgets.iter().map(|budget| budget.value()).filter(|budget| selects(budget, &pod)).collect();
    let budget = match &*matching {
        [] => return Ok(()),
        [budget] => budget,
        _ => return Err(ApiError::several_budgets()),
    };
    let pods: Vec<Value> = list(server, "pods", namespace).iter().map(|pod| pod.value()).collect();
    let status = count(budget, &pods, now);
    match allows(budget, &status, is_ready(&pod)) {
        true => Ok(()),
        false => Err(ApiError::disruption(&refusal(budget, &status))),
    }
}

/// Writes the status of all budgets until the server stops. Pods are watched only while there are
/// budgets.
pub(crate) async fn keep_status(server: Arc<Inner>) {
    while !server.shutdown.is_cancelled() {
        let from = WatchFrom::Version(server.store.version());
        let (budgets, pods): (Arc<str>, Arc<str>) = (BUDGETS.into(), "pods".into());
        let Ok(mut budget_watch) = server.store.watch(&budgets, Filter::default(), from) else { return };
        let mut changed: BTreeSet<Arc<str>> =
            list_all(&server, &budgets).iter().map(|budget| Arc::clone(&budget.key.namespace)).collect();
        if changed.is_empty() {
            tokio::select! {
                change = budget_watch.next() => match change {
                    Some(change) => changed.insert(Arc::clone(&change.object.key.namespace)),
                    None => continue,
                },
                () = server.shutdown.cancelled() => return,
            };
        }
        let Ok(mut pod_watch) = server.store.watch(&pods, Filter::default(), from) else { return };
        loop {
            for namespace in std::mem::take(&mut changed) {
                refresh(&server, &namespace).await;
            }
            if list_all(&server, &budgets).is_empty() {
                break;
            }
            let change = tokio::select! {
                change = budget_watch.next() => change,
                change = pod_watch.next() => change,
                () = server.shutdown.cancelled() => return,
            };
            // A watch that fell behind was cut off: start again.
            let Some(change) = change else { break };
            changed.insert(Arc::clone(&change.object.key.namespace));
            let settled = tokio::time::sleep(SETTLE);
            tokio::pin!(settled);
            loop {
                let change = tokio::select! {
                    () = &mut settled => break,
                    change = budget_watch.next() => change,
                    change = pod_watch.next() => change,
                };
                let Some(change) = change else { break };
                changed.insert(Arc::clone(&change.object.key.namespace));
            }
        }
    }
}

async fn refresh(server: &Inner, namespace: &str) {
    let budgets = list(server, BUDGETS, namespace);
    if budgets.is_empty() {
        return;
    }
    let pods: Vec<Value> = list(server, "pods", namespace).iter().map(|pod| pod.value()).collect();
    for budget in budgets {
        collect::change(server, &budget.key, |budget| budget["status"] = count(budget, &pods, server.now()))
            .await;
    }
}

fn list(server: &Inner, resource: &str, namespace: &str) -> Vec<Arc<Object>> {
    let filter = Filter { namespace: Some(namespace.to_owned()), ..Filter::default() };
    let resource = resource.into();
    let request = ListRequest { resource: &resource, filter: &filter, limit: None, after: None, at: None };
    server.store.list(&request).map(|list| list.items).unwrap_or_default()
}

fn list_all(server: &Inner, resource: &Arc<str>) -> Vec<Arc<Object>> {
    let filter = Filter::default();
    let request = ListRequest { resource, filter: &filter, limit: None, after: None, at: None };
    server.store.list(&request).map(|list| list.items).unwrap_or_default()
}

/// Returns true if a budget is about a pod. An absent selector matches no pod, an empty one all.
fn selects(budget: &Value, pod: &Value) -> bool {
    let selector = &budget["spec"]["selector"];
    let labels = &pod["metadata"]["labels"];
    selector.is_object() && label_selector::read(selector).matches(|name| labels[name].as_str())
}

/// Returns true for a pod whose eviction disrupts nothing: it has not begun or has ended.
fn is_disrupted(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"))
        || !pod["metadata"]["deletionTimestamp"].is_null()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Returns a share of a number of pods, rounded up.
fn share_of(share: &Value, pods: i64) -> i64 {
    match share.as_str().and_then(|text| text.strip_suffix('%')?.parse::<i64>().ok()) {
        Some(percent) => (percent * pods + 99) / 100,
        None => share.as_i64().unwrap_or_default(),
    }
}

/// Returns the status of a budget.
fn count(budget: &Value, pods: &[Value], now: Timestamp) -> Value {
    let counted: Vec<&Value> = pods.iter().filter(|pod| selects(budget, pod)).collect();
    let healthy =
        counted.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null() && is_ready(pod)).count();
    let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
    let (minimum, maximum) = (&budget["spec"]["minAvailable"], &budget["spec"]["maxUnavailable"]);
    let expected_and_desired = match (maximum.is_null(), minimum.is_string()) {
        (false, _) => scale(&counted).map(|scale| (scale, (scale - share_of(maximum, scale)).max(0))),
        (true, true) => scale(&counted).map(|scale| (scale, share_of(minimum, scale))),
        (true, false) => {
            Ok((i64::try_from(counted.len()).unwrap_or(i64::MAX), minimum.as_i64().unwrap_or_default()))
        }
    };
    let old = &budget["status"];
    let (mut status, allowed, reason, message) = match expected_and_desired {
        Ok((expected, desired)) => {
            let allowed = if expected == 0 { 0 } else { (healthy - desired).max(0) };
            let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
            let status = json!({
                "currentHealthy": healthy,
                "desiredHealthy": desired,
                "expectedPods": expected,
                "observedGeneration": budget["metadata"]["generation"],
            });
            (status, allowed, reason, String::new())
        }
        // The disruption controller leaves the last numbers, too.
        Err(problem) => (old.clone(), 0, "SyncFailed", problem),
    };
    let verdict = if allowed > 0 { "True" } else { "False" };
    let before = &old["conditions"][0];
    let since = match before["status"] == verdict {
        true => before["lastTransitionTime"].clone(),
        false => deletion::timestamp(now).into(),
    };
    let mut condition = json!({
        "lastTransitionTime": since,
        "message": message,
        "reason": reason,
        "status": verdict,
        "type": "DisruptionAllowed",
    });
    if !status["observedGeneration"].is_null() {
        condition["observedGeneration"] = status["observedGeneration"].clone();
    }
    status["conditions"] = json!([condition]);
    status["disruptionsAllowed"] = allowed.into();
    status
}

/// Returns the sum of the replicas of the controllers of these pods, which only kinds with a scale
/// subresource have. Nothing runs such kinds here, so only pods without a controller, which do not
/// count, are no error.
fn scale(pods: &[&Value]) -> Result<i64, String> {
    let owners = |pod: &&Value| pod["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    let controller = pods.iter().flat_map(owners).find(|owner| owner["controller"] == true);
    let Some(owner) = controller else { return Ok(0) };
    Err(format!(
        "{} does not implement the scale subresource: set spec.minAvailable to a number",
        owner["kind"].as_str().unwrap_or("controller")
    ))
}

/// Returns true if a pod may be evicted.
fn allows(budget: &Value, status: &Value, is_ready: bool) -> bool {
    let number = |name: &str| status[name].as_i64().unwrap_or_default();
    let undisrupted = number("desiredHealthy") > 0 && number("currentHealthy") >= number("desiredHealthy");
    let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
    number("disruptionsAllowed") > 0 || (!is_ready && (always || undisrupted))
}

/// Returns the reason for a refusal, as kube-apiserver words it.
fn refusal(budget: &Value, status: &Value) -> String {
    let name = budget["metadata"]["name"].as_str().unwrap_or_default();
    let condition = &status["conditions"][0];
    let message = condition["message"].as_str().unwrap_or_default();
    let (desired, current) = (&status["desiredHealthy"], &status["currentHealthy"]);
    if condition["reason"] == "SyncFailed" {
        return format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
        );
    }
    format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, ready: bool, rest: Value) -> Value {
        let mut pod = json!({
            "metadata": {"name": name, "labels": {"app": "web"}},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            },
        });
        merge(&mut pod, rest);
        pod
    }

    fn merge(into: &mut Value, from: Value) {
        match from {
            Value::Object(fields) => {
                for (name, value) in fields {
                    merge(&mut into[name], value);
                }
            }
            value => *into = value,
        }
    }

    fn budget(spec: Value) -> Value {
        let mut budget = json!({
            "metadata": {"name": "web", "generation": 3},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
        });
        merge(&mut budget["spec"], spec);
        budget
    }

    fn counted(spec: Value, pods: &[Value]) -> String {
        let status = count(&budget(spec), pods, Timestamp::UNIX_EPOCH);
        assert_eq!(status["observedGeneration"], 3);
        format!(
            "expected {} desired {} healthy {} allowed {} {}",
            status["expectedPods"],
            status["desiredHealthy"],
            status["currentHealthy"],
            status["disruptionsAllowed"],
            status["conditions"][0]["reason"].as_str().unwrap()
        )
    }

    #[test]
    fn pods_that_match_and_are_ready_are_counted() {
        let pods = [
            pod("a", true, json!({})),
            pod("b", true, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            pod("c", false, json!({})),
            pod("d", false, json!({"status": {"phase": "Succeeded"}})),
            pod("e", true, json!({"metadata": {"labels": {"app": "other"}}})),
        ];
        assert_eq!(
            counted(json!({"minAvailable": 0}), &pods),
            "expected 4 desired 0 healthy 1 allowed 1 SufficientPods"
        );
        assert_eq!(
            counted(json!({"minAvailable": 1}), &pods),
            "expected 4 desired 1 healthy 1 allowed 0 InsufficientPods"
        );
        assert_eq!(
            counted(json!({"minAvailable": 0, "selector": null}), &pods),
            "expected 0 desired 0 healthy 0 allowed 0 InsufficientPods"
        );
    }

    #[test]
    fn a_share_needs_a_controller_with_a_scale() {
        let alone = [pod("a", true, json!({}))];
        assert_eq!(
            counted(json!({"minAvailable": "50%"}), &alone),
            "expected 0 desired 0 healthy 1 allowed 0 InsufficientPods"
        );
        let owner = json!({"metadata": {"ownerReferences": [{"kind": "Sandbox", "controller": true}]}});
        let owned = [pod("a", true, owner)];
        for spec in [json!({"minAvailable": "50%"}), json!({"maxUnavailable": 1})] {
            let budget = budget(spec);
            let status = count(&budget, &owned, Timestamp::UNIX_EPOCH);
            assert!(!allows(&budget, &status, true));
            assert!(refusal(&budget, &status).contains("set spec.minAvailable to a number"));
        }
    }

    #[test]
    fn unready_pods_go_when_enough_others_are_ready() {
        let pods = [pod("a", true, json!({})), pod("b", false, json!({}))];
        let may = |spec: Value, is_ready: bool| {
            let budget = budget(spec);
            allows(&budget, &count(&budget, &pods, Timestamp::UNIX_EPOCH), is_ready)
        };
        assert!(!may(json!({"minAvailable": 1}), true));
        assert!(may(json!({"minAvailable": 1}), false));
        assert!(!may(json!({"minAvailable": 2}), false));
        assert!(may(json!({"minAvailable": 2, "unhealthyPodEvictionPolicy": "AlwaysAllow"}), false));
    }

    #[test]
    fn time_of_the_condition_is_that_of_its_last_change() {
        let pods = [pod("a", true, json!({}))];
        let mut budget = budget(json!({"minAvailable": 1}));
        budget["status"] = count(&budget, &pods, Timestamp::UNIX_EPOCH);
        assert_eq!(count(&budget, &pods, Timestamp::MAX), budget["status"], "nothing has changed");
        budget["spec"]["minAvailable"] = 0.into();
        let now = Timestamp::from_second(60).unwrap();
        let changed = count(&budget, &pods, now);
        assert_eq!(changed["conditions"][0]["lastTransitionTime"], "1970-01-01T00:01:00Z");
    }
}
