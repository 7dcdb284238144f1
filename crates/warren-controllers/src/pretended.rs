//! A fake server for tests, with scripted answers and a log of its requests.

use std::sync::Mutex;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use k8s_openapi::api::events::v1::Event;
use serde_json::{Value, json};
use warren_decide::step::{Action, Kind};

use crate::object::{Any, Typed};
use crate::server::{Answer, Refusal, Server};

pub(crate) struct Pretended {
    reads: Mutex<Vec<(Kind, Answer)>>,
    writes: Mutex<Vec<Answer>>,
    asked: Mutex<Vec<String>>,
}

impl Pretended {
    /// Creates a server with these answers to reads (the last one of a kind repeats) and to the
    /// first writes. Further writes succeed.
    pub(crate) fn new<const R: usize, const W: usize>(
        reads: [(Kind, Answer); R],
        writes: [Answer; W],
    ) -> Self {
        Self { reads: Mutex::new(reads.into()), writes: Mutex::new(writes.into()), asked: Mutex::default() }
    }

    /// Returns the requests in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn note(&self, line: String) {
        self.asked.lock().unwrap().push(line);
    }
}

impl Server for Pretended {
    fn write<'a>(&'a self, _: &'a str, _: &'static str, action: &'a Action) -> BoxFuture<'a, Answer> {
        self.note(match action {
            // The rest of the status is tested with the decisions.
            Action::MergeStatus { kind, body, .. } => match body["status"].get("sandbox") {
                Some(Value::Null) => format!("say that {kind} has lost its sandbox"),
                _ => format!("say how {kind} is"),
            },
            Action::Merge { kind, .. } => format!("patch {kind}"),
            _ => action.to_string(),
        });
        let mut writes = self.writes.lock().unwrap();
        let answer = if writes.is_empty() { Ok(None) } else { writes.remove(0) };
        ready(answer).boxed()
    }

    fn read<'a>(&'a self, _: &'a str, kind: Kind, name: &'a str) -> BoxFuture<'a, Answer> {
        self.note(format!("read {kind} {name}"));
        let mut reads = self.reads.lock().unwrap();
        let of_kind: Vec<usize> = (0..reads.len()).filter(|index| reads[*index].0 == kind).collect();
        let answer = match of_kind[..] {
            [] => Ok(None),
            [last] => reads[last].1.clone(),
            [next, ..] => reads.remove(next).1,
        };
        ready(answer).boxed()
    }

    fn list<'a>(
        &'a self,
        _: &'a str,
        _: Kind,
        _: &'static str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Any>, Refusal>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn record(&self, _: Event) {}
}

/// Builds an object with a name and a version.
pub(crate) fn object<K: Typed>(name: &str, version: u64, mut value: Value) -> Any {
    value["metadata"]["name"] = json!(name);
    value["metadata"]["namespace"] = json!("default");
    value["metadata"]["uid"] = json!(format!("uid of {} {name}", K::KIND));
    value["metadata"]["resourceVersion"] = json!(version.to_string());
    serde_json::from_value::<K>(value).unwrap().keep()
}
