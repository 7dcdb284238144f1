//! Label and field selectors in the syntax of list and watch requests.

use thiserror::Error;

use crate::Object;

mod field;
mod label;

pub use field::FieldSelector;
pub use label::{LabelSelector, Requirement};

/// A selector that cannot be parsed. The message is for the client that sent it.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct SelectorError(pub(crate) String);

/// The conditions of a list or watch within one resource.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only objects of this namespace.
    pub namespace: Option<String>,
    /// Only the object of this name.
    pub name: Option<String>,
    /// Only objects whose labels match.
    pub labels: LabelSelector,
    /// Only objects whose fields match.
    pub fields: FieldSelector,
}

impl Filter {
    /// Returns true if the selectors (not namespace and name) match everything.
    pub fn selects_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns true if the object matches.
    pub fn matches(&self, object: &Object) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| namespace == &*object.key.namespace)
            && self.name.as_deref().is_none_or(|name| name == &*object.key.name)
            && self.labels.matches(|label| object.meta.label(label))
            && self.fields.matches(object)
    }
}
