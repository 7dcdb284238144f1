//! Judges a pool's template: whether members made from it become ready, and whether all members
//! come from it.
//!
//! The schema has no field for the verdict, so it is an annotation on the pool: a condition in
//! JSON, like a Deployment's `Progressing`. It is False when no member has become ready for too
//! long, else True. It is about the template, not about the pool's size: once a pool has been full
//! of ready members of a template, claims that empty it change nothing. It is written only when the
//! verdict changes, so a busy pool costs no writes for it.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warren_api::conditions::{ConditionStatus, EventAction, Reason};
use warren_api::{annotations, go_duration};

use super::member::Member;
use super::rules::{Rules, Strategy};
use super::{Memory, World};
use crate::bounded::bounded;
use crate::merge;
use crate::ownership;
use crate::staleness::TemplateComparison;
use crate::step::{Action, Kind, Note, Severity, Stage, Step};

/// The longest part of a member's problem that is repeated.
const LONGEST_CAUSE: usize = 256;

/// The annotation's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    message: String,
    last_transition_time: Timestamp,
    /// The template: its name and the hash of its content.
    template: String,
    /// The time when members of it were first wanted.
    started_at: Timestamp,
}

/// The judgement's part of a plan.
#[derive(Default)]
pub(super) struct Judgement {
    pub(super) step: Option<Step>,
    pub(super) notes: Vec<Note>,
    pub(super) look_again: Option<Duration>,
}

/// Counts of a pool's members, by the properties that matter to a rollout.
struct Tally {
    active: usize,
    updated: usize,
    updated_ready: usize,
    /// The time when one of these members of the present template last became ready.
    last_ready: Option<Timestamp>,
    /// The problem of one that is not ready.
    cause: Option<String>,
}

