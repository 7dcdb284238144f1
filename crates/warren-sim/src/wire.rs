//! The connection between a process and the server. A sent request waits here until the simulation
//! delivers it, and its answer waits until the simulation returns it. In between anything may
//! happen, and either can be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;
use warren_api::annotations;
use warren_controllers::object::Any;
use warren_controllers::server::{Answer, Refusal, Server};
use warren_decide::ownership;
use warren_decide::step::{Action, Kind};

use crate::simulation::Mutant;

/// A request of a process.
#[derive(Clone, Debug)]
pub enum Request {
    /// Carry out a step.
    Act(Action),
    /// Read an object, bypassing every cache.
    Read(Kind, String),
    /// List objects with a label, bypassing every cache.
    List(Kind, &'static str, String),
}

/// The server's answer.
#[derive(Clone, Debug)]
pub enum Reply {
    /// One object.
    One(Answer),
    /// A list.
    Many(Result<Vec<Any>, Refusal>),
}

/// A process's knowledge when it decided to make a member of a pool. The invariants check the
/// creation against it.
#[derive(Clone, Debug)]
pub struct Intent {
    /// The size of the pool as the process saw it.
    pub target: usize,
    /// The uids of all objects that the process has ever seen.
    pub known: Arc<BTreeSet<String>>,
    /// True if the answer never reaches the process, in a run with several processes.
    pub is_untold: bool,
}

/// A request in flight.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The request.
    pub request: Request,
    /// Its intent, for a new member of a pool.
    pub intent: Option<Intent>,
    /// True if it makes a child for an owner that may have gone with the last one: see
    /// [`Wire::bereft`].
    pub is_unasked: bool,
    /// The nodes that the process knew to be lost for as long as the task has run.
    pub lost_nodes: BTreeSet<String>,
}

#[derive(Debug)]
enum State {
    Sent(Sent),
    Answered(Reply),
    Returned(Reply),
}

#[derive(Debug)]
struct Exchange {
    task: u64,
    /// The kind of the object that it reads, if it reads one.
    reads: Option<Kind>,
    state: State,
}

/// An answer that has reached its process.
#[derive(Debug)]
pub struct Returned {
    /// The task that waits for it.
    pub task: u64,
    /// The kind of the object that was read, if one was.
    pub reads: Option<Kind>,
    /// The answer.
    pub reply: Reply,
}

/// The end of a child, as a process saw it.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// The version of the end.
    pub version: u64,
    /// The last task that had begun by then: earlier tasks may have read the caches before.
    pub task: u64,
}

/// The requests of one process in flight.
#[derive(Debug, Default)]
pub struct Wire {
    exchanges: BTreeMap<u64, Exchange>,
    last: u64,
    /// The running task, to which its answers belong.
    pub task: u64,
    /// The intents of tasks that make members of a pool, from their beginning.
    pub intents: BTreeMap<u64, Intent>,
    /// The uids of known owners whose child of a kind the watch has shown to be gone, if nothing
    /// was heard of them since: they may be gone, too.
    pub bereft: BTreeMap<(String, Kind), Loss>,
    /// The last objects from the watches, for [`Mutant::OwnerNotAsked`].
    pub delivered: BTreeMap<(Kind, String), Any>,
    lost_nodes: BTreeSet<String>,
    /// The nodes that were lost when a task began, and have been since.
    lost_to: BTreeMap<u64, BTreeSet<String>>,
}

impl Wire {
    /// Tells the process whether a node is lost.
    pub fn observe_node(&mut self, node: &str, is_up: bool) {
        if is_up {
            self.lost_nodes.remove(node);
            self.lost_to.values_mut().for_each(|lost| {
                lost.remove(node);
            });
        } else {
            self.lost_nodes.insert(node.to_owned());
        }
    }

    /// Records the beginning of a task.
    pub fn task_begins(&mut self, task: u64) {
        self.lost_to.insert(task, self.lost_nodes.clone());
    }

    /// Records the end of a task.
    pub fn task_ends(&mut self, task: u64) {
        self.lost_to.remove(&task);
        self.intents.remove(&task);
    }

