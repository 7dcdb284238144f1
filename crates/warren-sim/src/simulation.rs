//! One run: a world made from a seed, a scheduler that chooses the next event, and checks after
//! every step. A phase with faults is followed by a calm phase in which everything must come to
//! rest.

mod faults;
mod requests;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use warren_controllers::Config;
use warren_controllers::engine::Controller;
use warren_controllers::queue::ObjectKey;
use warren_decide::step::Kind;

use crate::clock::{Clock, milliseconds};
use crate::invariants::Ledger;
use crate::nodes::{Nodes, Temper};
use crate::object::{Any, KINDS, slot};
use crate::quiescence;
use crate::random::Random;
use crate::running::{Queue, Running};
use crate::server::{Chore, NAMESPACE, Server};
use crate::tasks;
use crate::user::User;
use crate::wire::{Intent, Sent, taken_by};

use faults::{Fault, Faults};

/// The most steps of the phase with faults.
const STORM_STEPS: u64 = 2_500;
/// The most steps of the calm phase: a system that is still busy then does not come to rest.
const CALM_STEPS: u64 = 60_000;
/// The length of the calm phase in milliseconds: longer than the longest backoff (1000 s) and the
/// patience of a pool (300 s).
const CALM: i64 = 45 * 60 * 1000;
/// The time in milliseconds after which the effects of faults on waits have ended: longer than a
/// creation is in doubt (30 s).
const DOUBT: i64 = 60 * 1000;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Steps of the scheduler.
    pub steps: u64,
    /// Writes that were stored.
    pub commits: u64,
    /// The events, newest last; empty unless asked for.
    pub trace: VecDeque<String>,
}

/// A run that went wrong.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The violated condition.
    pub what: String,
    /// The step.
    pub step: u64,
    /// The events before it, newest last; empty unless asked for.
    pub trace: VecDeque<String>,
}

/// A deliberate mistake, to show that the simulation would notice it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mutant {
    /// No mistake.
    #[default]
    #[value(skip)]
    None,
    /// The writes by which a claim takes a sandbox go without their resourceVersion.
    NoAssignmentGuard,
    /// A pool does not see members that are on their way out.
    TerminatingNotCounted,
    /// Whether an owner that has lost a child is still there is not asked of the server.
    OwnerNotAsked,
    /// Deletions go without their resourceVersion.
    NoDeletionGuard,
    /// The write by which a claim takes a sandbox does not say which pod that has.
    NoPodName,
    /// Writes of a task's status go without their resourceVersion.
    NoVerdictGuard,
    /// Nobody is told that a node is lost.
    NodeLossNotTold,
    /// The time at which a claim is to be looked at again is forgotten.
    ClaimNotWoken,
}

/// The options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A deliberate mistake.
    pub mutant: Mutant,
    /// The number of last events to keep; zero is fast.
    pub trace: usize,
}

/// A possible next event.
#[derive(Clone, Debug)]
enum Move {
    Deliver(usize, Kind),
    Begin(usize, Queue),
    Arrive(usize, u64),
    Return(usize, u64),
    Stray(usize),
    Collect(Chore),
    Node((i64, u64)),
    User,
    Interfere(String),
    Fault(Fault),
    Wait,
}

struct Simulation {
    clock: Clock,
    random: Random,
    server: Server,
    nodes: Nodes,
    ledger: Ledger,
    faults: Faults,
    running: Vec<Running>,
    /// Requests whose sender no longer waits for them; they may still arrive.
    strays: Vec<(usize, Sent)>,
    config: Config,
    mutant: Mutant,
    workers: usize,
    processes: usize,
    acts_left: u64,
    /// The step at which the user begins to act.
    user_begins: u64,
    storm: bool,
    steps: u64,
    trace: VecDeque<String>,
    trace_length: usize,
}

/// Runs one seed.
pub fn run(seed: u64, options: Options) -> Result<Report, Box<Violation>> {
    let mut simulation = Simulation::new(seed, options);
    match simulation.run() {
        Ok(()) => Ok(Report {
            steps: simulation.steps,
            commits: simulation.server.commits,
            trace: simulation.trace,
        }),
        Err(what) => Err(Box::new(Violation { what, step: simulation.steps, trace: simulation.trace })),
    }
}

