//! Runs the hooks and probes of a pod's containers: hooks after their start, probes while they run,
//! hooks before their end. Each container that has any gets a task, which ends with that run of the
//! container.

mod ask;
mod inside;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::debug;
use warren_decide::pod::{Health, ProbeTiming, Tally, all_containers};
use warren_oci::protocol::{Call, ContainerStatus, PodState, Target};

use self::inside::Inside;
use crate::events::Severity;
use crate::node::Shared;
use crate::pod_request::PodDirectory;

/// The capacity of the channel of verdicts.
const UNREAD: usize = 64;

/// The hooks and probes of one pod.
pub(crate) struct Probes {
    health: BTreeMap<String, Health>,
    watched: BTreeMap<String, (u32, AbortHandle)>,
    tell: mpsc::Sender<(String, Health)>,
    said: mpsc::Receiver<(String, Health)>,
    tasks: JoinSet<()>,
}

impl Probes {
    pub(crate) fn new() -> Probes {
        let (tell, said) = mpsc::channel(UNREAD);
        Probes { health: BTreeMap::new(), watched: BTreeMap::new(), tell, said, tasks: JoinSet::new() }
    }

    /// Returns the results so far, for decisions.
    pub(crate) fn health(&self) -> &BTreeMap<String, Health> {
        &self.health
    }

