//! Checks the invariants after every single write, by any process:
//!
//! - A sandbox serves at most one claim, ever. A claim has at most one sandbox at a time, with one
//!   exception: its assignment was dropped as failed, and another process that has not heard of
//!   that completes it after all. At rest it has one.
//! - A claim's committed assignment is never swapped for another, nor dropped while the claim has
//!   that sandbox. Its status does not name another or none either, while the claim has the sandbox
//!   that it names and is not over.
//! - A claimed sandbox is deleted only if its claim is gone, being deleted, expired or past its
//!   deadline (at that moment, or when the process that deletes it last checked), if the claim has
//!   and names another, or if its own time is over.
//! - A claim is deleted only if it expired.
//! - A pod is deleted only if its sandbox is being deleted, or was suspended or expired at some
//!   time since the pod was made.
//! - A service is deleted only if its sandbox is gone, or wanted none or had expired at some time
//!   since. A network policy is deleted only if its template is gone or has wanted none since, or
//!   if it is an old one of a claim.
//! - Objects that only their user may delete (volume claims, which hold data, pools, templates) are
//!   deleted by no process.
//! - A sandbox has at most one pod that is not being deleted.
//! - A child that went with its owner is not made again by a process that saw its end, knew the
//!   owner, and has not asked for the owner since: it would briefly revive something that was
//!   ended.
//! - A ready sandbox that a claim adopts names its pod. A Ready claim names a sandbox that is or
//!   was its own.
//! - A claim is not assigned a member on a node that its process knew to be lost since the
//!   beginning of the reconcile.
//! - A process never makes a member of a pool if the live members (running or being deleted) that
//!   it has seen or made itself, and that are still the pool's, already reach the size that it has
//!   seen. So `alive ≤ target + surge`. The surge is the members that others have made (a second
//!   leader, a process that died, the user) and that had not reached the maker's cache when it
//!   decided. With several processes it also includes the maker's own members whose creation was
//!   never answered, since the arrival of another's is taken for it. With one process the surge is
//!   zero. Without a lock around pool and members, which Kubernetes does not have, no stricter
//!   bound is possible.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use warren_api::conditions::{self, ConditionType, Reason};
use warren_api::sandbox::{OperatingMode, ShutdownPolicy};
use warren_api::template::NetworkPolicyManagement;
use warren_api::{AgentTask, Sandbox, SandboxClaim, SandboxTemplate, annotations};
use warren_decide::ownership;
use warren_decide::step::{Action, Kind};

use crate::object::{Any, Judged, Typed};
use crate::server::{Caller, Commit, Server};
use crate::tasks;
use crate::wire::{Intent, Request, Sent, made_for};

/// The history that judgements depend on.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The claims that ever had a sandbox, by the sandbox's uid.
    served: BTreeMap<String, BTreeSet<String>>,
    /// The maker of each sandbox, by uid.
    makers: BTreeMap<String, Caller>,
    /// Sandboxes whose creation was never confirmed to the maker, where that excuses it.
    untold: BTreeSet<String>,
    /// Sandboxes that were suspended or expired at some time since they got their present pod.
    stopped: BTreeSet<String>,
    /// Sandboxes that wanted no service or had expired, and templates that wanted no policy, at
    /// some time since they got their present one.
    without: BTreeSet<String>,
    /// The nodes in each sandbox's statuses, by uid.
    nodes: BTreeMap<String, BTreeSet<String>>,
    /// Assignments that were dropped and not made again: the claim's uid, the sandbox's name, and
    /// the process.
    dropped: BTreeMap<(String, String), Caller>,
    /// Sandboxes that were adopted for an assignment that another process dropped, before or after:
    /// two concurrent requests cannot know of each other. They belong to the claim, which releases
    /// one too many.
    astray: BTreeSet<String>,
    /// Sandboxes without a controller when a process read them from the server, by uid, if it was
    /// not told otherwise since.
    found_free: BTreeSet<(Caller, String)>,
    /// The result of each process's last check of a claim: true if it was over.
    made_sure: BTreeMap<(Caller, String), bool>,
    /// The largest lead of a process's clock.
    clock_tolerance: Duration,
}

