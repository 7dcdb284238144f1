//! Decides the next action for a pod. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{FATE, Fate, READY_AFTER, SCHEDULER, TERMINATE_AFTER};

pub(super) struct World<'a> {
    pub(super) pod: &'a Pod,
    pub(super) machines: &'a [Node],
    /// The counter that spreads pods over the machines.
    pub(super) turn: usize,
    pub(super) only_asked_for: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Place it on this node.
    Bind(String),
    /// Publish the status of this fate.
    Publish(Fate),
    /// Remove it.
    Remove,
}

impl Action {
    /// Returns true if `other` after this action would only repeat it.
    pub(super) fn repeats(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Bind(_), Self::Bind(_))) || self == other
    }
}

pub(super) fn next(world: &World<'_>) -> Option<Action> {
    let pod = world.pod;
    let spec = pod.spec.as_ref()?;
    let fate = pod.annotations().get(FATE).map_or(Fate::Ready, |value| Fate::parse(value));
    let asked_for = spec.scheduler_name.as_deref() == Some(SCHEDULER);
    let place = spec.node_name.as_deref().filter(|name| !name.is_empty());
    if let Some(place) = place {
        world.machines.iter().find(|machine| machine.name_any() == place)?;
    }
    if pod.metadata.deletion_timestamp.is_some() {
        // A server removes a pod in two writes. If the client disconnects between them, the grace
        // period is zero and the pod still exists. Then kubelet asks again, or the pod collector
        // for pods without a node.
        let no_time_left = pod.metadata.deletion_grace_period_seconds == Some(0);
        let remove = if no_time_left { pod.finalizers().is_empty() } else { place.is_some() };
        return remove.then_some(Action::Remove);
    }
    let phase = phase(pod);
    if fate == Fate::Ignored || matches!(phase, "Succeeded" | "Failed") {
        return None;
    }
    if place.is_none() {
        let others = match spec.scheduler_name.as_deref().unwrap_or("default-scheduler") {
            "default-scheduler" => world.only_asked_for,
            name => name != SCHEDULER,
        };
        let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        if others || gated {
            return None;
        }
        let fitting: Vec<&Node> = world.machines.iter().filter(|machine| fits(pod, machine)).collect();
        return match fitting.get(world.turn % fitting.len().max(1)) {
            Some(machine) if fate != Fate::Unschedulable => Some(Action::Bind(machine.name_any())),
            // Only the scheduler that the pod names reports this, and only once.
            _ if asked_for && !told_unschedulable(pod) => Some(Action::Publish(Fate::Unschedulable)),
            _ => None,
        };
    }
    let is = match (phase, is_ready(pod), has_address(pod)) {
        ("Running", true, _) => Some(Fate::Ready),
        ("Running", false, true) => Some(Fate::NotReady),
        ("Running", false, false) => Some(Fate::NoAddress),
        _ => None,
    };
    // A pod marked unschedulable that was placed by another scheduler becomes ready.
    let wanted = if fate == Fate::Unschedulable { Fate::Ready } else { fate };
    // A slower real scheduler may have reported that it could not place the pod. Correct it.
    (is != Some(wanted) || told_unschedulable(pod)).then_some(Action::Publish(wanted))
}

/// Returns the time to wait before an action.
pub(super) fn delay(
    pod: &Pod,
    action: &Action,
    ready_after: Duration,
    terminate_after: Duration,
) -> Duration {
    let said = |key: &str, otherwise: Duration| {
        let value = pod.annotations().get(key).and_then(|value| value.parse().ok());
        value.map_or(otherwise, Duration::from_millis)
    };
    match action {
        Action::Publish(Fate::Unschedulable) | Action::Bind(_) => Duration::ZERO,
        Action::Publish(_) if phase(pod) == "Running" => Duration::ZERO,
        Action::Publish(_) => said(READY_AFTER, ready_after),
        Action::Remove => said(TERMINATE_AFTER, terminate_after),
    }
}