    /// Waits for a new result of a hook or probe. Cancel-safe: no result is lost.
    pub(crate) async fn changed(&mut self) {
        match self.said.recv().await {
            Some((name, health)) => {
                // Ignore late results of an earlier run.
                if self.watched.get(&name).is_some_and(|(attempt, _)| *attempt == health.attempt) {
                    self.health.insert(name, health);
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Starts tasks for containers that have begun to run and ends those of containers that no
    /// longer run.
    pub(crate) fn follow(
        &mut self,
        shared: &Arc<Shared>,
        pod: &Arc<Pod>,
        directory: &PodDirectory,
        state: Option<&PodState>,
    ) {
        while self.tasks.try_join_next().is_some() {}
        let runs = |name: &str| {
            let container = state?.containers.get(name)?;
            matches!(container.status, ContainerStatus::Running { .. }).then_some(container.attempt)
        };
        self.watched.retain(|name, (attempt, task)| {
            let goes_on = runs(name) == Some(*attempt);
            if !goes_on {
                task.abort();
                self.health.remove(name);
            }
            goes_on
        });
        for (_, container) in all_containers(pod) {
            let Some(attempt) = runs(&container.name).filter(|_| needs_care(container)) else { continue };
            if self.watched.contains_key(&container.name) {
                continue;
            }
            let run = Run {
                shared: shared.clone(),
                pod: pod.clone(),
                container: container.clone(),
                inside: Inside::new(container, directory),
                health: Mutex::new(Health { attempt, ..Health::default() }),
                tell: self.tell.clone(),
            };
            let task = self.tasks.spawn(async move { run.look_after().await });
            self.watched.insert(container.name.clone(), (attempt, task));
        }
    }

    /// Asks a container to stop: by its hook, then by a signal. Returns at once.
    pub(crate) fn ask_to_stop(
        &mut self,
        shared: &Arc<Shared>,
        pod: &Arc<Pod>,
        container: &Container,
        directory: &PodDirectory,
        grace: Duration,
    ) {
        let (shared, pod) = (shared.clone(), pod.clone());
        let inside = Inside::new(container, directory);
        let container = container.clone();
        self.tasks.spawn(async move {
            let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
            if let Some(hook) = hook {
                let done = tokio::time::timeout(grace, ask::hook(&inside, hook)).await;
                let message = match done {
                    Ok(Ok(())) => None,
                    Ok(Err(message)) => Some(message),
                    Err(_) => Some(format!("not done within {} s", grace.as_secs())),
                };
                if let Some(message) = message {
                    let message = format!("PreStopHook failed: {message}");
                    shared.events.record(
                        &pod,
                        Some(&container.name),
                        Severity::Warning,
                        "FailedPreStopHook",
                        message,
                    );
                }
            }
            let target = Target::Container(container.name.clone());
            let call = Call::Signal { target, signal: Signal::TERM.as_raw() };
            match inside.shim() {
                Ok(mut shim) => {
                    if let Err(error) = shim.call(call).await {
                        debug!(%error, "container not asked to stop");
                    }
                }
                Err(error) => debug!(%error, "container not asked to stop"),
            }
        });
    }

    /// Ends all tasks: the sandbox is gone.
    pub(crate) fn end(&mut self) {
        self.tasks.abort_all();
        self.watched.clear();
        self.health.clear();
    }
}

fn needs_care(container: &Container) -> bool {
    let hook = container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.post_start.is_some());
    let probes = [&container.startup_probe, &container.readiness_probe, &container.liveness_probe];
    hook || probes.into_iter().any(Option::is_some)
}

struct Run {
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    container: Container,
    inside: Inside,
    health: Mutex<Health>,
    tell: mpsc::Sender<(String, Health)>,
}

impl Run {
    async fn look_after(&self) {
        let hook = self.container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        if let Some(hook) = hook.filter(|_| !self.was_told_of()) {
            let done = ask::hook(&self.inside, hook).await;
            let failed = done.is_err();
            self.say(|health| health.post_start = Some(done)).await;
            if failed {
                return;
            }
        }
        if let Some(probe) = &self.container.startup_probe {
            // Kubelet probes at most once per period until the first success; the first verdict is
            // final.
            let verdict =
                self.probe(probe, "Startup", true, |health, verdict| health.startup = Some(verdict)).await;
            if !verdict {
                return;
            }
        }
        let readiness = async {
            if let Some(probe) = &self.container.readiness_probe {
                self.probe(probe, "Readiness", false, |health, verdict| health.readiness = Some(verdict))
                    .await;
            }
        };
        let liveness = async {
            if let Some(probe) = &self.container.liveness_probe {
                self.probe(probe, "Liveness", false, |health, verdict| health.liveness = Some(verdict)).await;
            }
        };
        tokio::join!(readiness, liveness);
    }

    /// Returns true if an earlier daemon has published this run, which happens only after the hook.
    fn was_told_of(&self) -> bool {
        let attempt = self.health.lock().unwrap_or_else(PoisonError::into_inner).attempt;
        let status = self.pod.status.as_ref();
        let lists = [
            status.and_then(|status| status.container_statuses.as_ref()),
            status.and_then(|status| status.init_container_statuses.as_ref()),
        ];
        lists.into_iter().flatten().flatten().any(|known| {
            known.name == self.container.name
                && u32::try_from(known.restart_count) == Ok(attempt)
                && known.state.as_ref().is_some_and(|state| state.running.is_some())
        })
    }

    /// Probes periodically and reports each change of the verdict. Returns the last verdict if the
    /// probing ends.
    async fn probe(
        &self,
        probe: &Probe,
        kind: &'static str,
        until_first: bool,
        set: impl Fn(&mut Health, bool),
    ) -> bool {
        let timing = ProbeTiming::of(probe);
        let mut tally = Tally::default();
        let mut verdict = None;
        let mut complained = None;
        tokio::time::sleep(timing.initial_delay).await;
        let mut period = tokio::time::interval(timing.period);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            period.tick().await;
            let answer = ask::probe(&self.inside, probe, timing.timeout).await;
            let good = answer.is_ok();
            if let Err(message) = answer {
                let message = format!("{kind} probe failed: {message}");
                // Reported once, not every period: an event is a write.
                if complained.as_ref() != Some(&message) {
                    let name = Some(self.container.name.as_str());
                    self.shared.events.record(
                        &self.pod,
                        name,
                        Severity::Warning,
                        "Unhealthy",
                        message.clone(),
                    );
                    complained = Some(message);
                }
            } else {
                complained = None;
            }
            let now = tally.count(good, &timing);
            if now.is_some() && now != verdict {
                verdict = now;
                self.say(|health| set(health, good)).await;
                if until_first {
                    return good;
                }
            }
        }
    }

    async fn say(&self, change: impl FnOnce(&mut Health)) {
        let health = {
            let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut health);
            health.clone()
        };
        // The receiver is gone only if the worker is.
        let _ = self.tell.send((self.container.name.clone(), health)).await;
    }
}
