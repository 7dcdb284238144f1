//! A controller process that runs: its passes, each waiting for an answer somewhere, and its watches, each at its own place
//! in the server's log.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use warren_decide::step::Kind;

use crate::mirror::{Outcome, Process, QueueKind};
use crate::object::{Any, KINDS, slot};
use crate::server::Server;

/// How far the watch of one kind is.
#[derive(Debug)]
enum Progress {
    /// Broken off, or not begun: the next thing is a list.
    Broken,
    /// A list is being taken in; the watch goes on behind it.
    Listing { rest: VecDeque<Any>, then: usize },
    /// Following the log.
    Following(usize),
}

/// The watch of one kind.
#[derive(Debug)]
pub struct Stream {
    progress: Progress,
    /// How likely it is to move, compared with others.
    pub speed: u64,
    /// It does not move before this time.
    pub stalled_until: i64,
}

struct Task {
    queue: QueueKind,
    key: String,
    future: Pin<Box<dyn Future<Output = Outcome>>>,
}

impl fmt::Debug for Task {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} {}", self.queue, self.key)
    }
}

/// A process and everything it is in the middle of. Dropping it is a crash.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub process: Rc<Process>,
    /// How likely its requests and answers are to move, compared with others.
    pub haste: u64,
    /// Its watches.
    pub streams: [Stream; KINDS.len()],
    tasks: BTreeMap<u64, Task>,
    last_task: u64,
}

impl Running {
    /// A process that has just started.
    #[must_use]
    pub fn new(process: Rc<Process>, haste: u64, mut speed: impl FnMut() -> u64) -> Self {
        let streams = KINDS.map(|_| Stream { progress: Progress::Broken, speed: speed(), stalled_until: 0 });
        Self { process, haste, streams, tasks: BTreeMap::new(), last_task: 0 }
    }

    /// Whether the watch of a kind has something to bring.
    #[must_use]
    pub fn has_news(&self, kind: Kind, server: &Server, now: i64) -> bool {
        let stream = &self.streams[slot(kind)];
        stream.stalled_until <= now
            && match &stream.progress {
                Progress::Broken | Progress::Listing { .. } => true,
                Progress::Following(next) => *next < server.log_length(kind),
            }
    }

    /// Lets the watch of a kind bring the next thing.
    pub fn deliver(&mut self, kind: Kind, server: &Server) -> String {
        let stream = &mut self.streams[slot(kind)];
        let mut brain = self.process.brain.borrow_mut();
        let now = self.process.now();
        match &mut stream.progress {
            Progress::Broken => {
                let rest = server.all(kind).cloned().collect();
                stream.progress = Progress::Listing { rest, then: server.log_length(kind) };
                brain.begin_list(kind);
                "list begins".to_owned()
            }
            Progress::Listing { rest, then } => match rest.pop_front() {
                Some(object) => {
                    let text = format!("list: {} at {}", object.name(), object.version());
                    brain.list(object, now);
                    text
                }
                None => {
                    stream.progress = Progress::Following(*then);
                    brain.end_list(kind, now);
                    "list ends".to_owned()
                }
            },
            Progress::Following(next) => {
                let Some(change) = server.log(kind, *next).first() else { return "nothing".to_owned() };
                *next += 1;
                brain.observe(change, now);
                let end = if change.gone { ", gone" } else { "" };
                format!("watch: {} at {}{end}", change.object.name(), change.object.version())
            }
        }
    }

    /// The watch of a kind breaks off; what it has not brought yet is only seen in the next list.
    pub fn break_off(&mut self, kind: Kind) {
        self.streams[slot(kind)].progress = Progress::Broken;
    }

    /// Begins a pass over the next key of a queue.
    pub fn begin(&mut self, queue: QueueKind) -> Option<String> {
        let key = self.process.brain.borrow_mut().queues.of(queue).begin()?;
        self.last_task += 1;
        let future = Box::pin(self.process.clone().reconcile(queue, key.clone()));
        self.tasks.insert(self.last_task, Task { queue, key: key.clone(), future });
        let end = self.resume(self.last_task);
        Some(format!("{queue:?} {key}{}", end.unwrap_or_default()))
    }

    /// Lets a pass go on until its next wait. Gives how it ended, if it did.
    pub fn resume(&mut self, id: u64) -> Option<String> {
        let task = self.tasks.get_mut(&id)?;
        self.process.wire.borrow_mut().task = id;
        let Poll::Ready(outcome) = task.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            return None;
        };
        let task = self.tasks.remove(&id)?;
        let now = self.process.clock.elapsed();
        self.process.brain.borrow_mut().queues.of(task.queue).end(&task.key, outcome, now);
        Some(format!(" → {outcome:?}"))
    }
}
