//! A running controller process: its reconciles, each waiting for an answer, and its watches, each
//! at its own place in the server's log.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use warren_api::SandboxWarmPool;
use warren_controllers::Config;
use warren_controllers::cluster::News;
use warren_controllers::engine::{Controller, Engine};
use warren_controllers::object::{Any, KINDS};
use warren_controllers::queue::{ObjectKey, Outcome};
use warren_controllers::telemetry::Telemetry;
use warren_decide::ownership;
use warren_decide::step::Kind;

use crate::clock::{Clock, ProcessClock};
use crate::object::slot;
use crate::quiescence::wanted_members;
use crate::server::Server;
use crate::simulation::Mutant;
use crate::wire::{Intent, Link, Loss, Reply, Returned};

/// A queue of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The queue of a controller.
    Of(Controller),
    /// The queue of kinds with objects in doubt.
    Doubts,
}

impl Queue {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Of(Controller::Sandbox),
        Self::Of(Controller::Claim),
        Self::Of(Controller::Pool),
        Self::Of(Controller::Template),
        Self::Of(Controller::Task),
        Self::Doubts,
    ];
}

#[derive(Clone, Debug)]
enum Key {
    Object(Controller, ObjectKey),
    Kind(Kind),
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Object(controller, key) => write!(formatter, "{controller:?} {}", key.name),
            Key::Kind(kind) => write!(formatter, "doubts about {kind}"),
        }
    }
}

/// A watch's position.
#[derive(Debug)]
enum Progress {
    /// Broken, or not begun: a list comes next.
    Broken,
    /// A list is being read; the watch continues after it.
    Listing { rest: VecDeque<Any>, then: usize },
    /// Following the log.
    Following(usize),
}

/// The watch of one kind.
#[derive(Debug)]
pub struct Stream {
    progress: Progress,
    /// Its relative probability of moving.
    pub speed: u64,
    /// The time before which it does not move.
    pub stalled_until: i64,
}

struct Task {
    key: Key,
    future: Pin<Box<dyn Future<Output = Outcome>>>,
}

/// A process with all its work in progress. Dropping it is a crash.
pub struct Running {
    /// Its number; a restarted process has a new one.
    pub number: usize,
    /// The real controllers.
    pub engine: Arc<Engine>,
    /// Its clocks.
    pub clock: Arc<ProcessClock>,
    /// Its connection to the server.
    pub link: Arc<Link>,
    /// The relative probability that its requests and answers move.
    pub haste: u64,
    /// Its watches.
    pub streams: [Stream; KINDS.len()],
    tasks: BTreeMap<u64, Task>,
    last_task: u64,
    /// The uids of all objects that it has ever seen, for the invariants.
    ever_seen: Arc<BTreeSet<String>>,
    config: Config,
    mutant: Mutant,
}

impl Running {
    /// Returns a process that has just started and has seen nothing.
    #[must_use]
    pub fn new(
        number: usize,
        clock: Clock,
        config: &Config,
        mutant: Mutant,
        haste: u64,
        mut speed: impl FnMut() -> u64,
    ) -> Self {
        let (clock, link) = (Arc::new(ProcessClock::new(clock)), Arc::new(Link::new(mutant)));
        let engine = Engine::new(link.clone(), clock.clone(), config, &Telemetry::default());
        let streams = KINDS.map(|_| Stream { progress: Progress::Broken, speed: speed(), stalled_until: 0 });
        Self {
            number,
            engine,
            clock,
            link,
            haste,
            streams,
            tasks: BTreeMap::new(),
            last_task: 0,
            ever_seen: Arc::default(),
            config: config.clone(),
            mutant,
        }
    }

    /// Returns true if the watch of a kind has an event to deliver.
    #[must_use]
    pub fn has_news(&self, kind: Kind, server: &Server, now: i64) -> bool {
        let stream = &self.streams[slot(kind)];
        stream.stalled_until <= now
            && match &stream.progress {
                Progress::Broken | Progress::Listing { .. } => true,
                Progress::Following(next) => *next < server.log_length(kind),
            }
    }

