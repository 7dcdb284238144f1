//! Leases: sandboxes that outlive the command that created them.
//!
//! A lease is one claim or sandbox on the server and one record here. The record pins the server's
//! answers: the UID, the pool, the end, later the sandbox, the pod and the container. Before a
//! lease is used or ended, the live objects are compared with it ([`check_root`], [`check_chain`]).
//! Everything in this file is pure. [`store`] keeps the records, [`cluster`] talks to the server.

pub mod cluster;
pub mod store;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt as _};
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use warren_api::claim::ClaimShutdownPolicy;
use warren_api::conditions::{self, ConditionType, Reason};
use warren_api::sandbox::ShutdownPolicy;
use warren_api::{NameHash, Sandbox, annotations, labels};

use crate::launch::{Launched, default_container, is_controlled_by};
use crate::sandbox::{Progress, Standing};

/// The prefix of each lease's id.
pub const ID_PREFIX: &str = "asbx_";

/// The longest slug: the claim's name has a prefix of 7, a hash of 9 and at most 63 characters, and
/// the names of its objects need some, too.
pub const LONGEST_SLUG: usize = 40;

/// Returns the problem of a slug that cannot be part of an object's name.
pub fn check_slug(slug: &str) -> Result<(), &'static str> {
    let plain = |letter: u8| letter == b'-' || letter.is_ascii_lowercase() || letter.is_ascii_digit();
    if slug.is_empty() || slug.len() > LONGEST_SLUG {
        return Err("it needs 1 to 40 characters");
    }
    if !slug.bytes().all(plain) || slug.starts_with('-') || slug.ends_with('-') {
        return Err("it has lower-case letters, digits and `-`, and begins and ends with a letter or digit");
    }
    Ok(())
}

/// Returns the name of a lease's object. It depends only on the lease, so that the object can be
/// found after a lost answer.
pub fn object_name(slug: &str, id: &str) -> String {
    format!("warren-{slug}-{}", NameHash::of(id))
}

/// The home, namespace, pool and container that a lease is valid for.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The data directory of a local home, or the files of a kubeconfig.
    pub home: &'a str,
    /// The context in the kubeconfig; empty for a local home.
    pub context: &'a str,
    /// The namespace.
    pub namespace: &'a str,
    /// The pool that the claim names; empty for a sandbox without a claim.
    pub pool: &'a str,
    /// The container that was chosen; empty for the pod's default.
    pub container: &'a str,
}

impl Scope<'_> {
    /// Returns the SHA-256 fingerprint in hexadecimal digits. The server stores only this, no path
    /// of this machine.
    pub fn fingerprint(&self) -> String {
        let mut context = Context::new(&SHA256);
        for part in [self.home, self.context, self.namespace, self.pool, self.container] {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part.as_bytes());
        }
        context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The kind of a lease's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A `SandboxClaim`, of a pool or a template.
    Claim,
    /// A `Sandbox`, of an image.
    Sandbox,
}

/// The local state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// The object is being created.
    Creating,
    /// It became Ready.
    Ready,
    /// It did not become Ready, and could not be deleted.
    NotReady,
}

/// An object that a lease is pinned to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// The record of a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// Its id: [`ID_PREFIX`] and random characters.
    pub id: String,
    /// The name given by the user.
    pub slug: String,
    /// The kind of its object.
    pub kind: Kind,
    /// The namespace of its object.
    pub namespace: String,
    /// The name of its object.
    pub name: String,
    /// The fingerprint of its [`Scope`].
    pub scope: String,
    /// The home as readable text.
    pub home: String,
    /// The pool that its claim names.
    pub pool: Option<String>,
    /// The template from which its claim has an empty pool of its own.
    pub template: Option<String>,
    /// The container that was chosen; none for the pod's default.
    pub chosen_container: Option<String>,
    /// The directory for files and commands; none for the default.
    pub workdir: Option<String>,
    /// The time when the controller ends it.
    pub expires: Timestamp,
    /// The time when it was requested.
    pub created: Timestamp,
    /// The time when a command last ended in it.
    pub last_used: Timestamp,
    /// Its local state.
    pub state: State,
    /// The UID of its object, once the server has answered.
    pub uid: Option<String>,
    /// Its sandbox. A claim with another sandbox is no longer this lease.
    pub sandbox: Option<Pinned>,
    /// Its pod.
    pub pod: Option<Pinned>,
    /// The container in which commands run.
    pub container: Option<String>,
}