    /// Returns an owner that may have gone with its child, as the watch has last shown it.
    fn known_bereft(&self, kind: Kind, name: &str) -> Option<Any> {
        let known = self.delivered.get(&(kind, name.to_owned()))?;
        self.bereft.keys().any(|(owner, _)| owner == known.uid()).then(|| known.clone())
    }

    /// Sends a request.
    pub fn send(&mut self, sent: Sent) -> u64 {
        self.last += 1;
        let reads = match &sent.request {
            Request::Read(kind, _) => Some(*kind),
            Request::Act(_) | Request::List(..) => None,
        };
        self.exchanges.insert(self.last, Exchange { task: self.task, reads, state: State::Sent(sent) });
        self.last
    }

    /// Returns the requests that have not arrived yet.
    pub fn sent(&self) -> impl Iterator<Item = u64> {
        let waiting =
            |(id, exchange): (&u64, &Exchange)| matches!(exchange.state, State::Sent(_)).then_some(*id);
        self.exchanges.iter().filter_map(waiting)
    }

    /// Returns the answers that have not returned yet.
    pub fn answered(&self) -> impl Iterator<Item = u64> {
        let waiting =
            |(id, exchange): (&u64, &Exchange)| matches!(exchange.state, State::Answered(_)).then_some(*id);
        self.exchanges.iter().filter_map(waiting)
    }

    /// Returns a request that has not arrived yet.
    #[must_use]
    pub fn request(&self, id: u64) -> Option<&Sent> {
        match &self.exchanges.get(&id)?.state {
            State::Sent(sent) => Some(sent),
            State::Answered(_) | State::Returned(_) => None,
        }
    }

    /// Records the server's answer.
    pub fn answer(&mut self, id: u64, answer: Reply) {
        if let Some(exchange) = self.exchanges.get_mut(&id) {
            exchange.state = State::Answered(answer);
        }
    }

    /// Delivers the answer to the process.
    pub fn return_answer(&mut self, id: u64) -> Option<Returned> {
        let exchange = self.exchanges.get_mut(&id)?;
        let State::Answered(answer) = &exchange.state else { return None };
        let answer = answer.clone();
        exchange.state = State::Returned(answer.clone());
        Some(Returned { task: exchange.task, reads: exchange.reads, reply: answer })
    }

    fn take(&mut self, id: u64) -> Option<Reply> {
        let exchange = self.exchanges.remove(&id)?;
        match exchange.state {
            State::Returned(answer) => Some(answer),
            _ => {
                self.exchanges.insert(id, exchange);
                None
            }
        }
    }
}

/// The server as a process sees it: the other end of a wire.
#[derive(Debug, Default)]
pub struct Link {
    wire: Mutex<Wire>,
    mutant: Mutant,
    /// The number of recorded events: each is a write, too.
    pub notes: AtomicU64,
}

impl Link {
    /// Returns a link with an empty wire. The mistake, if there is one, is applied to requests on
    /// it.
    #[must_use]
    pub fn new(mutant: Mutant) -> Self {
        Self { mutant, ..Self::default() }
    }

    /// Locks the wire.
    pub fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, request: Request) -> Call<'_> {
        let mut wire = self.wire();
        let intent = wire.intents.get(&wire.task).filter(|_| is_creation(&request)).cloned();
        let is_unasked = made_for(&request)
            .and_then(|(kind, owner)| wire.bereft.get(&(owner.uid.clone(), kind)))
            .is_some_and(|loss| wire.task > loss.task);
        let lost_nodes = wire.lost_to.get(&wire.task).cloned().unwrap_or_default();
        let id = wire.send(Sent { request, intent, is_unasked, lost_nodes });
        Call { link: self, id }
    }
}

