//! A namespace of a home, and the actions of scenarios in it.
//!
//! All actions tolerate that the API server is away for a moment, as the local home's is when its
//! controllers are killed: a call without an answer is repeated until [`DEADLINE`].

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::Condition;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use warren_api::pool::UpdateStrategyType;
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, labels};

use super::harness::{DEADLINE, Home};
use super::history::History;
use super::workload;

/// The delay before a call without an answer is repeated.
pub(super) const AGAIN: Duration = Duration::from_millis(50);

/// The namespace of one scenario.
#[derive(Clone)]
pub struct Place {
    home: Arc<Home>,
    namespace: String,
    disturbed: bool,
}

/// A kind that scenarios use.
pub trait Namespaced:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + DeserializeOwned
    + Serialize
    + Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> Namespaced for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Serialize
        + Debug
        + Send
        + Sync
        + 'static
{
}

impl Place {
    pub(super) fn new(home: Arc<Home>, namespace: String) -> Self {
        Self { home, namespace, disturbed: false }
    }

    /// Sets whether the controllers are killed from time to time.
    pub(super) fn disturbed(self, disturbed: bool) -> Self {
        Self { disturbed, ..self }
    }

    /// Returns true if the controllers may be killed at any time.
    pub fn is_disturbed(&self) -> bool {
        self.disturbed
    }

    /// Returns its home.
    pub fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// Returns a client with all rights.
    pub fn client(&self) -> Client {
        self.home.client()
    }

