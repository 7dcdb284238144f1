//! The world and its schedule: who acts next, and what goes wrong.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use warren_decide::ownership;
use warren_decide::step::{Action, Kind};

use crate::controller::{Controller, KINDS};
use crate::invariants::Invariants;
use crate::passes;
use crate::store::{Answer, Key, Store, Stored};

/// A deliberate fault in the design, to see that it is caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The server does not look at resourceVersions.
    NoGuards,
    /// Pools count neither the dying nor what they have just asked for.
    CountsNoTerminating,
}

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Fixes everything.
    pub seed: u64,
    /// How many things happen before the world is left to come to rest.
    pub moves: usize,
    /// A deliberate fault.
    pub broken: Option<Broken>,
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Writes that the server took.
    pub writes: usize,
    /// Claims that were made.
    pub claims: usize,
    /// Times that a controller process ended.
    pub crashes: usize,
}

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed that shows it again.
    pub seed: u64,
    /// What did not hold.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "seed {}: {}", self.seed, self.what)
    }
}

impl std::error::Error for Violation {}

/// Everything there is.
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) processes: Vec<Controller>,
    pub(crate) now: Timestamp,
    pub(crate) options: Options,
    random: fastrand::Rng,
    invariants: Invariants,
    /// How many calls of a hundred go wrong; nothing does while the world comes to rest.
    trouble: u8,
    violation: Option<String>,
    report: Report,
}

impl World {
    /// A write by a controller, judged at once.
    pub(crate) fn write(&mut self, action: &Action) -> Answer {
        let doomed = self.claimed_victim(action);
        let answer = self.store.act(action, self.now);
        if let (Some(name), None) = (doomed, &self.violation)
            && !self.store.objects.contains_key(&(0, name.clone()))
        {
            self.violation = Some(format!("a controller deleted sandbox {name}, which serves a claim"));
        }
        self.report.writes += usize::from(answer.is_ok());
        self.judge();
        answer
    }

    /// The claimed sandbox that a write would delete. Claims do not expire here, so no controller has a reason to.
    fn claimed_victim(&self, action: &Action) -> Option<String> {
        let Action::Delete { kind: Kind::Sandbox, name, .. } = action else { return None };
        let sandbox = self.store.objects.get(&(0, name.clone()))?;
        ownership::is_claimed(sandbox.metadata()).then(|| name.clone())
    }

    pub(crate) fn fails_before(&mut self) -> bool {
        self.random.u8(0..100) < self.trouble
    }

    pub(crate) fn loses_answer(&mut self) -> bool {
        self.random.u8(0..100) < self.trouble
    }

    fn judge(&mut self) {
        if self.violation.is_none() {
            self.violation = self.invariants.check(&self.store, self.processes.len()).err();
        }
    }

    fn any_process(&mut self) -> usize {
        let count = self.processes.len();
        self.random.usize(0..count)
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.random.u8(0..100) < percent
    }
}

type Task = (usize, u64, Pin<Box<dyn Future<Output = ()>>>);

/// Runs one seed to its end, or to the first violation.
pub fn run(options: Options) -> Result<Report, Violation> {
    let mut random = fastrand::Rng::with_seed(options.seed);
    // Most of the time one leader, sometimes two for a while that never ends.
    let leaders = if random.u8(0..3) == 0 { 2 } else { 1 };
    let trouble = [0, 2, 8][random.usize(0..3)];
    let mut world = World {
        store: Store::new(options.broken == Some(Broken::NoGuards)),
        processes: (0..leaders).map(|_| Controller::default()).collect(),
        now: Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 365 * 50),
        options,
        random,
        invariants: Invariants::default(),
        trouble,
        violation: None,
        report: Report::default(),
    };
    furnish(&mut world);
    for process in 0..leaders {
        let World { store, processes, .. } = &mut world;
        processes[process].restart(store);
    }
    let shared = Rc::new(RefCell::new(world));
    let mut tasks: Vec<Task> = Vec::new();
    for _ in 0..options.moves {
        one_move(&shared, &mut tasks);
        if let Some(what) = shared.borrow().violation.clone() {
            return Err(Violation { seed: options.seed, what });
        }
    }
    come_to_rest(&shared, &mut tasks).map_err(|what| Violation { seed: options.seed, what })?;
    let report = shared.borrow().report;
    Ok(report)
}

