//! Tracks the images of one pod: their states, and the pulls in progress.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::debug;
use warren_decide::pod::{BuiltInImage, ImageState, Images, PullPolicy};
use warren_image::reference::Reference;
use warren_image::store::Image;

use crate::events::{Events, Severity};
use crate::images::{self, ChangeError};
use crate::node::Shared;
use crate::pod_request::{ContainerImage, RequestError};
use crate::pull::Progress;
use crate::pull::credentials::{self, Credential};
use crate::worker::chain;

/// The images of one pod. Dropping this cancels its pulls.
pub(crate) struct PodImages {
    shared: Arc<Shared>,
    states: Images,
    found: BTreeMap<String, Arc<Image>>,
    /// The number of consecutive failures of each image.
    failures: BTreeMap<String, u32>,
    /// Images that were pulled and not yet used for a start.
    pulled: BTreeSet<String>,
    pulls: JoinSet<Outcome>,
    changes: watch::Receiver<u64>,
}

struct Outcome {
    pod: Arc<Pod>,
    name: String,
    result: Result<Arc<Image>, ChangeError>,
    took: std::time::Duration,
}

impl PodImages {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: shared.clone(),
            states: Images::new(),
            found: BTreeMap::new(),
            failures: BTreeMap::new(),
            pulled: BTreeSet::new(),
            pulls: JoinSet::new(),
            changes: shared.images.changes(),
        }
    }

    /// Returns the states that decisions depend on.
    pub(crate) fn states(&self) -> &Images {
        &self.states
    }

    /// Finds an image, or starts to fetch it.
    pub(crate) fn fetch(&mut self, pod: &Arc<Pod>, name: String, policy: PullPolicy) {
        let present = match policy {
            PullPolicy::Always => Ok(None),
            PullPolicy::IfNotPresent | PullPolicy::Never => self.shared.images.find(&name),
        };
        let events = self.shared.events.clone();
        match present {
            Ok(Some(image)) => self.has_come(name, image),
            Ok(None) if policy == PullPolicy::Never => {
                let message = format!("Container image \"{name}\" is not present with pull policy of Never");
                events.record(pod, None, Severity::Warning, "ErrImageNeverPull", message.clone());
                self.has_failed(name, "ErrImageNeverPull", message);
            }
            Ok(None) => {
                events.record(pod, None, Severity::Normal, "Pulling", format!("Pulling image \"{name}\""));
                self.states.insert(name.clone(), ImageState::Fetching);
                self.pulls.spawn(pull(self.shared.clone(), pod.clone(), name));
            }
            Err(problem) => {
                let message = format!("Failed to inspect image \"{name}\": {}", chain(&problem));
                events.record(pod, None, Severity::Warning, "InspectFailed", message.clone());
                self.has_failed(name, "ImageInspectError", message);
            }
        }
    }

    /// Waits until a state of the pod's images may have changed. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        tokio::select! {
            Some(ended) = self.pulls.join_next() => match ended {
                Ok(outcome) => self.has_ended(outcome),
                // A bug, reported by the panic itself: the image is asked for again.
                Err(_) => self.states.retain(|_, state| *state != ImageState::Fetching),
            },
            Ok(()) = self.changes.changed() => {
                // An image that was not available may have been imported since.
                let images = &self.shared.images;
                self.states.retain(|name, state| {
                    !matches!(state, ImageState::Failed { .. }) || !matches!(images.find(name), Ok(Some(_)))
                });
            }
            else => std::future::pending().await,
        }
    }

    fn has_ended(&mut self, outcome: Outcome) {
        let Outcome { pod, name, result, took } = outcome;
        let events = self.shared.events.clone();
        match result {
            Ok(image) => {
                let message = format!(
                    "Successfully pulled image \"{name}\" in {}ms. Image size: {} bytes.",
                    took.as_millis(),
                    image.size
                );
                events.record(&pod, None, Severity::Normal, "Pulled", message);
                self.pulled.insert(name.clone());
                self.has_come(name, image);
            }
            Err(problem) => {
                let message = format!("failed to pull image \"{name}\": {}", chain(&problem));
                let said = format!("Failed to pull image \"{name}\": {}", chain(&problem));
                events.record(&pod, None, Severity::Warning, "Failed", said);
                events.record(&pod, None, Severity::Warning, "Failed", "Error: ErrImagePull");
                let waits = format!("Back-off pulling image \"{name}\"");
                events.record(&pod, None, Severity::Normal, "BackOff", waits);
                self.has_failed(name, "ErrImagePull", message);
            }
        }
    }

    /// Returns true if an image was pulled for this pod since the last call. The pull had an event
    /// of its own.
    pub(crate) fn was_pulled(&mut self, name: &str) -> bool {
        self.pulled.remove(name)
    }

    fn has_come(&mut self, name: String, image: Arc<Image>) {
        self.failures.remove(&name);
        self.states.insert(name.clone(), ImageState::Present(images::facts(&name, &image)));
        self.found.insert(name, image);
    }

    fn has_failed(&mut self, name: String, reason: &'static str, message: String) {
        let attempts = self.failures.entry(name.clone()).or_default();
        *attempts += 1;
        let state = ImageState::Failed { reason, message, attempts: *attempts, at: Timestamp::now() };
        self.states.insert(name, state);
    }

    /// Keeps the layers of the pod's images from being removed. If one was removed already, the
    /// images are asked for again.
    pub(crate) async fn hold(&mut self, pod_directory: &Path) -> io::Result<()> {
        let images: Vec<Arc<Image>> = self.found.values().cloned().collect();
        let held = self.shared.images.hold(pod_directory, &images).await;
        if held.is_err() {
            self.states.clear();
            self.found.clear();
        }
        held
    }

    /// Returns the image of a container that names it.
    pub(crate) fn of(&self, name: &str) -> Result<ContainerImage, RequestError> {
        match (BuiltInImage::named(name), self.found.get(name)) {
            (Some(BuiltInImage::Host), _) => Ok(ContainerImage::Host),
            (None, Some(image)) => Ok(ContainerImage::Stored(image.clone())),
            (None, None) => Err(RequestError::NoImage(name.to_owned())),
        }
    }
}

