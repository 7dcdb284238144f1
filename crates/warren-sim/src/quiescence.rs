//! Checks the state after a long time without faults and user actions: every claim is Ready or
//! truthfully says why not, pools are full, sandboxes match their specs, and nothing is left of
//! deleted objects.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use warren_api::conditions::{self, ConditionType, Reason};
use warren_api::sandbox::{OperatingMode, ShutdownPolicy};
use warren_api::template::NetworkPolicyManagement;
use warren_api::{
    AgentTask, NameHash, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations, go_duration,
    labels,
};
use warren_controllers::Config;
use warren_decide::ownership;
use warren_decide::pool::Strategy;
use warren_decide::staleness::TemplateComparison;
use warren_decide::step::Kind;
use warren_decide::template::policy_name;

use crate::invariants::{has_missed_deadline, is_claim_expired, is_sandbox_expired};
use crate::object::{Any, Judged, KINDS, Typed};
use crate::server::Server;
use crate::tasks;

/// The tolerance of wake-ups: reconciles are at least a millisecond apart, so a claim may be
/// handled slightly after its time.
const WAKE_TOLERANCE: Duration = Duration::from_secs(1);

/// Checks the state at rest.
pub fn check(server: &Server, config: &Config, now: Timestamp) -> Result<(), String> {
    for kind in KINDS {
        for object in server.all(kind) {
            let name = object.name();
            if object.is_deleting() {
                return Err(format!("{kind} {name} is still being deleted"));
            }
            let owners = object.meta().owner_references.as_deref().unwrap_or_default();
            if let Some(owner) = owners.iter().find(|owner| !server.exists(&owner.uid)) {
                return Err(format!("{kind} {name} has outlived its owner {} {}", owner.kind, owner.name));
            }
        }
    }
    each(server, |sandbox: &Sandbox| check_sandbox(server, sandbox, now))?;
    each(server, |sandbox: &Sandbox| check_volumes_and_service(server, sandbox, now))?;
    each(server, |claim: &SandboxClaim| check_claim(server, claim, config.claim_deadline, now))?;
    each(server, |pool: &SandboxWarmPool| check_pool(server, pool, config))?;
    each(server, |task: &AgentTask| tasks::check(server, task, now))?;
    each(server, |template: &SandboxTemplate| check_policy(server, template))
}

/// Checks that every claim has ended by its deadline, or has what it waits for. `deadline_before`
/// is a time since when nothing has hindered the controllers.
pub fn check_deadlines(server: &Server, config: &Config, deadline_before: Timestamp) -> Result<(), String> {
    each(server, |claim: &SandboxClaim| {
        match waits_until(server, claim, config, deadline_before)
            .filter(|deadline| *deadline < deadline_before)
        {
            Some(deadline) => {
                let name = claim.metadata.name.as_deref().unwrap_or_default();
                Err(format!("claim {name} was to be Ready or to end by {deadline}, and waits on"))
            }
            None => Ok(()),
        }
    })
}

/// Checks that an idle process with complete caches will reconcile each waiting claim at its
/// deadline. `due` returns the next reconcile of a claim. If the deadline has passed, an error
/// occurred, and any time is right: backoff.
pub fn check_wakes(
    server: &Server,
    config: &Config,
    now: Timestamp,
    due: impl Fn(&str) -> Option<Timestamp>,
) -> Result<(), String> {
    each(server, |claim: &SandboxClaim| {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let Some(deadline) = waits_until(server, claim, config, now) else { return Ok(()) };
        let latest = deadline.checked_add(WAKE_TOLERANCE).unwrap_or(deadline);
        match due(name) {
            Some(due) if due <= latest || deadline <= now => Ok(()),
            due => Err(format!(
                "claim {name} was to be Ready or to end by {deadline}, and is looked at again at {due:?}"
            )),
        }
    })
}

