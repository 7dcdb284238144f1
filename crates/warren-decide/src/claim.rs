//! Decides about SandboxClaims: gives each claim exactly one sandbox, a warm one if there is one,
//! and publishes its status.
//!
//! A reconcile has several rounds: [`decide`] reads the world and plans the next write, the
//! controller carries it out and asks again, until only the status is left. Adopting a sandbox
//! takes two guarded writes: first the claim's `sandbox-name` annotation, then the sandbox's owner.
//! Both are decided from state alone. If a reconcile dies between them, the same code finishes the
//! adoption, in any controller.
//!
//! Differences from agent-sandbox's controller, with reasons:
//! - The assignment write also carries `controller-first-observed-at`, and `claim-first-ready-at`
//!   when the adopted sandbox is ready. A warm claim needs three writes until it is Ready instead
//!   of five.
//! - A cold start is committed on the claim first: the annotation names the sandbox to be made,
//!   which has the claim's name. Two controllers with different views then cannot give one claim a
//!   warm and a cold sandbox.
//! - A claim that has committed to a cold start stays committed, even if the server refuses its
//!   sandbox or the sandbox is deleted. It makes its own again and adopts no warm one. If the
//!   commitment were withdrawn, another controller might be creating the sandbox at that moment.
//! - A reference to a sandbox without a controller is dropped once the server has confirmed it: no
//!   claim may adopt that sandbox.
//! - A claim that waits for pool members to get an address is woken by them. It does not ask again
//!   every 500 ms.
//! - A claim may have a deadline ([`Settings::deadline`], `warren.dev/deadline`). If it is missed,
//!   the claim ends.
//! - The claim's own conditions say what keeps its pod from starting. Trouble is also an event.

mod adoption;
mod cold;
mod deadline;
mod expiry;
mod injection;
mod metadata;
mod search;
mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warren_api::conditions::{self, ConditionType};
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations, labels};

pub use expiry::is_over;
pub use status::Trouble;

use crate::ownership;
use crate::step::{Failure, FailureKind, Note, Stage, Step};
use search::Search;

/// The longest time that a claim waits, from its creation, for members that are starting. Then it
/// starts cold.
pub const CANDIDATE_GRACE: Duration = Duration::from_secs(2);

/// The observed state of one claim and the objects that it depends on.
#[derive(Clone, Debug)]
pub struct World {
    /// The claim.
    pub claim: Arc<SandboxClaim>,
    /// Its pool, if it exists.
    pub pool: Option<Arc<SandboxWarmPool>>,
    /// The pool's template, if it exists.
    pub template: Option<Arc<SandboxTemplate>>,
    /// Sandboxes by name: the one in the claim's status, the assigned one, the one that has the
    /// claim's name, and all that the claim controls.
    pub sandboxes: BTreeMap<String, Arc<Sandbox>>,
    /// Names of sandboxes that the server itself, not only our cache, says do not exist.
    pub confirmed_gone: BTreeSet<String>,
    /// Names that were read from the server itself in this reconcile: their entries in `sandboxes`
    /// are at least that new.
    pub confirmed: BTreeSet<String>,
    /// The NetworkPolicy that older controllers made for each claim.
    pub legacy_policy: Option<Arc<NetworkPolicy>>,
    /// The pool's offer.
    pub offer: Offer,
    /// The time when this claim was first seen.
    pub first_seen: Timestamp,
    /// The server's message if it refused what this claim needs as invalid. It holds for the
    /// current claim and template only.
    pub refused: Option<String>,
}

/// A pool's offer to a claim.
#[derive(Clone, Debug)]
pub enum Offer {
    /// The pool was not asked yet.
    NotAsked,
    /// The pool has no member to offer.
    Empty,
    /// Members are starting.
    Pending,
    /// This member, reserved for the current reconcile.
    Sandbox(Arc<Sandbox>),
}