/// Builds the status of an action.
pub(super) fn status(pod: &Pod, action: &Action, address: &str, now: Timestamp) -> Value {
    let Action::Publish(fate) = action else { return json!({}) };
    let condition = |type_: &str, holds: bool| {
        let status = if holds { "True" } else { "False" };
        let known = find_condition(pod, type_).filter(|known| known.status == status);
        let since = known.and_then(|known| known.last_transition_time.clone()).map_or(now, |Time(time)| time);
        json!({"type": type_, "status": status, "lastTransitionTime": since})
    };
    if *fate == Fate::Unschedulable {
        return json!({"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": now,
            "message": "0/3 nodes are available: 3 node(s) were made to have no room.",
        }]});
    }
    let phase = match fate {
        Fate::Succeeded => "Succeeded",
        Fate::Failed => "Failed",
        _ => "Running",
    };
    let (running, ready) = (phase == "Running", *fate == Fate::Ready);
    let state = match fate {
        Fate::Succeeded => json!({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}}),
        Fate::Failed => json!({"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": now}}),
        _ => json!({"running": {"startedAt": now}}),
    };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| {
        json!({"name": container.name, "image": container.image, "imageID": "", "restartCount": 0,
            "ready": ready, "started": running, "state": state})
    });
    let mut status = json!({
        "phase": phase, "hostIP": "127.0.0.1", "startTime": now,
        "containerStatuses": containers.collect::<Vec<_>>(),
        "conditions": [condition("PodScheduled", true), condition("Initialized", true),
            condition("ContainersReady", ready), condition("Ready", ready)],
    });
    if !has_address(pod) && *fate != Fate::NoAddress {
        status["podIP"] = json!(address);
        status["podIPs"] = json!([{"ip": address}]);
    }
    status
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

fn find_condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == type_)
}

fn has_condition(pod: &Pod, type_: &str, status: &str) -> bool {
    find_condition(pod, type_).is_some_and(|condition| condition.status == status)
}

fn is_ready(pod: &Pod) -> bool {
    has_condition(pod, "Ready", "True")
}

fn told_unschedulable(pod: &Pod) -> bool {
    has_condition(pod, "PodScheduled", "False")
}

fn has_address(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|status| status.pod_ips.as_ref().is_some_and(|ips| !ips.is_empty()))
}

/// Returns true if a machine accepts pods and has the labels that this one requires. Capacity is
/// never short: simulated pods use none.
fn fits(pod: &Pod, machine: &Node) -> bool {
    let spec = pod.spec.as_ref();
    let closed = machine.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let wanted = spec.and_then(|spec| spec.node_selector.as_ref());
    let labelled = wanted.into_iter().flatten().all(|(key, value)| machine.labels().get(key) == Some(value));
    let too_large = spec.into_iter().flat_map(|spec| &spec.containers).any(|container| {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        requests
            .and_then(|requests| requests.get("cpu"))
            .is_some_and(|cpu| processors(&cpu.0) > super::machines::CPUS)
    });
    !closed && labelled && !too_large
}