/// Returns the time until which a waiting claim must be Ready, if there is a limit.
fn waits_until(server: &Server, claim: &SandboxClaim, config: &Config, now: Timestamp) -> Option<Timestamp> {
    let waits = claim.metadata.deletion_timestamp.is_none()
        && !is_claim_expired(claim, now)
        && !has_missed_deadline(claim)
        && !has_use(server, claim);
    deadline(server, claim, config.claim_deadline).filter(|_| waits)
}

/// Returns the time until which a claim must be Ready, counted from when it began to wait or its
/// sandbox was resumed.
fn deadline(server: &Server, claim: &SandboxClaim, of_all: Option<Duration>) -> Option<Timestamp> {
    let Time(created) = claim.metadata.creation_timestamp.as_ref()?;
    let since = match ready(claim).filter(|ready| ready.status == "False") {
        // It had expired and was extended: it begins to wait with its next condition.
        Some(ready) if ready.reason == Reason::ClaimExpired.as_str() => return None,
        Some(ready) => {
            let uid = claim.metadata.uid.as_deref().unwrap_or_default();
            let mine = server.all(Kind::Sandbox).filter(|sandbox| sandbox.is_controlled_by(uid));
            let suspended =
                mine.filter_map(|any| conditions::find(any.conditions(), ConditionType::Suspended));
            let resumed = suspended.map(|condition| condition.last_transition_time.0).max();
            ready.last_transition_time.0.max(*created).max(resumed.unwrap_or(*created))
        }
        None => *created,
    };
    since.checked_add(time_to_wait(claim, of_all)?).ok()
}

/// Returns how long a claim may wait, if there is a limit.
fn time_to_wait(claim: &SandboxClaim, of_all: Option<Duration>) -> Option<Duration> {
    match ownership::annotation(&claim.metadata, annotations::DEADLINE).map(go_duration::parse) {
        Some(Ok(Duration::ZERO)) => None,
        Some(Ok(own)) => Some(own),
        Some(Err(_)) | None => of_all,
    }
}

/// Returns true if a claim is Ready, or keeps a sandbox that it has used and whose pod has finished
/// or that is suspended. A lost sandbox does not count.
fn has_use(server: &Server, claim: &SandboxClaim) -> bool {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let first_ready = ownership::annotation(&claim.metadata, annotations::CLAIM_FIRST_READY_AT);
    let is_older = |any: &Any, stamp: &str| match (&any.meta().creation_timestamp, stamp.parse::<Timestamp>())
    {
        (Some(Time(created)), Ok(stamp)) => *created <= stamp,
        _ => true,
    };
    let has_served = |any: &Any| first_ready.is_some_and(|stamp| is_older(any, stamp));
    let has_ended = |any: &Any| conditions::is_true(any.conditions(), ConditionType::Finished);
    let is_at_rest = |any: &Any| {
        Sandbox::of(any).is_some_and(|sandbox| sandbox.spec.operating_mode == OperatingMode::Suspended)
            || conditions::is_true(any.conditions(), ConditionType::Suspended)
    };
    let mut mine = server.all(Kind::Sandbox).filter(|sandbox| sandbox.is_controlled_by(uid));
    ready(claim).is_some_and(|ready| ready.status == "True")
        || mine.any(|any| has_served(any) || has_ended(any) || is_at_rest(any))
}

fn ready(claim: &SandboxClaim) -> Option<&Condition> {
    conditions::find(&claim.status.as_ref()?.conditions, ConditionType::Ready)
}

