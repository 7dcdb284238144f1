//! The keys that an index holds, in order.

use std::collections::BTreeSet;

use crate::queue::ObjectKey;

/// At least one key. Most indices hold one, as a sandbox has one pod, and a set takes the room of eleven for it.
#[derive(Debug)]
pub(super) enum Keys {
    One(ObjectKey),
    Several(BTreeSet<ObjectKey>),
}

impl Keys {
    pub(super) fn insert(&mut self, key: ObjectKey) {
        match self {
            Self::One(present) if *present == key => {}
            Self::One(present) => *self = Self::Several(BTreeSet::from([present.clone(), key])),
            Self::Several(keys) => {
                keys.insert(key);
            }
        }
    }

    /// Takes a key out, and says whether that was all.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> bool {
        match self {
            Self::One(present) => present == key,
            Self::Several(keys) => {
                keys.remove(key);
                keys.is_empty()
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ObjectKey> {
        let (one, several) = match self {
            Self::One(key) => (Some(key), None),
            Self::Several(keys) => (None, Some(keys)),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::Keys;
    use crate::queue::ObjectKey;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "default".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn keys_come_in_order_and_go() {
        let mut keys = Keys::One(key("b"));
        keys.insert(key("b"));
        assert!(matches!(keys, Keys::One(_)));
        assert!(!keys.remove(&key("a")), "another one is not it");
        keys.insert(key("a"));
        keys.insert(key("c"));
        assert_eq!(keys.iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(!keys.remove(&key("b")) && !keys.remove(&key("a")));
        assert!(keys.remove(&key("c")));
        assert!(Keys::One(key("b")).remove(&key("b")));
    }
}
