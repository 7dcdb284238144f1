//! Runs `warren suspend` and `warren resume`.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use warren_api::Sandbox;
use warren_api::conditions::{self, ConditionType};
use warren_client::kube::ResourceExt as _;
use warren_client::kube::api::{Api, Patch, PatchParams};
use warren_client::kube::runtime::wait::await_condition;

use super::{Reached, find};
use crate::{cli, progress};

/// Suspends sandboxes: their pods end, their volumes stay. Returns when the pods are gone.
pub async fn suspend(arguments: &cli::Suspend) -> anyhow::Result<()> {
    set(arguments, "Suspended", "to be suspended", |sandbox| {
        let status = sandbox.status.as_ref();
        status.is_some_and(|status| conditions::is_true(&status.conditions, ConditionType::Suspended))
    })
    .await
}

/// Resumes sandboxes. Returns when they are Ready again.
pub async fn resume(arguments: &cli::Suspend) -> anyhow::Result<()> {
    set(arguments, "Running", "to become Ready", |sandbox| {
        let status = sandbox.status.as_ref();
        status.is_some_and(|status| conditions::is_true(&status.conditions, ConditionType::Ready))
    })
    .await
}

async fn set(
    arguments: &cli::Suspend,
    mode: &'static str,
    what: &'static str,
    holds: fn(&Sandbox) -> bool,
) -> anyhow::Result<()> {
    let reached = super::reach(&arguments.place).await?;
    for name in &arguments.sandboxes {
        let sandbox = set_one(&reached, name, mode).await?;
        let within = reached.destination.config.duration("sandbox-ready-timeout");
        let waiting = settled(&reached, &sandbox, within, holds);
        let line = || format!("waiting for sandbox `{name}` {what}");
        let settled = progress::show_if_slow(line, waiting).await?;
        anyhow::ensure!(
            settled,
            "sandbox `{name}` was still waiting {what} after {} s; `warren explain {name}` says why",
            within.as_secs()
        );
        println!("{name}");
    }
    Ok(())
}

/// Sets the operating mode, and returns the sandbox in the server's answer.
async fn set_one(reached: &Reached, name: &str, mode: &str) -> anyhow::Result<Sandbox> {
    let found = find(reached, name).await?;
    let sandbox = found.sandbox.with_context(|| format!("claim `{name}` has no sandbox yet"))?;
    let api: Api<Sandbox> = Api::namespaced(reached.client.clone(), &reached.namespace);
    // The UID is a precondition: a later sandbox of this name is not changed.
    let patch = json!({ "metadata": { "uid": sandbox.uid() }, "spec": { "operatingMode": mode } });
    let patched = api.patch(&sandbox.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.with_context(|| format!("set the operating mode of sandbox `{name}`"))
}

/// Waits until a condition holds for the requested generation. Returns false if it took too long.
async fn settled(
    reached: &Reached,
    sandbox: &Sandbox,
    within: Duration,
    holds: fn(&Sandbox) -> bool,
) -> anyhow::Result<bool> {
    let api: Api<Sandbox> = Api::namespaced(reached.client.clone(), &reached.namespace);
    let (uid, generation) = (sandbox.uid(), sandbox.metadata.generation);
    let is_news = |sandbox: &Sandbox| {
        let conditions = sandbox.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.observed_generation >= generation)
    };
    let settled = |sandbox: Option<&Sandbox>| {
        sandbox.is_none_or(|sandbox| sandbox.uid() != uid || is_news(sandbox) && holds(sandbox))
    };
    let waited = tokio::time::timeout(within, await_condition(api, &sandbox.name_any(), settled)).await;
    let Ok(seen) = waited else { return Ok(false) };
    let seen = seen.context("watch the sandbox")?.filter(|seen| seen.uid() == uid);
    anyhow::ensure!(seen.is_some(), "sandbox `{}` was deleted meanwhile", sandbox.name_any());
    Ok(true)
}