fn check_sandbox(server: &Server, sandbox: &Sandbox, now: Timestamp) -> Result<(), String> {
    let name = sandbox.metadata.name.as_deref().unwrap_or_default();
    let uid = sandbox.metadata.uid.as_deref().unwrap_or_default();
    let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ready = conditions::find(conditions, ConditionType::Ready);
    let reason = ready.map(|ready| ready.reason.as_str()).unwrap_or_default();
    let pods: Vec<&Pod> = server
        .all(Kind::Pod)
        .filter_map(Pod::of)
        .map(|pod| &**pod)
        .filter(|pod| ownership::is_controlled_by(&pod.metadata, uid))
        .collect();
    let says = |wanted: Reason, pod_count: usize| match reason == wanted.as_str() && pods.len() == pod_count {
        true => Ok(()),
        false => Err(format!(
            "sandbox {name} should be {} with {pod_count} pods, and is {reason} with {}",
            wanted.as_str(),
            pods.len()
        )),
    };
    if is_sandbox_expired(sandbox, now) {
        if sandbox.spec.shutdown_policy == ShutdownPolicy::Delete {
            return Err(format!("sandbox {name} has expired and was not deleted"));
        }
        return says(Reason::SandboxExpired, 0);
    }
    if sandbox.spec.operating_mode == OperatingMode::Suspended {
        return match conditions::is_true(conditions, ConditionType::Suspended) {
            true => says(Reason::SandboxSuspended, 0),
            false => Err(format!("sandbox {name} is not Suspended")),
        };
    }
    let phase = pods.first().and_then(|pod| pod.status.as_ref()?.phase.as_deref()).unwrap_or_default();
    match phase {
        "Succeeded" => says(Reason::PodSucceeded, 1),
        "Failed" => says(Reason::PodFailed, 1),
        _ if pods.is_empty() && tasks::is_spent(sandbox) => return says(Reason::DependenciesNotReady, 0),
        _ if server.is_invalid(Kind::Pod, &sandbox.spec.blueprint.pod_template.spec) => {
            return says(Reason::InvalidConfiguration, 0);
        }
        _ => says(Reason::DependenciesReady, 1),
    }?;
    let named = ownership::annotation(&sandbox.metadata, annotations::POD_NAME);
    // In a pool, an absent name means that the pod has its sandbox's name.
    let named = named.or_else(|| ownership::is_pooled(&sandbox.metadata).then_some(name));
    let pod = pods.first().and_then(|pod| pod.metadata.name.as_deref());
    if named != pod {
        return Err(format!("sandbox {name} says that its pod is {named:?}, and it is {pod:?}"));
    }
    let published = sandbox.status.as_ref().map(|status| status.pod_ips.clone()).unwrap_or_default();
    let addresses: Vec<String> = pods
        .iter()
        .filter_map(|pod| pod.status.as_ref()?.pod_ips.as_ref())
        .flatten()
        .map(|address| address.ip.clone())
        .collect();
    if published != addresses {
        return Err(format!("sandbox {name} shows the addresses {published:?}, and has {addresses:?}"));
    }
    Ok(())
}

/// Checks that a sandbox has its volumes for as long as it exists, and its service until its time
/// is over.
fn check_volumes_and_service(server: &Server, sandbox: &Sandbox, now: Timestamp) -> Result<(), String> {
    let name = sandbox.metadata.name.as_deref().unwrap_or_default();
    let uid = sandbox.metadata.uid.as_deref().unwrap_or_default();
    let service = server.get(Kind::Service, name).filter(|service| service.is_controlled_by(uid));
    let expired = is_sandbox_expired(sandbox, now);
    let wanted = if expired { Some(false) } else { sandbox.spec.blueprint.service };
    if wanted.is_some_and(|wanted| wanted != service.is_some()) {
        let has = if service.is_some() { "has" } else { "lacks" };
        return Err(format!("sandbox {name} says {wanted:?} to a service, and {has} one"));
    }
    let shown = sandbox.status.as_ref().and_then(|status| status.service.as_deref());
    if shown != service.map(Any::name) {
        return Err(format!("sandbox {name} shows the service {shown:?}, which is not what it has"));
    }
    let is_there = |volume: &str| {
        let volume = server.get(Kind::PersistentVolumeClaim, volume);
        volume.is_some_and(|volume| volume.is_controlled_by(uid))
    };
    let templates = sandbox.spec.blueprint.volume_claim_templates.iter();
    let mut volumes = templates.map(|template| format!("{}-{name}", template.metadata.name));
    match volumes.find(|volume| !expired && !is_there(volume)) {
        Some(volume) => Err(format!("sandbox {name} lacks its volume {volume}")),
        None => Ok(()),
    }
}