impl Server for Link {
    fn write<'a>(&'a self, _: &'a str, _: &'static str, action: &'a Action) -> BoxFuture<'a, Answer> {
        let mut action = action.clone();
        match self.mutant {
            Mutant::NoAssignmentGuard => drop_guard(&mut action),
            Mutant::NoDeletionGuard => drop_deletion_guard(&mut action),
            Mutant::NoPodName => drop_pod_name(&mut action),
            Mutant::NoVerdictGuard => drop_verdict_guard(&mut action),
            Mutant::None
            | Mutant::TerminatingNotCounted
            | Mutant::OwnerNotAsked
            | Mutant::NodeLossNotTold
            | Mutant::ClaimNotWoken => {}
        }
        async move {
            let answer = self.call(Request::Act(action)).await.one()?;
            // Applies the mistake of [`Mutant::TerminatingNotCounted`]: objects that are being
            // deleted are not seen.
            let is_seen = |object: &Any| {
                self.mutant != Mutant::TerminatingNotCounted
                    || object.kind() != Kind::Sandbox
                    || !object.is_deleting()
            };
            Ok(answer.filter(is_seen))
        }
        .boxed()
    }

    fn read<'a>(&'a self, _: &'a str, kind: Kind, name: &'a str) -> BoxFuture<'a, Answer> {
        if self.mutant == Mutant::OwnerNotAsked
            && let Some(known) = self.wire().known_bereft(kind, name)
        {
            return futures::future::ready(Ok(Some(known))).boxed();
        }
        async move { self.call(Request::Read(kind, name.to_owned())).await.one() }.boxed()
    }

    fn list<'a>(
        &'a self,
        _: &'a str,
        kind: Kind,
        label: &'static str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Any>, Refusal>> {
        async move { self.call(Request::List(kind, label, value.to_owned())).await.many() }.boxed()
    }

    fn record(&self, _: Event) {
        self.notes.fetch_add(1, Ordering::Relaxed);
    }
}

impl Reply {
    fn one(self) -> Answer {
        match self {
            Reply::One(answer) => answer,
            Reply::Many(answer) => answer.map(|objects| objects.into_iter().next()),
        }
    }

    fn many(self) -> Result<Vec<Any>, Refusal> {
        match self {
            Reply::One(answer) => answer.map(|object| object.into_iter().collect()),
            Reply::Many(answer) => answer,
        }
    }
}

/// A future that waits for an answer.
struct Call<'a> {
    link: &'a Link,
    id: u64,
}

impl Future for Call<'_> {
    type Output = Reply;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Reply> {
        match self.link.wire().take(self.id) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}

fn is_creation(request: &Request) -> bool {
    matches!(request, Request::Act(Action::Create(_)))
}

/// Returns the kind of the child that a request makes, and its owner.
#[must_use]
pub fn made_for(request: &Request) -> Option<(Kind, &OwnerReference)> {
    match request {
        Request::Act(Action::Create(object)) => {
            Some((object.kind(), ownership::controller(object.metadata())?))
        }
        _ => None,
    }
}

/// Returns the claim that adopts a sandbox by a request.
#[must_use]
pub fn taken_by(request: &Request) -> Option<&str> {
    let Request::Act(Action::Merge { kind: Kind::Sandbox, body, .. }) = request else { return None };
    let owner = &body["metadata"]["ownerReferences"][0];
    owner["name"].as_str().filter(|_| owner["kind"] == "SandboxClaim")
}

/// Applies the mistake of [`Mutant::NoAssignmentGuard`].
fn drop_guard(action: &mut Action) {
    if let Action::Merge { kind: Kind::SandboxClaim | Kind::Sandbox, body, .. } = action
        && let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.remove("resourceVersion");
    }
}

/// Applies the mistake of [`Mutant::NoVerdictGuard`].
fn drop_verdict_guard(action: &mut Action) {
    if let Action::MergeStatus { kind: Kind::AgentTask, body, .. } = action
        && let Some(body) = body.as_object_mut()
    {
        body.remove("metadata");
    }
}

/// Applies the mistake of [`Mutant::NoDeletionGuard`].
fn drop_deletion_guard(action: &mut Action) {
    if let Action::Delete { version, .. } = action {
        *version = None;
    }
}

/// Applies the mistake of [`Mutant::NoPodName`].
fn drop_pod_name(action: &mut Action) {
    if let Action::Merge { kind: Kind::Sandbox, body, .. } = action
        && body["metadata"]["ownerReferences"].is_array()
        && let Some(annotations) = body["metadata"]["annotations"].as_object_mut()
    {
        annotations.remove(annotations::POD_NAME);
    }
}