fn furnish(world: &mut World) {
    let replicas = world.random.i32(0..6);
    let strategy = if world.chance(50) { "Recreate" } else { "OnReplenish" };
    let template = json!({"metadata": {"name": "t"}, "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "0"}]}}}});
    let pool = json!({"metadata": {"name": "p"}, "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": "t"}, "updateStrategy": {"type": strategy}}});
    create(world, template, |json| Some(Stored::Template(Arc::new(serde_json::from_value(json).ok()?))));
    create(world, pool, |json| Some(Stored::Pool(Arc::new(serde_json::from_value(json).ok()?))));
    world.judge();
}

fn create(world: &mut World, json: Value, read: fn(Value) -> Option<Stored>) {
    if let Some(object) = read(json) {
        // A name that is taken is a wish that came too late.
        let _ = world.store.create(object, world.now);
    }
}

/// One thing happens.
fn one_move(shared: &Rc<RefCell<World>>, tasks: &mut Vec<Task>) {
    let dice = shared.borrow_mut().random.u8(0..100);
    match dice {
        0..=39 => poll_one(shared, tasks),
        40..=59 => deliver(&mut shared.borrow_mut()),
        60..=76 => begin_pass(shared, tasks),
        77..=86 => kubelet(&mut shared.borrow_mut()),
        87..=89 => {
            collect_garbage(&mut shared.borrow_mut());
        }
        90..=96 => user(&mut shared.borrow_mut()),
        97..=98 => {
            let mut world = shared.borrow_mut();
            let step = world.random.i64(1..3000);
            world.now += SignedDuration::from_millis(step);
        }
        _ => crash(shared, tasks),
    }
}

fn poll_one(shared: &Rc<RefCell<World>>, tasks: &mut Vec<Task>) {
    if tasks.is_empty() {
        return;
    }
    let index = shared.borrow_mut().random.usize(0..tasks.len());
    let (_, _, task) = &mut tasks[index];
    if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
        drop(tasks.swap_remove(index));
    }
}

fn begin_pass(shared: &Rc<RefCell<World>>, tasks: &mut Vec<Task>) {
    let (process, life, key) = {
        let mut world = shared.borrow_mut();
        let process = world.any_process();
        let keys: Vec<Key> = world.processes[process].keys().into_iter().filter(|key| key.0 <= 2).collect();
        if keys.is_empty() {
            return;
        }
        let key = keys[world.random.usize(0..keys.len())].clone();
        if !world.processes[process].busy.insert(key.clone()) {
            return;
        }
        (process, world.processes[process].life, key)
    };
    tasks.push((process, life, Box::pin(passes::pass(shared.clone(), process, key))));
}

/// A watch brings one event of one kind; which kinds are how far behind is chance.
fn deliver(world: &mut World) {
    let process = world.any_process();
    let kind = world.random.usize(0..KINDS);
    let World { store, processes, .. } = world;
    processes[process].receive(kind, &store.log);
}

fn crash(shared: &Rc<RefCell<World>>, tasks: &mut Vec<Task>) {
    let process = shared.borrow_mut().any_process();
    // Whatever was under way ends between two writes.
    tasks.retain(|(owner, _, _)| *owner != process);
    let mut world = shared.borrow_mut();
    world.report.crashes += 1;
    let World { store, processes, .. } = &mut *world;
    processes[process].restart(store);
}

/// The kubelet takes one pod one step further.
fn kubelet(world: &mut World) {
    let pods: Vec<Key> = world.store.objects.keys().filter(|key| key.0 == 4).cloned().collect();
    if pods.is_empty() {
        return;
    }
    let key = pods[world.random.usize(0..pods.len())].clone();
    step_pod(world, &key);
}

