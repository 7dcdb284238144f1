//! What the controllers ask of an API server. There are two: a Kubernetes API, and the one of the simulation.

use futures::future::BoxFuture;
use k8s_openapi::api::events::v1::Event;
use warren_decide::step::{Action, FailureKind, Kind};

use crate::object::Any;

/// Why the server did not do what was asked, or why nobody knows whether it did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// As far as decisions care.
    pub kind: FailureKind,
    /// The text for a condition.
    pub text: String,
}

/// The object as it is now, or nothing when there is none.
pub type Answer = Result<Option<Any>, Refusal>;

/// An API server.
pub trait Server: Send + Sync {
    /// Carries out one write. Dropping the future does not mean that it was not written.
    fn write<'a>(
        &'a self,
        namespace: &'a str,
        manager: &'static str,
        action: &'a Action,
    ) -> BoxFuture<'a, Answer>;

    /// Reads one object, past every cache.
    fn read<'a>(&'a self, namespace: &'a str, kind: Kind, name: &'a str) -> BoxFuture<'a, Answer>;

    /// Lists the objects of a kind that carry a label with this value, past every cache.
    fn list<'a>(
        &'a self,
        namespace: &'a str,
        kind: Kind,
        label: &'static str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Any>, Refusal>>;

    /// Records an event, beside the work: returns at once, and a lost event holds nothing up.
    fn record(&self, event: Event);
}
