//! How many requests a sandbox has at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts the requests of each sandbox.
#[derive(Debug)]
pub(crate) struct Limits {
    most: usize,
    /// By the pod's UID.
    counts: Arc<Mutex<HashMap<String, usize>>>,
}

/// The permission for one request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    pod_uid: String,
    counts: Arc<Mutex<HashMap<String, usize>>>,
}

fn lock(counts: &Mutex<HashMap<String, usize>>) -> MutexGuard<'_, HashMap<String, usize>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Limits {
    pub(crate) fn new(most: usize) -> Limits {
        Limits { most, counts: Arc::default() }
    }

    /// Admits a request, unless the sandbox has as many as it may have.
    pub(crate) fn admit(&self, pod_uid: &str) -> Option<Permit> {
        let mut counts = lock(&self.counts);
        let count = counts.entry(pod_uid.to_owned()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Permit { pod_uid: pod_uid.to_owned(), counts: Arc::clone(&self.counts) })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&self.pod_uid) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.pod_uid);
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
