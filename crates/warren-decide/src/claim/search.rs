//! Finds the sandbox that a claim has, in a strict order: the one in its status, the assigned one,
//! the one of its name, any other that it controls.

use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, annotations, labels};

use super::World;
use crate::ownership;
use crate::step::{Action, Kind, Stage, Step};
use crate::warm_queue;

/// A result of the search.
pub(super) enum Search<'a> {
    /// The claim controls this sandbox.
    Bound(&'a Sandbox),
    /// The claim is committed to this one, which still is in its pool: complete the adoption.
    Assigned(&'a Sandbox),
    /// The claim's reference is invalid and must go before anything else is tried.
    Outdated,
    /// The referenced sandbox is not in our cache, or our cache says that it cannot be adopted.
    /// Only the server can confirm that: a claim must not give up its sandbox because a cache is
    /// behind.
    Unconfirmed(String),
    /// Another object is in the way.
    Blocked(String),
    /// There is none. A warm one may be adopted unless the claim keeps a reference.
    Nothing {
        /// True if a warm sandbox may be adopted.
        may_take_warm: bool,
    },
}

pub(super) fn find(world: &World) -> Search<'_> {
    let known = |name: &str| world.sandboxes.get(name).map(|sandbox| &**sandbox);
    let named = [world.status_sandbox(), world.assigned()];
    if let Some(sandbox) =
        named.into_iter().flatten().filter_map(known).find(|sandbox| world.is_mine(sandbox))
    {
        return Search::Bound(sandbox);
    }
    if let Some(name) = world.status_sandbox().filter(|name| !world.is_lost(name)) {
        return Search::Unconfirmed(name.to_owned());
    }
    let mut may_take_warm = true;
    if let Some(name) = world.assigned() {
        match known(name) {
            Some(sandbox) if ownership::is_pooled(&sandbox.metadata) && is_valid(world, sandbox) => {
                return Search::Assigned(sandbox);
            }
            // It belongs to another pool or claim, or has no controller: it cannot be adopted. The
            // reference is dropped before any new commitment, as a commitment is never swapped for
            // another.
            Some(sandbox) if ownership::is_pooled(&sandbox.metadata) || !world.is_committed_cold() => {
                return match world.confirmed.contains(name) {
                    true => Search::Outdated,
                    false => Search::Unconfirmed(name.to_owned()),
                };
            }
            Some(_) => may_take_warm = false,
            // The claim has committed to a cold start and has not made its sandbox yet.
            None if world.is_committed_cold() => may_take_warm = false,
            None if world.is_lost(name) => return Search::Outdated,
            None => return Search::Unconfirmed(name.to_owned()),
        }
    }
    // A sandbox that the claim controls without referring to it is still its own. It gets no other.
    let is_going = |sandbox: &&Sandbox| sandbox.metadata.deletion_timestamp.is_some();
    if let Some(sandbox) =
        known(world.name()).filter(|it| world.is_mine(it)).or(world.own().min_by_key(is_going))
    {
        return Search::Bound(sandbox);
    }
    match known(world.name()) {
        Some(_) => {
            Search::Blocked(format!("sandbox {} exists and is not controlled by this claim", world.name()))
        }
        None => Search::Nothing { may_take_warm },
    }
}

/// Returns true if this claim may adopt a pooled sandbox.
pub(super) fn is_valid(world: &World, sandbox: &Sandbox) -> bool {
    let pool = &world.claim.spec.warm_pool_ref.name;
    warm_queue::claimable_in(sandbox).is_some_and(|key| key.name == *pool)
        && ownership::label(&sandbox.metadata, labels::WARM_POOL_SANDBOX)
            == Some(&NameHash::of(pool).to_string())
}

/// Removes the reference from the claim, guarded by the observed version: a newer commitment must
/// not be lost.
pub(super) fn drop_reference(world: &World) -> Step {
    // The time of the first Ready was written for that sandbox: remove both.
    without_reference(
        world,
        json!({annotations::SANDBOX_NAME: null, annotations::CLAIM_FIRST_READY_AT: null}),
    )
}

/// Removes the claim's reference if it is not to the sandbox that the claim has.
pub(super) fn drop_other_reference(world: &World) -> Step {
    without_reference(world, json!({annotations::SANDBOX_NAME: null}))
}

fn without_reference(world: &World, annotations: Value) -> Step {
    let version = &world.claim.metadata.resource_version;
    let mut body = json!({"metadata": {"resourceVersion": version, "annotations": annotations}});
    if ownership::label(&world.claim.metadata, labels::LEGACY_SANDBOX_NAME).is_some() {
        body["metadata"]["labels"] = json!({labels::LEGACY_SANDBOX_NAME: null});
    }
    Step::new(Stage::Subject, Action::Merge { kind: Kind::SandboxClaim, name: world.name().to_owned(), body })
}

/// Moves the reference from the label, where older controllers wrote it, to the annotation.
pub(super) fn migrate_legacy_label(world: &World) -> Option<Step> {
    ownership::label(&world.claim.metadata, labels::LEGACY_SANDBOX_NAME)?;
    let body = json!({"metadata": {
        "uid": world.uid(),
        "labels": {labels::LEGACY_SANDBOX_NAME: null},
        // If both exist, the annotation wins.
        "annotations": {annotations::SANDBOX_NAME: world.assigned()},
    }});
    let action = Action::Merge { kind: Kind::SandboxClaim, name: world.name().to_owned(), body };
    Some(Step::new(Stage::Legacy, action))
}
