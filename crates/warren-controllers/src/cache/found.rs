//! The entries of an index: objects in the order of their keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::queue::ObjectKey;

/// At least one object. Most indices hold exactly one, such as a sandbox's pod, and a map would
/// allocate room for eleven.
#[derive(Debug)]
pub(super) enum Found<K> {
    One(ObjectKey, Arc<K>),
    Several(BTreeMap<ObjectKey, Arc<K>>),
}

impl<K> Found<K> {
    /// Adds an object, or replaces the one with its key.
    pub(super) fn insert(&mut self, key: &ObjectKey, object: Arc<K>) {
        match self {
            Self::One(present, place) if present == key => *place = object,
            Self::One(present, first) => {
                *self =
                    Self::Several(BTreeMap::from([(present.clone(), first.clone()), (key.clone(), object)]));
            }
            Self::Several(objects) => match objects.get_mut(key) {
                Some(place) => *place = object,
                None => {
                    objects.insert(key.clone(), object);
                }
            },
        }
    }

    /// Removes an object. Returns true if it was the last one.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> bool {
        match self {
            Self::One(present, _) => present == key,
            Self::Several(objects) => {
                objects.remove(key);
                objects.is_empty()
            }
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<K>> {
        match self {
            Self::One(_, object) => vec![object.clone()],
            Self::Several(objects) => objects.values().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Found;
    use crate::queue::ObjectKey;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn all(found: &Found<u32>) -> Vec<u32> {
        found.all().iter().map(|object| **object).collect()
    }

    #[test]
    fn objects_come_in_order_and_go() {
        let mut found = Found::One(key("b"), Arc::new(1));
        found.insert(&key("b"), Arc::new(2));
        assert!(matches!(found, Found::One(..)));
        assert_eq!(all(&found), [2], "the newest of a key");
        assert!(!found.remove(&key("a")), "another one is not it");
        found.insert(&key("a"), Arc::new(3));
        found.insert(&key("c"), Arc::new(4));
        assert_eq!(all(&found), [3, 2, 4]);
        found.insert(&key("b"), Arc::new(5));
        assert_eq!(all(&found), [3, 5, 4]);
        assert!(!found.remove(&key("b")) && !found.remove(&key("a")));
        assert!(found.remove(&key("c")));
        assert!(Found::One(key("b"), Arc::new(1)).remove(&key("b")));
    }
}
