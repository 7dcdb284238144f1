//! The loop around one pod: observe, ask `decide`, carry out the steps, publish the status, wait
//! for a change.
//!
//! A worker may be stopped at any point, like the whole process: its state is read back from the
//! shim, from the pod's directory and from the API.

mod ending;
mod starting;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{Instrument as _, debug, error, info, info_span, warn};
use warren_decide::pod::{
    Eviction, Exit, Machine, Notice, Report, Step, World, all_containers, decide, last_exit, same_status,
};
use warren_oci::cleanup;
use warren_oci::client::CallError;
use warren_oci::protocol::{Answer, Call, PodState};

use crate::directory_watch::DirectoryWatch;
use crate::events::Severity;
use crate::machine;
use crate::node::Shared;
use crate::pod_api::{bind, name, pods, resource_version, status_patch};
use crate::pod_images::PodImages;
use crate::pod_registry::Seen;
use crate::pod_request::PodDirectory;
use crate::pod_sources::PodSources;
use crate::probes::Probes;
use crate::shim::Shim;
use crate::start_mark;
use crate::termination;
use crate::volumes::PodVolumes;

/// The most rounds without rest. A pod that needs more shows a bug; it then waits for a moment.
const ROUNDS: usize = 32;
const AFTER_TOO_MANY_ROUNDS: Duration = Duration::from_secs(5);
/// The delay after a failed write to the API server.
const AFTER_API_ERROR: Duration = Duration::from_secs(1);

pub(crate) struct Worker {
    shared: Arc<Shared>,
    uid: String,
    directory: PodDirectory,
    seen: watch::Receiver<Seen>,
    state: watch::Sender<Option<PodState>>,
    shim: Option<Shim>,
    /// The task that serves the pod's socket to the proxy, if it has one.
    egress_listener: Option<JoinSet<()>>,
    machine: Machine,
    /// The ends of earlier runs, by container; the shim keeps only the last.
    previous: BTreeMap<String, Exit>,
    images: PodImages,
    /// The objects that the pod refers to.
    sources: PodSources,
    volumes: PodVolumes,
    probes: Probes,
    /// The events that were recorded and still hold.
    noticed: BTreeSet<Notice>,
    /// The times when containers were asked to stop.
    stopping: BTreeMap<String, Timestamp>,
    /// The reason for the pod's eviction, once it is evicted.
    eviction: watch::Receiver<Option<String>>,
    /// True if the pod's files were removed from the disk.
    disk_is_free: bool,
    /// The number of consecutive failed starts.
    failed_starts: u32,
    /// Set once the API has accepted our binding, which the watch may not have shown yet.
    bound: bool,
    /// Set once we have deleted the object, until the watch shows that it is gone.
    deleted: bool,
    /// The last published status and its version, which the watch may not have shown yet.
    published: Option<(u64, PodStatus)>,
}