impl Ledger {
    /// Returns an empty ledger with the largest lead of the processes' clocks.
    #[must_use]
    pub fn new(clock_tolerance: Duration) -> Self {
        Self { clock_tolerance, ..Self::default() }
    }

    /// Records that a process has checked a claim by a guarded write.
    pub fn make_sure(&mut self, by: Caller, claim: &SandboxClaim, now: Timestamp) {
        let latest = now.checked_add(self.clock_tolerance).unwrap_or(now);
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        self.made_sure.insert((by, uid), is_over(claim, latest));
    }

    /// Records a sandbox that a process got in answer to a request. Watch events do not count: an
    /// earlier request may still be in flight.
    pub fn answer(&mut self, by: Caller, request: &Request, sandbox: &Sandbox) {
        let key = (by, sandbox.metadata.uid.clone().unwrap_or_default());
        if ownership::is_claimed(&sandbox.metadata) {
            self.found_free.remove(&key);
        } else if matches!(request, Request::Read(..)) {
            self.found_free.insert(key);
        }
    }

    /// Checks one write.
    pub fn check(
        &mut self,
        server: &Server,
        commit: &Commit,
        intent: Option<&Intent>,
        now: Timestamp,
    ) -> Result<(), String> {
        let latest = now.checked_add(self.clock_tolerance).unwrap_or(now);
        let Some(object) = commit.after.as_ref().or(commit.before.as_ref()) else { return Ok(()) };
        judge_conditions(object)?;
        match object {
            Any::Sandbox(_) => self.sandbox(server, commit, intent, latest),
            Any::SandboxClaim(_) => self.claim(server, commit, latest),
            Any::Pod(_) => self.pod(server, commit, latest),
            Any::SandboxTemplate(_) => self.template(commit),
            Any::Service(_) | Any::NetworkPolicy(_) => self.service_or_policy(server, commit, latest),
            Any::SandboxWarmPool(_) | Any::PersistentVolumeClaim(_) => judge_deletion_of_users(commit),
            // A task is deleted by its controller after its time to live.
            Any::AgentTask(_) => tasks::judge_task(commit),
        }
    }

    fn sandbox(
        &mut self,
        server: &Server,
        commit: &Commit,
        intent: Option<&Intent>,
        latest: Timestamp,
    ) -> Result<(), String> {
        if let Some(before) = sandbox(&commit.before)
            && is_taken_away(commit)
        {
            self.judge_sandbox_deletion(server, before, commit.by, latest)?;
        }
        let Some(after) = sandbox(&commit.after) else { return Ok(()) };
        let (name, uid) = (after.metadata.name.as_deref().unwrap_or_default(), uid(&commit.after));
        if !wants_pod(after, latest) {
            self.stopped.insert(uid.to_owned());
        }
        if !wants_service(after, latest) {
            self.without.insert(uid.to_owned());
        }
        if let Some(node) = after.status.as_ref().and_then(|status| status.node_name.clone()) {
            self.nodes.entry(uid.to_owned()).or_default().insert(node);
        }
        if let Some(owner) = ownership::controller(&after.metadata)
            && ownership::is_claimed(&after.metadata)
        {
            let served = self.served.entry(uid.to_owned()).or_default();
            served.insert(owner.uid.clone());
            if served.len() > 1 {
                return Err(format!("sandbox {name} ({uid}) has served two claims: {served:?}"));
            }
            let dropped = self.dropped.get(&(owner.uid.clone(), name.to_owned()));
            if dropped.is_some_and(|by| matches!(by, Caller::Process(_)) && *by != commit.by) {
                self.astray.insert(uid.to_owned());
            }
            let of_claim: Vec<&str> = server
                .all(Kind::Sandbox)
                .filter(|sandbox| {
                    sandbox.is_controlled_by(&owner.uid) && !self.astray.contains(sandbox.uid())
                })
                .map(Any::name)
                .collect();
            if of_claim.len() > 1 {
                return Err(format!("claim {} has {} sandboxes: {of_claim:?}", owner.name, of_claim.len()));
            }
            let named = ownership::annotation(&after.metadata, annotations::POD_NAME).is_some();
            let was = commit.before.as_ref().is_some_and(|it| ownership::is_claimed(it.meta()));
            if commit.after.as_ref().is_some_and(Any::is_ready) && !was && !named {
                return Err(format!(
                    "sandbox {name} was taken by a claim, is ready and does not name its pod"
                ));
            }
        }
        if commit.before.is_none() {
            self.makers.insert(uid.to_owned(), commit.by);
            if let Some(intent) = intent {
                if intent.is_untold {
                    self.untold.insert(uid.to_owned());
                }
                self.judge_new_member(server, after, commit.by, intent)?;
            }
        }
        Ok(())
    }

