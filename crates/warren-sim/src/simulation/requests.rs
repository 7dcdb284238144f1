//! Delivers requests, at once or late or never, and carries them out on the server.

use warren_controllers::server::{Answer, Refusal};
use warren_decide::step::{Action, FailureKind};

use super::Simulation;
use super::faults::Fate;
use crate::invariants;
use crate::object::{Any, to_value};
use crate::server::{Caller, Part, Preconditions};
use crate::wire::{Reply, Request, Sent};

impl Simulation {
    /// Delivers a request to the server, or loses it or its answer.
    pub(super) fn arrive(&mut self, index: usize, id: u64) -> Result<(), String> {
        let (number, link) = (self.running[index].number, self.running[index].link.clone());
        let Some(mut sent) = link.wire().request(id).cloned() else { return Ok(()) };
        let is_list = matches!(sent.request, Request::List(..));
        let refused = |refusal| match is_list {
            true => Reply::Many(Err(refusal)),
            false => Reply::One(Err(refusal)),
        };
        let lost = |text: &str| refused(Refusal { kind: FailureKind::Unknown, text: text.to_owned() });
        invariants::check_made_again(&self.server, Caller::Process(number), &sent)?;
        self.ledger.check_node(&self.server, Caller::Process(number), &sent)?;
        let fate = if self.storm { self.faults.of_request(&sent, &mut self.random) } else { Fate::Fine };
        if let Some(intent) = &mut sent.intent {
            intent.is_untold = self.processes > 1 && !matches!(fate, Fate::Fine);
        }
        let answer = match fate {
            Fate::Fine => self.execute(number, &sent),
            Fate::Refused(refusal) => refused(refusal),
            Fate::RequestLost => lost("connection reset"),
            Fate::AnswerLost => {
                let _ = self.execute(number, &sent);
                lost("connection reset by peer")
            }
            Fate::Late => {
                self.strays.push((number, sent.clone()));
                lost("timed out")
            }
        };
        self.say(|_| format!("process {number}: {id} {} → {}", describe(&sent.request), outcome(&answer)));
        if let Reply::One(Ok(Some(Any::Sandbox(sandbox)))) = &answer {
            self.ledger.answer(Caller::Process(number), &sent.request, sandbox);
        }
        link.wire().answer(id, answer);
        self.judge(sent.intent.as_ref())
    }

    /// Delivers a request that its sender no longer waits for, or drops it.
    pub(super) fn arrive_late(&mut self, index: usize) -> Result<(), String> {
        let (number, sent) = self.strays.remove(index);
        if self.random.chance(400) {
            self.say(|_| format!("process {number}, late: {} is lost", describe(&sent.request)));
            return Ok(());
        }
        invariants::check_made_again(&self.server, Caller::Process(number), &sent)?;
        self.ledger.check_node(&self.server, Caller::Process(number), &sent)?;
        let answer = self.execute(number, &sent);
        self.say(|_| format!("process {number}, late: {} → {}", describe(&sent.request), outcome(&answer)));
        self.judge(sent.intent.as_ref())
    }

    fn execute(&mut self, number: usize, sent: &Sent) -> Reply {
        if let Request::List(kind, label, value) = &sent.request {
            return Reply::Many(Ok(self.server.labelled(*kind, label, value).cloned().collect()));
        }
        Reply::One(self.execute_one(number, sent))
    }

    fn execute_one(&mut self, number: usize, sent: &Sent) -> Answer {
        let (by, now) = (Caller::Process(number), self.clock.now(0));
        match &sent.request {
            Request::List(kind, label, value) => {
                Ok(self.server.labelled(*kind, label, value).next().cloned())
            }
            Request::Read(kind, name) => Ok(self.server.get(*kind, name).cloned()),
            Request::Act(Action::Create(object)) => {
                let value = to_value(object)
                    .map_err(|error| Refusal { kind: FailureKind::Refused, text: error.to_string() })?;
                self.server.create(by, object.kind(), value, self.random.number(), now)
            }
            Request::Act(Action::Merge { kind, name, body }) => {
                let answer = self.server.merge(by, *kind, name, body, Part::All);
                if let (Ok(Some(Any::SandboxClaim(claim))), true) =
                    (&answer, body["metadata"]["resourceVersion"].is_string())
                {
                    self.ledger.make_sure(by, claim, now);
                }
                answer
            }
            Request::Act(Action::MergeStatus { kind, name, body }) => {
                self.server.merge(by, *kind, name, body, Part::Status)
            }
            Request::Act(Action::Delete { kind, name, uid, version, propagation }) => {
                let preconditions = Preconditions { uid: Some(uid), resource_version: version.as_deref() };
                self.server.delete(by, *kind, name, preconditions, *propagation, now)
            }
        }
    }
}

fn describe(request: &Request) -> String {
    match request {
        Request::Act(action) => action.to_string(),
        Request::Read(kind, name) => format!("read {kind} {name}"),
        Request::List(kind, label, value) => format!("list {kind} {label}={value}"),
    }
}

fn outcome(reply: &Reply) -> String {
    match reply {
        Reply::One(Ok(Some(object))) => {
            format!("{} {} at {}", object.name(), object.uid(), object.version())
        }
        Reply::One(Ok(None)) => "gone".to_owned(),
        Reply::Many(Ok(objects)) => format!("{} objects", objects.len()),
        Reply::One(Err(refusal)) | Reply::Many(Err(refusal)) => {
            format!("{:?}: {}", refusal.kind, refusal.text)
        }
    }
}