impl Lease {
    /// Returns the scope of this lease in a home.
    pub fn scope_in<'a>(&'a self, home: &'a str, context: &'a str) -> Scope<'a> {
        Scope {
            home,
            context,
            namespace: &self.namespace,
            pool: self.pool.as_deref().unwrap_or_default(),
            container: self.chosen_container.as_deref().unwrap_or_default(),
        }
    }

    /// Returns the labels of its object.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let labels = [
            (labels::PROVIDER, labels::PROVIDER_AGENT_SANDBOX),
            (labels::LEASE_ID, &self.id),
            (labels::SLUG, &self.slug),
        ];
        labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Returns the annotations of its object.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let annotations = [
            (annotations::PROVIDER_SCOPE, Some(&self.scope)),
            (annotations::WORKDIR, self.workdir.as_ref()),
            (annotations::CONTAINER, self.chosen_container.as_ref()),
        ];
        let said = annotations.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.clone())));
        said.collect()
    }
}

/// The error of a live object that differs from the lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object} `{name}` is not the one of this lease: its {field} is `{found}`, not `{expected}`")]
pub struct Mismatch {
    /// Its kind.
    pub object: &'static str,
    /// Its name.
    pub name: String,
    /// The field that differs.
    pub field: &'static str,
    /// The value on the server.
    pub found: String,
    /// The value in the lease.
    pub expected: String,
}

/// Compares a live claim or sandbox with its lease: ownership, scope, UID, pool, and the end.
pub fn check_root(lease: &Lease, live: &Launched) -> Result<(), Mismatch> {
    let (meta, kind, end, retained) = match live {
        Launched::Claim(claim) => {
            let lifecycle = claim.spec.lifecycle.as_ref();
            let end = lifecycle.and_then(|lifecycle| lifecycle.shutdown_time.as_ref());
            let policy = lifecycle.map(|lifecycle| lifecycle.shutdown_policy);
            (claim.meta(), "SandboxClaim", end, policy == Some(ClaimShutdownPolicy::Retain))
        }
        Launched::Sandbox(sandbox) => {
            let retained = sandbox.spec.shutdown_policy == ShutdownPolicy::Retain;
            (sandbox.meta(), "Sandbox", sandbox.spec.shutdown_time.as_ref(), retained)
        }
    };
    let check = |field, found: Option<&str>, expected: &str| {
        let found = found.unwrap_or_default();
        match found == expected {
            true => Ok(()),
            false => Err(Mismatch {
                object: kind,
                name: lease.name.clone(),
                field,
                found: found.replace(char::is_control, " "),
                expected: expected.to_owned(),
            }),
        }
    };
    let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    let annotation =
        |key: &str| meta.annotations.as_ref().and_then(|known| known.get(key)).map(String::as_str);
    // The UID is checked first: it reveals a later object of the same name.
    if let Some(uid) = &lease.uid {
        check("metadata.uid", meta.uid.as_deref(), uid)?;
    }
    check("label warren.dev/provider", label(labels::PROVIDER), labels::PROVIDER_AGENT_SANDBOX)?;
    check("label warren.dev/lease-id", label(labels::LEASE_ID), &lease.id)?;
    check("annotation warren.dev/provider-scope", annotation(annotations::PROVIDER_SCOPE), &lease.scope)?;
    if let Launched::Claim(claim) = live {
        let pool = lease.pool.as_deref().unwrap_or_default();
        check("spec.warmPoolRef.name", Some(&claim.spec.warm_pool_ref.name), pool)?;
    }
    let end = end.map(|end| end.0.to_string());
    check("shutdownTime", end.as_deref(), &lease.expires.to_string())?;
    check("shutdownPolicy", Some(if retained { "Retain" } else { "Delete" }), "Retain")
}

/// The live objects behind a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The sandbox.
    pub sandbox: Pinned,
    /// Its pod.
    pub pod: Pinned,
    /// The container in which commands run.
    pub container: String,
}