fn check_policy(server: &Server, template: &SandboxTemplate) -> Result<(), String> {
    let name = template.metadata.name.as_deref().unwrap_or_default();
    let uid = template.metadata.uid.as_deref().unwrap_or_default();
    let policy = server.get(Kind::NetworkPolicy, &policy_name(name));
    let has = policy.is_some_and(|policy| policy.is_controlled_by(uid));
    match has == (template.spec.network_policy_management == NetworkPolicyManagement::Managed) {
        true => Ok(()),
        false if has => Err(format!("template {name} has a network policy that it does not want")),
        false => Err(format!("template {name} lacks its network policy")),
    }
}

fn check_claim(
    server: &Server,
    claim: &SandboxClaim,
    deadline: Option<Duration>,
    now: Timestamp,
) -> Result<(), String> {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let Some(ready) = ready(claim) else {
        return Err(format!("claim {name} says nothing about being Ready"));
    };
    let is = |reason: Reason| ready.reason == reason.as_str();
    let mine: Vec<&Any> = server.all(Kind::Sandbox).filter(|sandbox| sandbox.is_controlled_by(uid)).collect();
    let wrong = |text: &str| Err(format!("claim {name} says {} ({}), {text}", ready.reason, ready.message));
    if mine.len() > 1 {
        let mine: Vec<&str> = mine.iter().map(|sandbox| sandbox.name()).collect();
        return wrong(&format!("and has {} sandboxes: {mine:?}", mine.len()));
    }
    if ready.observed_generation != claim.metadata.generation {
        return wrong("about an older generation");
    }
    if is_claim_expired(claim, now) {
        return match is(Reason::ClaimExpired) && mine.is_empty() {
            true => Ok(()),
            false => wrong("although it has expired, or has left its sandbox behind"),
        };
    }
    let deadline = time_to_wait(claim, deadline);
    if has_missed_deadline(claim) {
        return match deadline.is_some() && mine.is_empty() {
            true => Ok(()),
            false => wrong("without a deadline, or has left its sandbox behind"),
        };
    }
    if deadline.is_some() && !has_use(server, claim) {
        return wrong("long after its deadline");
    }
    let shown = claim.status.as_ref().and_then(|status| status.sandbox.as_ref()?.name.as_deref());
    if let Some(sandbox) = mine.first() {
        if shown != Some(sandbox.name()) {
            return wrong(&format!("and shows sandbox {shown:?} although it has {}", sandbox.name()));
        }
        let invalid = is(Reason::InvalidMetadata)
            || is(Reason::WarmPoolNotFound)
            || is(Reason::TemplateNotFound)
            || is(Reason::ReconcilerError);
        if invalid && !claim.spec.additional_pod_metadata.is_empty() {
            return Ok(());
        }
        let theirs = conditions::find(sandbox.conditions(), ConditionType::Ready);
        return match theirs
            .is_some_and(|theirs| (&theirs.status, &theirs.reason) == (&ready.status, &ready.reason))
        {
            true => Ok(()),
            false => wrong("and its sandbox says something else"),
        };
    }
    // It has none, so its status must give a true reason.
    let pool =
        server.get(Kind::SandboxWarmPool, &claim.spec.warm_pool_ref.name).and_then(SandboxWarmPool::of);
    let template = pool
        .and_then(|pool| server.get(Kind::SandboxTemplate, &pool.spec.sandbox_template_ref.name))
        .and_then(SandboxTemplate::of);
    let blocked = server.get(Kind::Sandbox, name).is_some();
    let true_reason = match ready.reason.as_str() {
        "InvalidMetadata" => !claim.spec.additional_pod_metadata.is_empty(),
        "EnvVarsInjectionRejected" => !claim.spec.env.is_empty(),
        "WarmPoolNotFound" => pool.is_none(),
        "TemplateNotFound" => pool.is_some() && template.is_none(),
        "ReconcilerError" => blocked,
        "InvalidConfiguration" => template.is_some_and(|template| is_refused(server, template)),
        _ => false,
    };
    if true_reason { Ok(()) } else { wrong("has no sandbox, and that is not why") }
}

