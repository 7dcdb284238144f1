//! A pool's memory between reconciles. Its times are uptimes: with times of day, setting the clock
//! would end every wait.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use warren_api::SandboxTemplate;
use warren_api::conditions::{EventAction, EventReason};

use super::Settings;
use crate::bounded::{LONGEST_NOTE, bounded};
use crate::step::{Note, Severity};

/// The time after which a missing event is no longer awaited, and the members are counted at the
/// server.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// Tolerance for rounding when tokens are counted.
const ROUNDING: f64 = 1e-6;
/// The shortest wake-up delay: a delay of zero would mean never.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The shortest time that a pool rests after a claim has adopted a member: claims come first.
const SHORTEST_GATHER: Duration = Duration::from_millis(100);
/// The longest such rest, so that the pool's status does not fall further behind.
const LONGEST_GATHER: Duration = Duration::from_secs(1);

/// The shortest time between two statuses of a pool: hundreds of members can come and go per
/// second, and people read it.
const BETWEEN_STATUSES: Duration = Duration::from_millis(250);

/// The time for which a creation without a clear answer is awaited: usually much longer than a
/// watch is behind.
const DOUBT: Duration = Duration::from_secs(30);

/// The pool's own writes that the cache has not shown yet. While there are any, the pool neither
/// creates nor removes members for its size: it would count wrongly.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expectations {
    creations: u32,
    deletions: BTreeSet<String>,
    /// The time when the wait ends.
    give_up_at: Option<Duration>,
}

impl Expectations {
    /// Returns true if all of the pool's writes have been seen.
    #[must_use]
    pub fn are_met(&self) -> bool {
        self.creations == 0 && self.deletions.is_empty()
    }

    /// Returns true if a write was awaited for too long. Only the server knows its outcome. A pool
    /// that trusted a stalled watch would be filled once more after each wait.
    #[must_use]
    pub fn are_overdue(&self, uptime: Duration) -> bool {
        !self.are_met() && self.give_up_at.is_none_or(|end| uptime >= end)
    }

    /// Returns true if this deletion was requested and has not been seen yet.
    #[must_use]
    pub fn is_deleting(&self, uid: &str) -> bool {
        self.deletions.contains(uid)
    }

    /// Records that this many creations are about to be requested.
    pub fn expect_creations(&mut self, count: u32, uptime: Duration) {
        if count > 0 {
            self.be_patient(uptime);
            self.creations = self.creations.saturating_add(count);
        }
    }

    /// Records that this deletion is about to be requested.
    pub fn expect_deletion(&mut self, uid: &str, uptime: Duration) {
        if !uid.is_empty() {
            self.be_patient(uptime);
            self.deletions.insert(uid.to_owned());
        }
    }

    /// Ends all waits: the members were counted at the server.
    pub fn recounted(&mut self) {
        *self = Self::default();
    }

    /// Records that the outcome of a creation is unknown. If it happened, the watch will show it;
    /// otherwise the wait for it ends soon.
    pub fn creation_in_doubt(&mut self, uptime: Duration) {
        let soon = uptime + DOUBT;
        self.give_up_at = Some(self.give_up_at.map_or(soon, |end| end.min(soon)));
    }

    /// Records that a creation was seen, or did not happen.
    pub fn creation_settled(&mut self) {
        self.creations = self.creations.saturating_sub(1);
    }

    /// Records that a deletion was seen, or did not happen. Returns true if it was awaited.
    pub fn deletion_settled(&mut self, uid: &str) -> bool {
        self.deletions.remove(uid)
    }

    /// Starts the wait with the first awaited write.
    fn be_patient(&mut self, uptime: Duration) {
        if self.are_met() {
            self.give_up_at = Some(uptime + PATIENCE);
        }
    }
}

/// A pool's memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// The pool's own writes that have not been seen yet.
    pub expectations: Expectations,
    /// The time before which the pool is not refilled.
    hold_until: Option<Duration>,
    /// The expected number of members after the last reconcile, including its creations; `None`
    /// before the first.
    last_count: Option<usize>,
    /// The number of members that are left of those at the last reconcile.
    left: usize,
    /// The time of the last published status.
    last_status: Option<Duration>,
    /// The tokens for creations, and the time when they were counted.
    tokens: Option<(f64, Duration)>,
    /// True if the pool was reported as stuck.
    pub(super) not_progressing: bool,
    /// The time when a member of the present template last became ready, including claimed ones.
    pub(super) last_progress: Option<Timestamp>,
    /// The reported problem of the pool's annotations.
    pub(super) nonsense: Option<String>,
    /// The reason why the last creations failed.
    pub(super) refusal: Option<String>,
    /// The template whose members the server has refused as invalid, by uid and generation.
    pub(super) invalid: Option<(Option<String>, Option<i64>)>,
}

/// The pace of refilling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// The most members that may be starting at a time; `None`: no limit.
    pub(super) most: Option<usize>,
    /// The time for which this pace holds; zero: until the next event.
    pub(super) rest: Duration,
}

