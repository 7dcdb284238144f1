//! Counts a pool's members and plans what is missing or too many.

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
use crate::staleness::Yardstick;
use crate::step::{Action, Kind, Note, Object, Propagation, Severity, Stage, Step};

/// A pass that may not create yet looks again after this long, should no event wake it.
const EXPECTATION_FALLBACK: Duration = Duration::from_secs(30);
/// A member that is not ready after this long, whole seconds included, is not being started but waits for something: an image, or room.
const STARTING: Duration = Duration::from_secs(3);
/// A member is looked at this long after its grace, so that rounding never wakes us too early.
const GRACE_SLACK: Duration = Duration::from_secs(2);
/// How far the wake-up for a grace period is spread, at most.
const GRACE_JITTER: f64 = 0.5;

/// What to do about a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Repairs and removals of single members, which do not depend on each other.
    pub repairs: Vec<Step>,
    /// New members, all alike; to be created with a slow start.
    pub creations: Vec<Step>,
    /// Members too many, to be deleted with a slow start.
    pub removals: Vec<Step>,
    /// The status write; only when everything above has worked.
    pub status: Option<Step>,
    /// How the rollout of the template stands, written whether or not anything above has worked.
    pub verdict: Option<Step>,
    /// Events to record when that has been written.
    pub verdict_notes: Vec<Note>,
    /// Whether the members have to be counted at the server before the pool can go on, and its memory told so with
    /// [`super::Expectations::recounted`].
    pub recount: bool,
    /// Events to record.
    pub notes: Vec<Note>,
    /// When to look again without being woken.
    pub look_again: Option<Duration>,
    /// The part of the pool, from 0 to 1, that claims do not find: members that are not there, or are only being started.
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

/// Plans for a pool. The memory is changed as if every step were carried out; what fails is settled afterwards with
/// [`super::Expectations`].
#[must_use]
pub fn decide(world: &World, memory: &mut Memory, settings: &Settings, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if world.pool.metadata.deletion_timestamp.is_some() {
        *memory = Memory::default();
        return plan;
    }
    let rules = Rules::of(&world.pool, settings);
    let yardstick = world.template.as_deref().map(Yardstick::new);
    let mut count = classify(world, &rules, yardstick.as_ref(), memory, &mut plan);
    let mut wake = Wake::default();
    roll(world, &rules, memory, &mut count, &mut plan);
    collect_stuck(world, memory, settings, now, &mut count, &mut plan, &mut wake);

    let there = count.active.len().saturating_sub(starting(&count, now).count());
    plan.missing = rules.desired.saturating_sub(there) as f64 / rules.desired.max(1) as f64;
    let status = status(world, &count);
    size(world, &rules, yardstick.as_ref(), memory, settings, now, &count, &mut plan, &mut wake);
    plan.notes = progress_notes(world, memory, count.held);
    plan.notes.extend(nonsense_note(&rules, memory));
    let judgement = rollout::judge(world, &rules, yardstick.as_ref(), &count.active, memory, now);
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
        // Guarded by the version: of a status patch the server does not look at the uid.
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
    yardstick: Option<&Yardstick<'_>>,
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
                // It has been seen, and nobody can take it any more. What else the pool needs does not wait for its end, which a
                // finalizer may put off for long.
                memory.expectations.deletion_settled(member_uid);
            }
        } else if orphan {
            match yardstick {
                // Without a template it cannot be judged, so it is left alone.
                None => {}
                Some(yardstick) if yardstick.is_stale_orphan(sandbox) => {
                    remove(sandbox, memory, world.uptime, &mut plan.repairs);
                }
                Some(yardstick) => {
                    plan.repairs.push(Step::new(Stage::Members, adopt_orphan(world, sandbox)));
                    count.active.push(Member::new(sandbox, Some(yardstick)));
                }
            }
        } else {
            let member = Member::new(sandbox, yardstick);
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

/// A rolling update: outdated members go, those that are not ready at once, as nobody can use them, and of the others, the
/// oldest first, as many as may be unavailable. Whatever else is missing or not ready counts against it, so an update to
/// something that never becomes ready stops by itself.
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

/// Members that have had their time to become ready and have not: replaced, unless the cluster has no room for them, in
/// which case a replacement would have none either. Their time begins with their creation, or when room was found for them.
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
        // It cannot begin to start before it has a place.
        let begun = member.created.max(pod.and_then(placed_at));
        let age = Duration::try_from(now.duration_since(begun.unwrap_or(now))).unwrap_or_default();
        if age <= grace {
            let remaining = grace.saturating_sub(age);
            soonest = Some(soonest.map_or(remaining, |earlier| earlier.min(remaining)));
            return true;
        }
        let is_held = pod.is_some_and(is_unschedulable);
        // The server would refuse the pod of a replacement, too.
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
    yardstick: Option<&Yardstick<'_>>,
    memory: &mut Memory,
    settings: &Settings,
    now: Timestamp,
    count: &Count<'_>,
    plan: &mut Plan,
    wake: &mut Wake,
) {
    let desired = rules.desired;
    let active = count.active.len();
    // Replacements of members that were found stale or stuck in this very pass wait until their deletion was seen.
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
    if let (true, Some(yardstick), Some(template)) = (missing > 0, yardstick, &world.template) {
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
                    let member = member::new(&world.pool, template, yardstick.hashes(), settings);
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

/// How long each of the members that are being started has left of its time.
fn starting(count: &Count<'_>, now: Timestamp) -> impl Iterator<Item = Duration> {
    let waiting = count.active.iter().filter(|member| !member.is_ready);
    waiting.filter_map(move |member| {
        // One from the future was made before the clock was set; nobody knows when.
        let age = Duration::try_from(now.duration_since(member.created.unwrap_or(now))).ok()?;
        STARTING.checked_sub(age).filter(|left| !left.is_zero())
    })
}

/// How many more members may be started now.
fn free_starts(count: &Count<'_>, most: Option<usize>, now: Timestamp) -> usize {
    most.map_or(usize::MAX, |most| most.saturating_sub(starting(count, now).count()))
}

/// How long until another member may be started, should none of those under way become ready; nothing when one may be now.
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

/// The event of annotations that mean nothing to us, once for each thing that is wrong.
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

/// The earliest of several times to look again.
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
    // Guarded: a claim may take it at this moment, and then it is no longer ours to delete.
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
            // Guarded: it had no owner when we looked, and must have none when this arrives.
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

/// What the scheduler has to say.
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
