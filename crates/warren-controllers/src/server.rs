//! The controllers' interface to an API server. There are two implementations: a Kubernetes API,
//! and the simulation's.

use futures::future::BoxFuture;
use k8s_openapi::api::events::v1::Event;
use warren_decide::step::{Action, FailureKind, Kind};

use crate::object::Any;

/// The error of a request that was refused, or whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// The kind of failure, for decisions.
    pub kind: FailureKind,
    /// The text for a condition.
    pub text: String,
}

/// The present object, or `None` if it does not exist.
pub type Answer = Result<Option<Any>, Refusal>;

/// An API server.
pub trait Server: Send + Sync {
    /// Carries out one write. A dropped future may still have written.
    fn write<'a>(
        &'a self,
        namespace: &'a str,
        manager: &'static str,
        action: &'a Action,
    ) -> BoxFuture<'a, Answer>;

    /// Reads one object, bypassing every cache.
    fn read<'a>(&'a self, namespace: &'a str, kind: Kind, name: &'a str) -> BoxFuture<'a, Answer>;

    /// Lists the objects of a kind that have a label with this value, bypassing every cache.
    fn list<'a>(
        &'a self,
        namespace: &'a str,
        kind: Kind,
        label: &'static str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Any>, Refusal>>;

    /// Records an event in the background: returns at once, and a lost event blocks nothing.
    fn record(&self, event: Event);
}