#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("bind the pod")]
    Bind(#[source] kube::Error),
    #[error("publish the pod's status")]
    Publish(#[source] kube::Error),
    #[error("delete the pod")]
    Delete(#[source] kube::Error),
    #[error("clean up after the pod")]
    CleanUp(#[from] cleanup::CleanupError),
    #[error("talk to the pod's shim")]
    Shim(#[from] CallError),
}

/// Formats an error with its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Returns the cause of a failed request to the API server, in its own words or the kernel's: the
/// outer errors only repeat it at length.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        uid: String,
        directory: PodDirectory,
        seen: watch::Receiver<Seen>,
        state: watch::Sender<Option<PodState>>,
        eviction: watch::Receiver<Option<String>>,
    ) -> Worker {
        let images = PodImages::new(&shared);
        Worker {
            shared,
            uid,
            directory,
            seen,
            state,
            shim: None,
            egress_listener: None,
            machine: Machine::Absent,
            previous: BTreeMap::new(),
            images,
            sources: PodSources::default(),
            volumes: PodVolumes::default(),
            probes: Probes::new(),
            noticed: BTreeSet::new(),
            stopping: BTreeMap::new(),
            eviction,
            disk_is_free: false,
            failed_starts: 0,
            bound: false,
            deleted: false,
            published: None,
        }
    }

    /// Runs until the pod's object is gone and nothing of it is left on the machine.
    pub(crate) async fn run(mut self) {
        let span = info_span!("pod", uid = %self.uid);
        async move {
            self.find().await;
            loop {
                let look_again = match self.settle().await {
                    Ok(Rest::Gone) => {
                        self.shared.events.gone(&self.uid);
                        return;
                    }
                    Ok(Rest::Until(time)) => time.map(until),
                    Err(problem) => {
                        warn!(error = %chain(&problem), "pod not settled; trying again");
                        Some(AFTER_API_ERROR)
                    }
                };
                let wake = async {
                    match look_again {
                        Some(pause) => tokio::time::sleep(pause).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    changed = self.seen.changed() => {
                        if changed.is_err() {
                            return;
                        }
                    }
                    state = next_state(&mut self.shim) => self.heard(state),
                    () = self.images.changed() => {}
                    () = self.sources.changed() => {}
                    () = self.probes.changed() => {}
                    Ok(()) = self.eviction.changed() => {}
                    () = wake => {}
                }
            }
        }
        .instrument(span)
        .await;
    }

    /// Looks for a sandbox that an earlier daemon left running.
    async fn find(&mut self) {
        if !self.directory.0.exists() {
            return;
        }
        match self.connect_to_earlier().await {
            Ok(mut shim) => match settled_state(&mut shim).await {
                Ok(state) => {
                    info!("shim found again");
                    self.shim = Some(shim);
                    self.heard(Ok(state));
                    self.open_egress().await;
                    return;
                }
                Err(problem) => debug!(error = %chain(&problem), "shim did not answer"),
            },
            Err(problem) => debug!(error = %problem, "no shim"),
        }
        match cleanup::read_state(&self.directory.0) {
            Ok(Some(state)) if !state.shut_down => self.lost(&state),
            Ok(_) => {}
            Err(problem) => warn!(error = %problem, "unreadable record of the pod"),
        }
    }

    /// Connects to a shim that an earlier daemon had forked. It may still be starting
    /// ([`start_mark`]); a second one beside it would be a leak.
    async fn connect_to_earlier(&self) -> io::Result<Shim> {
        let directory = &self.directory.0;
        let watch = DirectoryWatch::new(directory)?;
        let arrival = async {
            loop {
                // Read the mark first: a shim whose record exists by now listens.
                let may_come = start_mark::shim_may_come_within(directory).is_some();
                let attempt = Shim::connect(directory);
                // Refused: the socket has its name but does not listen yet.
                let silent = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
                if !may_come || !matches!(&attempt, Err(error) if silent.contains(&error.kind())) {
                    return attempt;
                }
                watch.event().await?;
            }
        };
        // The first attempt is made in any case.
        let patience = start_mark::shim_may_come_within(directory).unwrap_or_default();
        tokio::time::timeout(patience, arrival).await.unwrap_or_else(|late| Err(late.into()))
    }

    fn heard(&mut self, state: io::Result<PodState>) {
        match state {
            Ok(state) => {
                self.machine = Machine::Present(self.report(&state));
                self.state.send_replace(Some(state));
            }
            Err(problem) => {
                warn!(error = %problem, "shim lost");
                self.shim = None;
                // The record on disk is at least as new as the last message.
                let record = cleanup::read_state(&self.directory.0).ok().flatten();
                let last = self.state.borrow().clone();
                match record.or(last) {
                    Some(state) => self.lost(&state),
                    None => {
                        self.machine = Machine::Lost { report: Report::default(), noticed: Timestamp::now() }
                    }
                }
            }
        }
    }

    fn lost(&mut self, state: &PodState) {
        self.machine = Machine::Lost { report: self.report(state), noticed: Timestamp::now() };
        self.state.send_replace(None);
    }

    fn report(&self, state: &PodState) -> Report {
        let pod = match &*self.seen.borrow() {
            Seen::Pod(pod) => Some(pod.clone()),
            Seen::Gone => None,
        };
        let message = |name: &str, attempt, exit_code| {
            let (_, container) = all_containers(pod.as_ref()?).find(|(_, known)| known.name == name)?;
            termination::read(&self.directory, container, attempt, exit_code)
        };
        let lease = self.directory.lease();
        machine::report(state, &self.previous, lease.as_ref(), &self.shared.facts, message)
    }

    /// Returns the pod with all known changes: from the watch, and from our own writes since.
    fn pod(&self) -> Option<Arc<Pod>> {
        let Seen::Pod(seen) = self.seen.borrow().clone() else { return None };
        let version = resource_version(&seen);
        let newer_status =
            self.published.as_ref().filter(|(published, _)| version < *published).map(|(_, status)| status);
        let unbound = self.bound && seen.spec.as_ref().is_some_and(|spec| spec.node_name.is_none());
        if newer_status.is_none() && !unbound {
            return Some(seen);
        }
        let mut pod = (*seen).clone();
        if let Some(status) = newer_status {
            pod.status = Some(status.clone());
        }
        if unbound && let Some(spec) = pod.spec.as_mut() {
            spec.node_name = Some(self.shared.facts.name.clone());
        }
        Some(Arc::new(pod))
    }

    /// Decides and carries out steps until none is left.
    async fn settle(&mut self) -> Result<Rest, StepError> {
        for _ in 0..ROUNDS {
            self.seen.mark_unchanged();
            let Some(pod) = self.pod() else {
                self.remove().await?;
                return Ok(Rest::Gone);
            };
            if self.deleted && pod.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
                // A late event of an object that we have deleted.
                return Ok(Rest::Until(None));
            }
            self.sources.follow(&self.shared, &pod);
            let eviction = self.eviction.borrow_and_update().clone();
            let world = World {
                pod: &pod,
                node: &self.shared.facts,
                machine: &self.machine,
                images: self.images.states(),
                sources: self.sources.found(),
                health: self.probes.health(),
                stopping: &self.stopping,
                eviction: eviction
                    .as_deref()
                    .map(|message| Eviction { message, disk_is_free: self.disk_is_free }),
            };
            let now = Timestamp::now();
            let plan = decide(&world, now);
            let restarts = plan.steps.iter().filter_map(|step| match step {
                Step::StartContainer { name, attempt } if *attempt > 0 => {
                    Some((name.clone(), last_exit(&world, name, now)?))
                }
                _ => None,
            });
            let restarts: Vec<(String, Exit)> = restarts.collect();
            self.previous.extend(restarts);
            self.say(&pod, plan.notices);
            if plan.steps.is_empty() {
                self.probes.follow(&self.shared, &pod, &self.directory, self.state.borrow().as_ref());
                self.follow_sources(&pod).await;
                let news = plan.status.filter(|status| {
                    pod.status.as_ref().is_none_or(|published| !same_status(published, status))
                });
                match news {
                    Some(status) => self.publish(&pod, status).await?,
                    None => return Ok(Rest::Until(plan.look_again)),
                }
            } else {
                debug!(steps = ?plan.steps, "pod steps");
                self.apply(&pod, plan.steps).await?;
            }
            if self.deleted {
                return Ok(Rest::Until(None));
            }
        }
        error!("pod does not come to rest");
        Ok(Rest::Until(Some(Timestamp::now() + AFTER_TOO_MANY_ROUNDS)))
    }

    async fn apply(&mut self, pod: &Arc<Pod>, steps: Vec<Step>) -> Result<(), StepError> {
        // The start does not wait for the binding: in the local home no other node takes the pod,
        // and if the API refuses, the pod is removed again.
        let binding = steps.contains(&Step::Bind).then(|| {
            let (shared, pod) = (self.shared.clone(), pod.clone());
            tokio::spawn(async move {
                bind(&shared, &pod).await?;
                shared.events.scheduled(&pod, &shared.facts.name);
                Ok::<_, kube::Error>(())
            })
        });
        let mut starts: Vec<(String, u32)> = Vec::new();
        let mut new_sandbox = false;
        let mut result = Ok(());
        for step in steps {
            let done = match step {
                Step::Bind => Ok(()),
                Step::CleanUp => self.clean_up().await,
                Step::FreeDisk => self.free_disk().await,
                Step::FetchImage { name, policy } => {
                    self.images.fetch(pod, name, policy);
                    Ok(())
                }
                Step::StartSandbox => {
                    new_sandbox = true;
                    Ok(())
                }
                Step::StartContainer { name, attempt } => {
                    starts.push((name, attempt));
                    Ok(())
                }
                Step::AskToStop { names, grace } => self.ask_to_stop(pod, names, grace).await,
                Step::Kill { names } => self.kill(pod, names).await,
                Step::Remove => self.remove().await,
                Step::DeleteObject => self.delete_object(pod).await,
            };
            if done.is_err() {
                result = done;
                break;
            }
        }
        if result.is_ok() && !starts.is_empty() {
            let wanted = starts.clone();
            result = if new_sandbox {
                self.start_sandbox(pod, starts).await
            } else {
                self.start_containers(pod, starts).await
            };
            self.say_started(pod, &wanted);
        }
        if let Some(binding) = binding {
            match binding.await {
                Ok(Ok(())) => self.bound = true,
                Ok(Err(problem)) => {
                    self.remove().await?;
                    return Err(StepError::Bind(problem));
                }
                // Only when the runtime shuts down.
                Err(_) => {}
            }
        }
        result
    }

    async fn refresh(&mut self) -> Result<(), StepError> {
        if let Some(shim) = self.shim.as_mut()
            && let (Answer::State { state }, _) = shim.call(Call::State).await?
        {
            self.heard(Ok(state));
        }
        Ok(())
    }

    /// Records events for notices that are new.
    fn say(&mut self, pod: &Pod, notices: Vec<Notice>) {
        let notices: BTreeSet<Notice> = notices.into_iter().collect();
        for notice in notices.difference(&self.noticed) {
            let severity = if notice.is_warning { Severity::Warning } else { Severity::Normal };
            let container = notice.container.as_deref();
            self.shared.events.record(pod, container, severity, notice.reason, notice.message.clone());
        }
        self.noticed = notices;
    }

    async fn delete_object(&mut self, pod: &Pod) -> Result<(), StepError> {
        let preconditions = Preconditions { uid: Some(self.uid.clone()), resource_version: None };
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        match pods(&self.shared, pod).delete(name(pod), &parameters).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(problem) => return Err(StepError::Delete(problem)),
        }
        self.deleted = true;
        Ok(())
    }

    async fn publish(&mut self, pod: &Pod, status: PodStatus) -> Result<(), StepError> {
        // The uid keeps the status from reaching another pod of the same name.
        let patch =
            json!({"metadata": {"uid": self.uid}, "status": status_patch(pod.status.as_ref(), &status)});
        match pods(&self.shared, pod)
            .patch_status(name(pod), &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            Ok(patched) => {
                info!(phase = status.phase.as_deref().unwrap_or_default(), "pod status");
                debug!(patch = %patch["status"], "pod status patched");
                self.published = Some((resource_version(&patched), patched.status.unwrap_or(status)));
                Ok(())
            }
            Err(kube::Error::Api(refused)) if matches!(refused.code, 404 | 409) => {
                // The object is gone or was replaced: the watch will show it.
                self.published = Some((resource_version(pod) + 1, status));
                Ok(())
            }
            Err(problem) => Err(StepError::Publish(problem)),
        }
    }
}

/// The next wake-up.
enum Rest {
    Until(Option<Timestamp>),
    Gone,
}

/// Subscribes to the shim's states, and waits until no container is still starting.
async fn settled_state(shim: &mut Shim) -> Result<PodState, CallError> {
    let mut state = shim.subscribe().await?;
    while !machine::settled(&state) {
        state = shim.next_state().await?;
    }
    Ok(state)
}

async fn next_state(shim: &mut Option<Shim>) -> io::Result<PodState> {
    match shim {
        Some(shim) => shim.next_state().await,
        None => std::future::pending().await,
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, cleanup::CleanupError> + Send + 'static,
) -> Result<T, StepError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => Ok(result?),
        Err(gone) if gone.is_panic() => std::panic::resume_unwind(gone.into_panic()),
        // The runtime is shutting down, and this task with it.
        Err(_) => std::future::pending().await,
    }
}

fn until(time: Timestamp) -> Duration {
    Duration::try_from(time.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO)
}
