//! Simulated nodes and their scheduler: pods are bound, started, become ready, end, and are
//! removed, each after a while. A node can be lost with all its pods, and come back.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use warren_api::annotations;
use warren_decide::ownership;
use warren_decide::step::{Kind, Propagation};

use crate::object::{Any, Typed};
use crate::random::Random;
use crate::server::{Caller, Commit, Part, Preconditions, Server};

const NODES: usize = 3;
/// The delay in milliseconds before the next try for a pod without room, or on a silent node.
const AGAIN: i64 = 2_000;

/// The behaviour of a seed's nodes, in thousandths.
#[derive(Clone, Debug, Default)]
pub struct Temper {
    /// A pod has no room at first.
    pub no_room: u64,
    /// A pod takes minutes to start or to end.
    pub slow: u64,
    /// A pod fails or completes instead of running on.
    pub ends: u64,
    /// A ready pod is not ready for a while.
    pub flaps: u64,
}

/// A future event of a pod.
#[derive(Clone, Debug)]
pub struct Task {
    name: String,
    uid: String,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Bind,
    Start,
    BecomeReady,
    BecomeUnready,
    Finish(&'static str),
    /// The pod exceeds its active deadline.
    Overdue,
    End,
}

/// The nodes.
#[derive(Debug)]
pub struct Nodes {
    is_up: [bool; NODES],
    tasks: BTreeMap<(i64, u64), Task>,
    last: u64,
    /// Their behaviour.
    pub temper: Temper,
}

impl Nodes {
    /// Returns nodes that are all up.
    #[must_use]
    pub fn new(temper: Temper) -> Self {
        Self { is_up: [true; NODES], tasks: BTreeMap::new(), last: 0, temper }
    }

    /// Records a change of a pod.
    pub fn observe(&mut self, commit: &Commit, now: i64, random: &mut Random) {
        let Some(Any::Pod(after)) = &commit.after else { return };
        let dying = |any: &Any| any.is_deleting();
        let is_new = commit.before.is_none();
        let begins_to_die =
            commit.after.as_ref().is_some_and(dying) && !commit.before.as_ref().is_some_and(dying);
        let deadline = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
        let before = commit.before.as_ref().and_then(Pod::of);
        // Its deadline was shortened while it runs.
        if deadline(after) == Some(1) && before.is_some_and(|before| deadline(before) != Some(1)) {
            let delay = self.delay(random, 200);
            self.plan(after, What::Overdue, now, delay);
        }
        let has_command =
            |pod: &Pod| ownership::annotation(&pod.metadata, annotations::TASK_COMMAND).is_some();
        // A pod of a pool was given the command that it waited for.
        if has_command(after) && before.is_some_and(|before| !has_command(before)) {
            self.fate(&after.clone(), now, random);
        }
        if is_new {
            let delay = random.within(1..60);
            self.plan(after, What::Bind, now, delay);
        }
        if begins_to_die {
            let delay = self.delay(random, 200);
            self.plan(after, What::End, now, delay);
        }
    }

    /// Returns the time of the next event.
    #[must_use]
    pub fn next_due(&self) -> Option<i64> {
        self.tasks.first_key_value().map(|((due, _), _)| *due)
    }

    /// Returns the events that are due, by key.
    #[must_use]
    pub fn due(&self, now: i64) -> Vec<(i64, u64)> {
        self.tasks.range(..=(now, u64::MAX)).map(|(key, _)| *key).collect()
    }

    /// Runs one event. Returns a line for the trace.
    pub fn run(&mut self, key: (i64, u64), server: &mut Server, now: i64, random: &mut Random) -> String {
        let Some(task) = self.tasks.remove(&key) else { return String::new() };
        let line = format!("node: {:?} {}", task.what, task.name);
        let Some(pod) = server.get(Kind::Pod, &task.name).and_then(Pod::of).cloned() else { return line };
        if pod.metadata.uid.as_deref() != Some(&task.uid) {
            return line;
        }
        let is_deleting = pod.metadata.deletion_timestamp.is_some();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let silent = node_of(&pod).is_some_and(|node| !self.is_up[node]);
        match task.what {
            // The scheduler works even while nodes are silent.
            What::Bind if is_deleting => {}
            What::Bind => self.bind(&pod, server, now, random),
            What::End if !silent => {
                let _ = server.pod_ended(&task.name);
            }
            _ if silent => {
                self.plan(&pod, task.what, now, AGAIN.unsigned_abs());
            }
            _ if is_deleting => {}
            What::Start => {
                let ready = random.chance(500);
                set_status(server, &pod, "Running", Some(ready), random);
                if !ready {
                    let delay = self.delay(random, 500);
                    self.plan(&pod, What::BecomeReady, now, delay);
                }
                self.fate(&pod, now, random);
            }
            What::BecomeReady if phase == "Running" => {
                set_status(server, &pod, "Running", Some(true), random);
            }
            What::BecomeUnready if phase == "Running" => {
                set_status(server, &pod, "Running", Some(false), random);
                let delay = self.delay(random, 3_000);
                self.plan(&pod, What::BecomeReady, now, delay);
            }
            What::Finish(_) | What::Overdue if matches!(phase, "Succeeded" | "Failed") => {}
            What::Finish(phase) => set_status(server, &pod, phase, Some(false), random),
            What::Overdue => {
                let body = json!({"status": {"phase": "Failed", "reason": "DeadlineExceeded"}});
                let _ = server.merge(Caller::Node, Kind::Pod, &task.name, &body, Part::Status);
            }
            What::End | What::BecomeReady | What::BecomeUnready => {}
        }
        line
    }