/// Settings of all claims.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Domains whose labels a claim may put on its pod.
    pub allowed_label_domains: Vec<String>,
    /// Set to leave out the annotations that say when a claim was first seen.
    pub disable_observability_annotations: bool,
    /// Set to record no events about claims.
    pub disable_events: bool,
    /// The longest time that a claim may wait for its sandbox to become ready, unless the claim
    /// says otherwise. `None`: no limit.
    pub deadline: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            allowed_label_domains: vec!["sandbox.users.io".to_owned()],
            disable_observability_annotations: false,
            disable_events: false,
            deadline: None,
        }
    }
}

/// The continuation after the steps of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Observe and decide again at once.
    DecideAgain,
    /// Ask the pool for an offer, then decide again.
    AskForOffer,
    /// Ask the server whether this sandbox really is missing or changed, then decide again.
    Confirm(String),
    /// The reconcile is over.
    Settled {
        /// The time until the next reconcile if no event wakes the claim; after a failure, the
        /// longest.
        look_again: Option<Duration>,
        /// True if the reconcile failed and is to be retried with backoff.
        retry: bool,
    },
}

/// A plan for one claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Writes, in order.
    pub steps: Vec<Step>,
    /// Writes whose failure is only logged.
    pub best_effort: Vec<Step>,
    /// Events to record when the steps have succeeded.
    pub notes: Vec<Note>,
    /// The continuation after the steps.
    pub next: Next,
}

impl Plan {
    fn settled(look_again: Option<Duration>) -> Self {
        let next = Next::Settled { look_again, retry: false };
        Self { steps: Vec::new(), best_effort: Vec::new(), notes: Vec::new(), next }
    }

    fn write(step: Step) -> Self {
        Self { steps: vec![step], next: Next::DecideAgain, ..Self::settled(None) }
    }

    fn ask(next: Next) -> Self {
        Self { next, ..Self::settled(None) }
    }
}

/// Plans the next write for a claim.
#[must_use]
pub fn decide(world: &World, settings: &Settings, now: Timestamp) -> Plan {
    if world.claim.metadata.deletion_timestamp.is_some() {
        return Plan::settled(None);
    }
    let mut plan = if expiry::is_expired(&world.claim, world.conditions(), now) {
        expiry::plan(world, settings, now)
    } else if let Some(deadline) = deadline::missed(world, settings, now) {
        deadline::plan(world, deadline, settings, now)
    } else {
        active(world, settings, now)
    };
    if let Some(policy) = &world.legacy_policy
        && ownership::is_controlled_by(&policy.metadata, world.uid())
    {
        let action = crate::template::delete(policy);
        plan.best_effort.push(Step::new(Stage::Legacy, action));
    }
    plan
}

/// Plans the status to publish when a step of the last plan failed in a way that a fresh
/// observation does not fix. The commitment stays, even if the server refused a cold sandbox:
/// another controller may be making it at this moment.
#[must_use]
pub fn give_up(world: &World, failures: &[Failure], settings: &Settings, now: Timestamp) -> Plan {
    let text = failures.iter().map(|failure| failure.message.as_str()).collect::<Vec<_>>().join("\n");
    let any = |kind| failures.iter().any(|failure| failure.kind == kind);
    let trouble = if any(FailureKind::Invalid) {
        Trouble::InvalidConfiguration(text)
    } else if any(FailureKind::AlreadyExists) {
        Trouble::CreatePending
    } else if any(FailureKind::Conflict) || any(FailureKind::NotFound) {
        Trouble::AdoptionConflict(text)
    } else {
        Trouble::Error(text)
    };
    in_trouble(world, &trouble, settings, now)
}

fn in_trouble(world: &World, trouble: &Trouble, settings: &Settings, now: Timestamp) -> Plan {
    match search::find(world) {
        // Trouble does not take the sandbox away from the claim.
        Search::Bound(sandbox) => status::publish_bound_trouble(world, sandbox, trouble, settings, now),
        _ => status::publish_trouble(world, trouble, settings, now),
    }
}