    fn judge_new_member(
        &self,
        server: &Server,
        member: &Sandbox,
        by: Caller,
        intent: &Intent,
    ) -> Result<(), String> {
        let Some(pool) = ownership::controller(&member.metadata) else { return Ok(()) };
        let counted: Vec<&str> = server
            .all(Kind::Sandbox)
            .filter(|sandbox| sandbox.is_controlled_by(&pool.uid))
            .filter(|sandbox| {
                let told = !self.untold.contains(sandbox.uid());
                (told && self.makers.get(sandbox.uid()) == Some(&by)) || intent.known.contains(sandbox.uid())
            })
            .map(Any::name)
            .collect();
        if counted.len() > intent.target {
            return Err(format!(
                "{by} made a member of pool {} although it asks for {}: of those that it knew or made, {} are alive: {counted:?}",
                pool.name,
                intent.target,
                counted.len(),
            ));
        }
        Ok(())
    }

    fn claim(&mut self, server: &Server, commit: &Commit, latest: Timestamp) -> Result<(), String> {
        if let Some(before) = claim(&commit.before)
            && is_taken_away(commit)
            && matches!(commit.by, Caller::Process(_))
            && !is_claim_expired(before, latest)
            // The controller of tasks deletes the claims that it made.
            && !ownership::controller(&before.metadata).is_some_and(ownership::is_kind::<AgentTask>)
        {
            let name = before.metadata.name.as_deref().unwrap_or_default();
            return Err(format!("{} deleted claim {name}, which has not expired", commit.by));
        }
        let Some(after) = claim(&commit.after) else { return Ok(()) };
        let (name, uid) = (after.metadata.name.as_deref().unwrap_or_default(), uid(&commit.after));
        let assigned = |claim: &SandboxClaim| {
            let text = ownership::annotation(&claim.metadata, annotations::SANDBOX_NAME)?;
            (!text.is_empty()).then(|| text.to_owned())
        };
        match (claim(&commit.before).and_then(assigned), assigned(after)) {
            (None, Some(new)) => {
                // From here on it is an ordinary sandbox of the claim.
                if let Some(sandbox) = server.get(Kind::Sandbox, &new) {
                    self.astray.remove(sandbox.uid());
                }
                self.dropped.remove(&(uid.to_owned(), new));
            }
            (Some(old), Some(new)) if old != new => {
                return Err(format!("claim {name} was assigned {old}, and this was swapped for {new}"));
            }
            (Some(old), None) => {
                if let Some(sandbox) =
                    server.get(Kind::Sandbox, &old).filter(|sandbox| sandbox.is_controlled_by(uid))
                {
                    if !self.found_free.contains(&(commit.by, sandbox.uid().to_owned())) {
                        return Err(format!("claim {name} dropped its assignment of {old}, which it has"));
                    }
                    self.astray.insert(sandbox.uid().to_owned());
                }
                self.dropped.insert((uid.to_owned(), old), commit.by);
            }
            _ => {}
        }
        let before = claim(&commit.before);
        if let Some(old) = before.and_then(shown).filter(|old| shown(after) != Some(old))
            && let Some(kept) = server.get(Kind::Sandbox, old)
            && kept.is_controlled_by(uid)
            && !kept.is_deleting()
            && after.metadata.deletion_timestamp.is_none()
            && !is_over(after, latest)
        {
            let new = shown(after).unwrap_or("none");
            return Err(format!("claim {name} named sandbox {old}, which it has, and now names {new}"));
        }
        if commit.after.as_ref().is_some_and(Any::is_ready) {
            let Some(shown) = shown(after) else {
                return Err(format!("claim {name} is Ready and names no sandbox"));
            };
            if let Some(sandbox) = server.get(Kind::Sandbox, shown)
                && !self.served.get(sandbox.uid()).is_some_and(|claims| claims.contains(uid))
            {
                return Err(format!("claim {name} is Ready with sandbox {shown}, which never was its own"));
            }
        }
        Ok(())
    }