impl Tally {
    fn of(members: &[Member<'_>]) -> Self {
        let mut tally =
            Self { active: members.len(), updated: 0, updated_ready: 0, last_ready: None, cause: None };
        for member in members.iter().filter(|member| !member.is_stale) {
            tally.updated += 1;
            if member.is_ready {
                tally.updated_ready += 1;
                let since = member.ready.map(|ready| ready.last_transition_time.0);
                tally.last_ready = tally.last_ready.max(since);
            } else if tally.cause.is_none() {
                let name = member.sandbox.metadata.name.as_deref().unwrap_or_default();
                tally.cause =
                    member.ready.map(|ready| format!("{name}: {}: {}", ready.reason, ready.message));
            }
        }
        tally
    }
}

/// Judges the rollout of the pool's template. `active` are the members that stay after this
/// reconcile.
pub(super) fn judge(
    world: &World,
    rules: &Rules,
    comparison: Option<&TemplateComparison<'_>>,
    active: &[Member<'_>],
    memory: &mut Memory,
    now: Timestamp,
) -> Judgement {
    let stored = stored(world);
    let name = &world.pool.spec.sandbox_template_ref.name;
    let Some(comparison) = comparison else {
        let verdict = (ConditionStatus::False, Reason::TemplateNotFound);
        let text = || format!("SandboxTemplate {name:?} not found");
        return conclude(world, stored, format!("{name}@"), verdict, text, None, now);
    };
    let tally = Tally::of(active);
    let template = format!("{name}@{}", comparison.hashes().blueprint);
    let same = stored.as_ref().filter(|stored| stored.template == template);
    let started_at = same.map_or(now, |stored| stored.started_at);
    let was_complete = same.is_some_and(|stored| stored.reason == Reason::Complete.as_str());
    if rules.desired == 0 && tally.active == 0 && !was_complete {
        // The template is not in use. Its time begins when members of it are wanted.
        let none = [(annotations::PROGRESSING, None), (annotations::UPDATED_REPLICAS, None)];
        return Judgement { step: annotate(world, none), ..Judgement::default() };
    }
    let outdated = tally.active - tally.updated;
    memory.last_progress = memory.last_progress.max(tally.last_ready).max(Some(started_at));

    let is_full = tally.updated_ready >= rules.desired;
    // Only claims can make further progress: all members exist, and those of the present template
    // are ready.
    let is_waiting = rules.strategy == Strategy::OnReplenish
        && tally.active >= rules.desired
        && tally.updated == tally.updated_ready;
    let since = memory.last_progress.unwrap_or(started_at).max(started_at);
    // A deadline beyond the largest timestamp never comes.
    let end = since.checked_add(rules.progress_deadline).ok();
    let mut judgement = if outdated == 0 && (is_full || was_complete) {
        let text = || format!("the pool is up to date with template {name}");
        conclude(world, stored, template, (ConditionStatus::True, Reason::Complete), text, None, now)
    } else if is_waiting {
        let text = || format!("members that are not of the present template {name} go as they are claimed");
        let verdict = (ConditionStatus::True, Reason::WaitingForClaims);
        conclude(world, stored, template, verdict, text, Some(tally.updated), now)
    } else if end.is_none_or(|end| now < end) {
        let text = || format!("members of template {name} are being made");
        let verdict = (ConditionStatus::True, Reason::Updating);
        let updated = (outdated > 0).then_some(tally.updated);
        let mut judgement = conclude(world, stored, template, verdict, text, updated, now);
        judgement.look_again = end.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
        judgement
    } else {
        let text = || {
            let deadline = go_duration::format(rules.progress_deadline);
            let cause =
                tally.cause.as_deref().or(memory.refusal.as_deref()).unwrap_or("nothing is known of why");
            let cause = bounded(cause, LONGEST_CAUSE);
            format!("no member of template {name} has become ready for {deadline}; {cause}")
        };
        let verdict = (ConditionStatus::False, Reason::ProgressDeadlineExceeded);
        let updated = (outdated > 0).then_some(tally.updated);
        conclude(world, stored, template, verdict, text, updated, now)
    };
    judgement.look_again = judgement.look_again.filter(|delay| !delay.is_zero());
    judgement
}

/// Writes the verdict if it changed. The text is made only then, so that it describes that moment.
fn conclude(
    world: &World,
    stored: Option<Verdict>,
    template: String,
    (status, reason): (ConditionStatus, Reason),
    text: impl FnOnce() -> String,
    updated: Option<usize>,
    now: Timestamp,
) -> Judgement {
    // As in every condition, times have whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let is_known = |stored: &Verdict| stored.template == template && stored.reason == reason.as_str();
    let verdict = match stored.clone().filter(is_known) {
        Some(stored) => stored,
        None => Verdict {
            type_: "Progressing".to_owned(),
            status: status.into(),
            reason: reason.into(),
            message: text(),
            last_transition_time: stored
                .as_ref()
                .filter(|stored| stored.status == status.as_str())
                .map_or(now, |stored| stored.last_transition_time),
            started_at: stored
                .as_ref()
                .filter(|stored| stored.template == template)
                .map_or(now, |stored| stored.started_at),
            template,
        },
    };
    let mut notes = Vec::new();
    if status == ConditionStatus::False && stored.as_ref() != Some(&verdict) {
        notes.push(Note {
            severity: Severity::Warning,
            reason: reason.as_str(),
            action: EventAction::Reconciling.as_str(),
            text: verdict.message.clone(),
        });
    }
    let mut wanted = vec![(annotations::UPDATED_REPLICAS, updated.map(|count| count.to_string()))];
    if stored.as_ref() != Some(&verdict) {
        wanted.push((annotations::PROGRESSING, Some(merge::json(&verdict).to_string())));
    }
    Judgement { step: annotate(world, wanted), notes, look_again: None }
}

/// Plans to set or remove annotations of the pool that differ.
fn annotate(world: &World, wanted: impl IntoIterator<Item = (&'static str, Option<String>)>) -> Option<Step> {
    let metadata = &world.pool.metadata;
    let news =
        wanted.into_iter().filter(|(key, value)| ownership::annotation(metadata, key) != value.as_deref());
    let news: serde_json::Map<_, _> =
        news.map(|(key, value)| (key.to_owned(), value.map_or(Value::Null, Value::String))).collect();
    (!news.is_empty()).then(|| {
        let name = metadata.name.clone().unwrap_or_default();
        let body = json!({"metadata": {"uid": metadata.uid, "annotations": news}});
        Step::new(Stage::Subject, Action::Merge { kind: Kind::SandboxWarmPool, name, body })
    })
}

/// Returns the stored verdict. An annotation that cannot be parsed is not ours and is written
/// again.
fn stored(world: &World) -> Option<Verdict> {
    serde_json::from_str(ownership::annotation(&world.pool.metadata, annotations::PROGRESSING)?).ok()
}