impl Memory {
    /// Records members that could not be created, or that all could. Returns the event of a new
    /// reason.
    pub fn creations_tried(&mut self, refusal: Option<&str>) -> Option<Note> {
        let text = refusal.map(|text| bounded(text, LONGEST_NOTE).into_owned());
        let known = std::mem::replace(&mut self.refusal, text.clone());
        Some(Note {
            severity: Severity::Warning,
            reason: EventReason::FailedCreate.as_str(),
            action: EventAction::Reconciling.as_str(),
            text: text.filter(|text| known.as_ref() != Some(text))?,
        })
    }

    /// Records that the server refuses members of this template as invalid. No member is created
    /// until it changes.
    pub fn refuse(&mut self, template: &SandboxTemplate) {
        self.invalid = Some((template.metadata.uid.clone(), template.metadata.generation));
    }

    /// Returns true if the server has refused members of the present template.
    pub(super) fn is_refused(&self, template: &SandboxTemplate) -> bool {
        self.invalid == Some((template.metadata.uid.clone(), template.metadata.generation))
    }

    /// Records the present members and returns the pace of refilling.
    ///
    /// Fewer members than last time mean that claims are adopting them. Then refilling waits, so
    /// that it does not compete with more claims. The first reconcile after a start never waits. A
    /// pool below its reserve is refilled at the same time: the emptier it is, the faster, until it
    /// keeps up with the claims. After a wait, refilling begins with one start. The limit doubles
    /// each time that the pause in claims has lasted as long again: a short pause does not predict
    /// a long one.
    pub(super) fn pace(
        &mut self,
        active: usize,
        desired: usize,
        settings: &Settings,
        uptime: Duration,
    ) -> Pace {
        if settings.replenish_delay.is_zero() || active >= desired {
            self.hold_until = None;
        } else if self.last_count.is_some_and(|last| active < last) {
            self.hold_until = Some(uptime + settings.replenish_delay);
        }
        self.last_count = Some(active);
        let reserve = desired as f64 * settings.reserve;
        self.left = active;
        let rest = self.hold_until.map_or(Duration::ZERO, |until| until.saturating_sub(uptime));
        let most = match rest.is_zero() {
            true => settings.max_starting.map(|most| most.min(self.ramp(settings, uptime))),
            false if (active as f64) < reserve => {
                // Quadratic: slow while there are many members, at full speed when claims would
                // find none.
                let missing = 1.0 - active as f64 / reserve;
                settings.max_starting.map(|most| (most as f64 * missing * missing).ceil() as usize)
            }
            false => Some(0),
        };
        Pace { most, rest }
    }

    /// Returns how many members may be starting, by the time since the last claim.
    fn ramp(&self, settings: &Settings, uptime: Duration) -> usize {
        let Some(until) = self.hold_until else { return usize::MAX };
        let doublings = uptime.saturating_sub(until).div_duration_f64(settings.replenish_delay) as u32;
        1_usize.checked_shl(doublings).unwrap_or(usize::MAX)
    }

    /// Records a member that a claim has adopted. Returns for how long the pool may rest: while it
    /// has other members, serving claims comes first.
    pub fn member_taken(&mut self, settings: &Settings) -> Duration {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                (settings.replenish_delay / 2).clamp(SHORTEST_GATHER, LONGEST_GATHER)
            }
            None => Duration::ZERO,
        }
    }

    /// Returns the time until a new status may be published; `None`: publish now.
    pub(super) fn wait_to_publish(&mut self, uptime: Duration) -> Option<Duration> {
        let due = self.last_status.map_or(Duration::ZERO, |last| last + BETWEEN_STATUSES);
        let rest = due.checked_sub(uptime).filter(|rest| !rest.is_zero());
        if rest.is_none() {
            self.last_status = Some(uptime);
        }
        rest
    }

    /// Takes tokens for up to `wanted` creations, or returns the time of the next token.
    pub(super) fn take_tokens(
        &mut self,
        wanted: usize,
        settings: &Settings,
        uptime: Duration,
    ) -> Result<usize, Duration> {
        let rate = settings.max_refill_rate;
        if rate <= 0.0 {
            return Ok(wanted);
        }
        let capacity = rate.max(1.0);
        let available = match self.tokens {
            None => capacity,
            Some((tokens, since)) => {
                (tokens + uptime.saturating_sub(since).as_secs_f64() * rate).min(capacity)
            }
        };
        // A token that is whole except for rounding counts.
        let granted = ((available + ROUNDING).floor() as usize).min(wanted);
        self.tokens = Some(((available - granted as f64).max(0.0), uptime));
        if granted == 0 {
            let wait = Duration::try_from_secs_f64((1.0 - available) / rate).unwrap_or(Duration::MAX);
            return Err(wait.max(SHORTEST_WAIT));
        }
        Ok(granted)
    }

    /// Records that this many members were requested.
    pub(super) fn created(&mut self, count: usize) {
        self.last_count = self.last_count.map(|last| last + count);
    }

    /// Records that one of them was not created: it is neither awaited nor counted as adopted.
    pub fn creation_failed(&mut self) {
        self.expectations.creation_settled();
        self.last_count = self.last_count.map(|last| last.saturating_sub(1));
    }
}