    /// Delivers the next event of a kind's watch.
    pub fn deliver(&mut self, kind: Kind, server: &Server) -> String {
        let stream = &mut self.streams[slot(kind)];
        let (news, text) = match &mut stream.progress {
            Progress::Broken => {
                let rest = server.all(kind).cloned().collect();
                stream.progress = Progress::Listing { rest, then: server.log_length(kind) };
                (News::ListBegins(kind), "list begins".to_owned())
            }
            Progress::Listing { rest, then } => match rest.pop_front() {
                Some(object) => {
                    let text = format!("list: {} at {}", object.name(), object.version());
                    (News::Listed(object), text)
                }
                None => {
                    stream.progress = Progress::Following(*then);
                    (News::ListEnds(kind), "list ends".to_owned())
                }
            },
            Progress::Following(next) => {
                let Some(change) = server.log(kind, *next).first() else { return "nothing".to_owned() };
                *next += 1;
                let (object, version) = (change.object.clone(), change.object.version());
                match change.gone {
                    true => {
                        let text = format!("watch: {} at {version}, gone", object.name());
                        (News::Gone(object), text)
                    }
                    false => {
                        let text = format!("watch: {} at {version}", object.name());
                        (News::Changed(object), text)
                    }
                }
            }
        };
        match &news {
            News::Listed(object) | News::Changed(object) => {
                self.see(object);
                let mut wire = self.link.wire();
                wire.bereft
                    .retain(|(owner, _), loss| owner != object.uid() || loss.version > object.version());
                wire.delivered.insert((object.kind(), object.name().to_owned()), object.clone());
            }
            News::Gone(object) => {
                self.see(object);
                self.link.wire().delivered.remove(&(object.kind(), object.name().to_owned()));
                if let Some(owner) = ownership::controller(object.meta())
                    && self.ever_seen.contains(&owner.uid)
                    && self.engine.cluster().holds(object)
                {
                    let loss = Loss { version: object.version(), task: self.last_task };
                    self.link.wire().bereft.insert((owner.uid.clone(), object.kind()), loss);
                }
            }
            News::ListBegins(_) | News::ListEnds(_) => {}
        }
        self.engine.cluster().observe(self.mistaken(news));
        text
    }

    /// Breaks the watch of a kind; undelivered events are only seen in the next list.
    pub fn break_off(&mut self, kind: Kind) {
        self.streams[slot(kind)].progress = Progress::Broken;
    }

    /// Tells the process whether a node is lost.
    pub fn observe_node(&self, node: &str, is_up: bool) {
        if self.mutant != Mutant::NodeLossNotTold {
            self.engine.observe_node(node, is_up);
        }
        self.link.wire().observe_node(node, is_up);
    }

    /// Returns true if a reconcile can begin for a key of a queue.
    #[must_use]
    pub fn has_work(&self, queue: Queue, workers: usize) -> bool {
        let queues = self.engine.queues();
        match queue {
            // A pool has one worker, the real controller's default.
            Queue::Of(Controller::Pool) => queues.pools.has_work(1),
            Queue::Of(controller) => queues.of(controller).has_work(workers),
            Queue::Doubts => queues.doubts.has_work(1),
        }
    }

    /// Returns when the next delayed key is due.
    #[must_use]
    pub fn next_due(&self) -> Option<std::time::Duration> {
        let queues = self.engine.queues();
        let of_controllers =
            Controller::ALL.iter().filter_map(|controller| queues.of(*controller).next_due());
        of_controllers.chain(queues.doubts.next_due()).min()
    }

    /// Returns true if the process has seen everything, has nothing to do, and has a correct clock.
    #[must_use]
    pub fn is_idle(&self, server: &Server) -> bool {
        // A stalled watch has undelivered events, too.
        let has_news = KINDS.iter().any(|kind| self.has_news(*kind, server, i64::MAX));
        let has_work = Queue::ALL.into_iter().any(|queue| self.has_work(queue, usize::MAX));
        !has_news && !has_work && self.tasks.is_empty() && !self.clock.is_wrong()
    }

    /// Begins a reconcile of the next key of a queue.
    pub fn begin(&mut self, queue: Queue) -> Option<String> {
        let engine = self.engine.clone();
        self.last_task += 1;
        self.link.wire().task_begins(self.last_task);
        let (key, future): (Key, Pin<Box<dyn Future<Output = Outcome>>>) = match queue {
            Queue::Of(controller) => {
                let key = engine.queues().of(controller).begin()?;
                if controller == Controller::Pool {
                    self.intend(self.last_task, engine.cluster().pool(&key));
                }
                let object = key.clone();
                let future = async move { engine.reconcile(controller, object).await };
                (Key::Object(controller, key), Box::pin(future))
            }
            Queue::Doubts => {
                let kind = engine.queues().doubts.begin()?;
                (Key::Kind(kind), Box::pin(async move { engine.confirm(kind).await }))
            }
        };
        let text = key.to_string();
        self.tasks.insert(self.last_task, Task { key, future });
        let end = self.resume(self.last_task);
        Some(format!("{text}{}", end.unwrap_or_default()))
    }