impl Simulation {
    fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        // Each seed has only some kinds of faults: a run with all of them at once hides the effects
        // of a single one.
        let mut some = |rate: u64| if random.chance(400) { random.within(1..rate) } else { 0 };
        let temper = Temper { no_room: some(200), slow: some(150), ends: some(200), flaps: some(300) };
        let faults = Faults::new(&mut some);
        let mut config = Config { extensions: true, ..Config::default() };
        config.disable_claim_observability_annotations = random.chance(300);
        if random.chance(200) {
            let delay = random.within(1..20);
            config.sandbox_warm_pool_replenish_delay = Duration::from_secs(delay);
            // As on a single machine, which starts a few beside the claims when a part of the pool
            // is left.
            if delay.is_multiple_of(2) {
                config.sandbox_warm_pool_max_starting = Some(4);
                config.sandbox_warm_pool_reserve = 0.25;
            }
        }
        if random.chance(200) {
            config.sandbox_warm_pool_max_refill_rate = random.within(1..10) as f64 / 2.0;
        }
        if random.chance(300) {
            config.claim_deadline = Some(Duration::from_secs(random.within(5..300)));
        }
        if random.chance(200) {
            config.sandbox_warm_pool_max_size = Some(usize::try_from(random.within(1..6)).unwrap_or(1));
        }
        if random.chance(200) {
            config.sandbox_warm_pool_max_batch_size = 1;
        }
        // Taken from the seed itself, so that the random draws of earlier seeds do not change.
        if seed % 5 == 3 {
            config.sandbox_warm_pool_max_starting = usize::try_from(seed % 3 + 1).ok();
            config.sandbox_warm_pool_reserve = 0.25;
        }
        config.agent_tasks = tasks::are_in(seed);
        Self {
            clock: Clock::default(),
            // Taken from the seed itself, for the same reason.
            server: Server::refusing(match seed % 7 {
                5 => Some(Kind::Pod),
                6 => Some(Kind::Sandbox),
                _ => None,
            }),
            nodes: Nodes::new(temper),
            ledger: Ledger::new(faults.clock_tolerance()),
            faults,
            running: Vec::new(),
            strays: Vec::new(),
            config,
            mutant: options.mutant,
            workers: usize::try_from(random.within(1..4)).unwrap_or(1),
            processes: 0,
            acts_left: random.within(4..50),
            // Claims that come at once find empty pools and start cold. In half of the seeds the
            // pools have time to fill.
            user_begins: if random.chance(500) { random.within(100..500) } else { 0 },
            storm: true,
            steps: 0,
            trace: VecDeque::new(),
            trace_length: options.trace,
            random,
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let now = self.clock.now(0);
        User { server: &mut self.server, random: &mut self.random, now, tasks: self.config.agent_tasks }
            .begin();
        self.judge(None)?;
        self.start_process();
        if self.faults.has_second_leader() {
            self.start_process();
        }
        while self.steps < STORM_STEPS && self.acts_left > 0 {
            self.step()?;
        }
        self.calm_down()?;
        self.settle()?;
        quiescence::check(&self.server, &self.config, self.clock.now(0))?;
        self.check_silence()
    }

    /// Reconciles everything once more: a system at rest has nothing to write. The first time it
    /// may: by design, an edit of a template reaches claimed sandboxes only when another event
    /// wakes their claims.
    fn check_silence(&mut self) -> Result<(), String> {
        self.look_at_everything()?;
        quiescence::check(&self.server, &self.config, self.clock.now(0))?;
        let before = self.writes();
        self.look_at_everything()?;
        match self.writes() == before {
            true => Ok(()),
            false => Err("at rest, and still something was written".to_owned()),
        }
    }

    /// Returns the number of stored objects and recorded events.
    fn writes(&self) -> u64 {
        let notes: u64 = self.running.iter().map(|running| running.link.notes.load(Ordering::Relaxed)).sum();
        self.server.commits + notes
    }

    fn look_at_everything(&mut self) -> Result<(), String> {
        self.say(|_| "everything is looked at once more".to_owned());
        for running in &self.running {
            let queues = running.engine.queues();
            for (kind, controller) in [
                (Kind::Sandbox, Controller::Sandbox),
                (Kind::SandboxClaim, Controller::Claim),
                (Kind::SandboxWarmPool, Controller::Pool),
                (Kind::SandboxTemplate, Controller::Template),
                (Kind::AgentTask, Controller::Task),
            ] {
                self.server.all(kind).for_each(|object| queues.of(controller).add(object.key()));
            }
        }
        self.settle()
    }

    /// Runs without faults until all scheduled work is done.
    fn settle(&mut self) -> Result<(), String> {
        let end = self.clock.elapsed() + CALM;
        let doubted_until = self.clock.elapsed() + DOUBT;
        let limit = self.steps + CALM_STEPS;
        while self.steps <= limit {
            if !self.moves().is_empty() {
                self.step()?;
                continue;
            }
            if self.clock.elapsed() > doubted_until {
                self.check_patience()?;
            }
            if let Some(due) = self.next_due().filter(|due| *due <= end) {
                // Nothing happens before that. A claim that is late by then is late, even if it is
                // corrected afterwards.
                if due > doubted_until {
                    let deadline_before = self.clock.now(due - self.clock.elapsed() - DOUBT);
                    quiescence::check_deadlines(&self.server, &self.config, deadline_before)?;
                }
                self.pass_time_until(due);
            } else {
                return Ok(());
            }
        }
        Err("left alone, it does not come to rest".to_owned())
    }