fn active(world: &World, settings: &Settings, now: Timestamp) -> Plan {
    let trouble = |trouble: Trouble| status::publish_trouble(world, &trouble, settings, now);
    let found = search::find(world);
    if let Err(text) =
        metadata::validate(&world.claim.spec.additional_pod_metadata, &settings.allowed_label_domains)
        && !matches!(found, Search::Unconfirmed(_))
    {
        return in_trouble(world, &Trouble::InvalidMetadata(text), settings, now);
    }
    match found {
        Search::Bound(sandbox) => bound(world, sandbox, settings, now),
        Search::Assigned(sandbox) => match adoption::take_over(world, sandbox) {
            Ok(_) if world.refused.is_some() => trouble(world.refusal()),
            Ok(step) => {
                let notes = adoption::notes(world, sandbox, settings);
                Plan { notes, ..Plan::write(step) }
            }
            Err(text) => trouble(Trouble::Error(text)),
        },
        Search::Outdated => Plan::write(search::drop_reference(world)),
        Search::Unconfirmed(name) => Plan::ask(Next::Confirm(name)),
        Search::Blocked(text) => trouble(Trouble::Error(text)),
        Search::Nothing { may_take_warm } => provide(world, may_take_warm, settings, now),
    }
}

/// Plans for a claim that has its sandbox: keeps the pod's metadata in line and mirrors the status.
fn bound(world: &World, sandbox: &Sandbox, settings: &Settings, now: Timestamp) -> Plan {
    let converged = adoption::converge(world, sandbox);
    if let Some(step) = adoption::take_back_promise(world, sandbox, converged.is_err()) {
        return Plan::write(step);
    }
    if let Some(plan) = keep_one(world, sandbox) {
        return plan;
    }
    match converged {
        Err(trouble) => status::publish_bound_trouble(world, sandbox, &trouble, settings, now),
        Ok(Some(_)) if world.refused.is_some() => {
            status::publish_bound_trouble(world, sandbox, &world.refusal(), settings, now)
        }
        Ok(Some(step)) => Plan::write(step),
        Ok(None) => {
            let mut plan = status::publish(world, sandbox, settings, now);
            plan.best_effort.extend(search::migrate_legacy_label(world));
            plan
        }
    }
}

/// Deletes a second sandbox of the claim. The claim can get one when a dropped assignment is
/// completed after all, by a controller with an old cache or by a request that arrives late. The
/// deletion waits until the claim names only the sandbox that it keeps and the server has confirmed
/// that one.
fn keep_one(world: &World, kept: &Sandbox) -> Option<Plan> {
    let name = kept.metadata.name.as_deref().unwrap_or_default();
    let is_other = world.assigned().is_some_and(|assigned| assigned != name);
    let is_living = |sandbox: &&Sandbox| sandbox.metadata.deletion_timestamp.is_none();
    let mut spare =
        world.own().filter(|own| own.metadata.uid != kept.metadata.uid).filter(is_living).peekable();
    if world.status_sandbox() != Some(name) || (!is_other && spare.peek().is_none()) {
        return None;
    }
    Some(if !world.confirmed.contains(name) {
        Plan::ask(Next::Confirm(name.to_owned()))
    } else if is_other {
        Plan::write(search::drop_other_reference(world))
    } else {
        let version = |spare: &Sandbox| spare.metadata.resource_version.clone();
        let steps = spare.flat_map(|spare| expiry::release(world, spare, version(spare))).collect();
        Plan { steps, ..Plan::ask(Next::DecideAgain) }
    })
}

