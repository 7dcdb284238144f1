//! Remembers how full pools were, so that a page can show it over time. It is kept in memory and
//! begins anew with the service.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use warren_api::SandboxWarmPool;

/// The length of the history that is kept.
const SPAN: SignedDuration = SignedDuration::from_hours(1);

/// The most changes of a pool that are remembered. A pool under load changes several times a
/// second; its plot has fewer pixels than this.
const MOST_CHANGES: usize = 500;

/// The limit on pools with a history. Without it the number would grow while no client asks.
const MOST_POOLS: usize = 1000;

/// The fill of a pool since a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fill {
    at: Timestamp,
    ready: i32,
    replicas: i32,
}

/// The fills of pools by their UIDs, oldest first. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Fills(Arc<Mutex<HashMap<String, VecDeque<Fill>>>>);

impl Fills {
    fn all(&self) -> MutexGuard<'_, HashMap<String, VecDeque<Fill>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a pool as it is now, if it differs from before.
    pub fn note(&self, pool: &SandboxWarmPool, now: Timestamp) {
        let Some(uid) = &pool.metadata.uid else { return };
        let ready = pool.status.as_ref().map_or(0, |status| status.ready_replicas);
        let fill = Fill { at: now, ready, replicas: pool.spec.replicas };
        let mut all = self.all();
        if all.len() >= MOST_POOLS && !all.contains_key(uid) {
            return;
        }
        let fills = all.entry(uid.clone()).or_default();
        if fills.back().is_some_and(|last| (last.ready, last.replicas) == (fill.ready, fill.replicas)) {
            return;
        }
        fills.push_back(fill);
        // A fill holds until the next one, so the last one before the span stays.
        while fills.get(1).is_some_and(|second| now.duration_since(second.at) > SPAN)
            || fills.len() > MOST_CHANGES
        {
            fills.pop_front();
        }
    }

    /// Forgets pools other than these.
    pub fn keep(&self, uids: &HashSet<String>) {
        self.all().retain(|uid, _| uids.contains(uid));
    }

    /// Returns the fills of a pool.
    pub fn of(&self, uid: &str) -> Vec<Fill> {
        self.all().get(uid).into_iter().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(uid: &str, ready: i32) -> SandboxWarmPool {
        let pool = json!({ "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
            "metadata": { "name": "p", "uid": uid },
            "spec": { "replicas": 4, "sandboxTemplateRef": { "name": "t" } },
            "status": { "readyReplicas": ready } });
        serde_json::from_value(pool).expect("a pool")
    }

    #[test]
    fn changes_of_the_last_hour_are_kept_and_the_one_that_held_at_its_beginning() {
        let fills = Fills::default();
        let at = |minutes: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes);
        for (minutes, ready) in [(0, 0), (1, 1), (2, 1), (50, 2), (70, 3)] {
            fills.note(&pool("a", ready), at(minutes));
        }
        let ready: Vec<i32> = fills.of("a").iter().map(|fill| fill.ready).collect();
        assert_eq!(ready, [1, 2, 3], "the first was over before the hour, the second lasted into it");
        for change in 0..2000 {
            fills.note(&pool("a", change % 5), at(71));
        }
        assert!(fills.of("a").len() <= MOST_CHANGES);
        fills.note(&pool("b", 1), at(72));
        fills.keep(&HashSet::from(["b".to_owned()]));
        assert!(fills.of("a").is_empty() && fills.of("b").len() == 1);
    }
}