    /// Checks that an idle process will reconcile waiting claims at their deadlines. During faults
    /// no more can be required: time passes whether or not a process gets a turn, and a lost answer
    /// or a wrong clock can delay a claim. Punctuality is checked in the calm phase.
    fn check_wakes(&self) -> Result<(), String> {
        let now = self.clock.now(0);
        for running in self.running.iter().filter(|running| running.is_idle(&self.server)) {
            quiescence::check_wakes(&self.server, &self.config, now, |claim| {
                let key = ObjectKey { namespace: NAMESPACE.to_owned(), name: claim.to_owned() };
                let due = running.engine.queues().claims.due(&key)?;
                Some(self.clock.now(milliseconds(due) - self.clock.elapsed()))
            })?;
        }
        Ok(())
    }

    /// Checks that no pool still waits for its own writes when every event was delivered: it would
    /// do nothing until its patience ends.
    fn check_patience(&self) -> Result<(), String> {
        // A member that waits for a slow pod to end is not gone yet.
        if self.server.all(Kind::Sandbox).any(Any::is_deleting) {
            return Ok(());
        }
        let waiting = self.running.iter().flat_map(|running| running.engine.waiting_pools()).next();
        waiting.map_or(Ok(()), |pool| Err(format!("pool {pool} waits for something that was delivered")))
    }

    fn calm_down(&mut self) -> Result<(), String> {
        self.say(|_| "calm".to_owned());
        self.storm = false;
        self.nodes.temper = Temper::default();
        let now = self.clock.now(0);
        User { server: &mut self.server, random: &mut self.random, now, tasks: self.config.agent_tasks }
            .release_all();
        while self.nodes.recover_one(&mut self.server, self.clock.elapsed(), now, &mut self.random).is_some()
        {
        }
        self.running.truncate(1);
        if self.running.is_empty() {
            self.start_process();
        }
        self.tell_of_nodes();
        for running in &mut self.running {
            if running.clock.is_wrong() {
                running.clock.set(0);
                running.engine.reconsider();
            }
            running.streams.iter_mut().for_each(|stream| stream.stalled_until = 0);
        }
        self.judge(None)
    }