    /// Continues a reconcile until its next wait. Returns its outcome, if it ended.
    pub fn resume(&mut self, id: u64) -> Option<String> {
        let task = self.tasks.get_mut(&id)?;
        self.link.wire().task = id;
        let Poll::Ready(outcome) = task.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            return None;
        };
        let task = self.tasks.remove(&id)?;
        self.link.wire().task_ends(id);
        match &task.key {
            Key::Object(controller, key) => {
                let outcome = self.forgetful(*controller, outcome);
                self.engine.queues().of(*controller).end(key, outcome);
            }
            Key::Kind(kind) => self.engine.queues().doubts.end(kind, outcome),
        }
        Some(format!(" → {outcome:?}"))
    }

    /// Delivers an answer to the process, and continues the reconcile that waits for it.
    pub fn return_answer(&mut self, id: u64) -> Option<String> {
        let Returned { task, reads, reply } = self.link.wire().return_answer(id)?;
        match &reply {
            Reply::One(Ok(Some(object))) => self.hear_of(object),
            Reply::Many(Ok(objects)) => objects.iter().for_each(|object| self.hear_of(object)),
            Reply::One(_) | Reply::Many(Err(_)) => {}
        }
        if reads == Some(Kind::SandboxWarmPool)
            && let Reply::One(Ok(answer)) = &reply
            && let Some(Key::Object(Controller::Pool, key)) = self.tasks.get(&task).map(|task| &task.key)
        {
            // If the pool is gone, the watch may have shown another of its name meanwhile.
            let known = self.engine.cluster().pool(key);
            let newer = |live: &Any| {
                known.clone().filter(|known| Any::SandboxWarmPool(known.clone()).version() > live.version())
            };
            let pool = match answer {
                Some(answer @ Any::SandboxWarmPool(live)) => newer(answer).or_else(|| Some(live.clone())),
                _ => known,
            };
            self.intend(task, pool);
        }
        self.resume(task)
    }

    /// Records an object in an answer of the server.
    fn hear_of(&mut self, object: &Any) {
        self.see(object);
        self.link.wire().bereft.retain(|(owner, _), _| owner != object.uid());
    }

    /// Records an object that the process has seen.
    fn see(&mut self, object: &Any) {
        if !self.ever_seen.contains(object.uid()) {
            Arc::make_mut(&mut self.ever_seen).insert(object.uid().to_owned());
        }
    }

    /// Records what the process knows when it decides about a pool: at the beginning of a
    /// reconcile, or after it has checked that the pool still exists.
    fn intend(&mut self, task: u64, pool: Option<Arc<SandboxWarmPool>>) {
        let intent = Intent {
            target: pool.map(|pool| wanted_members(&pool, &self.config)).unwrap_or_default(),
            known: self.ever_seen.clone(),
            is_untold: false,
        };
        self.link.wire().intents.insert(task, intent);
    }

    /// Applies the mistake of [`Mutant::ClaimNotWoken`]: a claim is reconciled again only by an
    /// event or by backoff.
    fn forgetful(&self, controller: Controller, outcome: Outcome) -> Outcome {
        match outcome {
            _ if self.mutant != Mutant::ClaimNotWoken || controller != Controller::Claim => outcome,
            Outcome::LookAgain(_) => Outcome::Done,
            Outcome::RetryWithin(_) => Outcome::Retry,
            Outcome::Done | Outcome::Gone | Outcome::NotNow(_) | Outcome::Retry => outcome,
        }
    }

    /// Applies the mistake of [`Mutant::TerminatingNotCounted`]: members that are being deleted are
    /// not seen.
    fn mistaken(&self, news: News) -> News {
        match news {
            News::Changed(object) | News::Listed(object)
                if self.mutant == Mutant::TerminatingNotCounted
                    && object.kind() == Kind::Sandbox
                    && object.is_deleting() =>
            {
                News::Gone(object)
            }
            news => news,
        }
    }
}
