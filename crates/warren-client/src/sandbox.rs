//! Creates sandboxes, waits for them and deletes them. [`crate::launch`] keeps one while a client
//! lives.
//!
//! Waiting uses a watch instead of polling. The watch begins at the `resourceVersion` that the
//! create call returned, so no event in between can be missed, and it is opened while the
//! controllers are already at work.

use std::fmt::Debug;
use std::time::Duration;

use futures::TryStreamExt as _;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams, Preconditions, PropagationPolicy, WatchEvent, WatchParams};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use warren_api::conditions::{ConditionType, Reason};
use warren_api::{Sandbox, annotations, conditions};

use crate::connect::DEFAULT_NAMESPACE;

/// A sandbox's key: namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl SandboxKey {
    /// Returns the key of an object that the server returned.
    pub fn of(sandbox: &Sandbox) -> Self {
        Self {
            namespace: sandbox.namespace().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            name: sandbox.name_any(),
        }
    }

    fn api(&self, client: &Client) -> Api<Sandbox> {
        Api::namespaced(client.clone(), &self.namespace)
    }
}

impl std::fmt::Display for SandboxKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// The error of a request about a sandbox.
#[derive(Debug, thiserror::Error)]
#[error("{action} sandbox `{sandbox}`")]
pub struct SandboxError {
    /// The action, as a verb.
    pub action: &'static str,
    /// The sandbox.
    pub sandbox: SandboxKey,
    /// The cause.
    #[source]
    pub source: Box<kube::Error>,
}

/// The error of a sandbox that did not become Ready.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// It can no longer become Ready, or not without a change by a user.
    #[error("sandbox `{sandbox}` will not become Ready: {standing}")]
    Ended {
        /// The sandbox.
        sandbox: SandboxKey,
        /// The reason.
        standing: Box<Standing>,
    },
    /// It was deleted.
    #[error("sandbox `{sandbox}` was deleted while it was starting")]
    Deleted {
        /// The sandbox.
        sandbox: SandboxKey,
    },
    /// It took too long.
    #[error("sandbox `{sandbox}` was not Ready within {} s: {standing}", within.as_secs())]
    TimedOut {
        /// The sandbox.
        sandbox: SandboxKey,
        /// The time limit.
        within: Duration,
        /// Its last known state.
        standing: Box<Standing>,
    },
    /// A request to the server failed.
    #[error(transparent)]
    Server(#[from] SandboxError),
}

/// The reason why a sandbox is not Ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The reason in its Ready condition.
    pub reason: String,
    /// The message of the condition.
    pub message: String,
    /// The pod's own reasons, if there is a pod and it was read.
    pub pod: Option<String>,
}

impl std::fmt::Display for Standing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.reason, self.message)?;
        match &self.pod {
            Some(pod) => write!(formatter, " ({pod})"),
            None => Ok(()),
        }
    }
}

/// A sandbox's progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Commands can be run in it.
    Ready,
    /// It is starting.
    Waiting(Standing),
    /// It will not become Ready by itself.
    Ended(Standing),
}

/// Returns a sandbox's progress, from its conditions.
pub fn progress(sandbox: &Sandbox) -> Progress {
    let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let standing = match conditions::find(conditions, ConditionType::Ready) {
        Some(ready) => Standing { reason: ready.reason.clone(), message: ready.message.clone(), pod: None },
        None => Standing {
            reason: "Pending".to_owned(),
            message: "no controller has looked at it yet".to_owned(),
            pod: None,
        },
    };
    if conditions::is_true(conditions, ConditionType::Ready) {
        Progress::Ready
    } else if conditions::is_true(conditions, ConditionType::Finished) || stays(&standing.reason) {
        Progress::Ended(standing)
    } else {
        Progress::Waiting(standing)
    }
}

/// Returns true if a reason for not being Ready stays until the object is changed.
/// `ReconcilerError` does not: it is retried.
fn stays(reason: &str) -> bool {
    matches!(
        Reason::parse(reason),
        Some(Reason::PodSucceeded | Reason::PodFailed | Reason::SandboxExpired | Reason::SandboxSuspended)
    )
}

/// Waiting reasons of a container that could not be made. Its node retries with increasing delays.
const CANNOT_BE_MADE: [&str; 4] =
    ["CreateContainerError", "CreateContainerConfigError", "RunContainerError", "InvalidImageName"];

/// The time after which a container that cannot be made ends the wait. Temporary shortages, such as
/// a full disk before an eviction, have passed by then.
const CANNOT_BE_MADE_FOR: Duration = Duration::from_secs(15);

/// Returns the reason if a sandbox's conditions say that a container of its pod cannot be made.
fn cannot_be_made(sandbox: &Sandbox) -> Option<Standing> {
    let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let waiting = conditions::find(conditions, ConditionType::PodWaiting)?;
    CANNOT_BE_MADE.contains(&waiting.reason.as_str()).then(|| Standing {
        reason: waiting.reason.clone(),
        message: waiting.message.clone(),
        pod: None,
    })
}