/// Compares the live sandbox and pod with the lease. `pod` is compared with `pinned_pod`, if there
/// is one.
pub fn check_chain(
    lease: &Lease,
    sandbox: &Sandbox,
    pod: &Pod,
    pinned_pod: Option<&Pinned>,
) -> Result<Chain, Mismatch> {
    let differs = |object, name: String, field, found: Option<String>, expected: &str| Mismatch {
        object,
        name,
        field,
        found: found.unwrap_or_default(),
        expected: expected.to_owned(),
    };
    let owner = |meta: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference]| {
        meta.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
    };
    let (sandbox_name, pod_name) = (sandbox.name_any(), pod.name_any());
    let root = lease.uid.as_deref().unwrap_or_default();
    match lease.kind {
        Kind::Claim => {
            let marked = sandbox.labels().get(labels::CLAIM_UID);
            if marked.map(String::as_str) != Some(root) {
                let field = "label agents.x-k8s.io/claim-uid";
                return Err(differs("Sandbox", sandbox_name, field, marked.cloned(), root));
            }
            if !is_controlled_by(sandbox, Some(root)) {
                let found = owner(sandbox.owner_references());
                return Err(differs("Sandbox", sandbox_name, "controlling owner", found, root));
            }
        }
        Kind::Sandbox if sandbox.uid().as_deref() != Some(root) => {
            return Err(differs("Sandbox", sandbox_name, "metadata.uid", sandbox.uid(), root));
        }
        Kind::Sandbox => {}
    }
    if let Some(pinned) = &lease.sandbox
        && sandbox.uid().as_ref() != Some(&pinned.uid)
    {
        return Err(differs("Sandbox", sandbox_name, "metadata.uid", sandbox.uid(), &pinned.uid));
    }
    let sandbox_uid = sandbox.uid().unwrap_or_default();
    if !is_controlled_by(pod, Some(&sandbox_uid)) {
        return Err(differs(
            "Pod",
            pod_name,
            "controlling owner",
            owner(pod.owner_references()),
            &sandbox_uid,
        ));
    }
    if let Some(pinned) = pinned_pod
        && pod.uid().as_ref() != Some(&pinned.uid)
    {
        return Err(differs("Pod", pod_name, "metadata.uid", pod.uid(), &pinned.uid));
    }
    let container = lease.container.clone().or_else(|| lease.chosen_container.clone());
    let container = container.or_else(|| default_container(pod)).unwrap_or_default();
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| &container.name);
    if !containers.clone().any(|name| *name == container) {
        let found = containers.cloned().collect::<Vec<_>>().join(", ");
        return Err(differs("Pod", pod_name, "containers", Some(found), &container));
    }
    Ok(Chain {
        sandbox: Pinned { name: sandbox_name, uid: sandbox_uid },
        pod: Pinned { name: pod_name, uid: pod.uid().unwrap_or_default() },
        container,
    })
}

/// The state of a lease, from its record and its live object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseStanding {
    /// Commands can run in it.
    Ready,
    /// It is starting.
    Waiting(Standing),
    /// It will not become Ready.
    Ended(Standing),
    /// Its time is over.
    Expired,
    /// The server has no such object.
    Missing,
}

/// Judges the state of a lease. Once it has expired, missing objects behind it are not waited for.
pub fn judge(lease: &Lease, live: Option<&Launched>, now: Timestamp) -> LeaseStanding {
    let Some(live) = live else { return LeaseStanding::Missing };
    if now >= lease.expires || conditions_of(live).iter().any(says_expired) {
        return LeaseStanding::Expired;
    }
    match live.progress() {
        Progress::Ready => LeaseStanding::Ready,
        Progress::Waiting(standing) => LeaseStanding::Waiting(standing),
        Progress::Ended(standing) => LeaseStanding::Ended(standing),
    }
}

fn conditions_of(live: &Launched) -> &[Condition] {
    match live {
        Launched::Claim(claim) => {
            claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
        }
        Launched::Sandbox(sandbox) => {
            sandbox.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
        }
    }
}

fn says_expired(condition: &Condition) -> bool {
    matches!(Reason::parse(&condition.reason), Some(Reason::ClaimExpired | Reason::SandboxExpired))
}

/// Returns true if the sandbox behind a claim has ended for good.
pub fn is_finished(sandbox: &Sandbox) -> bool {
    let status = sandbox.status.as_ref();
    status.is_some_and(|status| conditions::is_true(&status.conditions, ConditionType::Finished))
}

/// The reason to clean up a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Its time is over.
    Expired,
    /// It has not been used by a command for this long.
    Idle(Duration),
    /// It never became Ready, or its creation was abandoned.
    NotReady,
}

/// Returns the reason for clean-up to remove a lease, if there is one. The caller holds its lock,
/// so no command is making or using it.
pub fn due(lease: &Lease, now: Timestamp, idle_timeout: Duration) -> Option<Due> {
    if now >= lease.expires {
        return Some(Due::Expired);
    }
    if lease.state != State::Ready {
        return Some(Due::NotReady);
    }
    let idle = Duration::try_from(now.duration_since(lease.last_used)).unwrap_or_default();
    (idle >= idle_timeout).then_some(Due::Idle(idle))
}

#[cfg(test)]
mod tests;
