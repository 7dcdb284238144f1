//! Pulls images from registries by the OCI distribution protocol. Content is hostile until its
//! digest has been checked, and so is every other answer of a registry.
//!
//! Start reading at [`Puller::pull`].

mod blob;
mod challenge;
pub(crate) mod credentials;
mod registry;
mod trust;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use http::StatusCode;
use tokio::sync::Semaphore;
use tracing::debug;
use warren_image::digest::Digest;
use warren_image::manifest::{Descriptor, Document, DocumentError, ImageConfig, LARGEST_DOCUMENT, Manifest};
use warren_image::reference::Reference;
use warren_image::store::{Store, StoreError};
use warren_image::unpack::Limits;

pub(crate) use blob::Progress;
use credentials::Credential;
use registry::{Ask, Registry};

use crate::config::RegistryConfig;

/// Concurrent downloads of layers of one image, as in docker.
const LAYERS_AT_ONCE: usize = 3;
/// Concurrent downloads of all images together: more would only make each slower.
const DOWNLOADS_AT_ONCE: usize = 6;
/// The deepest nesting of indexes.
const DEEPEST_INDEX: usize = 4;
/// The most bytes that are fetched for one image. Unpacking has a limit of its own.
const LARGEST_IMAGE: u64 = 64 << 30;
/// The accepted media types of documents, the newest first.
const DOCUMENTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// The error of a failed pull. Complete layers stay in the store for the next try.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullError {
    #[error("registry {registry} cannot be reached: {why}")]
    Unreachable { registry: String, why: String },
    #[error("registry {registry} cannot be believed: {why}")]
    Untrusted { registry: String, why: String },
    #[error("registry {registry} answers {status}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Answer { registry: String, status: StatusCode, detail: String },
    #[error("registry {registry} cannot be used: {why}")]
    Protocol { registry: String, why: &'static str },
    #[error("speak TLS with registry {registry}")]
    Tls {
        registry: String,
        #[source]
        source: rustls::Error,
    },
    #[error("{image} is {found}, not what it was asked for by name")]
    Digest { image: String, found: Digest },
    #[error("the image has {0} bytes, more than is taken")]
    TooLarge(u64),
    #[error("the image's index leads to an index, again and again")]
    TooDeep,
    #[error("keep blob {digest}")]
    Keep {
        digest: Digest,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the node is going down")]
    Cancelled,
}

impl PullError {
    /// Returns true if a retry may succeed soon.
    fn may_pass(&self) -> bool {
        match self {
            PullError::Unreachable { .. } => true,
            PullError::Answer { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            _ => false,
        }
    }

    /// Returns true if only the credentials are wrong.
    fn is_denied(&self) -> bool {
        matches!(self, PullError::Answer { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, .. })
    }
}

/// Pulls images.
#[derive(Debug)]
pub(crate) struct Puller {
    config: RegistryConfig,
    downloads: Semaphore,
    /// Layers that are being fetched: a second pull of the same layer waits for the first.
    layers: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
}

/// An image whose layers are in the store. Its documents are not yet, so the store does not list
/// it.
pub(crate) struct Pulled {
    manifest: (Descriptor, Vec<u8>),
    config: (Descriptor, Vec<u8>),
}

impl Pulled {
    /// Puts the documents into the store and gives the image its name.
    pub(crate) fn name(&self, store: &Store, name: &Reference) -> Result<(), StoreError> {
        for (descriptor, bytes) in [&self.config, &self.manifest] {
            store.put_document(descriptor, bytes)?;
        }
        store.name(name, &self.manifest.0.digest).map(drop)
    }
}

impl Puller {
    pub(crate) fn new(config: RegistryConfig) -> Self {
        Self { config, downloads: Semaphore::new(DOWNLOADS_AT_ONCE), layers: Mutex::default() }
    }

    /// Returns the credentials for an image from the node's own files. They are read each time:
    /// users log in while a node runs.
    pub(crate) fn own_credentials(&self, image: &Reference) -> Vec<Credential> {
        let mut found = Vec::new();
        for path in &self.config.credential_files {
            let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
            if size == 0 || size > credentials::LARGEST_FILE {
                continue;
            }
            match std::fs::read(path).map(|text| credentials::in_config(&text, image)) {
                Ok(Ok(credentials)) => found.extend(credentials),
                Ok(Err(error)) => debug!(path = %path.display(), %error, "credentials not read"),
                Err(error) => debug!(path = %path.display(), %error, "credentials not read"),
            }
        }
        found
    }

    /// Pulls the layers of an image into the store, with the first credentials that the registry
    /// accepts, or else anonymously.
    pub(crate) async fn pull(
        &self,
        store: &Arc<Store>,
        image: &Reference,
        credentials: Vec<Credential>,
        progress: &Progress,
    ) -> Result<Pulled, PullError> {
        let mut candidates: Vec<Option<Credential>> = credentials.into_iter().map(Some).collect();
        // Outdated credentials must not prevent the pull of a public image.
        candidates.push(None);
        let mut first_refusal = None;
        for credential in candidates {
            let registry = Registry::new(&self.config, image, credential)?;
            match self.documents(&registry, image).await {
                Ok((pulled, manifest, config)) => {
                    self.layers(store, &registry, &manifest, &config, progress).await?;
                    return Ok(pulled);
                }
                Err(problem) if problem.is_denied() => first_refusal = first_refusal.or(Some(problem)),
                Err(problem) => return Err(problem),
            }
        }
        Err(first_refusal.unwrap_or(PullError::Cancelled))
    }

    /// Fetches and checks the image's manifest for this machine and its configuration.
    async fn documents(
        &self,
        registry: &Registry,
        image: &Reference,
    ) -> Result<(Pulled, Manifest, ImageConfig), PullError> {
        let mut bytes = self.document(registry, &format!("manifests/{}", image.version())).await?;
        let mut digest = Digest::of(&bytes);
        if image.digest().is_some_and(|wanted| *wanted != digest) {
            return Err(PullError::Digest { image: image.to_string(), found: digest });
        }
        for _ in 0..DEEPEST_INDEX {
            let index = match Document::parse(&format!("the manifest of {image}"), &bytes)? {
                Document::Index(index) => index,
                Document::Manifest(manifest) => {
                    let path = format!("blobs/{}", manifest.config.digest);
                    let config_bytes = self.document(registry, &path).await?;
                    check(&manifest.config, &config_bytes)?;
                    let config = ImageConfig::parse(&config_bytes, &manifest)?;
                    let descriptor = Descriptor {
                        media_type: String::new(),
                        size: bytes.len() as u64,
                        digest,
                        platform: None,
                        annotations: Default::default(),
                    };
                    let pulled = Pulled {
                        manifest: (descriptor, bytes),
                        config: (manifest.config.clone(), config_bytes),
                    };
                    return Ok((pulled, manifest, config));
                }
            };
            let next = index.for_this_machine()?;
            bytes = self.document(registry, &format!("manifests/{}", next.digest)).await?;
            check(next, &bytes)?;
            digest = next.digest.clone();
        }
        Err(PullError::TooDeep)
    }

    async fn document(&self, registry: &Registry, path: &str) -> Result<Vec<u8>, PullError> {
        let accept = if path.starts_with("manifests/") { DOCUMENTS } else { "*/*" };
        let response = registry.get(Ask { path, accept, ..Ask::default() }).await?;
        let largest = usize::try_from(LARGEST_DOCUMENT).unwrap_or(usize::MAX);
        Ok(registry.collect(response, largest).await?.to_vec())
    }

    async fn layers(
        &self,
        store: &Arc<Store>,
        registry: &Registry,
        manifest: &Manifest,
        config: &ImageConfig,
        progress: &Progress,
    ) -> Result<(), PullError> {
        let sizes = manifest.layers.iter().try_fold(0_u64, |sum, layer| sum.checked_add(layer.size));
        let size = sizes.unwrap_or(u64::MAX);
        if size > LARGEST_IMAGE {
            return Err(PullError::TooLarge(size));
        }
        progress.total.store(size, Ordering::Relaxed);
        let at_once = Semaphore::new(LAYERS_AT_ONCE);
        let mut layers = Vec::new();
        for (layer, diff_id) in manifest.layers.iter().zip(&config.rootfs.diff_ids) {
            layers.push(self.layer(store, registry, layer, diff_id, &at_once, progress));
        }
        futures::future::try_join_all(layers).await.map(drop)
    }

    async fn layer(
        &self,
        store: &Arc<Store>,
        registry: &Registry,
        layer: &Descriptor,
        diff_id: &Digest,
        at_once: &Semaphore,
        progress: &Progress,
    ) -> Result<(), PullError> {
        let _place = at_once.acquire().await.map_err(|_| PullError::Cancelled)?;
        let turn = self.turn(diff_id);
        let _alone = turn.lock().await;
        if store.has_layer(diff_id) {
            progress.done.fetch_add(layer.size, Ordering::Relaxed);
            return Ok(());
        }
        let _download = self.downloads.acquire().await.map_err(|_| PullError::Cancelled)?;
        let keep = |source| PullError::Keep { digest: layer.digest.clone(), source };
        // The file has no name, so nothing is left of it in any case.
        let file = tempfile::tempfile_in(store.unfinished()).map_err(keep)?;
        let mut file = tokio::fs::File::from_std(file);
        blob::download(registry, layer, &mut file, progress).await?;
        let mut file = file.into_std().await;
        let (store, layer, diff_id) = (store.clone(), layer.clone(), diff_id.clone());
        let unpacking = tokio::task::spawn_blocking(move || {
            let keep = |source| PullError::Keep { digest: layer.digest.clone(), source };
            io::Seek::rewind(&mut file).map_err(keep)?;
            Ok(store.add_layer(file, Some(&layer), &diff_id, Limits::default())?)
        });
        unpacking.await.unwrap_or(Err(PullError::Cancelled))
    }

    fn turn(&self, diff_id: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        layers.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = layers.get(diff_id).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        layers.insert(diff_id.clone(), Arc::downgrade(&turn));
        turn
    }
}

/// Checks a document against its descriptor.
fn check(promised: &Descriptor, bytes: &[u8]) -> Result<(), PullError> {
    let found = Digest::of(bytes);
    match found == promised.digest {
        true => Ok(()),
        false => Err(PullError::Digest { image: promised.digest.to_string(), found }),
    }
}

#[cfg(test)]
mod tests;
