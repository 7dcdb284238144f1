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
    /// What is here only because of an answer: the watch has not brought it, or not this version of it.
    unconfirmed: BTreeSet<String>,
    /// The versions of objects that the server said are gone before the watch did: older states of them are not news.
    forgotten: BTreeMap<String, u64>,
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
        if object.version() <= self.horizon {
            return None;
        }
        let name = object.name().to_owned();
        let seen = self.put(object)?;
        self.unconfirmed.insert(name);
        Some(seen)
    }

    /// Takes out an object that the server has just said does not exist.
    pub fn forget(&mut self, name: &str) -> Option<Seen> {
        self.unconfirmed.remove(name);
        let before = self.objects.remove(name)?;
        self.forgotten.insert(name.to_owned(), before.version());
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

    /// A list is complete: what it did not bring is gone. Also gives what it did not bring and only an answer has.
    pub fn end_list(&mut self) -> (Vec<Seen>, Vec<String>) {
        let listing = std::mem::take(&mut self.listing);
        // What an answer has put in may be newer than the list, or gone before it: only the server can tell.
        let is_gone = |name: &&String| !listing.contains(*name) && !self.unconfirmed.contains(*name);
        let gone: Vec<String> = self.objects.keys().filter(is_gone).cloned().collect();
        self.listed = true;
        let seen = gone.iter().filter_map(|name| self.forget(name)).collect();
        (seen, self.unconfirmed.difference(&listing).cloned().collect())
    }

    /// The watch brings an object.
    pub fn apply(&mut self, object: Any) -> Option<Seen> {
        self.horizon = self.horizon.max(object.version());
        if self.forgotten.get(object.name()).is_some_and(|version| *version >= object.version()) {
            return None;
        }
        self.forgotten.remove(object.name());
        if self.objects.get(object.name()).is_none_or(|here| here.version() <= object.version()) {
            self.unconfirmed.remove(object.name());
        }
        self.put(object)
    }

    /// The watch brings the end of an object.
    pub fn end(&mut self, last: &Any) -> Option<Seen> {
        self.horizon = self.horizon.max(last.version());
        // An answer may already have put in the next object of that name.
        let is_next = self.objects.get(last.name()).is_some_and(|here| here.version() > last.version());
        let seen = if is_next { None } else { self.forget(last.name()) };
        self.forgotten.remove(last.name());
        seen
    }

    /// Whether an object is here only because of an answer.
    #[must_use]
    pub fn is_unconfirmed(&self, name: &str) -> bool {
        self.unconfirmed.contains(name)
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