/// Plans for a claim without a sandbox: adopts a warm one or makes one.
fn provide(world: &World, may_take_warm: bool, settings: &Settings, now: Timestamp) -> Plan {
    let spec = &world.claim.spec;
    let wants_own = !spec.env.is_empty() || !spec.volume_claim_templates.is_empty();
    let is_ready = conditions::is_true(world.conditions(), ConditionType::Ready);
    // The claim waits from now on, not since the lost sandbox was last ready. A claim that is still
    // Ready is not late. It stays Ready until its replacement is known.
    if world.status_sandbox().is_some() && !is_ready {
        let plan = status::publish_trouble(world, &Trouble::SandboxMissing, settings, now);
        return Plan { next: Next::DecideAgain, ..plan };
    }
    if may_take_warm && !wants_own && world.pool.is_some() {
        // Ask for no offer: a claim that cannot adopt a sandbox must not reserve one, not even for
        // a moment.
        if let Some(template) = &world.template
            && let Err(text) = adoption::pod_metadata(world, template)
        {
            return status::publish_trouble(world, &Trouble::Error(text), settings, now);
        }
        match &world.offer {
            Offer::Sandbox(sandbox) if search::is_valid(world, sandbox) => {
                return match adoption::metadata_of_pod(world, sandbox) {
                    Ok(_) => Plan::write(adoption::assign(world, sandbox, settings, now)),
                    Err(text) => status::publish_trouble(world, &Trouble::Error(text), settings, now),
                };
            }
            // An offer of the claim's previous pool does not count for its current pool.
            Offer::NotAsked | Offer::Sandbox(_) => return Plan::ask(Next::AskForOffer),
            Offer::Pending => {
                // Use the earlier of the server's clock and ours: ours may be behind.
                let created = world.claim.metadata.creation_timestamp.as_ref();
                let since = created.map_or(world.first_seen, |Time(time)| world.first_seen.min(*time));
                let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
                if let Some(remaining) = CANDIDATE_GRACE.checked_sub(age).filter(|left| !left.is_zero()) {
                    // Publish nothing: there is nothing to say yet.
                    let end = status::until_end(world, world.conditions(), settings, now);
                    return Plan::settled(Some(end.map_or(remaining, |end| end.min(remaining))));
                }
            }
            Offer::Empty => {}
        }
    }
    match cold::create(world) {
        Err(trouble) => status::publish_trouble(world, &trouble, settings, now),
        Ok(_) if !world.is_committed_cold() => Plan::write(cold::commit(world, settings)),
        Ok(_) if world.refused.is_some() => status::publish_trouble(world, &world.refusal(), settings, now),
        Ok(step) => Plan { notes: cold::notes(world, settings), ..Plan::write(step) },
    }
}

impl World {
    fn name(&self) -> &str {
        self.claim.metadata.name.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.claim.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Returns the refusal that the server would repeat for what the claim asks for.
    fn refusal(&self) -> Trouble {
        Trouble::InvalidConfiguration(self.refused.clone().unwrap_or_default())
    }

    fn conditions(&self) -> &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition] {
        self.claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
    }

    fn status_sandbox(&self) -> Option<&str> {
        self.claim.status.as_ref()?.sandbox.as_ref()?.name.as_deref().filter(|name| !name.is_empty())
    }

    fn assigned(&self) -> Option<&str> {
        ownership::annotation(&self.claim.metadata, annotations::SANDBOX_NAME)
            .or_else(|| ownership::label(&self.claim.metadata, labels::LEGACY_SANDBOX_NAME))
            .filter(|name| !name.is_empty())
    }

    fn is_committed_cold(&self) -> bool {
        self.assigned() == Some(self.name())
    }

    /// Returns the sandboxes that the claim controls.
    fn own(&self) -> impl Iterator<Item = &Sandbox> {
        self.sandboxes.values().map(|sandbox| &**sandbox).filter(|sandbox| self.is_mine(sandbox))
    }

    /// Returns true if the server itself says that the claim does not have this sandbox. A string
    /// that is not a valid name refers to no sandbox.
    fn is_lost(&self, name: &str) -> bool {
        let is_own = || self.own().any(|own| own.metadata.name.as_deref() == Some(name));
        self.confirmed_gone.contains(name)
            || !metadata::is_object_name(name)
            || (self.confirmed.contains(name) && !is_own())
    }

    fn is_mine(&self, sandbox: &Sandbox) -> bool {
        ownership::is_controlled_by(&sandbox.metadata, self.uid())
    }
}