/// Parses a number of processors. Servers write large ones with a suffix. Invalid text counts as
/// zero.
fn processors(quantity: &str) -> u64 {
    let digits = quantity.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let factor = match &quantity[digits.len()..] {
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "" => 1,
        _ => 0,
    };
    digits.parse::<u64>().unwrap_or(0).saturating_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(object: Value) -> Pod {
        let mut whole = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": []}});
        for (part, fields) in object.as_object().unwrap() {
            if whole.get(part).is_none() {
                whole[part] = json!({});
            }
            for (key, value) in fields.as_object().unwrap() {
                whole[part][key] = value.clone();
            }
        }
        serde_json::from_value(whole).unwrap()
    }

    fn next_of(object: Value, only_asked_for: bool) -> Option<Action> {
        let machine = |name: &str| {
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {"disk": name}}})).unwrap()
        };
        let machines = [machine("a"), machine("b")];
        next(&World { pod: &pod(object), machines: &machines, turn: 1, only_asked_for })
    }

    #[test]
    fn a_pod_is_placed_said_to_be_ready_and_let_go() {
        assert_eq!(next_of(json!({}), false), Some(Action::Bind("b".to_owned())));
        let wish = json!({"spec": {"nodeSelector": {"disk": "a"}}});
        assert_eq!(next_of(wish, false), Some(Action::Bind("a".to_owned())));
        let placed = json!({"spec": {"nodeName": "a"}});
        assert_eq!(next_of(placed.clone(), false), Some(Action::Publish(Fate::Ready)));

        let mut ready = placed;
        let object = pod(ready.clone());
        ready["status"] = status(&object, &Action::Publish(Fate::Ready), "10.0.0.1", Timestamp::UNIX_EPOCH);
        assert_eq!(next_of(ready.clone(), false), None, "nothing is left to do");
        let mut contradicted = ready.clone();
        contradicted["status"]["conditions"][0]["status"] = json!("False");
        assert_eq!(next_of(contradicted, false), Some(Action::Publish(Fate::Ready)), "it is placed");
        ready["metadata"] = json!({"annotations": {FATE: "not-ready"}});
        assert_eq!(next_of(ready.clone(), false), Some(Action::Publish(Fate::NotReady)), "a change of mind");
        ready["metadata"] =
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30});
        assert_eq!(next_of(ready.clone(), false), Some(Action::Remove));
        ready["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        assert_eq!(next_of(ready.clone(), false), Some(Action::Remove), "who deleted it went away half-way");
        ready["metadata"]["finalizers"] = json!(["warren.dev/held"]);
        assert_eq!(next_of(ready, false), None, "only its finalizers hold it");
    }

    #[test]
    fn pods_of_others_are_left_alone() {
        assert_eq!(next_of(json!({}), true), None);
        assert_eq!(next_of(json!({"spec": {"schedulerName": "other"}}), false), None);
        assert_eq!(next_of(json!({"spec": {"nodeName": "elsewhere"}}), false), None);
        let ours = json!({"spec": {"schedulerName": SCHEDULER}});
        assert_eq!(next_of(ours, true), Some(Action::Bind("b".to_owned())));
    }

    #[test]
    fn a_pod_says_how_long_it_takes_to_run_and_to_go() {
        let slow = json!({"metadata": {"annotations": {READY_AFTER: "1500", TERMINATE_AFTER: "200"}}});
        let after = |object: &Value, action| {
            delay(&pod(object.clone()), &action, Duration::from_secs(9), Duration::ZERO)
        };
        assert_eq!(after(&slow, Action::Publish(Fate::Ready)), Duration::from_millis(1500));
        assert_eq!(after(&slow, Action::Remove), Duration::from_millis(200));
        assert_eq!(after(&json!({}), Action::Publish(Fate::Ready)), Duration::from_secs(9));
        let mut running = slow;
        running["status"] = json!({"phase": "Running"});
        assert_eq!(
            after(&running, Action::Publish(Fate::NotReady)),
            Duration::ZERO,
            "a change of mind is at once"
        );
    }

    #[test]
    fn processors_are_counted_as_servers_write_them() {
        let counted = ["", "x", "500m", "2", "1k", "1M"].map(processors);
        assert_eq!(counted, [0, 0, 0, 2, 1_000, 1_000_000]);
    }

    #[test]
    fn a_pod_that_fits_nowhere_is_told_so_once_by_the_scheduler_that_it_names() {
        let large = |name: &str| json!({"spec": {"schedulerName": name, "nodeSelector": {"disk": "none"}}});
        assert_eq!(next_of(large("default-scheduler"), false), None);
        assert_eq!(next_of(large(SCHEDULER), false), Some(Action::Publish(Fate::Unschedulable)));
        let mut told = large(SCHEDULER);
        told["status"] =
            status(&pod(told.clone()), &Action::Publish(Fate::Unschedulable), "", Timestamp::UNIX_EPOCH);
        assert_eq!(next_of(told, false), None);
    }
}