    fn pod(&mut self, server: &Server, commit: &Commit, latest: Timestamp) -> Result<(), String> {
        tasks::judge_pod(server, commit)?;
        if let (None, Some(after)) = (&commit.before, &commit.after)
            && let Some(owner) = ownership::controller(after.meta())
        {
            if server.owner::<Sandbox>(owner).is_some_and(|sandbox| wants_pod(sandbox, latest)) {
                self.stopped.remove(&owner.uid);
            }
            let live: Vec<&str> = server
                .all(Kind::Pod)
                .filter(|pod| pod.is_controlled_by(&owner.uid) && !pod.is_deleting())
                .map(Any::name)
                .collect();
            if live.len() > 1 {
                return Err(format!("sandbox {} has {} live pods: {live:?}", owner.name, live.len()));
            }
        }
        if let Some(before) = commit.before.as_ref().and_then(Pod::of)
            && is_taken_away(commit)
            && matches!(commit.by, Caller::Process(_))
            && let Some(owner) = ownership::controller(&before.metadata)
            && let Some(sandbox) = server.owner::<Sandbox>(owner)
            && sandbox.metadata.deletion_timestamp.is_none()
            && !self.stopped.contains(&owner.uid)
            && !is_sandbox_expired(sandbox, latest)
        {
            return Err(format!("{} deleted the pod of sandbox {}, which is to run", commit.by, owner.name));
        }
        Ok(())
    }

    fn template(&mut self, commit: &Commit) -> Result<(), String> {
        if let Some(after) = commit.after.as_ref().and_then(SandboxTemplate::of)
            && !wants_policy(after)
        {
            self.without.insert(uid(&commit.after).to_owned());
        }
        judge_deletion_of_users(commit)
    }

    fn service_or_policy(
        &mut self,
        server: &Server,
        commit: &Commit,
        latest: Timestamp,
    ) -> Result<(), String> {
        if let (None, Some(after)) = (&commit.before, &commit.after)
            && let Some(owner) = ownership::controller(after.meta())
            && match after {
                Any::Service(_) => {
                    server.owner::<Sandbox>(owner).is_some_and(|sandbox| wants_service(sandbox, latest))
                }
                _ => server.owner::<SandboxTemplate>(owner).is_some_and(|template| wants_policy(template)),
            }
        {
            self.without.remove(&owner.uid);
        }
        self.judge_child_deletion(server, commit)
    }

    /// Checks the deletion of a service or a network policy.
    fn judge_child_deletion(&self, server: &Server, commit: &Commit) -> Result<(), String> {
        let Some(before) = commit.before.as_ref().filter(|_| is_taken_away(commit)) else { return Ok(()) };
        let Caller::Process(_) = commit.by else { return Ok(()) };
        let justified = ownership::controller(before.meta()).is_some_and(|owner| {
            let of_ours = match before {
                Any::Service(_) => ownership::is_kind::<Sandbox>(owner),
                _ => ownership::is_kind::<SandboxTemplate>(owner),
            };
            of_ours && (self.without.contains(&owner.uid) || !server.is_staying(&owner.uid))
                || before.kind() == Kind::NetworkPolicy && ownership::is_kind::<SandboxClaim>(owner)
        });
        match justified {
            true => Ok(()),
            false => {
                Err(format!("{} deleted {} {}, which is to stay", commit.by, before.kind(), before.name()))
            }
        }
    }