    /// Returns every node, with true if it is up.
    pub fn all(&self) -> impl Iterator<Item = (String, bool)> {
        self.is_up.iter().enumerate().map(|(node, is_up)| (name_of(node), *is_up))
    }

    /// Returns true if any node is silent.
    #[must_use]
    pub fn is_any_lost(&self) -> bool {
        self.is_up.contains(&false)
    }

    /// Silences a node: its pods are shown as no longer ready.
    pub fn lose_one(&mut self, server: &mut Server, random: &mut Random) -> String {
        let node = usize::try_from(random.below(NODES as u64)).unwrap_or_default();
        self.is_up[node] = false;
        for pod in pods_on(server, node) {
            if pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running")) {
                set_status(server, &pod, "Running", Some(false), random);
            }
        }
        format!("node {node} is lost")
    }

    /// Revives a silent node, or replaces it by an empty one.
    pub fn recover_one(
        &mut self,
        server: &mut Server,
        now: i64,
        time: Timestamp,
        random: &mut Random,
    ) -> Option<String> {
        let node = self.is_up.iter().position(|is_up| !is_up)?;
        self.is_up[node] = true;
        let replaced = random.chance(500);
        for pod in pods_on(server, node) {
            let name = pod.metadata.name.clone().unwrap_or_default();
            if replaced {
                let background = Propagation::Background;
                let _ =
                    server.delete(Caller::Node, Kind::Pod, &name, Preconditions::default(), background, time);
                let _ = server.pod_ended(&name);
            } else {
                let delay = random.within(10..500);
                self.plan(&pod, What::BecomeReady, now, delay);
            }
        }
        Some(format!("node {node} is back, {}", if replaced { "empty" } else { "with its pods" }))
    }

    fn bind(&mut self, pod: &Pod, server: &mut Server, now: i64, random: &mut Random) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let up: Vec<usize> = (0..NODES).filter(|node| self.is_up[*node]).collect();
        let node = random.pick(&up).filter(|_| !random.chance(self.temper.no_room));
        let Some(node) = node else {
            let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"});
            let body = json!({"status": {"conditions": [condition]}});
            let _ = server.merge(Caller::Node, Kind::Pod, name, &body, Part::Status);
            let delay = random.within(1_000..120_000);
            self.plan(pod, What::Bind, now, delay);
            return;
        };
        let body = json!({"spec": {"nodeName": name_of(node)}});
        let _ = server.merge(Caller::Node, Kind::Pod, name, &body, Part::All);
        let body = json!({"status": {"conditions": [scheduled()]}});
        let _ = server.merge(Caller::Node, Kind::Pod, name, &body, Part::Status);
        let delay = self.delay(random, 300);
        self.plan(pod, What::Start, now, delay);
    }

    fn fate(&mut self, pod: &Pod, now: i64, random: &mut Random) {
        let later = random.within(100..20_000);
        if ownership::annotation(&pod.metadata, annotations::TASK).is_some() {
            // One in five is never ended by its node: the task's controller must end it.
            let seconds = pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds).unwrap_or_default();
            if random.chance(800) {
                self.plan(pod, What::Overdue, now, seconds.unsigned_abs() * 1000);
            }
            if random.chance(700) {
                let phase = if random.chance(500) { "Succeeded" } else { "Failed" };
                self.plan(pod, What::Finish(phase), now, later);
            }
            return;
        }
        if random.chance(self.temper.ends) {
            let phase = if random.chance(500) { "Succeeded" } else { "Failed" };
            self.plan(pod, What::Finish(phase), now, later);
        } else if random.chance(self.temper.flaps) {
            self.plan(pod, What::BecomeUnready, now, later);
        }
    }

    /// Returns a delay, usually below `most` milliseconds, sometimes minutes.
    fn delay(&self, random: &mut Random, most: u64) -> u64 {
        if random.chance(self.temper.slow) { random.within(10_000..480_000) } else { random.within(1..most) }
    }

    fn plan(&mut self, pod: &Pod, what: What, now: i64, delay: u64) {
        self.last += 1;
        let name = pod.metadata.name.clone().unwrap_or_default();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let due = now + i64::try_from(delay).unwrap_or_default();
        self.tasks.insert((due, self.last), Task { name, uid, what });
    }
}

fn name_of(node: usize) -> String {
    format!("node-{node}")
}

fn node_of(pod: &Pod) -> Option<usize> {
    pod.spec.as_ref()?.node_name.as_deref()?.strip_prefix("node-")?.parse().ok().filter(|node| *node < NODES)
}

fn pods_on(server: &Server, node: usize) -> Vec<Pod> {
    let pods = server.all(Kind::Pod).filter_map(Pod::of);
    pods.filter(|pod| node_of(pod) == Some(node)).map(|pod| Pod::clone(pod)).collect()
}

fn scheduled() -> Value {
    json!({"type": "PodScheduled", "status": "True"})
}

fn set_status(server: &mut Server, pod: &Pod, phase: &str, ready: Option<bool>, random: &mut Random) {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let mut status = json!({"phase": phase});
    if let Some(ready) = ready {
        let ready = json!({"type": "Ready", "status": if ready { "True" } else { "False" }});
        status["conditions"] = json!([scheduled(), ready]);
    }
    let known = pod.status.as_ref().and_then(|status| status.pod_ips.as_ref());
    if known.is_none() {
        status["podIPs"] = json!([{"ip": format!("10.0.{}.{}", random.below(250), random.below(250))}]);
    }
    let _ = server.merge(Caller::Node, Kind::Pod, name, &json!({"status": status}), Part::Status);
}
