//! Counts a pool's members and plans creations and deletions.

use std::cmp::Reverse;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use warren_api::conditions::{EventAction, EventReason, Reason};
use warren_api::{Sandbox, SandboxWarmPoolStatus, labels};

use super::member::Member;
use super::rules::{Rules, Strategy};
use super::{Memory, Settings, World, member, rollout};
use crate::merge;
use crate::ownership;
use crate::staleness::TemplateComparison;
use crate::step::{Action, Kind, Note, Object, Propagation, Severity, Stage, Step};

/// The delay of the next reconcile if a pool may not create yet and no event wakes it.
const EXPECTATION_FALLBACK: Duration = Duration::from_secs(30);
/// The time after which a member that is not ready no longer counts as starting: it waits for an
/// image or for room. Creation times are whole seconds.
const STARTING: Duration = Duration::from_secs(3);
/// The delay after a member's grace period before it is checked, so that rounding never wakes us
/// too early.
const GRACE_SLACK: Duration = Duration::from_secs(2);
/// The largest random part that is added to the wake-up for a grace period.
const GRACE_JITTER: f64 = 0.5;

/// A plan for one pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Repairs and removals of single members, independent of each other.
    pub repairs: Vec<Step>,
    /// New members, all alike; to be created with a slow start.
    pub creations: Vec<Step>,
    /// Surplus members, to be deleted with a slow start.
    pub removals: Vec<Step>,
    /// The status write, carried out only if everything above succeeded.
    pub status: Option<Step>,
    /// The write of the template's rollout state, carried out even if something above failed.
    pub verdict: Option<Step>,
    /// Events to record when the verdict has been written.
    pub verdict_notes: Vec<Note>,
    /// True if the members must be counted at the server before the pool can go on. The caller then
    /// calls [`super::Expectations::recounted`].
    pub recount: bool,
    /// Events to record.
    pub notes: Vec<Note>,
    /// The delay of the next reconcile if no event wakes the pool.
    pub look_again: Option<Duration>,
    /// The missing part of the pool, from 0 to 1: members that do not exist, or are only starting.
    pub missing: f64,
}

#[derive(Default)]
struct Count<'a> {
    active: Vec<Member<'a>>,
    terminating: usize,
    held: usize,
}

impl Count<'_> {
    fn ready(&self) -> usize {
        self.active.iter().filter(|member| member.is_ready).count()
    }
}

/// Plans for a pool. The memory is changed as if every step succeeds; failures are corrected
/// afterwards with [`super::Expectations`].
#[must_use]
pub fn decide(world: &World, memory: &mut Memory, settings: &Settings, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if world.pool.metadata.deletion_timestamp.is_some() {
        *memory = Memory::default();
        return plan;
    }
    let rules = Rules::of(&world.pool, settings);
    let comparison = world.template.as_deref().map(TemplateComparison::new);
    let mut count = classify(world, &rules, comparison.as_ref(), memory, &mut plan);
    let mut wake = Wake::default();
    roll(world, &rules, memory, &mut count, &mut plan);
    collect_stuck(world, memory, settings, now, &mut count, &mut plan, &mut wake);

    let there = count.active.len().saturating_sub(starting(&count, now).count());
    plan.missing = rules.desired.saturating_sub(there) as f64 / rules.desired.max(1) as f64;
    let status = status(world, &count);
    size(world, &rules, comparison.as_ref(), memory, settings, now, &count, &mut plan, &mut wake);
    plan.notes = progress_notes(world, memory, count.held);
    plan.notes.extend(nonsense_note(&rules, memory));
    let judgement = rollout::judge(world, &rules, comparison.as_ref(), &count.active, memory, now);
    plan.verdict = judgement.step;
    plan.verdict_notes = judgement.notes;
    judgement.look_again.into_iter().for_each(|delay| wake.after(delay));
    if count.held > 0 {
        wake.after(settings.unschedulable_recheck_interval);
    }
    let present = world.pool.status.clone().unwrap_or_default();
    plan.status = merge::between(&present, &status).and_then(|patch| {
        if let Some(rest) = memory.wait_to_publish(world.uptime) {
            wake.after(rest);
            return None;
        }
        let name = world.pool.metadata.name.clone().unwrap_or_default();
        // Guarded by the version: for a status patch the server ignores the uid.
        let body =
            json!({"metadata": {"resourceVersion": world.pool.metadata.resource_version}, "status": patch});
        Some(Step::new(Stage::Subject, Action::MergeStatus { kind: Kind::SandboxWarmPool, name, body }))
    });
    plan.look_again = wake.0;
    plan
}