    /// Checks an assignment against the node states that its process had been told.
    pub fn check_node(&self, server: &Server, by: Caller, sent: &Sent) -> Result<(), String> {
        let Request::Act(Action::Merge { kind: Kind::SandboxClaim, name: claim, body }) = &sent.request
        else {
            return Ok(());
        };
        let assigned = body["metadata"]["annotations"][annotations::SANDBOX_NAME].as_str();
        let Some(member) = assigned.and_then(|name| server.get(Kind::Sandbox, name)) else { return Ok(()) };
        // It may have moved without the process seeing it, so every node that it has been on must
        // be lost.
        let known = self.nodes.get(member.uid()).filter(|_| ownership::is_pooled(member.meta()));
        match known.filter(|nodes| nodes.is_subset(&sent.lost_nodes)) {
            Some(nodes) => Err(format!(
                "{by} assigned sandbox {} to claim {claim} although its node is lost: {nodes:?}",
                member.name()
            )),
            None => Ok(()),
        }
    }

    fn judge_sandbox_deletion(
        &self,
        server: &Server,
        sandbox: &Sandbox,
        by: Caller,
        latest: Timestamp,
    ) -> Result<(), String> {
        let name = sandbox.metadata.name.as_deref().unwrap_or_default();
        let Caller::Process(_) = by else { return Ok(()) };
        if is_sandbox_expired(sandbox, latest) && sandbox.spec.shutdown_policy == ShutdownPolicy::Delete {
            return Ok(());
        }
        let Some(owner) = ownership::controller(&sandbox.metadata) else {
            let labelled =
                ownership::label(&sandbox.metadata, warren_api::labels::WARM_POOL_SANDBOX).is_some();
            return if labelled {
                Ok(())
            } else {
                Err(format!("{by} deleted sandbox {name}, which is the user's"))
            };
        };
        if !ownership::is_claimed(&sandbox.metadata) {
            return Ok(());
        }
        let claim = server.get(Kind::SandboxClaim, &owner.name).filter(|claim| claim.uid() == owner.uid);
        let justified = claim
            .and_then(SandboxClaim::of)
            .is_none_or(|claim| claim.metadata.deletion_timestamp.is_some() || is_over(claim, latest))
            || self.made_sure.get(&(by, owner.uid.clone())) == Some(&true)
            || claim.and_then(SandboxClaim::of).is_some_and(|claim| has_another(server, claim, name));
        match justified {
            true => Ok(()),
            false => Err(format!("{by} deleted sandbox {name}, which claim {} has", owner.name)),
        }
    }
}

/// Checks the conditions of a sandbox or a claim: all are of one generation, and none is older than
/// the object.
fn judge_conditions(object: &Any) -> Result<(), String> {
    let (kind, name, conditions) = (object.kind(), object.name(), object.conditions());
    let created = object.meta().creation_timestamp.as_ref();
    for condition in conditions {
        let Condition { type_, observed_generation, last_transition_time, .. } = condition;
        if *observed_generation != conditions[0].observed_generation {
            return Err(format!(
                "{kind} {name}: {type_} is about generation {observed_generation:?}, others not"
            ));
        }
        if created.is_some_and(|created| last_transition_time < created) {
            return Err(format!(
                "{kind} {name}: {type_} changed at {last_transition_time:?}, before it existed"
            ));
        }
    }
    Ok(())
}

/// Checks the deletion of an object that only its user may delete.
fn judge_deletion_of_users(commit: &Commit) -> Result<(), String> {
    match (&commit.before, commit.by) {
        (Some(before), Caller::Process(_)) if is_taken_away(commit) => {
            Err(format!("{} deleted {} {}, which is the user's", commit.by, before.kind(), before.name()))
        }
        _ => Ok(()),
    }
}

/// Checks the creation of a child in place of one that is gone, if the owner was not read in
/// between.
pub fn check_made_again(server: &Server, by: Caller, sent: &Sent) -> Result<(), String> {
    match made_for(&sent.request).filter(|_| sent.is_unasked) {
        Some((kind, owner)) if !server.is_staying(&owner.uid) => {
            let OwnerReference { kind: of, name, .. } = owner;
            Err(format!("{by} made a {kind} again for {of} {name}, which is gone or going"))
        }
        _ => Ok(()),
    }
}