fn step_pod(world: &mut World, key: &Key) {
    let Some(Stored::Pod(pod)) = world.store.objects.get(key).cloned() else { return };
    if pod.metadata.deletion_timestamp.is_some() {
        world.store.remove(key);
        return;
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
    if phase.as_deref() == Some("Running") {
        return;
    }
    let node = format!("n{}", world.random.u8(0..3));
    let spec = json!({"spec": {"nodeName": node}});
    let status = json!({"status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [
        {"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]}});
    // A pod that is gone by now needs neither.
    let _ = world.store.patch(Kind::Pod, &key.1, &spec, false);
    let _ = world.store.patch(Kind::Pod, &key.1, &status, true);
}

/// The garbage collector removes one object whose controller is gone.
fn collect_garbage(world: &mut World) -> bool {
    let orphaned = world.store.objects.values().find(|object| {
        ownership::controller(object.metadata())
            .is_some_and(|owner| !world.store.objects.values().any(|other| other.uid() == owner.uid))
    });
    let Some(key) = orphaned.map(Stored::key) else { return false };
    let dying =
        world.store.objects.get(&key).is_some_and(|object| object.metadata().deletion_timestamp.is_some());
    // Deleting never fails here: the object was just seen.
    let _ = world.store.delete(&key, None, world.now);
    !dying
}

fn user(world: &mut World) {
    match world.random.u8(0..100) {
        0..=59 => {
            let name = format!("c{}", world.random.u8(0..12));
            let claim = json!({"metadata": {"name": name}, "spec": {"warmPoolRef": {"name": "p"}}});
            world.report.claims += 1;
            create(world, claim, |json| Some(Stored::Claim(Arc::new(serde_json::from_value(json).ok()?))));
        }
        60..=74 => {
            let claims: Vec<Key> = world.store.objects.keys().filter(|key| key.0 == 1).cloned().collect();
            if !claims.is_empty() {
                let key = claims[world.random.usize(0..claims.len())].clone();
                let _ = world.store.delete(&key, None, world.now);
            }
        }
        75..=86 => {
            let replicas = world.random.i32(0..6);
            let _ = world.store.patch(
                Kind::SandboxWarmPool,
                "p",
                &json!({"spec": {"replicas": replicas}}),
                false,
            );
        }
        87..=93 => {
            let image = world.random.u8(0..4).to_string();
            let body =
                json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
            let _ = world.store.patch(Kind::SandboxTemplate, "t", &body, false);
        }
        _ => {
            let sandboxes: Vec<Key> = world.store.objects.keys().filter(|key| key.0 == 0).cloned().collect();
            if !sandboxes.is_empty() {
                let key = sandboxes[world.random.usize(0..sandboxes.len())].clone();
                let _ = world.store.delete(&key, None, world.now);
            }
        }
    }
    world.judge();
}

/// Nothing goes wrong any more, everything is delivered, everybody has their turn: then all must be as it should be, and
/// nobody may have anything left to write.
fn come_to_rest(shared: &Rc<RefCell<World>>, tasks: &mut Vec<Task>) -> Result<(), String> {
    shared.borrow_mut().trouble = 0;
    let mut quiet = 0;
    for _ in 0..400 {
        let before = shared.borrow().store.log.len();
        while !tasks.is_empty() {
            poll_one(shared, tasks);
        }
        {
            let mut world = shared.borrow_mut();
            while collect_garbage(&mut world) {}
            let pods: Vec<Key> = world.store.objects.keys().filter(|key| key.0 == 4).cloned().collect();
            pods.iter().for_each(|key| step_pod(&mut world, key));
            while collect_garbage(&mut world) {}
            // Long enough for every grace and every expectation to pass.
            world.now += SignedDuration::from_secs(31);
            let World { store, processes, .. } = &mut *world;
            for process in processes {
                for kind in 0..KINDS {
                    while process.receive(kind, &store.log) {}
                }
            }
        }
        let count = shared.borrow().processes.len();
        for process in 0..count {
            let keys: Vec<Key> = shared.borrow().processes[process].keys();
            for key in keys.into_iter().filter(|key| key.0 <= 2) {
                let life = shared.borrow().processes[process].life;
                shared.borrow_mut().processes[process].busy.insert(key.clone());
                tasks.push((process, life, Box::pin(passes::pass(shared.clone(), process, key))));
            }
        }
        while !tasks.is_empty() {
            poll_one(shared, tasks);
        }
        if let Some(what) = shared.borrow().violation.clone() {
            return Err(what);
        }
        quiet = if shared.borrow().store.log.len() == before { quiet + 1 } else { 0 };
        if quiet == 12 {
            let world = shared.borrow();
            return world.invariants.check_rest(&world.store);
        }
    }
    Err("the world never came to rest: somebody keeps writing".to_owned())
}
