//! What a pool remembers between passes.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::Settings;

/// After this long an expectation is given up: an event that has not come by then never will.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// How long a creation is waited for that may not have happened: much longer than a watch is behind, as a rule.
const DOUBT: Duration = Duration::from_secs(30);

/// Writes of the pool's own that the cache has not shown yet. While there are any, the pool neither creates nor removes
/// for its size: it would count wrongly.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expectations {
    creations: u32,
    deletions: BTreeSet<String>,
    raised_at: Option<Timestamp>,
}

impl Expectations {
    /// Whether everything the pool did has been seen, or has been waited for long enough.
    #[must_use]
    pub fn are_met(&self, now: Timestamp) -> bool {
        let waiting = self.creations > 0 || !self.deletions.is_empty();
        let expired = self.raised_at.is_none_or(|since| elapsed(since, now) >= PATIENCE);
        !waiting || expired
    }

    /// Whether this deletion was asked for and not seen yet.
    #[must_use]
    pub fn is_deleting(&self, uid: &str, now: Timestamp) -> bool {
        self.deletions.contains(uid) && self.raised_at.is_some_and(|since| elapsed(since, now) < PATIENCE)
    }

    /// That many creations are about to be asked for.
    pub fn expect_creations(&mut self, count: u32, now: Timestamp) {
        self.forget_expired(now);
        if count > 0 {
            self.creations = self.creations.saturating_add(count);
            self.raised_at = Some(now);
        }
    }

    /// This deletion is about to be asked for.
    pub fn expect_deletion(&mut self, uid: &str, now: Timestamp) {
        self.forget_expired(now);
        if !uid.is_empty() {
            self.deletions.insert(uid.to_owned());
            self.raised_at = Some(now);
        }
    }

    /// Nobody knows whether a creation happened. If it did, the watch tells; if not, waiting for it ends soon.
    pub fn creation_in_doubt(&mut self, now: Timestamp) {
        let soon = now.checked_sub(PATIENCE - DOUBT).unwrap_or(now);
        self.raised_at = Some(self.raised_at.map_or(soon, |since| since.min(soon)));
    }

    /// A creation was seen, or did not happen.
    pub fn creation_settled(&mut self) {
        self.creations = self.creations.saturating_sub(1);
    }

    /// A deletion was seen, or did not happen.
    pub fn deletion_settled(&mut self, uid: &str) {
        self.deletions.remove(uid);
    }

    fn forget_expired(&mut self, now: Timestamp) {
        if self.raised_at.is_some_and(|since| elapsed(since, now) >= PATIENCE) {
            *self = Self::default();
        }
    }
}

/// Everything a pool remembers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Its own writes that have not been seen yet.
    pub expectations: Expectations,
    /// No refilling before this time.
    hold_until: Option<Timestamp>,
    /// How many members there should be, after the last pass and what it created; nothing before the first pass.
    last_count: Option<usize>,
    /// The tokens left for creating, and when that was.
    tokens: Option<(f64, Timestamp)>,
    /// Whether the pool was reported as stuck.
    pub(super) not_progressing: bool,
}

impl Memory {
    /// Takes note of the members that are there, and says how long to wait before refilling.
    ///
    /// Fewer members than last time mean that claims are taking them: then refilling waits, so that it does not compete
    /// with more claims. The first look after a start never waits.
    pub(super) fn hold(
        &mut self,
        active: usize,
        desired: usize,
        settings: &Settings,
        now: Timestamp,
    ) -> Option<Duration> {
        if settings.replenish_delay.is_zero() || active >= desired {
            self.hold_until = None;
        } else if self.last_count.is_some_and(|last| active < last) {
            self.hold_until = now.checked_add(settings.replenish_delay).ok();
        }
        self.last_count = Some(active);
        let until = self.hold_until?;
        Duration::try_from(until.duration_since(now)).ok().filter(|remaining| !remaining.is_zero())
    }

    /// Takes tokens for up to `wanted` creations; or says when the next one can be had.
    pub(super) fn take_tokens(
        &mut self,
        wanted: usize,
        settings: &Settings,
        now: Timestamp,
    ) -> Result<usize, Duration> {
        let rate = settings.max_refill_rate;
        if rate <= 0.0 {
            return Ok(wanted);
        }
        let capacity = rate.max(1.0);
        let available = match self.tokens {
            None => capacity,
            Some((tokens, since)) => (tokens + elapsed(since, now).as_secs_f64() * rate).min(capacity),
        };
        let granted = (available.floor() as usize).min(wanted);
        self.tokens = Some((available - granted as f64, now));
        if granted == 0 {
            return Err(Duration::from_secs_f64((1.0 - available) / rate));
        }
        Ok(granted)
    }

    /// That many members were just asked for.
    pub(super) fn created(&mut self, count: usize) {
        self.last_count = self.last_count.map(|last| last + count);
    }
}

pub(super) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}
