//! The images of one pod: what has been found out about each, and those that are here.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use warren_decide::pod::{BuiltInImage, ImageState, Images, PullPolicy};
use warren_image::store::Image;

use crate::images;
use crate::node::Shared;
use crate::pod_request::{ContainerImage, RequestError};

/// The images of one pod.
pub(crate) struct PodImages {
    states: Images,
    found: BTreeMap<String, Arc<Image>>,
    changes: watch::Receiver<u64>,
}

impl PodImages {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self { states: Images::new(), found: BTreeMap::new(), changes: shared.images.changes() }
    }

    /// What decisions rest on.
    pub(crate) fn states(&self) -> &Images {
        &self.states
    }

    /// Finds an image, or begins to fetch it.
    pub(crate) fn fetch(&mut self, shared: &Arc<Shared>, _pod: &Arc<Pod>, name: String, policy: PullPolicy) {
        let state = match shared.images.fetch(&name, policy) {
            Ok(image) => {
                let facts = images::facts(&name, &image);
                self.found.insert(name.clone(), image);
                ImageState::Present(facts)
            }
            Err(failure) => {
                let attempts = match self.states.get(&name) {
                    Some(ImageState::Failed { attempts, .. }) => attempts + 1,
                    _ => 1,
                };
                let (reason, message) = (failure.reason, failure.message);
                ImageState::Failed { reason, message, attempts, at: Timestamp::now() }
            }
        };
        self.states.insert(name, state);
    }

    /// Waits until something about the pod's images may have changed. Nothing is lost when this is cancelled.
    pub(crate) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            // The node goes down.
            std::future::pending::<()>().await;
        }
        // An image has come or gone: what could not be had before may be there now.
        self.states.retain(|_, state| !matches!(state, ImageState::Failed { .. }));
    }

    /// Keeps the layers of the pod's images from being removed. If one was removed already, the images are asked for again.
    pub(crate) async fn hold(&mut self, shared: &Shared, pod_directory: &Path) -> io::Result<()> {
        let images: Vec<Arc<Image>> = self.found.values().cloned().collect();
        let held = shared.images.hold(pod_directory, &images).await;
        if held.is_err() {
            self.states.clear();
            self.found.clear();
        }
        held
    }

    /// What a container that names this image stands on.
    pub(crate) fn of(&self, name: &str) -> Result<ContainerImage, RequestError> {
        match (BuiltInImage::named(name), self.found.get(name)) {
            (Some(BuiltInImage::Host), _) => Ok(ContainerImage::Host),
            (None, Some(image)) => Ok(ContainerImage::Stored(image.clone())),
            (None, None) => Err(RequestError::NoImage(name.to_owned())),
        }
    }
}