    /// Chooses the next event and runs it.
    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        let moves = self.moves();
        let Some(index) = self.random.weighted(moves.iter().map(|(_, weight)| *weight)) else {
            return Ok(());
        };
        match moves[index].0.clone() {
            Move::Deliver(index, kind) => {
                let text = self.running[index].deliver(kind, &self.server);
                self.say(|it| format!("process {}: {kind} {text}", it.running[index].number));
            }
            Move::Begin(index, queue) => {
                let text = self.running[index].begin(queue).unwrap_or_default();
                self.say(|it| format!("process {}: pass over {text}", it.running[index].number));
            }
            Move::Arrive(index, id) => return self.arrive(index, id),
            Move::Return(index, id) => {
                let end = self.running[index].return_answer(id).unwrap_or_default();
                self.say(|it| format!("process {}: answer {id} returns{end}", it.running[index].number));
            }
            Move::Stray(index) => return self.arrive_late(index),
            Move::Collect(chore) => {
                self.say(|_| format!("garbage collection: {chore:?}"));
                let now = self.clock.now(0);
                self.server.collect(&chore, now);
            }
            Move::Node(key) => {
                let now = self.clock.elapsed();
                let line = self.nodes.run(key, &mut self.server, now, &mut self.random);
                self.say(|_| line);
            }
            Move::User => {
                self.acts_left -= 1;
                let now = self.clock.now(0);
                let line = User {
                    server: &mut self.server,
                    random: &mut self.random,
                    now,
                    tasks: self.config.agent_tasks,
                }
                .act();
                self.say(|_| line);
            }
            Move::Interfere(claim) => {
                self.acts_left -= 1;
                let now = self.clock.now(0);
                let line = User {
                    server: &mut self.server,
                    random: &mut self.random,
                    now,
                    tasks: self.config.agent_tasks,
                }
                .interfere(&claim);
                self.say(|_| line);
            }
            Move::Fault(fault) => self.inject(fault),
            Move::Wait => {
                self.check_wakes()?;
                let delay = match self.random.below(100) {
                    0 => {
                        // A server does not carry out a request a minute after it arrived: its own
                        // time limit has passed.
                        while !self.strays.is_empty() {
                            self.arrive_late(0)?;
                        }
                        self.random.within(60_000..400_000)
                    }
                    1..10 => self.random.within(500..5_000),
                    _ => self.random.within(1..40),
                };
                self.pass_time_until(self.clock.elapsed() + i64::try_from(delay).unwrap_or_default());
            }
        }
        self.judge(None)
    }

    /// Returns all possible next events with their weights.
    fn moves(&mut self) -> Vec<(Move, u64)> {
        let mut moves = Vec::new();
        let now = self.clock.elapsed();
        for (index, running) in self.running.iter().enumerate() {
            for kind in KINDS {
                if running.has_news(kind, &self.server, now) {
                    let speed = if self.storm { running.streams[slot(kind)].speed } else { 20 };
                    moves.push((Move::Deliver(index, kind), speed * 10));
                }
            }
            let haste = if self.storm { running.haste } else { 100 };
            let wire = running.link.wire();
            moves.extend(wire.sent().map(|id| (Move::Arrive(index, id), haste)));
            moves.extend(wire.answered().map(|id| (Move::Return(index, id), haste)));
            drop(wire);
            if running.engine.cluster().is_listed() {
                let ready = Queue::ALL.into_iter().filter(|queue| running.has_work(*queue, self.workers));
                moves.extend(ready.map(|queue| (Move::Begin(index, queue), 80)));
            }
        }
        moves.extend((0..self.strays.len()).map(|index| (Move::Stray(index), 20)));
        moves.extend(self.server.chores().into_iter().map(|chore| (Move::Collect(chore), 40)));
        moves.extend(self.nodes.due(now).into_iter().map(|key| (Move::Node(key), 80)));
        if self.storm {
            if self.steps >= self.user_begins {
                moves.push((Move::User, 20));
            }
            moves.extend(self.takings().map(|(claim, weight)| (Move::Interfere(claim), weight)));
            moves.push((Move::Wait, if moves.len() > 1 { 15 } else { 150 }));
            moves.extend(
                self.faults
                    .moves(self.running.len(), self.nodes.is_any_lost())
                    .map(|(fault, weight)| (Move::Fault(fault), weight)),
            );
        }
        moves
    }

    /// Returns the claims that are adopting a sandbox at this moment, with the weight of an
    /// interference: the write is in flight, or late.
    fn takings(&self) -> impl Iterator<Item = (String, u64)> {
        let late = self.strays.iter().filter_map(|(_, sent)| Some((taken_by(&sent.request)?.to_owned(), 20)));
        let under_way = self.running.iter().flat_map(|running| {
            let wire = running.link.wire();
            let requests = wire.sent().filter_map(|id| wire.request(id));
            let claims = requests.filter_map(|sent| Some((taken_by(&sent.request)?.to_owned(), 4)));
            claims.collect::<Vec<_>>()
        });
        late.chain(under_way)
    }

    /// Checks every new write against the invariants, and passes it to the nodes.
    fn judge(&mut self, intent: Option<&Intent>) -> Result<(), String> {
        for commit in std::mem::take(&mut self.server.fresh) {
            self.nodes.observe(&commit, self.clock.elapsed(), &mut self.random);
            self.ledger.check(&self.server, &commit, intent, self.clock.now(0))?;
        }
        Ok(())
    }

    fn start_process(&mut self) {
        self.processes += 1;
        let haste = self.random.pick(&[10, 40, 120]).unwrap_or(120);
        let random = &mut self.random;
        let (clock, config, mutant) = (self.clock.clone(), &self.config, self.mutant);
        let running = Running::new(self.processes, clock, config, mutant, haste, || match random.below(4) {
            0 => 1,
            1 => 4,
            _ => 20,
        });
        self.running.push(running);
        self.tell_of_nodes();
    }

    fn tell_of_nodes(&self) {
        for running in &self.running {
            self.nodes.all().for_each(|(node, is_up)| running.observe_node(&node, is_up));
        }
    }

    fn next_due(&self) -> Option<i64> {
        let queues = self.running.iter().filter_map(Running::next_due).map(milliseconds);
        queues.chain(self.nodes.next_due()).min()
    }

    fn pass_time_until(&mut self, time: i64) {
        self.clock.advance_to(time);
        self.say(|_| "time passes".to_owned());
    }

    fn say(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.trace_length == 0 {
            return;
        }
        let time = self.clock.elapsed();
        let line = format!("{:6} {:>5}.{:03}  {}", self.steps, time / 1000, time % 1000, line(self));
        if self.trace.len() == self.trace_length {
            self.trace.pop_front();
        }
        self.trace.push_back(line);
    }
}
