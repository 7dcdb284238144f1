//! Starts a pod's sandbox and its containers: holds images, makes volumes, then starts the shim and
//! the containers.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tracing::{debug, warn};
use warren_decide::pod::{Machine, all_containers};
use warren_oci::client::CallError;
use warren_oci::idmap::IdRange;
use warren_oci::protocol::{Answer, Call, ContainerRequest, ContainerStatus};
use warren_oci::zygote::SpawnShimError;

use super::{StepError, Worker, chain, settled_state};
use crate::events::Severity;
use crate::network;
use crate::pod_request::{RequestError, Run};
use crate::shim::Shim;
use crate::start_mark;
use crate::volumes::{self, Place, VolumeError};

/// The error of a sandbox that could not be made.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Ids(#[from] warren_oci::idmap::AllocateError),
    #[error(transparent)]
    Network(#[from] network::LeaseError),
    #[error(transparent)]
    Spawn(#[from] SpawnShimError),
    #[error(transparent)]
    Shim(#[from] CallError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Worker {
    pub(super) async fn start_sandbox(
        &mut self,
        pod: &Arc<Pod>,
        starts: Vec<(String, u32)>,
    ) -> Result<(), StepError> {
        match self.try_start_sandbox(pod, starts).await {
            Ok(left) if left.is_empty() => Ok(()),
            Ok(left) => self.start_containers(pod, left).await,
            Err(problem) => {
                let message = chain(&problem);
                self.clean_up().await?;
                self.broken(message);
                Ok(())
            }
        }
    }

    /// Starts the pod's shim together with its containers, which saves a round trip for each. If
    /// they need volumes that only a shim can make, it starts without them and returns them.
    async fn try_start_sandbox(
        &mut self,
        pod: &Arc<Pod>,
        mut starts: Vec<(String, u32)>,
    ) -> Result<Vec<(String, u32)>, StartError> {
        let begun = Instant::now();
        self.images.hold(&self.directory.0).await?;
        let ids = self.shared.ids().allocate(&self.uid)?;
        let network = network::lease(&self.shared, pod, &self.uid, &self.directory.0).await?;
        let mut request = self.shared.builder.pod(pod, &self.directory, ids)?;
        request.network = network;
        self.volumes.forget();
        self.make_volumes_on_disk(pod, ids)?;
        let in_memory = volumes::need_shim(pod);
        if !in_memory {
            for (name, attempt) in std::mem::take(&mut starts) {
                request.containers.push(self.container(pod, &name, attempt)?);
            }
        }
        start_mark::set(&self.directory.0)?;
        let prepared = begun.elapsed();
        let zygote = self.shared.zygote.clone();
        // Forking a small process takes a fraction of a millisecond, but waits for every other
        // start.
        let spawned = tokio::task::spawn_blocking(move || zygote.spawn_shim(&request)).await;
        let spawned = spawned.map_err(io::Error::other)?;
        if matches!(spawned, Err(SpawnShimError::Fork(_))) {
            start_mark::clear(&self.directory.0);
        }
        let client = spawned?.client;
        let forked = begun.elapsed();
        // Kept even if it fails: then it is known to be gone.
        let shim = self.shim.insert(Shim::over(client)?);
        let state = settled_state(shim).await?;
        debug!(?prepared, ?forked, started = ?begun.elapsed(), "sandbox started");
        self.failed_starts = 0;
        self.heard(Ok(state));
        if in_memory {
            self.make_volumes_in_memory(pod, ids).await?;
        }
        self.open_egress().await;
        Ok(starts)
    }

    /// Starts to serve the pod's socket to the proxy, if it has one on its loopback. The socket
    /// listens before the pod's first program runs, so a connection is never refused; until this is
    /// done it waits.
    pub(super) async fn open_egress(&mut self) {
        let Some(lease) = self.directory.lease().filter(|lease| !lease.is_reachable()) else { return };
        let Some(shim) = self.shim.as_mut().filter(|_| self.egress_listener.is_none()) else { return };
        let served = match shim.call(Call::EgressListener).await {
            Ok((_, sockets)) => sockets.into_iter().next().map(|socket| {
                network::serve_egress(&self.shared, lease, socket).map_err(|problem| problem.to_string())
            }),
            // Before the first container there is no network: ask again when there is one.
            Err(problem) => Some(Err(chain(&problem))),
        };
        match served {
            Some(Ok(tasks)) => self.egress_listener = Some(tasks),
            Some(Err(problem)) => debug!(error = %problem, "no way out of the pod yet"),
            None => debug!("the shim gave no socket"),
        }
    }

    fn runs_nothing(&self) -> bool {
        let state = self.state.borrow();
        let mut containers = state.iter().flat_map(|state| state.containers.values());
        !containers.any(|container| matches!(container.status, ContainerStatus::Running { .. }))
    }

    fn make_volumes_on_disk(&mut self, pod: &Pod, ids: IdRange) -> Result<(), VolumeError> {
        let builder = &self.shared.builder;
        let pod_ip = builder.pod_ip(pod, &self.directory);
        let addresses = &builder.addresses(&pod_ip);
        let (claims, host_paths) = (&builder.claims, &builder.host_paths);
        let place = Place { directory: &self.directory, claims, host_paths, ids, addresses };
        self.volumes.make_on_disk(pod, self.sources.found(), &place)
    }

    async fn make_volumes_in_memory(&mut self, pod: &Pod, ids: IdRange) -> Result<(), VolumeError> {
        let Some(shim) = self.shim.as_mut() else { return Ok(()) };
        let builder = &self.shared.builder;
        let pod_ip = builder.pod_ip(pod, &self.directory);
        let addresses = &builder.addresses(&pod_ip);
        let (claims, host_paths) = (&builder.claims, &builder.host_paths);
        let place = Place { directory: &self.directory, claims, host_paths, ids, addresses };
        self.volumes.make_in_memory(pod, self.sources.found(), &place, shim).await
    }

    /// Updates the volumes that show other objects. A deleted object's files stay as they were.
    pub(super) async fn follow_sources(&mut self, pod: &Pod) {
        if !matches!(self.machine, Machine::Present(_)) || !volumes::show_objects(pod) {
            return;
        }
        let ids = match self.shared.ids().allocate(&self.uid) {
            Ok(ids) => ids,
            Err(problem) => {
                warn!(error = %chain(&problem), "volumes not brought up to date");
                return;
            }
        };
        let mut done = self.make_volumes_on_disk(pod, ids);
        if done.is_ok() {
            done = self.make_volumes_in_memory(pod, ids).await;
        }
        if let Err(problem) = done {
            debug!(error = %chain(&problem), "volumes not brought up to date");
        }
    }

    fn container(&self, pod: &Pod, name: &str, attempt: u32) -> Result<ContainerRequest, RequestError> {
        let wanted = all_containers(pod)
            .find(|(_, container)| container.name == name)
            .and_then(|(_, container)| container.image.as_deref());
        let image = self.images.of(wanted.unwrap_or_default())?;
        let run = Run { name, attempt, image: &image };
        self.shared.builder.container(pod, &run, &self.directory, self.sources.found())
    }

    /// Starts containers in the present sandbox, mostly restarts.
    pub(super) async fn start_containers(
        &mut self,
        pod: &Pod,
        starts: Vec<(String, u32)>,
    ) -> Result<(), StepError> {
        if let Err(problem) = self.images.hold(&self.directory.0).await {
            self.broken(chain(&problem));
            return Ok(());
        }
        if self.runs_nothing() {
            // A failed start may have removed the pod's network, and the next one has another.
            self.egress_listener = None;
        }
        for (name, attempt) in starts {
            let request = match self.container(pod, &name, attempt) {
                Ok(request) => request,
                Err(problem) => {
                    self.broken(chain(&problem));
                    return Ok(());
                }
            };
            self.stopping.remove(&name);
            let Some(shim) = self.shim.as_mut() else { return Ok(()) };
            match shim.call(Call::Start { container: Box::new(request) }).await {
                Ok((Answer::State { state }, _)) => self.heard(Ok(state)),
                Ok(_) => {}
                // The state contains the same failure, and so will the pod's status.
                Err(CallError::Refused(refusal)) => {
                    debug!(container = %name, error = %refusal, "container not started");
                    self.refresh().await?;
                    let failed_now = self
                        .state
                        .borrow()
                        .as_ref()
                        .and_then(|state| state.containers.get(&name))
                        .is_some_and(|container| {
                            container.attempt == attempt
                                && matches!(container.status, ContainerStatus::Failed { .. })
                        });
                    if !failed_now {
                        self.broken(refusal.message);
                        return Ok(());
                    }
                }
                Err(CallError::Connection(problem)) => self.heard(Err(problem)),
            }
        }
        self.open_egress().await;
        Ok(())
    }

    /// Records the results of starts, as kubelet does.
    pub(super) fn say_started(&mut self, pod: &Pod, starts: &[(String, u32)]) {
        let state = self.state.borrow().clone();
        for (name, attempt) in starts {
            let found = state.as_ref().and_then(|state| state.containers.get(name));
            let Some(found) = found.filter(|found| found.attempt == *attempt) else { continue };
            let image = all_containers(pod)
                .find(|(_, container)| container.name == *name)
                .and_then(|(_, container)| container.image.as_deref())
                .unwrap_or_default();
            let events = &self.shared.events;
            if !self.images.was_pulled(image) {
                let message = format!("Container image \"{image}\" already present on machine");
                events.record_later(pod, name, "Pulled", message);
            }
            events.record_later(pod, name, "Created", format!("Created container: {name}"));
            match &found.status {
                ContainerStatus::Failed { refusal, .. } => {
                    let message = format!("Error: {}", refusal.message);
                    events.record(pod, Some(name), Severity::Warning, "Failed", message);
                }
                _ => events.record_later(pod, name, "Started", format!("Started container {name}")),
            }
        }
    }

    /// Records a failed start that nothing else shows: the pod waits and tries again, with
    /// increasing delays.
    fn broken(&mut self, message: String) {
        warn!(error = %message, "pod not started");
        self.failed_starts += 1;
        self.machine = Machine::Broken { message, attempts: self.failed_starts, at: Timestamp::now() };
    }
}
