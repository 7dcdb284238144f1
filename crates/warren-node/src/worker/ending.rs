//! Stops a pod's containers and removes what is left of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tracing::{debug, warn};
use warren_decide::pod::{ContainerState, Machine, Notice, all_containers};
use warren_oci::cleanup;
use warren_oci::client::CallError;
use warren_oci::protocol::{Call, Target};

use super::{StepError, Worker, blocking, chain, next_state};
use crate::{network, start_mark};

/// The time after which a killed process is killed again: only the kernel can hold it longer (for
/// example on a hung disk).
const AFTER_KILL: Duration = Duration::from_secs(10);

impl Worker {
    /// Asks containers to stop. A container with a hook gets a task of its own, since the hook may
    /// take time.
    pub(super) async fn ask_to_stop(
        &mut self,
        pod: &Arc<Pod>,
        names: BTreeSet<String>,
        grace: i64,
    ) -> Result<(), StepError> {
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        for (_, container) in all_containers(pod).filter(|(_, container)| names.contains(&container.name)) {
            self.say_stopping(pod, &container.name);
            self.stopping.insert(container.name.clone(), Timestamp::now());
            if container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some()) {
                self.probes.ask_to_stop(&self.shared, pod, container, &self.directory, grace);
            } else {
                self.signal(&container.name, rustix::process::Signal::TERM).await;
            }
        }
        Ok(())
    }

    /// Kills containers and waits until they have ended.
    pub(super) async fn kill(&mut self, pod: &Pod, names: BTreeSet<String>) -> Result<(), StepError> {
        for name in &names {
            self.say_stopping(pod, name);
            self.stopping.entry(name.clone()).or_insert_with(Timestamp::now);
            self.signal(name, rustix::process::Signal::KILL).await;
        }
        // Wait here, so that the next decision sees it.
        let ended = async {
            while self.runs_any(&names) {
                let state = next_state(&mut self.shim).await;
                self.heard(state);
            }
        };
        if tokio::time::timeout(AFTER_KILL, ended).await.is_err() {
            warn!("killed containers are still there");
        }
        Ok(())
    }

    /// Records once that a container is being stopped, unless another event has given the reason.
    fn say_stopping(&self, pod: &Pod, name: &str) {
        let is_explained =
            |notice: &Notice| notice.reason == "Killing" && notice.container.as_deref() == Some(name);
        if !self.stopping.contains_key(name) && !self.noticed.iter().any(is_explained) {
            self.shared.events.record_later(pod, name, "Killing", format!("Stopping container {name}"));
        }
    }

    async fn signal(&mut self, container: &str, signal: rustix::process::Signal) {
        let Some(shim) = self.shim.as_mut() else { return };
        let call = Call::Signal { target: Target::Container(container.to_owned()), signal: signal.as_raw() };
        match shim.call(call).await {
            Ok(_) | Err(CallError::Refused(_)) => {}
            Err(CallError::Connection(problem)) => self.heard(Err(problem)),
        }
    }

    fn runs_any(&self, names: &BTreeSet<String>) -> bool {
        matches!(&self.machine, Machine::Present(report) if report.containers.iter().any(|(name, container)| {
            names.contains(name) && matches!(container.state, ContainerState::Running { .. })
        }))
    }

    /// Ends the shim and everything in it. Logs and the pod's directory stay.
    pub(super) async fn clean_up(&mut self) -> Result<(), StepError> {
        self.probes.end();
        self.egress_listener = None;
        self.volumes.forget();
        self.stopping.clear();
        let shim = match self.shim.take() {
            Some(shim) => Some(shim),
            // A requested shim may still be starting, if its zygote died before it could answer.
            None => self.connect_to_earlier().await.ok(),
        };
        // A shim that has shut down has left nothing.
        let mut is_over = false;
        if let Some(mut shim) = shim {
            match shim.call(Call::Shutdown).await {
                Ok(_) => is_over = true,
                Err(problem) => {
                    debug!(error = %chain(&problem), "shim did not shut down; its cgroups are killed")
                }
            }
        }
        let (home, uid, directory) =
            (self.shared.home_id.clone(), self.uid.clone(), self.directory.0.clone());
        blocking(move || {
            if !is_over {
                cleanup::kill_pod(&home, &uid)?;
                if let Err(error) = cleanup::kill_recorded(&directory) {
                    warn!(%error, "containers of a lost shim not looked for");
                }
            }
            // These files would be taken for the next shim's. Usually they do not exist, which is
            // no error.
            for name in ["shim.sock", "state.json"] {
                let _ = std::fs::remove_file(directory.join(name));
            }
            start_mark::clear(&directory);
            Ok(())
        })
        .await?;
        self.machine = Machine::Absent;
        self.state.send_replace(None);
        Ok(())
    }

    /// Removes the files of the pod's containers and volumes. Logs stay.
    pub(super) async fn free_disk(&mut self) -> Result<(), StepError> {
        let places = self.directory.written();
        blocking(move || places.iter().try_for_each(|place| cleanup::remove_pod_directory(place))).await?;
        self.disk_is_free = true;
        Ok(())
    }

    /// Removes everything of the pod from the machine.
    pub(super) async fn remove(&mut self) -> Result<(), StepError> {
        self.clean_up().await?;
        let directory = self.directory.0.clone();
        let shared = self.shared.clone();
        let uid = self.uid.clone();
        blocking(move || {
            // Read before the directory is removed, released after.
            let range = directory.join("ids").exists().then(|| shared.ids().allocate(&uid).ok()).flatten();
            cleanup::remove_pod_directory(&directory)?;
            if let Some(range) = range {
                shared.ids().release(range);
            }
            network::release(&shared, &uid);
            Ok(())
        })
        .await
    }
}