fn classify<'a>(
    world: &'a World,
    rules: &Rules,
    comparison: Option<&TemplateComparison<'_>>,
    memory: &mut Memory,
    plan: &mut Plan,
) -> Count<'a> {
    let mut count = Count { active: Vec::with_capacity(world.members.len()), ..Count::default() };
    let uid = world.pool.metadata.uid.as_deref().unwrap_or_default();
    let recreate = rules.strategy == Strategy::Recreate;
    for sandbox in &world.members {
        let metadata = &sandbox.metadata;
        let controller = ownership::controller(metadata);
        let orphan = controller.is_none();
        let mine = !uid.is_empty() && controller.is_some_and(|controller| controller.uid == uid);
        if !mine && !orphan {
            continue;
        }
        let member_uid = metadata.uid.as_deref().unwrap_or_default();
        if memory.expectations.is_deleting(member_uid) || metadata.deletion_timestamp.is_some() {
            count.terminating += usize::from(mine);
            if metadata.deletion_timestamp.is_some() {
                // The deletion has been seen, and no claim can adopt the member any more. The pool
                // does not wait for its end, which a finalizer may delay for long.
                memory.expectations.deletion_settled(member_uid);
            }
        } else if orphan {
            match comparison {
                // Without a template it cannot be judged, so it is left alone.
                None => {}
                Some(comparison) if comparison.is_stale_orphan(sandbox) => {
                    remove(sandbox, memory, world.uptime, &mut plan.repairs);
                }
                Some(comparison) => {
                    plan.repairs.push(Step::new(Stage::Members, adopt_orphan(world, sandbox)));
                    count.active.push(Member::new(sandbox, Some(comparison)));
                }
            }
        } else {
            let member = Member::new(sandbox, comparison);
            if recreate && member.is_stale {
                remove(sandbox, memory, world.uptime, &mut plan.repairs);
                count.terminating += 1;
                continue;
            }
            if ownership::label(metadata, labels::LAUNCH_TYPE) != Some(labels::LAUNCH_TYPE_WARM) {
                let body = json!({"metadata": {"labels": {labels::LAUNCH_TYPE: labels::LAUNCH_TYPE_WARM}}});
                plan.repairs.push(Step::new(Stage::Members, merge_member(sandbox, body)));
            }
            count.active.push(member);
        }
    }
    count
}

/// Plans a rolling update. Outdated members that are not ready go at once, since no claim can use
/// them. Of the ready ones, the oldest go first, as many as may be unavailable. Other missing or
/// unready members count against that limit, so an update to a broken template stops by itself.
fn roll(world: &World, rules: &Rules, memory: &mut Memory, count: &mut Count<'_>, plan: &mut Plan) {
    let Strategy::RollingUpdate { max_unavailable } = rules.strategy else { return };
    let mut budget = max_unavailable.saturating_sub(rules.desired.saturating_sub(count.ready()));
    let (mut outdated, fresh): (Vec<_>, Vec<_>) =
        std::mem::take(&mut count.active).into_iter().partition(|member| member.is_stale);
    count.active = fresh;
    outdated.sort_by_key(|member| member.created);
    for member in outdated {
        if member.is_ready && budget == 0 {
            count.active.push(member);
            continue;
        }
        budget -= usize::from(member.is_ready);
        remove(member.sandbox, memory, world.uptime, &mut plan.repairs);
        count.terminating += 1;
    }
}

