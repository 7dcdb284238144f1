//! The way between a process and the server. A request that is sent waits here until the simulation lets it arrive, and
//! its answer waits until the simulation lets it return; in between anything may happen, also that one of them is lost.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use warren_decide::step::{Action, Kind};

use crate::server::Answer;

/// What a process asks the server.
#[derive(Clone, Debug)]
pub enum Request {
    /// Carry out a step.
    Act(Action),
    /// Read an object past every cache.
    Read(Kind, String),
}

/// What a process knew when it decided to make a member of a pool. The invariants hold the creation against it.
#[derive(Clone, Debug)]
pub struct Intent {
    /// The size that the pool was seen to ask for.
    pub target: usize,
    /// The uids of every sandbox that the process has ever seen.
    pub known: Rc<BTreeSet<String>>,
    /// Whether the answer never reaches the process, in a run with several processes or with clocks that are set.
    pub is_untold: bool,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub struct Sent {
    /// What is asked.
    pub request: Request,
    /// With what in mind, for a new member of a pool.
    pub intent: Option<Intent>,
}

#[derive(Debug)]
enum State {
    Sent(Sent),
    Answered(Answer),
    Returned(Answer),
}

#[derive(Debug)]
struct Exchange {
    task: u64,
    state: State,
}

/// The requests of one process that are under way.
#[derive(Debug, Default)]
pub struct Wire {
    exchanges: BTreeMap<u64, Exchange>,
    last: u64,
    /// The task that runs, so that its answers find it.
    pub task: u64,
}

impl Wire {
    /// Sends a request.
    pub fn send(&mut self, sent: Sent) -> u64 {
        self.last += 1;
        self.exchanges.insert(self.last, Exchange { task: self.task, state: State::Sent(sent) });
        self.last
    }

    /// Requests that have not arrived yet.
    pub fn sent(&self) -> impl Iterator<Item = u64> {
        let waiting =
            |(id, exchange): (&u64, &Exchange)| matches!(exchange.state, State::Sent(_)).then_some(*id);
        self.exchanges.iter().filter_map(waiting)
    }

    /// Answers that have not returned yet.
    pub fn answered(&self) -> impl Iterator<Item = u64> {
        let waiting =
            |(id, exchange): (&u64, &Exchange)| matches!(exchange.state, State::Answered(_)).then_some(*id);
        self.exchanges.iter().filter_map(waiting)
    }

    /// What was sent, if it has not arrived yet.
    #[must_use]
    pub fn request(&self, id: u64) -> Option<&Sent> {
        match &self.exchanges.get(&id)?.state {
            State::Sent(sent) => Some(sent),
            State::Answered(_) | State::Returned(_) => None,
        }
    }

    /// The server has answered.
    pub fn answer(&mut self, id: u64, answer: Answer) {
        if let Some(exchange) = self.exchanges.get_mut(&id) {
            exchange.state = State::Answered(answer);
        }
    }

    /// The answer reaches the process. Gives the task that waits for it.
    pub fn return_answer(&mut self, id: u64) -> Option<u64> {
        let exchange = self.exchanges.get_mut(&id)?;
        if let State::Answered(answer) = &exchange.state {
            exchange.state = State::Returned(answer.clone());
        }
        Some(exchange.task)
    }

    fn take(&mut self, id: u64) -> Option<Answer> {
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

/// Waits for an answer.
pub struct Call<'a> {
    wire: &'a RefCell<Wire>,
    id: u64,
}

impl<'a> Call<'a> {
    /// Sends a request; the call waits for its answer.
    pub fn send(wire: &'a RefCell<Wire>, request: Request, intent: Option<Intent>) -> Self {
        let id = wire.borrow_mut().send(Sent { request, intent });
        Self { wire, id }
    }
}

impl Future for Call<'_> {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Answer> {
        match self.wire.borrow_mut().take(self.id) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}
