//! Answers that are believed for a while.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use tokio::time::Instant;

/// Answers, each until a time, and never more than a number of them.
pub(super) struct Remembered<K, V> {
    most: usize,
    entries: HashMap<K, (V, Instant)>,
}

impl<K: Eq + Hash, V: Clone> Remembered<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, entries: HashMap::new() }
    }

    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q, now: Instant) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).filter(|(_, until)| *until > now).map(|(value, _)| value.clone())
    }

    pub(super) fn keep(&mut self, key: K, value: V, until: Instant) {
        if self.entries.len() >= self.most {
            let now = Instant::now();
            self.entries.retain(|_, (_, until)| *until > now);
        }
        if self.entries.len() >= self.most {
            // A client makes tokens up. The real ones are asked about once more.
            self.entries.clear();
        }
        if self.most > 0 {
            self.entries.insert(key, (value, until));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn answers_end_and_are_never_too_many() {
        let now = Instant::now();
        let end = now + Duration::from_secs(60);
        let mut answers = Remembered::new(8);
        answers.keep("a".to_owned(), true, end);
        assert_eq!(answers.get("a", now), Some(true));
        assert_eq!(answers.get("a", end), None);
        for number in 0..100 {
            answers.keep(number.to_string(), false, end);
            assert!(answers.entries.len() <= 8);
        }
        let mut none = Remembered::new(0);
        none.keep("a".to_owned(), true, end);
        assert_eq!(none.get("a", now), None);
    }
}