/// Replaces members that did not become ready within the grace period, unless the cluster has no
/// room for them: then a replacement would have none either. The period begins with their creation,
/// or when room was found for them.
fn collect_stuck(
    world: &World,
    memory: &mut Memory,
    settings: &Settings,
    now: Timestamp,
    count: &mut Count<'_>,
    plan: &mut Plan,
    wake: &mut Wake,
) {
    let grace = settings.readiness_grace_period;
    let mut soonest: Option<Duration> = None;
    let Count { active, terminating, held } = count;
    active.retain(|member| {
        if member.is_ready {
            return true;
        }
        let pod = pod_of(world, member.sandbox);
        // A pod starts only after it has been scheduled.
        let begun = member.created.max(pod.and_then(placed_at));
        let age = Duration::try_from(now.duration_since(begun.unwrap_or(now))).unwrap_or_default();
        if age <= grace {
            let remaining = grace.saturating_sub(age);
            soonest = Some(soonest.map_or(remaining, |earlier| earlier.min(remaining)));
            return true;
        }
        let is_held = pod.is_some_and(is_unschedulable);
        // The server would also refuse the pod of a replacement.
        let is_invalid = !member.is_stale
            && member.ready.is_some_and(|ready| ready.reason == Reason::InvalidConfiguration.as_str());
        if is_invalid {
            return true;
        } else if is_held {
            *held += 1;
        } else {
            remove(member.sandbox, memory, world.uptime, &mut plan.repairs);
            *terminating += 1;
        }
        is_held
    });
    if let Some(remaining) = soonest {
        let spread = 1.0 + GRACE_JITTER * world.jitter.clamp(0.0, 1.0);
        wake.after((remaining + GRACE_SLACK).mul_f64(spread));
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of one decision, each named; a struct would only rename them"
)]
fn size(
    world: &World,
    rules: &Rules,
    comparison: Option<&TemplateComparison<'_>>,
    memory: &mut Memory,
    settings: &Settings,
    now: Timestamp,
    count: &Count<'_>,
    plan: &mut Plan,
    wake: &mut Wake,
) {
    let desired = rules.desired;
    let active = count.active.len();
    // Replacements of members that this reconcile removes wait until their deletion was seen.
    let met = memory.expectations.are_met();
    let pace = memory.pace(active, desired, settings, world.uptime);
    if memory.expectations.are_overdue(world.uptime) {
        plan.recount = true;
        return;
    }
    let mut missing = desired.saturating_sub(active + count.terminating);
    if world.template.as_ref().is_some_and(|template| memory.is_refused(template)) {
        missing = 0;
    }
    if let (true, Some(comparison), Some(template)) = (missing > 0, comparison, &world.template) {
        let mut refill = |most: Option<usize>| {
            if !met {
                return wake.after(EXPECTATION_FALLBACK);
            }
            if let Some(remaining) = crowded(count, most, now) {
                return wake.after(remaining);
            }
            let wanted = missing.min(settings.max_batch_size).min(free_starts(count, most, now));
            match memory.take_tokens(wanted, settings, world.uptime) {
                Err(wait) => wake.after(wait),
                Ok(granted) => {
                    let member = member::new(&world.pool, template, comparison.hashes(), settings);
                    let create = Action::Create(Object::Sandbox(Box::new(member)));
                    plan.creations = vec![Step::new(Stage::Members, create); granted];
                    let count = u32::try_from(granted).unwrap_or(u32::MAX);
                    memory.expectations.expect_creations(count, world.uptime);
                    memory.created(granted);
                }
            }
        };
        if pace.most != Some(0) {
            refill(pace.most);
        }
        if !pace.rest.is_zero() {
            wake.after(pace.rest);
        }
    }
    if active > desired {
        if !met {
            wake.after(EXPECTATION_FALLBACK);
            return;
        }
        let mut order = count.active.clone();
        order.sort_by_key(|member| (member.is_ready, Reverse(member.created)));
        for member in order.iter().take((active - desired).min(settings.max_batch_size)) {
            remove(member.sandbox, memory, world.uptime, &mut plan.removals);
        }
    }
}

/// Returns the remaining starting time of each member that is starting.
fn starting(count: &Count<'_>, now: Timestamp) -> impl Iterator<Item = Duration> {
    let waiting = count.active.iter().filter(|member| !member.is_ready);
    waiting.filter_map(move |member| {
        // A creation time in the future means that the clock was set back: the member's age is
        // unknown.
        let age = Duration::try_from(now.duration_since(member.created.unwrap_or(now))).ok()?;
        STARTING.checked_sub(age).filter(|left| !left.is_zero())
    })
}

/// Returns how many more members may be started now.
fn free_starts(count: &Count<'_>, most: Option<usize>, now: Timestamp) -> usize {
    most.map_or(usize::MAX, |most| most.saturating_sub(starting(count, now).count()))
}

/// Returns the time until another member may start if none of the starting ones becomes ready;
/// `None` if one may start now.
fn crowded(count: &Count<'_>, most: Option<usize>, now: Timestamp) -> Option<Duration> {
    (free_starts(count, most, now) == 0).then(|| starting(count, now).min()).flatten()
}

