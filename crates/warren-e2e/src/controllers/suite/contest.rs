//! Tests several controllers at once: without an election they compete and no sandbox is given
//! twice; with one, one leads.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use serde_json::json;
use warren_api::{Sandbox, SandboxClaim, labels};

use super::objects::{controller, sandbox_of};
use super::process::ControllerProcess;
use super::referee::Referee;
use crate::controllers::harness::HomeKind;
use crate::controllers::place::Place;
use crate::controllers::workload;

const LEASE: &str = "a3317529.agent-sandbox.x-k8s.io";

/// The number of additional controllers beside the home's own.
const MORE_CONTROLLERS: usize = 2;

/// The home's own controllers and two processes without an election, over a pool that is too small
/// for its claims. One of them is killed in the middle and another takes its place.
pub async fn three_controllers_that_fight_give_everything_once(place: Place) -> Result<()> {
    let fight = || ControllerProcess::start(place.home(), &["--leader-elect=false"]);
    let mut fighters = (0..MORE_CONTROLLERS).map(|_| fight()).collect::<Result<Vec<_>>>()?;
    let referee = Referee::watch(&place).await?;
    let statuses = place.record::<SandboxClaim>().await?;
    place.pool("pool", 6, json!({})).await?;
    place.wait_full("pool", 6).await?;
    // All of them are working before the contest begins.
    place.claim("first", "pool", json!({})).await?;
    for fighter in &fighters {
        wait_until_at_work(&place, fighter).await?;
    }
    let mut names = vec!["first".to_owned()];
    for round in 0..3 {
        let claims: Vec<String> = (0..10).map(|number| format!("c{round}-{number}")).collect();
        try_join_all(claims.iter().map(|name| place.claim(name, "pool", json!({})))).await?;
        if round == 1 {
            fighters.remove(0).kill()?;
            fighters.push(fight()?);
        }
        names.extend(claims);
    }
    let sandboxes = try_join_all(names.iter().map(|name| place.wait_claimed(name))).await?;
    let different: BTreeSet<String> = sandboxes.iter().map(|sandbox| sandbox.name_any()).collect();
    assert_eq!(different.len(), names.len(), "{different:?}");
    for (sandbox, name) in sandboxes.iter().zip(&names) {
        assert!(controller(sandbox).contains(&format!(" SandboxClaim {name} ")), "{}", controller(sandbox));
    }
    // Nothing is left over afterwards: the pool has exactly its size, and each claim one sandbox.
    place.wait_full("pool", 6).await?;
    place
        .eventually("six members and one sandbox for each claim", async || {
            let all: Vec<Sandbox> = place.list().await?;
            let waiting =
                all.iter().filter(|one| one.labels().contains_key(labels::WARM_POOL_SANDBOX)).count();
            Ok((waiting == 6 && all.len() == 6 + names.len()).then_some(()))
        })
        .await?;
    // A claim's first assignment is final. The recording uses another watch, and is complete once
    // it has the claim's present state.
    for (sandbox, name) in sandboxes.iter().zip(&names) {
        let named = place
            .eventually("the record of what a claim named", async || {
                let entries = statuses.of(name).into_iter();
                let named: BTreeSet<String> = entries.filter_map(|entry| sandbox_of(&entry.object)).collect();
                Ok(named.contains(&sandbox.name_any()).then_some(named))
            })
            .await?;
        assert_eq!(named.len(), 1, "claim {name} named {named:?}");
    }
    for fighter in &mut fighters {
        wait_until_at_work(&place, fighter).await?;
        ensure!(fighter.runs()?, "a controller has ended by itself");
    }
    referee.verdict(&place, &sandboxes).await
}

async fn wait_until_at_work(place: &Place, controllers: &ControllerProcess) -> Result<()> {
    let is_at_work = async || Ok((controllers.passes_over_claims().await? > 0).then_some(()));
    place.eventually("a pass over a claim", is_at_work).await
}

/// Two wait behind a leader. If it is killed, it is followed when its lease has expired. If it is
/// asked to stop, it releases the lease, so that the next one need not wait.
pub async fn a_leader_that_is_killed_or_leaves_is_followed(place: Place) -> Result<()> {
    // If the home's own controllers can be stopped, the leader does all the work.
    let can_stand_aside = place.home().kind() == HomeKind::Cluster;
    if can_stand_aside {
        place.home().fight(0)?;
    }
    let outcome = election(&place).await;
    if can_stand_aside {
        place.home().fight(1)?;
    }
    outcome
}

async fn election(place: &Place) -> Result<()> {
    let namespace = format!("--leader-election-namespace={}", place.namespace());
    let candidate = || ControllerProcess::start(place.home(), &["--leader-elect=true", &namespace]);
    let history = place.record::<Lease>().await?;
    let first = candidate()?;
    let leader = holder(place, &BTreeSet::new()).await?;
    place.create::<Sandbox>(workload::sandbox("first", json!({}))).await?;
    place.wait_ready::<Sandbox>("first", "True/DependenciesReady").await?;

    let second = candidate()?;
    first.kill()?;
    let next = holder(place, &BTreeSet::from([leader.clone()])).await?;
    place.create::<Sandbox>(workload::sandbox("second", json!({}))).await?;
    place.wait_ready::<Sandbox>("second", "True/DependenciesReady").await?;
    assert!(!released(&history), "who was killed gave nothing back");

    let mut third = candidate()?;
    let status = tokio::task::block_in_place(|| second.leave())?;
    assert!(status.success(), "{status}");
    place.eventually("a lease that was given back", async || Ok(released(&history).then_some(()))).await?;
    holder(place, &BTreeSet::from([leader, next])).await?;
    place.create::<Sandbox>(workload::sandbox("third", json!({}))).await?;
    place.wait_ready::<Sandbox>("third", "True/DependenciesReady").await?;
    ensure!(third.runs()?, "the last leader has ended by itself");
    Ok(())
}

/// Waits until a holder that is none of these leads.
async fn holder(place: &Place, others: &BTreeSet<String>) -> Result<String> {
    let held = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
    let lease: Lease = place
        .wait_for(LEASE, "held by another", |lease: &Lease| {
            held(lease).is_some_and(|holder| !holder.is_empty() && !others.contains(&holder))
        })
        .await?;
    held(&lease).context("it has a holder")
}

/// Returns true if the lease had no holder at some time.
fn released(history: &crate::controllers::history::History<Lease>) -> bool {
    history.of(LEASE).iter().any(|entry| {
        let holder = entry.object.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        holder.unwrap_or_default().is_empty()
    })
}
