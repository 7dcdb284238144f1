//! What must hold after every single write, whatever happens.

use std::collections::BTreeMap;

use warren_api::annotations;
use warren_api::conditions::{self, ConditionType};
use warren_decide::ownership;

use crate::store::{Store, Stored};

/// What has been seen so far of who owned what.
#[derive(Debug, Default)]
pub struct Invariants {
    /// The claim, by uid, that each sandbox, by uid, has ever served.
    served: BTreeMap<String, String>,
    /// The most members that a pool may have had a right to, by name.
    pub entitled: BTreeMap<String, usize>,
}

impl Invariants {
    /// Checks the server's state. `leaders` is how many controllers may be at work at the same time.
    pub fn check(&mut self, store: &Store, leaders: usize) -> Result<(), String> {
        let mut sandboxes_of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut members: BTreeMap<&str, usize> = BTreeMap::new();
        for object in store.objects.values() {
            match object {
                Stored::Sandbox(sandbox) => {
                    let metadata = &sandbox.metadata;
                    let (name, uid) = (object.metadata().name.as_deref().unwrap_or_default(), object.uid());
                    let Some(owner) = ownership::controller(metadata) else { continue };
                    if ownership::is_pooled(metadata) {
                        *members.entry(&owner.name).or_default() += 1;
                    }
                    if !ownership::is_claimed(metadata) {
                        continue;
                    }
                    sandboxes_of.entry(&owner.uid).or_default().push(name);
                    let first = self.served.entry(uid.to_owned()).or_insert_with(|| owner.uid.clone());
                    if *first != owner.uid {
                        return Err(format!(
                            "sandbox {name} served claim {first} and now serves {}",
                            owner.uid
                        ));
                    }
                    let status = sandbox.status.clone().unwrap_or_default();
                    // A second leader that still sees the pod of an earlier sandbox of that name takes the annotation off
                    // for a moment; one leader never does.
                    if leaders == 1
                        && conditions::is_true(&status.conditions, ConditionType::Ready)
                        && ownership::annotation(metadata, annotations::POD_NAME).is_none()
                    {
                        return Err(format!("sandbox {name} is claimed and ready and does not name its pod"));
                    }
                }
                Stored::Pool(pool) => {
                    let desired = usize::try_from(pool.spec.replicas).unwrap_or_default();
                    let entitled =
                        self.entitled.entry(pool.metadata.name.clone().unwrap_or_default()).or_default();
                    *entitled = (*entitled).max(desired);
                }
                Stored::Claim(_) | Stored::Template(_) | Stored::Pod(_) => {}
            }
        }
        if let Some((claim, sandboxes)) = sandboxes_of.iter().find(|(_, sandboxes)| sandboxes.len() > 1) {
            return Err(format!("claim {claim} has several sandboxes: {sandboxes:?}"));
        }
        for (pool, count) in members {
            // Each leader keeps its own count; for the moment that there are two, each may fill the pool.
            let most = self.entitled.get(pool).copied().unwrap_or_default() * leaders;
            if count > most {
                return Err(format!("pool {pool} has {count} members, at most {most} are allowed"));
            }
        }
        Ok(())
    }

    /// Checks that everything has come to rest as it should.
    pub fn check_rest(&self, store: &Store) -> Result<(), String> {
        let mut members: BTreeMap<&str, usize> = BTreeMap::new();
        for object in store.objects.values() {
            let name = object.metadata().name.as_deref().unwrap_or_default();
            match object {
                Stored::Claim(claim) => {
                    let status = claim.status.clone().unwrap_or_default();
                    let sandbox = status.sandbox.and_then(|sandbox| sandbox.name).unwrap_or_default();
                    let owner = store.objects.get(&(0, sandbox.clone()));
                    let mine = owner
                        .is_some_and(|owner| ownership::is_controlled_by(owner.metadata(), object.uid()));
                    if !conditions::is_true(&status.conditions, ConditionType::Ready) || !mine {
                        let ready = conditions::find(&status.conditions, ConditionType::Ready);
                        return Err(format!("claim {name} never got its sandbox: {sandbox:?} {ready:?}"));
                    }
                }
                Stored::Sandbox(sandbox) => {
                    let status = sandbox.status.clone().unwrap_or_default();
                    if !conditions::is_true(&status.conditions, ConditionType::Ready) {
                        return Err(format!("sandbox {name} never became ready: {:?}", status.conditions));
                    }
                    if ownership::is_pooled(&sandbox.metadata)
                        && let Some(owner) = ownership::controller(&sandbox.metadata)
                    {
                        *members.entry(&owner.name).or_default() += 1;
                    }
                }
                Stored::Pool(_) | Stored::Template(_) | Stored::Pod(_) => {}
            }
        }
        for object in store.objects.values() {
            if let Stored::Pool(pool) = object {
                let name = pool.metadata.name.as_deref().unwrap_or_default();
                let (count, desired) = (members.get(name).copied().unwrap_or_default(), pool.spec.replicas);
                if i32::try_from(count) != Ok(desired) {
                    return Err(format!("pool {name} came to rest with {count} members of {desired}"));
                }
            }
        }
        Ok(())
    }
}