fn status(world: &World, count: &Count<'_>) -> SandboxWarmPoolStatus {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    SandboxWarmPoolStatus {
        replicas: number(count.active.len()),
        ready_replicas: number(count.ready()),
        selector: Some(labels::pool_selector(world.pool.metadata.name.as_deref().unwrap_or_default())),
        observed_generation: world.pool.metadata.generation.unwrap_or_default(),
    }
}

fn progress_notes(world: &World, memory: &mut Memory, held: usize) -> Vec<Note> {
    let stuck = held > 0;
    if stuck == std::mem::replace(&mut memory.not_progressing, stuck) {
        return Vec::new();
    }
    let name = world.pool.metadata.name.as_deref().unwrap_or_default();
    let (severity, reason, text) = match stuck {
        true => (
            Severity::Warning,
            EventReason::WarmPoolNotProgressing,
            format!("{held} sandboxes of pool {name} cannot be scheduled"),
        ),
        false => (
            Severity::Normal,
            EventReason::WarmPoolProgressing,
            format!("the sandboxes of pool {name} can be scheduled again"),
        ),
    };
    vec![Note { severity, reason: reason.as_str(), action: EventAction::Reconciling.as_str(), text }]
}

/// Returns the event of invalid annotations, once for each problem.
fn nonsense_note(rules: &Rules, memory: &mut Memory) -> Option<Note> {
    let text = (!rules.nonsense.is_empty()).then(|| rules.nonsense.join("; "));
    let known = std::mem::replace(&mut memory.nonsense, text.clone());
    Some(Note {
        severity: Severity::Warning,
        reason: EventReason::InvalidAnnotation.as_str(),
        action: EventAction::Reconciling.as_str(),
        text: text.filter(|text| known.as_ref() != Some(text))?,
    })
}

/// The earliest of several wake-ups.
#[derive(Default)]
struct Wake(Option<Duration>);

impl Wake {
    fn after(&mut self, delay: Duration) {
        if !delay.is_zero() {
            self.0 = Some(self.0.map_or(delay, |earlier| earlier.min(delay)));
        }
    }
}

fn remove(member: &Sandbox, memory: &mut Memory, uptime: Duration, steps: &mut Vec<Step>) {
    let uid = member.metadata.uid.clone().unwrap_or_default();
    memory.expectations.expect_deletion(&uid, uptime);
    let name = member.metadata.name.clone().unwrap_or_default();
    // Guarded: if a claim adopts it at this moment, it is no longer ours to delete.
    let version = member.metadata.resource_version.clone();
    let action =
        Action::Delete { kind: Kind::Sandbox, name, uid, version, propagation: Propagation::Background };
    steps.push(Step::new(Stage::Members, action));
}

fn adopt_orphan(world: &World, orphan: &Sandbox) -> Action {
    let mut references = orphan.metadata.owner_references.clone().unwrap_or_default();
    references.push(ownership::reference_to(&*world.pool));
    merge_member(
        orphan,
        json!({"metadata": {
            "ownerReferences": references,
            "labels": {labels::LAUNCH_TYPE: labels::LAUNCH_TYPE_WARM},
            // Guarded: it had no owner in the cache and must have none when this arrives.
            "resourceVersion": orphan.metadata.resource_version,
        }}),
    )
}

fn merge_member(member: &Sandbox, mut body: serde_json::Value) -> Action {
    merge::set(&mut body, &["metadata", "uid"], json!(member.metadata.uid));
    Action::Merge { kind: Kind::Sandbox, name: member.metadata.name.clone().unwrap_or_default(), body }
}

fn pod_of<'a>(world: &'a World, member: &Sandbox) -> Option<&'a Pod> {
    world.pods.get(member.metadata.name.as_deref()?).map(|pod| &**pod)
}

/// Returns the scheduler's condition.
fn scheduling(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| condition.type_ == "PodScheduled")
}

fn is_unschedulable(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
        && scheduling(pod).is_some_and(|condition| {
            condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable")
        })
}

fn placed_at(pod: &Pod) -> Option<Timestamp> {
    let placed = scheduling(pod).filter(|condition| condition.status == "True")?;
    placed.last_transition_time.as_ref().map(|Time(since)| *since)
}