async fn pull(shared: Arc<Shared>, pod: Arc<Pod>, name: String) -> Outcome {
    let begun = Instant::now();
    let credentials = match name.parse() {
        Ok(image) => pull_secrets(&shared.client, &shared.events, &pod, &image).await,
        // The pull reports the same error.
        Err(_) => Vec::new(),
    };
    let result = shared.images.pull(&name, credentials, &Progress::default()).await;
    Outcome { pod, name, result, took: begun.elapsed() }
}

/// Returns the credentials for an image from a pod's own secrets. An unreadable secret gets an
/// event; the image may be public.
async fn pull_secrets(client: &Client, events: &Events, pod: &Pod, image: &Reference) -> Vec<Credential> {
    let names = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    let names: Vec<&str> = names.map(|secret| secret.name.as_str()).filter(|name| !name.is_empty()).collect();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for name in names {
        let secret = match secrets.get(name).await {
            Ok(secret) => secret,
            Err(error) => {
                debug!(%name, %error, "pull secret not read");
                missing.push(name);
                continue;
            }
        };
        let data = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
        let read = match (data(".dockerconfigjson"), data(".dockercfg")) {
            (Some(text), _) => credentials::in_config(&text.0, image),
            (None, Some(text)) => credentials::in_old_config(&text.0, image),
            (None, None) => Ok(Vec::new()),
        };
        match read {
            Ok(credentials) => found.extend(credentials),
            Err(_) => missing.push(name),
        }
    }
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        events.record(pod, None, Severity::Warning, "FailedToRetrieveImagePullSecret", message);
    }
    found
}
