//! What a pool remembers between passes. Its times are uptimes: were they times of day, setting the clock would end every wait.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use warren_api::SandboxTemplate;
use warren_api::conditions::{EventAction, EventReason};

use super::Settings;
use crate::bounded::{LONGEST_NOTE, bounded};
use crate::step::{Note, Severity};

/// After this long an event that has not come is not waited for any more, and the members are counted at the server.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// What rounding may take from a token.
const ROUNDING: f64 = 1e-6;
/// Nobody is asked to look again sooner than this; looking again after nothing would be never.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// After a claim has taken a member, its pool is left alone for at least this long: the claim comes first.
const SHORTEST_GATHER: Duration = Duration::from_millis(100);
/// And for at most this long, so that the pool's status is not further behind.
const LONGEST_GATHER: Duration = Duration::from_secs(1);

/// Two statuses of a pool are so far apart, at least: its members come and go by hundreds a second, and it is read by people.
const BETWEEN_STATUSES: Duration = Duration::from_millis(250);

/// How long a creation is waited for that may not have happened: much longer than a watch is behind, as a rule.
const DOUBT: Duration = Duration::from_secs(30);

/// Writes of the pool's own that the cache has not shown yet. While there are any, the pool neither creates nor removes
/// for its size: it would count wrongly.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expectations {
    creations: u32,
    deletions: BTreeSet<String>,
    /// When it is waited for no longer.
    give_up_at: Option<Duration>,
}

impl Expectations {
    /// Whether everything the pool did has been seen.
    #[must_use]
    pub fn are_met(&self) -> bool {
        self.creations == 0 && self.deletions.is_empty()
    }

    /// Whether something was waited for in vain. What became of it only the server knows: going by the cache, a pool whose
    /// watch stands still would be filled once more each time that patience ends.
    #[must_use]
    pub fn are_overdue(&self, uptime: Duration) -> bool {
        !self.are_met() && self.give_up_at.is_none_or(|end| uptime >= end)
    }

    /// Whether this deletion was asked for and not seen yet.
    #[must_use]
    pub fn is_deleting(&self, uid: &str) -> bool {
        self.deletions.contains(uid)
    }

    /// That many creations are about to be asked for.
    pub fn expect_creations(&mut self, count: u32, uptime: Duration) {
        if count > 0 {
            self.be_patient(uptime);
            self.creations = self.creations.saturating_add(count);
        }
    }

    /// This deletion is about to be asked for.
    pub fn expect_deletion(&mut self, uid: &str, uptime: Duration) {
        if !uid.is_empty() {
            self.be_patient(uptime);
            self.deletions.insert(uid.to_owned());
        }
    }

    /// The members were counted at the server, so there is nothing left to wait for.
    pub fn recounted(&mut self) {
        *self = Self::default();
    }

    /// Nobody knows whether a creation happened. If it did, the watch tells; if not, waiting for it ends soon.
    pub fn creation_in_doubt(&mut self, uptime: Duration) {
        let soon = uptime + DOUBT;
        self.give_up_at = Some(self.give_up_at.map_or(soon, |end| end.min(soon)));
    }

    /// A creation was seen, or did not happen.
    pub fn creation_settled(&mut self) {
        self.creations = self.creations.saturating_sub(1);
    }

    /// A deletion was seen, or did not happen. Says whether it was waited for.
    pub fn deletion_settled(&mut self, uid: &str) -> bool {
        self.deletions.remove(uid)
    }

    /// The wait begins with the first thing that is waited for.
    fn be_patient(&mut self, uptime: Duration) {
        if self.are_met() {
            self.give_up_at = Some(uptime + PATIENCE);
        }
    }
}

/// Everything a pool remembers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Its own writes that have not been seen yet.
    pub expectations: Expectations,
    /// No refilling before this time.
    hold_until: Option<Duration>,
    /// How many members there should be, after the last pass and what it created; nothing before the first pass.
    last_count: Option<usize>,
    /// How many members are left, of those that there were at the last pass.
    left: usize,
    /// When the last status was published.
    last_status: Option<Duration>,
    /// The tokens left for creating, and when that was.
    tokens: Option<(f64, Duration)>,
    /// Whether the pool was reported as stuck.
    pub(super) not_progressing: bool,
    /// When a member of the present template last became ready, also of those that are claimed by now.
    pub(super) last_progress: Option<Timestamp>,
    /// What was reported as wrong with the pool's annotations.
    pub(super) nonsense: Option<String>,
    /// Why members could not be created the last time that was tried.
    pub(super) refusal: Option<String>,
    /// The template of which the server has refused members as invalid, by uid and generation.
    pub(super) invalid: Option<(Option<String>, Option<i64>)>,
}