    /// Returns the namespace's name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns a kind's API in this namespace, for calls that have no method here. It does not
    /// retry.
    pub fn api<K: Namespaced>(&self) -> Api<K> {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// Creates an object from JSON.
    pub async fn create<K: Namespaced>(&self, object: Value) -> Result<K> {
        self.try_create(object).await?.with_context(|| format!("create a {}", K::kind(&())))
    }

    /// Creates an object from JSON; returns the server's refusal separately.
    pub async fn try_create<K: Namespaced>(&self, object: Value) -> Result<Result<K, kube::Error>> {
        let object: K = serde_json::from_value(object)?;
        let api = self.api::<K>();
        let mut tried = false;
        let created = answer(|| {
            let again = std::mem::replace(&mut tried, true);
            let (api, object) = (&api, &object);
            async move {
                match api.create(&PostParams::default(), object).await {
                    // The answer to the first try was lost, not the object.
                    Err(kube::Error::Api(status)) if again && status.reason == "AlreadyExists" => {
                        api.get(&object.name_any()).await
                    }
                    result => result,
                }
            }
        });
        Ok(created.await)
    }

    /// Merge-patches an object.
    pub async fn patch<K: Namespaced>(&self, name: &str, body: Value) -> Result<K> {
        self.try_patch(name, body.clone()).await.with_context(|| format!("patch {name} with {body}"))
    }

    /// Merge-patches an object; returns the server's refusal separately.
    pub async fn try_patch<K: Namespaced>(&self, name: &str, body: Value) -> Result<K, kube::Error> {
        let (api, parameters, patch) = (self.api::<K>(), PatchParams::default(), Patch::Merge(&body));
        answer(|| api.patch(name, &parameters, &patch)).await
    }

    /// Removes the finalizers of an object that is being deleted. The object may be gone before the
    /// answer comes: a repeated call then finds nothing.
    pub async fn release<K: Namespaced>(&self, name: &str) -> Result<()> {
        match self.try_patch::<K>(name, json!({"metadata": {"finalizers": null}})).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop).with_context(|| format!("release {name}")),
        }
    }

    /// Merge-patches an object's status, as its node or another controller would.
    pub async fn patch_status<K: Namespaced>(&self, name: &str, status: Value) -> Result<K> {
        let body = json!({"status": status});
        let (api, parameters, patch) = (self.api::<K>(), PatchParams::default(), Patch::Merge(&body));
        answer(|| api.patch_status(name, &parameters, &patch))
            .await
            .with_context(|| format!("patch the status of {name}"))
    }

    /// Reads an object that must exist.
    pub async fn get<K: Namespaced>(&self, name: &str) -> Result<K> {
        self.get_opt(name).await?.with_context(|| format!("there is no {} {name}", K::kind(&())))
    }

    /// Reads an object that may exist.
    pub async fn get_opt<K: Namespaced>(&self, name: &str) -> Result<Option<K>> {
        let api = self.api::<K>();
        answer(|| api.get_opt(name)).await.with_context(|| format!("read {name}"))
    }

    /// Returns every object of a kind.
    pub async fn list<K: Namespaced>(&self) -> Result<Vec<K>> {
        self.list_with("").await
    }

    /// Returns every object of a kind with these labels.
    pub async fn list_with<K: Namespaced>(&self, labels: &str) -> Result<Vec<K>> {
        let (api, parameters) = (self.api::<K>(), ListParams::default().labels(labels));
        Ok(answer(|| api.list(&parameters)).await.with_context(|| format!("list {}", K::plural(&())))?.items)
    }

    /// Deletes an object in the background; a missing one is a success.
    pub async fn delete<K: Namespaced>(&self, name: &str) -> Result<()> {
        let (api, parameters) = (self.api::<K>(), DeleteParams::background());
        match answer(|| api.delete(name, &parameters)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error).with_context(|| format!("delete {name}")),
        }
    }

    /// Waits until an object meets a condition, and returns it; fails with its last state.
    pub async fn wait<K: Namespaced>(
        &self,
        name: &str,
        what: &str,
        condition: impl Condition<K>,
    ) -> Result<Option<K>> {
        let mut last = None;
        let watched = async {
            let mut objects = std::pin::pin!(watcher::watch_object(self.api::<K>(), name));
            while let Some(object) = objects.next().await {
                let Ok(object) = object else {
                    // The watch resumes by itself. This delay is shorter than the backoff for
                    // servers in trouble: this one is back in a moment.
                    tokio::time::sleep(AGAIN).await;
                    continue;
                };
                if condition.matches_object(object.as_ref()) {
                    return Some(object);
                }
                last = object;
            }
            None
        };
        if let Ok(Some(found)) = tokio::time::timeout(DEADLINE, watched).await {
            return Ok(found);
        }
        bail!("{} {name} never was {what}; it is {}", K::kind(&()), shown(&last))
    }

    /// Waits until an existing object meets a condition.
    pub async fn wait_for<K: Namespaced>(
        &self,
        name: &str,
        what: &str,
        condition: impl Fn(&K) -> bool,
    ) -> Result<K> {
        let found = self.wait(name, what, |object: Option<&K>| object.is_some_and(&condition)).await?;
        found.with_context(|| format!("{name} is gone"))
    }

    /// Waits until `Ready` has this `status/reason`.
    pub async fn wait_ready<K: Namespaced>(&self, name: &str, wanted: &str) -> Result<K> {
        self.wait_for(name, wanted, |object: &K| ready(object) == wanted).await
    }

    /// Waits until `Ready` has the object's present generation, and returns the object.
    pub async fn wait_observed<K: Namespaced>(&self, name: &str) -> Result<K> {
        let current = |object: &K| {
            let observed = condition(object, "Ready").and_then(|ready| ready["observedGeneration"].as_i64());
            observed.is_some() && observed == object.meta().generation
        };
        self.wait_for(name, "looked at in its present generation", current).await
    }

    /// Forces a reconcile of a pool, by setting or removing its default strategy.
    pub async fn touch_pool(&self, name: &str) -> Result<SandboxWarmPool> {
        let pool: SandboxWarmPool = self.get(name).await?;
        anyhow::ensure!(pool.spec.update_strategy_type() == UpdateStrategyType::OnReplenish, "{name} rolls");
        let strategy = match pool.spec.update_strategy {
            Some(_) => Value::Null,
            None => json!({"type": "OnReplenish"}),
        };
        let touched: SandboxWarmPool =
            self.patch(name, json!({"spec": {"updateStrategy": strategy}})).await?;
        let generation = touched.metadata.generation;
        self.wait_for(name, "looked at in its present generation", |pool: &SandboxWarmPool| {
            pool.status.as_ref().map(|status| status.observed_generation) == generation
        })
        .await
    }

    /// Waits until the clock shows a later second than this time: servers write times in whole
    /// seconds, so that later events get another time.
    pub async fn second_after(&self, time: &str) -> Result<()> {
        let time: Timestamp = time.parse().with_context(|| format!("`{time}` as a time"))?;
        let later = Timestamp::from_second(time.as_second() + 1)?;
        while let Ok(left) = Duration::try_from(later.duration_since(Timestamp::now())) {
            if left.is_zero() {
                break;
            }
            tokio::time::sleep(left).await;
        }
        Ok(())
    }

    /// Waits until an object is gone.
    pub async fn wait_gone<K: Namespaced>(&self, name: &str) -> Result<()> {
        self.wait(name, "gone", |object: Option<&K>| object.is_none()).await.map(drop)
    }

    /// Waits until a condition on several objects holds, and returns its value.
    pub async fn eventually<T, R>(&self, what: &str, mut look: impl FnMut() -> R) -> Result<T>
    where
        R: Future<Output = Result<Option<T>>>,
    {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(found) = look().await? {
                return Ok(found);
            }
            if Instant::now() > deadline {
                bail!("never came: {what}");
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Creates a template and a pool of this size, both with this name.
    pub async fn pool(&self, name: &str, replicas: i32, template: Value) -> Result<()> {
        self.create::<SandboxTemplate>(workload::template(name, template)).await?;
        self.create::<SandboxWarmPool>(workload::pool(name, name, replicas)).await?;
        Ok(())
    }

    /// Merge-patches a template, and waits until the controllers have seen it. They watch each kind
    /// separately, so a later change of a pool may reach them first. Within one kind events are
    /// ordered: once they have handled a template that was made later, they know of the edit.
    pub async fn edit_template(&self, name: &str, body: Value) -> Result<SandboxTemplate> {
        let edited = self.patch(name, body).await?;
        let mut later = workload::template("", json!({}));
        later["metadata"] = json!({"generateName": "later-"});
        let later = self.create::<SandboxTemplate>(later).await?.name_any();
        self.wait_for(&format!("{later}-network-policy"), "there", |_: &NetworkPolicy| true).await?;
        self.delete::<SandboxTemplate>(&later).await?;
        Ok(edited)
    }

    /// Waits until a pool has this many members, all ready, and its status says so: the status
    /// alone may be stale.
    pub async fn wait_full(&self, name: &str, count: i32) -> Result<SandboxWarmPool> {
        self.eventually(&format!("{count} ready members of {name}"), async || {
            let members = self.members(name).await?;
            let up = members.iter().filter(|member| ready(*member).starts_with("True")).count();
            let pool: SandboxWarmPool = self.get(name).await?;
            let status = pool.status.clone().unwrap_or_default();
            let all =
                [i32::try_from(members.len())?, i32::try_from(up)?, status.replicas, status.ready_replicas];
            Ok((all == [count; 4]).then_some(pool))
        })
        .await
    }

    /// Returns the members of a pool that are not being deleted.
    pub async fn members(&self, pool: &str) -> Result<Vec<Sandbox>> {
        let mut members: Vec<Sandbox> = self.list_with(&labels::pool_selector(pool)).await?;
        members.retain(|member| member.metadata.deletion_timestamp.is_none());
        Ok(members)
    }

    /// Creates a claim on a pool, with more fields in its spec.
    pub async fn claim(&self, name: &str, pool: &str, spec: Value) -> Result<SandboxClaim> {
        self.create(workload::claim(name, pool, spec)).await
    }

    /// Waits until a claim is ready, and returns its sandbox.
    pub async fn wait_claimed(&self, name: &str) -> Result<Sandbox> {
        let claim: SandboxClaim = self.wait_ready(name, "True/DependenciesReady").await?;
        let sandbox = claim.status.and_then(|status| status.sandbox?.name);
        self.get(&sandbox.context("a claim that is ready names its sandbox")?).await
    }

    /// Records every version of a kind's objects from now on.
    pub async fn record<K: Namespaced>(&self) -> Result<History<K>> {
        History::start(self.api()).await
    }

    /// Returns the events about an object, oldest first.
    pub async fn events(&self, regarding: &str) -> Result<Vec<Event>> {
        let mut events: Vec<Event> = self.list().await?;
        events.retain(|event| {
            event.regarding.as_ref().and_then(|regarding| regarding.name.as_deref()) == Some(regarding)
        });
        events.sort_by(|left, right| left.event_time.cmp(&right.event_time));
        Ok(events)
    }

    /// Waits for an event with this reason about an object.
    pub async fn wait_event(&self, regarding: &str, reason: &str) -> Result<Event> {
        self.eventually(&format!("event {reason} about {regarding}"), async || {
            let events = self.events(regarding).await?;
            Ok(events.into_iter().find(|event| event.reason.as_deref() == Some(reason)))
        })
        .await
    }

    /// Waits until an object's Ready condition has exactly this reason and text, and so has an
    /// event about it. If the controller heard of the cause after the object, the first text may
    /// differ.
    pub async fn wait_trouble<K: Namespaced>(&self, name: &str, reason: &str, text: &str) -> Result<K> {
        let wanted = format!("False/{reason}");
        let told = self
            .wait_for(name, &format!("{wanted}: {text}"), |object: &K| {
                ready(object) == wanted && message(object, "Ready") == text
            })
            .await?;
        self.eventually(&format!("event {reason} about {name}: {text}"), async || {
            let is_it = |event: &Event| {
                let kind = event.regarding.as_ref().and_then(|regarding| regarding.kind.as_deref());
                let words = [&event.type_, &event.reason, &event.action, &event.note].map(Option::as_deref);
                kind == Some(&*K::kind(&())) && words == ["Warning", reason, "Reconciling", text].map(Some)
            };
            Ok(self.events(name).await?.iter().any(is_it).then_some(()))
        })
        .await?;
        Ok(told)
    }

    /// Waits for an event with this reason about an object, unless the controller may be killed
    /// before it writes it: the status is stored first, and the event is not written again.
    pub async fn wait_told(&self, regarding: &str, reason: &str) -> Result<()> {
        if !self.disturbed {
            self.wait_event(regarding, reason).await?;
        }
        Ok(())
    }

    /// Returns all objects in the namespace as text, for the analysis of a failure.
    pub async fn dump(&self) -> String {
        let mut text = String::new();
        self.dump_kind::<SandboxWarmPool>(&mut text).await;
        self.dump_kind::<SandboxTemplate>(&mut text).await;
        self.dump_kind::<SandboxClaim>(&mut text).await;
        self.dump_kind::<Sandbox>(&mut text).await;
        self.dump_kind::<Pod>(&mut text).await;
        self.dump_kind::<Service>(&mut text).await;
        self.dump_kind::<PersistentVolumeClaim>(&mut text).await;
        self.dump_kind::<NetworkPolicy>(&mut text).await;
        self.dump_kind::<Event>(&mut text).await;
        text
    }

    async fn dump_kind<K: Namespaced>(&self, text: &mut String) {
        match self.list::<K>().await {
            Ok(objects) => {
                for object in objects {
                    text.push_str(&format!("{} {}\n", K::kind(&()), shown(&Some(object))));
                }
            }
            Err(error) => text.push_str(&format!("{}: {error:#}\n", K::plural(&()))),
        }
    }

    /// Starts the deletion of all objects in the namespace, without waiting.
    pub async fn clear(&self) -> Result<()> {
        self.clear_kind::<SandboxWarmPool>().await?;
        self.clear_kind::<SandboxClaim>().await?;
        self.clear_kind::<Sandbox>().await?;
        self.clear_kind::<SandboxTemplate>().await?;
        self.clear_kind::<Pod>().await?;
        self.clear_kind::<PersistentVolumeClaim>().await?;
        self.clear_kind::<Service>().await
    }

    async fn clear_kind<K: Namespaced>(&self) -> Result<()> {
        for object in self.list::<K>().await? {
            let name = object.name_any();
            if !object.finalizers().is_empty() {
                // They may be removed by another writer first.
                let _ = self.try_patch::<K>(&name, json!({"metadata": {"finalizers": null}})).await;
            }
            self.delete::<K>(&name).await?;
        }
        Ok(())
    }
}

/// Repeats a call until the server answers.
pub(super) async fn answer<T, R>(mut call: impl FnMut() -> R) -> Result<T, kube::Error>
where
    R: Future<Output = Result<T, kube::Error>>,
{
    let deadline = Instant::now() + DEADLINE;
    loop {
        match call().await {
            Err(kube::Error::HyperError(_) | kube::Error::Service(_)) if Instant::now() < deadline => {
                tokio::time::sleep(AGAIN).await;
            }
            result => return result,
        }
    }
}

/// Returns an object without the fields that only servers read.
fn shown<K: Serialize>(object: &Option<K>) -> String {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
    serde_json::to_string_pretty(&value).unwrap_or_default()
}

/// Returns `Ready` of an object's status as `status/reason`, or an empty text.
pub fn ready<K: Serialize>(object: &K) -> String {
    state(object, "Ready")
}

/// Returns a condition of an object's status as `status/reason`, or an empty text.
pub fn state<K: Serialize>(object: &K, type_: &str) -> String {
    condition(object, type_).map_or_else(String::new, |found| {
        let word = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        format!("{}/{}", word("status"), word("reason"))
    })
}

/// Returns the message of a condition, or an empty text.
pub fn message<K: Serialize>(object: &K, type_: &str) -> String {
    condition(object, type_)
        .and_then(|found| found["message"].as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Returns the time of a condition's last transition, or an empty text.
pub fn since<K: Serialize>(object: &K, type_: &str) -> String {
    condition(object, type_)
        .and_then(|found| found["lastTransitionTime"].as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Returns a condition of an object's status.
pub fn condition<K: Serialize>(object: &K, type_: &str) -> Option<Value> {
    let object = serde_json::to_value(object).ok()?;
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == type_).cloned()
}