fn check_pool(server: &Server, pool: &SandboxWarmPool, config: &Config) -> Result<(), String> {
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let uid = pool.metadata.uid.as_deref().unwrap_or_default();
    let desired = wanted_members(pool, config);
    let members: Vec<&Any> =
        server.all(Kind::Sandbox).filter(|sandbox| sandbox.is_controlled_by(uid)).collect();
    let template =
        server.get(Kind::SandboxTemplate, &pool.spec.sandbox_template_ref.name).and_then(SandboxTemplate::of);
    let can_grow = template.is_some_and(|template| !is_refused(server, template));
    if members.len() > desired || (can_grow && members.len() < desired) {
        return Err(format!("pool {name} should have {desired} members and has {}", members.len()));
    }
    let status = pool.status.clone().unwrap_or_default();
    let ready = members.iter().filter(|member| member.is_ready()).count();
    let shown = (usize::try_from(status.replicas), usize::try_from(status.ready_replicas));
    if shown != (Ok(members.len()), Ok(ready)) {
        let text = format!("{}/{}", status.ready_replicas, status.replicas);
        return Err(format!("pool {name} shows {text} ready, and has {ready}/{}", members.len()));
    }
    if Some(status.observed_generation) != pool.metadata.generation {
        return Err(format!("pool {name} has not said anything about its present generation"));
    }
    if let Some(template) = template {
        let comparison = TemplateComparison::new(template);
        let pod = &template.spec.blueprint.pod_template.spec;
        // Members that cannot be ready keep a rolling update from replacing ready ones.
        let stops = is_refused(server, template) || server.is_invalid(Kind::Pod, pod);
        let replaced = match Strategy::of(pool) {
            Strategy::OnReplenish => false,
            Strategy::Recreate => true,
            Strategy::RollingUpdate { .. } => !stops,
        };
        let stale = |any: &&&Any| Sandbox::of(any).is_some_and(|member| comparison.is_stale(member));
        if let Some(member) = members.iter().find(stale).filter(|_| replaced) {
            return Err(format!("member {} of pool {name} is stale", member.name()));
        }
        let hash = NameHash::of(name).to_string();
        let orphan = |any: &&Any| {
            ownership::controller(any.meta()).is_none()
                && ownership::label(any.meta(), labels::WARM_POOL_SANDBOX) == Some(&hash)
        };
        if let Some(orphan) = server.all(Kind::Sandbox).find(orphan) {
            return Err(format!("sandbox {} of pool {name} is nobody's", orphan.name()));
        }
    }
    Ok(())
}

/// Returns true if the server refuses every sandbox made from a template.
fn is_refused(server: &Server, template: &SandboxTemplate) -> bool {
    server.is_invalid(Kind::Sandbox, &template.spec.blueprint.pod_template.spec)
}

/// Returns how many members a pool should have: the number that it asks for, within the global cap.
#[must_use]
pub fn wanted_members(pool: &SandboxWarmPool, config: &Config) -> usize {
    let asked = usize::try_from(pool.spec.replicas).unwrap_or_default();
    config.sandbox_warm_pool_max_size.map_or(asked, |cap| asked.min(cap))
}

fn each<K: Typed>(server: &Server, check: impl Fn(&K) -> Result<(), String>) -> Result<(), String> {
    server.all(K::KIND).filter_map(K::of).try_for_each(|object| check(object))
}
