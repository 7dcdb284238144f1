//! Watches the owners of all sandboxes, and checks that no sandbox ever serves two claims and no
//! claim has two sandboxes at a time. It reads every version from the server, so even momentary
//! faults are seen.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use kube::ResourceExt as _;
use warren_api::Sandbox;

use crate::controllers::history::{Entry, History, version};
use crate::controllers::place::Place;

/// A watch on one namespace, until it is dropped.
pub struct Referee {
    sandboxes: History<Sandbox>,
}

impl Referee {
    /// Starts to watch.
    pub async fn watch(place: &Place) -> Result<Self> {
        Ok(Self { sandboxes: place.record().await? })
    }

    /// Fails if a sandbox or claim was served twice, up to the given versions of claims' sandboxes.
    /// It uses another watch than the caller's waits, so it waits for these versions, too.
    pub async fn verdict(&self, place: &Place, given: &[Sandbox]) -> Result<()> {
        let seen = |given: &Sandbox, seen: &Entry<Sandbox>| {
            seen.object.uid() == given.uid() && version(&seen.object) >= version(given)
        };
        let judged = place
            .eventually("the record of what was given", async || {
                let record = self.sandboxes.so_far();
                let all = given.iter().all(|given| record.iter().any(|entry| seen(given, entry)));
                Ok(all.then_some(record))
            })
            .await?;
        let claims: BTreeSet<String> = judged.iter().filter_map(claim_of).map(|(uid, _)| uid).collect();
        ensure!(claims.len() >= given.len(), "{} were given to only {claims:?}", given.len());
        let faults = faults(&judged);
        ensure!(faults.is_empty(), "given twice:\n{}", faults.join("\n"));
        Ok(())
    }
}

/// Returns the claim that controls a sandbox, by uid and name.
fn claim_of(entry: &Entry<Sandbox>) -> Option<(String, String)> {
    let mut owners = entry.object.owner_references().iter();
    owners
        .find(|owner| owner.kind == "SandboxClaim" && owner.controller == Some(true))
        .map(|owner| (owner.uid.clone(), owner.name.clone()))
}

/// Returns the double assignments, in order.
fn faults(history: &[Entry<Sandbox>]) -> Vec<String> {
    let mut served: BTreeMap<String, String> = BTreeMap::new();
    let mut present: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut found = Vec::new();
    for entry in history {
        let (Some(sandbox), name) = (entry.object.uid(), entry.object.name_any()) else { continue };
        let Some((claim, claim_name)) = claim_of(entry) else { continue };
        let first = served.entry(sandbox.clone()).or_insert_with(|| claim.clone());
        if *first != claim {
            found.push(format!("sandbox {name} ({sandbox}) serves {claim_name} ({claim}) after {first}"));
        }
        let of_claim = present.entry(claim.clone()).or_default();
        if entry.deleted {
            of_claim.remove(&sandbox);
        } else if of_claim.insert(sandbox) && of_claim.len() > 1 {
            found.push(format!("claim {claim_name} ({claim}) has {of_claim:?}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(sandbox: &str, claim: &str, deleted: bool) -> Entry<Sandbox> {
        let owner = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "name": claim, "uid": claim, "controller": true});
        let object = json!({"metadata": {"name": sandbox, "uid": sandbox, "ownerReferences": [owner]},
            "spec": {"podTemplate": {"spec": {"containers": []}}}});
        Entry { object: serde_json::from_value(object).expect("a sandbox"), deleted }
    }

    #[test]
    fn a_sandbox_that_serves_two_claims_and_a_claim_with_two_sandboxes_are_seen() {
        let fine =
            [entry("a", "x", false), entry("b", "y", false), entry("a", "x", true), entry("c", "x", false)];
        assert!(faults(&fine).is_empty());
        let shared = [entry("a", "x", false), entry("a", "y", false)];
        assert_eq!(faults(&shared), ["sandbox a (a) serves y (y) after x"]);
        let greedy = [entry("a", "x", false), entry("b", "x", false)];
        assert_eq!(faults(&greedy), [r#"claim x (x) has {"a", "b"}"#]);
    }
}
