//! Defines the faults and their rates. Each seed has its own mixture.
//!
//! Events of one kind come in order, as on a real watch. Those of different kinds, and answers,
//! come in any order.

use std::time::Duration;

use warren_controllers::server::Refusal;
use warren_decide::step::{Action, FailureKind};

use super::Simulation;
use crate::object::KINDS;
use crate::random::Random;
use crate::wire::{Request, Sent};

/// The largest error of a wall clock, in milliseconds.
const MOST_SKEW: i64 = 400_000;

/// A fault, or its repair.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A process dies; its sent requests may still arrive.
    Crash,
    /// A process starts: after a crash, or as a second leader.
    Start,
    /// A watch delivers nothing for a while.
    Stall,
    /// A watch breaks, and lists again.
    BreakOff,
    /// A node falls silent.
    LoseNode,
    /// A silent node is back.
    RecoverNode,
    /// A process's wall clock is set.
    SetClock,
}

/// The fate of a request.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    Fine,
    /// The server refuses, for reasons of its own.
    Refused(Refusal),
    RequestLost,
    AnswerLost,
    /// The sender gives up, and then it arrives.
    Late,
}

/// The rate of each fault: the first three in thousandths of requests, the others as weights of the
/// scheduler.
#[derive(Debug)]
pub(super) struct Faults {
    refusals: u64,
    losses: u64,
    late: u64,
    crashes: u64,
    second_leaders: u64,
    stalls: u64,
    breaks: u64,
    node_losses: u64,
    clock_steps: u64,
}

impl Faults {
    pub(super) fn new(some: &mut impl FnMut(u64) -> u64) -> Self {
        Self {
            refusals: some(60),
            losses: some(60),
            late: some(30),
            crashes: some(8),
            second_leaders: some(40),
            stalls: some(8),
            breaks: some(8),
            node_losses: some(8),
            clock_steps: some(8),
        }
    }

    /// Returns true if two processes work at the same time in this run from the beginning.
    pub(super) fn has_second_leader(&self) -> bool {
        self.second_leaders > 0
    }

    pub(super) fn clock_tolerance(&self) -> Duration {
        let skew = if self.clock_steps > 0 { MOST_SKEW } else { 0 };
        Duration::from_millis(skew.unsigned_abs())
    }

    pub(super) fn moves(&self, running: usize, node_lost: bool) -> impl Iterator<Item = (Fault, u64)> {
        let crashes = if running > 0 { self.crashes } else { 0 };
        // Phases with two processes vary in length: the extra one is ended by a crash.
        let (starts, ends) = match running {
            0 => (60, 0),
            1 => (self.second_leaders, 0),
            _ => (0, 1),
        };
        let recoveries = if node_lost { 15 } else { 0 };
        [
            (Fault::Crash, crashes + ends),
            (Fault::Start, starts),
            (Fault::Stall, self.stalls),
            (Fault::BreakOff, self.breaks),
            (Fault::LoseNode, self.node_losses),
            (Fault::RecoverNode, recoveries),
            (Fault::SetClock, self.clock_steps),
        ]
        .into_iter()
    }

    pub(super) fn of_request(&self, sent: &Sent, random: &mut Random) -> Fate {
        if random.chance(self.refusals) {
            return match &sent.request {
                Request::Act(action) => Fate::Refused(refusal(action, random)),
                Request::Read(..) | Request::List(..) => Fate::RequestLost,
            };
        }
        if random.chance(self.losses) {
            return if random.chance(500) { Fate::RequestLost } else { Fate::AnswerLost };
        }
        if random.chance(self.late) {
            return match &sent.request {
                Request::Act(_) => Fate::Late,
                Request::Read(..) | Request::List(..) => Fate::RequestLost,
            };
        }
        Fate::Fine
    }
}

/// Returns a refusal. A server may always refuse: it is overloaded, a quota is full, a generated
/// name was taken, or it lost an internal race to store a patch.
fn refusal(action: &Action, random: &mut Random) -> Refusal {
    if random.chance(300) {
        return Refusal { kind: FailureKind::Unknown, text: "too many requests".to_owned() };
    }
    let forbidden = Refusal { kind: FailureKind::Refused, text: "exceeded quota".to_owned() };
    match action {
        Action::Create(object) if object.metadata().name.is_none() && random.chance(300) => {
            Refusal { kind: FailureKind::AlreadyExists, text: "the generated name is taken".to_owned() }
        }
        Action::Merge { .. } | Action::MergeStatus { .. } if random.chance(500) => {
            Refusal { kind: FailureKind::Conflict, text: "the object has been modified".to_owned() }
        }
        Action::Create(_) | Action::Merge { .. } | Action::MergeStatus { .. } | Action::Delete { .. } => {
            forbidden
        }
    }
}

impl Simulation {
    pub(super) fn inject(&mut self, fault: Fault) {
        let now = self.clock.elapsed();
        let index = usize::try_from(self.random.below(self.running.len() as u64)).unwrap_or_default();
        let kind = self.random.pick(&KINDS).unwrap_or(KINDS[0]);
        let line = match fault {
            Fault::Start => {
                self.start_process();
                format!("process {} starts", self.processes)
            }
            Fault::Crash => {
                let running = self.running.remove(index);
                let number = running.number;
                let wire = running.link.wire();
                let sent = wire.sent().filter_map(|id| wire.request(id).cloned());
                self.strays.extend(sent.map(|sent| (number, sent)));
                format!("process {number} dies")
            }
            Fault::LoseNode => self.nodes.lose_one(&mut self.server, &mut self.random),
            Fault::RecoverNode => {
                let time = self.clock.now(0);
                let line = self.nodes.recover_one(&mut self.server, now, time, &mut self.random);
                line.unwrap_or_else(|| "no node to recover".to_owned())
            }
            Fault::Stall | Fault::BreakOff | Fault::SetClock => {
                let Some(running) = self.running.get_mut(index) else { return };
                let number = running.number;
                match fault {
                    Fault::Stall => {
                        let length = i64::try_from(self.random.within(50..400_000)).unwrap_or_default();
                        running.streams[crate::object::slot(kind)].stalled_until = now + length;
                        format!("process {number}: watch of {kind} stalls for {length} ms")
                    }
                    Fault::BreakOff => {
                        running.break_off(kind);
                        format!("process {number}: watch of {kind} breaks off")
                    }
                    _ => {
                        let span = MOST_SKEW.unsigned_abs();
                        let skew = i64::try_from(self.random.below(2 * span)).unwrap_or_default() - MOST_SKEW;
                        running.clock.set(skew);
                        format!("process {number}: wall clock is wrong by {skew} ms")
                    }
                }
            }
        };
        self.tell_of_nodes();
        self.say(|_| line);
    }
}