/// Returns the name of the pod that runs a sandbox.
pub fn pod_name(sandbox: &Sandbox) -> String {
    sandbox.annotations().get(annotations::POD_NAME).cloned().unwrap_or_else(|| sandbox.name_any())
}

/// Creates a sandbox. Returns the stored object, with its name if one was generated, and the
/// `resourceVersion` that [`wait_ready`] begins at.
pub async fn create(client: &Client, namespace: &str, sandbox: &Sandbox) -> Result<Sandbox, SandboxError> {
    let api: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    api.create(&PostParams::default(), sandbox).await.map_err(|source| SandboxError {
        action: "create",
        sandbox: SandboxKey {
            namespace: namespace.to_owned(),
            name: sandbox
                .metadata
                .name
                .clone()
                .or_else(|| sandbox.metadata.generate_name.clone())
                .unwrap_or_default(),
        },
        source: Box::new(source),
    })
}

/// Waits until a sandbox is Ready, beginning at the given state. Returns early, with the reason, if
/// it can no longer become Ready, or if a container of it could not be made for a while. Cancelling
/// it changes nothing.
pub async fn wait_ready(client: &Client, sandbox: Sandbox, within: Duration) -> Result<Sandbox, WaitError> {
    let key = SandboxKey::of(&sandbox);
    let mut seen = sandbox;
    let followed = tokio::time::timeout(within, follow(client, &key, &mut seen)).await;
    match followed {
        Ok(Ok(())) => Ok(seen),
        Ok(Err(WaitError::Ended { sandbox, mut standing })) => {
            standing.pod = pod_says(client, &seen).await;
            Err(WaitError::Ended { sandbox, standing })
        }
        Ok(Err(error)) => Err(error),
        Err(_) => match progress(&seen) {
            Progress::Ready => Ok(seen),
            Progress::Waiting(mut standing) | Progress::Ended(mut standing) => {
                standing.pod = pod_says(client, &seen).await;
                Err(WaitError::TimedOut { sandbox: key, within, standing: Box::new(standing) })
            }
        },
    }
}

