//! Finds the sandbox that a claim has, in a strict order: the one in its status, the assigned one, the one of its name, any other
//! that it controls.

use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, annotations, labels};

use super::World;
use crate::ownership;
use crate::step::{Action, Kind, Stage, Step};
use crate::warm_queue;

/// What was found.
pub(super) enum Search<'a> {
    /// The claim controls this sandbox.
    Bound(&'a Sandbox),
    /// The claim is committed to this one, which still is in its pool: finish taking it.
    Assigned(&'a Sandbox),
    /// The claim's reference leads nowhere and must go before anything else is tried.
    Outdated,
    /// The referenced sandbox is not in our cache, or is not to be had by what our cache says; only the server can say that
    /// it is so: what the claim has it must not let go of because a cache is behind.
    Unconfirmed(String),
    /// Something is in the way.
    Blocked(String),
    /// There is none. A waiting one may be taken unless the claim holds on to a reference.
    Nothing {
        /// Whether it may.
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
            // Another pool's, another claim's, or nobody's: not to be had. The reference goes before anything else is
            // committed to, as a commitment is never swapped for another.
            Some(sandbox) if ownership::is_pooled(&sandbox.metadata) || !world.is_committed_cold() => {
                return match world.confirmed.contains(name) {
                    true => Search::Outdated,
                    false => Search::Unconfirmed(name.to_owned()),
                };
            }
            Some(_) => may_take_warm = false,
            // The claim has said that it makes its own, and has not done so yet.
            None if world.is_committed_cold() => may_take_warm = false,
            None if world.is_lost(name) => return Search::Outdated,
            None => return Search::Unconfirmed(name.to_owned()),
        }
    }
    // One that no word of the claim leads to is still its own, and it gets no other.
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

/// Whether a pooled sandbox may be taken by this claim.
pub(super) fn is_valid(world: &World, sandbox: &Sandbox) -> bool {
    let pool = &world.claim.spec.warm_pool_ref.name;
    warm_queue::claimable_in(sandbox).is_some_and(|key| key.name == *pool)
        && ownership::label(&sandbox.metadata, labels::WARM_POOL_SANDBOX)
            == Some(&NameHash::of(pool).to_string())
}

/// Takes the reference off the claim, guarded by what was seen: a commitment made meanwhile must not be lost.
pub(super) fn drop_reference(world: &World) -> Step {
    // The time of the first Ready goes with the sandbox that it was promised for.
    without_reference(
        world,
        json!({annotations::SANDBOX_NAME: null, annotations::CLAIM_FIRST_READY_AT: null}),
    )
}

/// Takes a reference off the claim that is not to the sandbox that it has.
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

/// Older controllers wrote the reference as a label.
pub(super) fn migrate_legacy_label(world: &World) -> Option<Step> {
    ownership::label(&world.claim.metadata, labels::LEGACY_SANDBOX_NAME)?;
    let body = json!({"metadata": {
        "uid": world.uid(),
        "labels": {labels::LEGACY_SANDBOX_NAME: null},
        // The annotation goes before the label, if both are there.
        "annotations": {annotations::SANDBOX_NAME: world.assigned()},
    }});
    let action = Action::Merge { kind: Kind::SandboxClaim, name: world.name().to_owned(), body };
    Some(Step::new(Stage::Legacy, action))
}
