//! Tracks the objects of a kind that cannot be parsed: each new problem is reported once this
//! process leads.

use std::borrow::Cow;
use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::error_boundary::InvalidObject;

use crate::cache::named;
use crate::queue::ObjectKey;

/// The present ones, as last seen.
pub(super) struct Unread {
    kind: Cow<'static, str>,
    entries: HashMap<ObjectKey, Entry>,
}

struct Entry {
    object: InvalidObject,
    is_told: bool,
    /// True if the list that is being read contains it.
    is_listed: bool,
}

impl Unread {
    pub(super) fn new(kind: Cow<'static, str>) -> Self {
        Self { kind, entries: HashMap::new() }
    }

    /// Records one, and reports it unless the reason is the same as before. `tell` returns true if
    /// it was reported; a process that does not lead is asked again later.
    pub(super) fn note(&mut self, mut object: InvalidObject, tell: impl Fn(&InvalidObject) -> bool) {
        object.metadata.managed_fields = None;
        let key = named(&object.metadata);
        let known = self.entries.get_mut(&key).filter(|known| {
            known.object.error == object.error && known.object.metadata.uid == object.metadata.uid
        });
        if let Some(known) = known {
            known.is_listed = true;
            return;
        }
        tracing::warn!(kind = %self.kind, %key, error = object.error, "object cannot be read and is left alone");
        let is_told = tell(&object);
        self.entries.insert(key, Entry { object, is_told, is_listed: true });
    }

    /// Reports all that have not been reported.
    pub(super) fn tell(&mut self, tell: impl Fn(&InvalidObject) -> bool) {
        for entry in self.entries.values_mut().filter(|entry| !entry.is_told) {
            entry.is_told = tell(&entry.object);
        }
    }

    /// Forgets one that can be parsed again, or is gone.
    pub(super) fn forget(&mut self, object: &ObjectMeta) {
        if !self.entries.is_empty() {
            self.entries.remove(&named(object));
        }
    }

    pub(super) fn begin_list(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.is_listed = false);
    }

    /// Forgets all that the list does not contain.
    pub(super) fn end_list(&mut self) {
        self.entries.retain(|_, entry| entry.is_listed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn object(name: &str, error: &str) -> InvalidObject {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        InvalidObject { error: error.to_owned(), metadata }
    }

    #[test]
    fn each_is_told_of_when_it_is_news_and_somebody_leads() {
        let (mut unread, told) = (Unread::new("Sandbox".into()), RefCell::new(Vec::new()));
        let tell = |object: &InvalidObject| {
            told.borrow_mut().push(object.error.clone());
            true
        };
        unread.note(object("a", "waits for a leader"), |_| false);
        unread.note(object("b", "told"), tell);
        unread.tell(tell);
        unread.tell(tell);
        assert_eq!(told.take(), ["told", "waits for a leader"]);

        unread.begin_list();
        unread.note(object("a", "waits for a leader"), tell);
        unread.end_list();
        assert!(told.take().is_empty(), "it is listed again, and the same");
        unread.note(object("b", "told"), tell);
        assert_eq!(told.take(), ["told"], "it was gone, and is there again");
        unread.note(object("b", "for another reason"), tell);
        unread.forget(&object("b", "").metadata);
        unread.note(object("b", "for another reason"), tell);
        assert_eq!(told.take(), ["for another reason"; 2], "it could be read in between");
    }
}