/// Watches until the sandbox is Ready; `seen` is the newest state at any time.
async fn follow(client: &Client, key: &SandboxKey, seen: &mut Sandbox) -> Result<(), WaitError> {
    let api = key.api(client);
    let failed = |source| SandboxError { action: "watch", sandbox: key.clone(), source: Box::new(source) };
    let uid = seen.uid();
    let parameters = WatchParams::default().fields(&format!("metadata.name={}", key.name));
    // The time since when a container could not be made.
    let mut failing: Option<Instant> = None;
    loop {
        if judge(key, seen)? {
            return Ok(());
        }
        let mut version = seen.resource_version().unwrap_or_default();
        let events = api.watch(&parameters, &version).await.map_err(failed)?;
        tokio::pin!(events);
        loop {
            let standing = cannot_be_made(seen);
            failing = standing.as_ref().map(|_| failing.unwrap_or_else(Instant::now));
            let given_up = async {
                match failing {
                    Some(since) => tokio::time::sleep_until(since + CANNOT_BE_MADE_FOR).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                event = events.try_next() => event.map_err(failed)?,
                () = given_up => {
                    let standing = Box::new(standing.unwrap_or_default());
                    return Err(WaitError::Ended { sandbox: key.clone(), standing });
                }
            };
            let Some(event) = event else { break };
            match event {
                WatchEvent::Added(sandbox) | WatchEvent::Modified(sandbox) => {
                    *seen = sandbox;
                    if seen.uid() != uid {
                        return Err(WaitError::Deleted { sandbox: key.clone() });
                    }
                    if judge(key, seen)? {
                        return Ok(());
                    }
                }
                WatchEvent::Deleted(_) => return Err(WaitError::Deleted { sandbox: key.clone() }),
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                // The history does not reach back that far: read the object again, below.
                WatchEvent::Error(status) if status.code == 410 => break,
                WatchEvent::Error(status) => return Err(failed(kube::Error::Api(status)).into()),
            }
        }
        tracing::debug!(sandbox = %key, version, "watch ended");
        // Servers end watches after a few minutes. Start again from the present state.
        *seen = match api.get_opt(&key.name).await.map_err(failed)? {
            Some(sandbox) if sandbox.uid() == uid => sandbox,
            _ => return Err(WaitError::Deleted { sandbox: key.clone() }),
        };
    }
}

fn judge(key: &SandboxKey, sandbox: &Sandbox) -> Result<bool, WaitError> {
    match progress(sandbox) {
        Progress::Ready => Ok(true),
        Progress::Waiting(_) => Ok(false),
        Progress::Ended(standing) => {
            Err(WaitError::Ended { sandbox: key.clone(), standing: Box::new(standing) })
        }
    }
}

/// Returns the pod's own reasons in one line. Used for errors, so a failed read returns nothing.
async fn pod_says(client: &Client, sandbox: &Sandbox) -> Option<String> {
    let key = SandboxKey::of(sandbox);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let pod = pods.get_opt(&pod_name(sandbox)).await.ok()??;
    describe_pod(&pod)
}

/// Returns the reasons and messages in a pod's status, the most specific last.
pub fn describe_pod(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let mut parts = Vec::new();
    let mut add = |who: &str, reason: Option<&String>, message: Option<&String>| {
        let text: Vec<&str> = [reason, message]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .filter(|text| !text.is_empty())
            .collect();
        if !text.is_empty() {
            parts.push(format!("{who}: {}", text.join(": ")));
        }
    };
    add("pod", status.reason.as_ref(), status.message.as_ref());
    for container in
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    {
        let who = format!("container `{}`", container.name);
        if let Some(waiting) = container.state.as_ref().and_then(|state| state.waiting.as_ref()) {
            add(&who, waiting.reason.as_ref(), waiting.message.as_ref());
        }
        if let Some(terminated) = container.state.as_ref().and_then(|state| state.terminated.as_ref()) {
            let code = format!("exit code {}", terminated.exit_code);
            add(&who, terminated.reason.as_ref(), Some(terminated.message.as_ref().unwrap_or(&code)));
        }
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Deletes a sandbox or a claim and, by garbage collection, the objects that it owns. Returns when
/// the server has accepted that; a missing object is a success. Only the given object is deleted,
/// never a later one of the same name.
pub async fn delete<K>(client: &Client, object: &K) -> Result<(), SandboxError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let key = SandboxKey {
        namespace: object.namespace().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
        name: object.name_any(),
    };
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: object.uid().map(|uid| Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::default()
    };
    let api: Api<K> = Api::namespaced(client.clone(), &key.namespace);
    match api.delete(&key.name, &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(source) => Err(SandboxError { action: "delete", sandbox: key, source: Box::new(source) }),
    }
}

/// Returns the end of a lease that begins at `now`.
pub fn lease_end(now: Timestamp, lease: Duration) -> Timestamp {
    now + lease
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn sandbox(conditions: &[(&str, &str, &str)]) -> Sandbox {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status, reason)| {
                json!({ "type": type_, "status": status, "reason": reason, "message": "m",
                        "lastTransitionTime": "2026-01-01T00:00:00Z" })
            })
            .collect();
        from_value(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": { "name": "s", "namespace": "n" },
            "spec": { "podTemplate": { "spec": { "containers": [] } } },
            "status": { "conditions": conditions },
        }))
        .expect("a valid sandbox")
    }

    fn word(sandbox: &Sandbox) -> &'static str {
        match progress(sandbox) {
            Progress::Ready => "ready",
            Progress::Waiting(_) => "waiting",
            Progress::Ended(_) => "ended",
        }
    }

    #[test]
    fn a_container_that_cannot_be_made_is_read_from_the_conditions() {
        let reason = |reason: &str| {
            let sandbox = sandbox(&[
                ("Ready", "False", "DependenciesNotReady"),
                ("warren.dev/PodWaiting", "True", reason),
            ]);
            cannot_be_made(&sandbox).map(|standing| standing.to_string())
        };
        assert_eq!(reason("CreateContainerError").as_deref(), Some("CreateContainerError: m"));
        assert_eq!(reason("ImagePullBackOff"), None);
        assert_eq!(cannot_be_made(&sandbox(&[("Ready", "False", "DependenciesNotReady")])), None);
    }

    #[test]
    fn only_reasons_that_stay_end_the_wait() {
        for (conditions, expected) in [
            (&[][..], "waiting"),
            (&[("Ready", "False", "DependenciesNotReady")], "waiting"),
            (&[("Ready", "False", "ReconcilerError")], "waiting"),
            (&[("Ready", "False", "AReasonOfTomorrow")], "waiting"),
            (&[("Ready", "False", "SandboxExpired")], "ended"),
            (&[("Ready", "False", "SandboxSuspended")], "ended"),
            (&[("Ready", "False", "PodFailed"), ("Finished", "True", "PodFailed")], "ended"),
            (&[("Ready", "False", "AReasonOfTomorrow"), ("Finished", "True", "Other")], "ended"),
            (&[("Suspended", "False", "NotSuspended"), ("Ready", "True", "DependenciesReady")], "ready"),
        ] {
            assert_eq!(word(&sandbox(conditions)), expected, "{conditions:?}");
        }
    }

    #[test]
    fn a_pod_is_described_by_its_reasons() {
        let pod: Pod = from_value(json!({
            "metadata": { "name": "p" },
            "status": {
                "reason": "Refused", "message": "no such class",
                "containerStatuses": [
                    { "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                      "state": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } } },
                ],
            },
        }))
        .expect("a valid pod");
        assert_eq!(
            describe_pod(&pod).as_deref(),
            Some("pod: Refused: no such class; container `c`: OOMKilled: exit code 137")
        );
    }
}
