//! Limits the number of requests that a sandbox or a client has at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts what each holder has, by its key.
#[derive(Debug)]
pub(crate) struct Limits {
    most: usize,
    counts: Arc<Mutex<HashMap<String, usize>>>,
}

/// The permission for one request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    key: String,
    counts: Arc<Mutex<HashMap<String, usize>>>,
}

fn lock(counts: &Mutex<HashMap<String, usize>>) -> MutexGuard<'_, HashMap<String, usize>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Limits {
    /// Makes a limit; 0 is none.
    pub(crate) fn new(most: usize) -> Limits {
        Limits { most: if most == 0 { usize::MAX } else { most }, counts: Arc::default() }
    }

    /// Admits one more, unless the holder has as many as it may have.
    pub(crate) fn admit(&self, key: &str) -> Option<Permit> {
        let mut counts = lock(&self.counts);
        let count = counts.entry(key.to_owned()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Permit { key: key.to_owned(), counts: Arc::clone(&self.counts) })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_at_its_limit_does_not_hold_up_another() {
        let limits = Limits::new(2);
        let held = [limits.admit("a"), limits.admit("a")];
        assert!(held.iter().all(Option::is_some));
        assert!(limits.admit("a").is_none());
        assert!(limits.admit("b").is_some());
        drop(held);
        assert!(limits.admit("a").is_some());
        assert!(lock(&limits.counts).is_empty());
    }
}