/// How fast a pool is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// How many members may be on their way at a time; nothing is no limit.
    pub(super) most: Option<usize>,
    /// For how long that holds; zero is until something happens.
    pub(super) rest: Duration,
}

impl Memory {
    /// Takes note of members that could not be created, or that all could. Gives the event of a reason that is new.
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

    /// Takes note that the server refuses members of this template as invalid. None is made until it changes.
    pub fn refuse(&mut self, template: &SandboxTemplate) {
        self.invalid = Some((template.metadata.uid.clone(), template.metadata.generation));
    }

    /// Returns whether the server has refused members of the template as it is.
    pub(super) fn is_refused(&self, template: &SandboxTemplate) -> bool {
        self.invalid == Some((template.metadata.uid.clone(), template.metadata.generation))
    }

    /// Takes note of the members that are there, and says how fast to refill.
    ///
    /// Fewer members than last time mean that claims are taking them: then refilling waits, so that it does not compete
    /// with more claims. The first look after a start never waits, and a pool that is down to its reserve is refilled beside them: the
    /// emptier it is, the faster, so that it ends up as fast as claims come. After a wait refilling begins with one start, and twice as many
    /// may be on their way each time that no claim has come for as long again: a short pause is no sign that there will be a long one.
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
                // By the square: little for as long as there are many, everything for claims that would find none.
                let missing = 1.0 - active as f64 / reserve;
                settings.max_starting.map(|most| (most as f64 * missing * missing).ceil() as usize)
            }
            false => Some(0),
        };
        Pace { most, rest }
    }

    /// How many members may be on their way by how long no claim has come.
    fn ramp(&self, settings: &Settings, uptime: Duration) -> usize {
        let Some(until) = self.hold_until else { return usize::MAX };
        let doublings = uptime.saturating_sub(until).div_duration_f64(settings.replenish_delay) as u32;
        1_usize.checked_shl(doublings).unwrap_or(usize::MAX)
    }

    /// Takes note of a member that a claim has taken, and says how long the pool need not be looked at for it: as long as there are
    /// others, that claims are served comes first.
    pub fn member_taken(&mut self, settings: &Settings) -> Duration {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                (settings.replenish_delay / 2).clamp(SHORTEST_GATHER, LONGEST_GATHER)
            }
            None => Duration::ZERO,
        }
    }

    /// How long a new status has to wait; if not at all, it is published now.
    pub(super) fn wait_to_publish(&mut self, uptime: Duration) -> Option<Duration> {
        let due = self.last_status.map_or(Duration::ZERO, |last| last + BETWEEN_STATUSES);
        let rest = due.checked_sub(uptime).filter(|rest| !rest.is_zero());
        if rest.is_none() {
            self.last_status = Some(uptime);
        }
        rest
    }

    /// Takes tokens for up to `wanted` creations; or says when the next one can be had.
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
        // A token that is whole but for rounding is whole.
        let granted = ((available + ROUNDING).floor() as usize).min(wanted);
        self.tokens = Some(((available - granted as f64).max(0.0), uptime));
        if granted == 0 {
            let wait = Duration::try_from_secs_f64((1.0 - available) / rate).unwrap_or(Duration::MAX);
            return Err(wait.max(SHORTEST_WAIT));
        }
        Ok(granted)
    }

    /// That many members were just asked for.
    pub(super) fn created(&mut self, count: usize) {
        self.last_count = self.last_count.map(|last| last + count);
    }

    /// One of them was not made: neither is its coming waited for, nor is it missed as if a claim had taken it.
    pub fn creation_failed(&mut self) {
        self.expectations.creation_settled();
        self.last_count = self.last_count.map(|last| last.saturating_sub(1));
    }
}