/// Returns the sandbox that a claim's status names.
fn shown(claim: &SandboxClaim) -> Option<&str> {
    claim.status.as_ref()?.sandbox.as_ref()?.name.as_deref()
}

/// Returns true if a claim has another sandbox, and names that one and not this.
fn has_another(server: &Server, claim: &SandboxClaim, sandbox: &str) -> bool {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let assigned = ownership::annotation(&claim.metadata, annotations::SANDBOX_NAME);
    assigned != Some(sandbox)
        && shown(claim).filter(|shown| *shown != sandbox).is_some_and(|shown| {
            server.get(Kind::Sandbox, shown).is_some_and(|other| other.is_controlled_by(uid))
        })
}

/// Returns true if the write begins the deletion of the object.
fn is_taken_away(commit: &Commit) -> bool {
    commit.before.as_ref().is_some_and(|before| !before.is_deleting())
        && commit.after.as_ref().is_none_or(Any::is_deleting)
}

/// Returns true if a sandbox should have a pod.
fn wants_pod(sandbox: &Sandbox, now: Timestamp) -> bool {
    sandbox.spec.operating_mode != OperatingMode::Suspended && !is_sandbox_expired(sandbox, now)
}

/// Returns true if a sandbox should have a service, or may keep one.
fn wants_service(sandbox: &Sandbox, now: Timestamp) -> bool {
    sandbox.spec.blueprint.service != Some(false) && !is_sandbox_expired(sandbox, now)
}

/// Returns true if a template should have a network policy.
fn wants_policy(template: &SandboxTemplate) -> bool {
    template.spec.network_policy_management != NetworkPolicyManagement::Unmanaged
}

/// Returns true if a sandbox's time is over.
#[must_use]
pub fn is_sandbox_expired(sandbox: &Sandbox, now: Timestamp) -> bool {
    sandbox.spec.shutdown_time.as_ref().is_some_and(|Time(time)| now >= *time)
}

/// Returns true if a claim has ended: its time is over, or its status says that it missed its
/// deadline.
fn is_over(claim: &SandboxClaim, now: Timestamp) -> bool {
    is_claim_expired(claim, now) || has_missed_deadline(claim)
}

/// Returns true if a claim's status says that it missed its deadline.
#[must_use]
pub fn has_missed_deadline(claim: &SandboxClaim) -> bool {
    let conditions = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let says = |type_, reason: Reason| {
        conditions::find(conditions, type_).is_some_and(|condition| condition.reason == reason.as_str())
    };
    says(ConditionType::Ready, Reason::ClaimExpired)
        && says(ConditionType::Finished, Reason::DeadlineExceeded)
}

/// Returns true if a claim's time is over.
#[must_use]
pub fn is_claim_expired(claim: &SandboxClaim, now: Timestamp) -> bool {
    let Some(lifecycle) = &claim.spec.lifecycle else { return false };
    let shutdown = lifecycle.shutdown_time.as_ref().map(|Time(time)| *time);
    let conditions = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let finished =
        conditions::find(conditions, ConditionType::Finished).filter(|finished| finished.status == "True");
    let after_finish = finished.zip(lifecycle.ttl_seconds_after_finished).and_then(|(finished, seconds)| {
        let Time(since) = finished.last_transition_time;
        since.checked_add(Duration::from_secs(u64::try_from(seconds).unwrap_or_default())).ok()
    });
    shutdown.into_iter().chain(after_finish).any(|deadline| now >= deadline)
}

fn sandbox(any: &Option<Any>) -> Option<&Sandbox> {
    any.as_ref().and_then(Sandbox::of).map(|object| &**object)
}

fn claim(any: &Option<Any>) -> Option<&SandboxClaim> {
    any.as_ref().and_then(SandboxClaim::of).map(|object| &**object)
}

fn uid(any: &Option<Any>) -> &str {
    any.as_ref().map(Any::uid).unwrap_or_default()
}
