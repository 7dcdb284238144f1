//! What was last seen of every object of a kind. Answers to our own writes go in at once; lists and watches bring the rest.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::Any;

/// The objects of one kind.
#[derive(Debug, Default)]
pub struct Cache {
    /// By name.
    pub objects: BTreeMap<String, Any>,
    /// The newest resourceVersion that the watch has brought.
    horizon: u64,
    /// What a list under way has brought so far.
    listing: BTreeSet<String>,
    /// Whether the first list is complete.
    pub listed: bool,
}

/// A change of one object, to be told to whoever listens.
#[derive(Debug)]
pub struct Seen {
    /// What it was.
    pub before: Option<Any>,
    /// What it is.
    pub after: Option<Any>,
}

impl Cache {
    /// Takes in the answer to a write or a read of our own.
    pub fn remember(&mut self, object: Any) -> Option<Seen> {
        if object.version() > self.horizon { self.put(object) } else { None }
    }

    /// Takes out an object that the server has just said does not exist.
    pub fn forget(&mut self, name: &str) -> Option<Seen> {
        let before = self.objects.remove(name)?;
        Some(Seen { before: Some(before), after: None })
    }

    /// A list begins.
    pub fn begin_list(&mut self) {
        self.listing.clear();
    }

    /// A list brings an object.
    pub fn list(&mut self, object: Any) -> Option<Seen> {
        self.listing.insert(object.name().to_owned());
        self.apply(object)
    }

    /// A list is complete: what it did not bring is gone.
    pub fn end_list(&mut self) -> Vec<Seen> {
        let listing = std::mem::take(&mut self.listing);
        let gone: Vec<String> =
            self.objects.keys().filter(|name| !listing.contains(*name)).cloned().collect();
        self.listed = true;
        gone.iter().filter_map(|name| self.forget(name)).collect()
    }

    /// The watch brings an object.
    pub fn apply(&mut self, object: Any) -> Option<Seen> {
        self.horizon = self.horizon.max(object.version());
        self.put(object)
    }

    /// The watch brings the end of an object.
    pub fn end(&mut self, last: &Any) -> Option<Seen> {
        self.horizon = self.horizon.max(last.version());
        self.forget(last.name())
    }

    fn put(&mut self, object: Any) -> Option<Seen> {
        let before = self.objects.get(object.name());
        if before.is_some_and(|before| before.version() >= object.version()) {
            return None;
        }
        let before = self.objects.insert(object.name().to_owned(), object.clone());
        Some(Seen { before, after: Some(object) })
    }
}
