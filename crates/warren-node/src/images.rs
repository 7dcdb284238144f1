//! Manages this node's images: those that pods pull and those that users import.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tracing::{info, warn};
use warren_decide::pod::ImageFacts;
use warren_image::import::{ImportError, Imported, import};
use warren_image::reference::{self, Reference};
use warren_image::store::{Image, Named, Store, StoreError};
use warren_image::unpack::Limits;

use crate::config::RegistryConfig;
use crate::pull::credentials::Credential;
use crate::pull::{Progress, PullError, Puller};
use crate::worker::chain;

/// The file in a pod's directory that lists the layers of its containers, so that a later daemon
/// knows them.
const LAYERS_IN_USE: &str = "layers";

/// The images of this node.
#[derive(Debug)]
pub(crate) struct Images {
    store: Arc<Store>,
    puller: Puller,
    pods: PathBuf,
    /// Images that were looked up before, by the name that pods use.
    known: Mutex<HashMap<String, Arc<Image>>>,
    /// Held for writing while layers are removed, so that none is removed that is about to be used.
    removing: tokio::sync::RwLock<()>,
    /// The number of images being added. Nothing is removed meanwhile, because their layers have no
    /// name yet.
    adding: Mutex<Adding>,
    /// A counter of changes, for pods that wait for an image.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Adding {
    count: usize,
    /// True if a removal was requested meanwhile.
    remove_after: bool,
}

/// A guard that marks an image as being added.
struct Arriving(Arc<Images>);

impl Drop for Arriving {
    fn drop(&mut self) {
        let mut adding = self.0.adding.lock().unwrap_or_else(PoisonError::into_inner);
        adding.count -= 1;
        if adding.count == 0 && std::mem::take(&mut adding.remove_after) {
            let images = self.0.clone();
            // Without a runtime the node shuts down, and the next one removes unused layers at its
            // start.
            let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
            runtime.spawn(async move {
                if let Err(problem) = images.remove_unused().await {
                    warn!(error = %chain(&problem), "unused layers not removed");
                }
            });
        }
    }
}

/// The error of adding or removing an image.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error(transparent)]
    Name(#[from] reference::ParseError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pull(#[from] PullError),
    #[error("find out which layers are in use")]
    InUse(#[source] io::Error),
    #[error("there is no image `{0}`")]
    NotFound(String),
    #[error("the task was cancelled")]
    Cancelled,
}

impl Images {
    /// Opens the store of a data directory and removes unused layers.
    pub(crate) fn open(data_dir: &Path, pods: &Path, registries: RegistryConfig) -> Result<Self, StoreError> {
        let images = Self {
            store: Arc::new(Store::open(&data_dir.join("images"))?),
            puller: Puller::new(registries),
            pods: pods.to_owned(),
            known: Mutex::default(),
            removing: tokio::sync::RwLock::default(),
            adding: Mutex::default(),
            changes: watch::Sender::new(0),
        };
        match images.in_use() {
            Ok(in_use) => images.store.collect(&in_use)?,
            // Keeping too much is safe.
            Err(error) => warn!(%error, "layers in use not known; none removed"),
        }
        Ok(images)
    }

    /// Returns a receiver that wakes when an image is added or removed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the image of this name, if it is present.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Arc<Image>>, ChangeError> {
        if let Some(image) = self.known().get(name) {
            return Ok(Some(image.clone()));
        }
        let found = self.store.find(&name.parse()?)?.map(Arc::new);
        if let Some(image) = &found {
            self.known().insert(name.to_owned(), image.clone());
        }
        Ok(found)
    }

    /// Pulls an image from its registry, or its changed layers. Cancelling leaves only complete
    /// layers in the store, for the next try.
    pub(crate) async fn pull(
        self: &Arc<Self>,
        name: &str,
        mut credentials: Vec<Credential>,
        progress: &Progress,
    ) -> Result<Arc<Image>, ChangeError> {
        let reference: Reference = name.parse()?;
        credentials.extend(self.puller.own_credentials(&reference));
        let arriving = self.arriving().await;
        let pulled = self.puller.pull(&self.store, &reference, credentials, progress).await?;
        let before = self.store.find(&reference)?.map(|image| image.digest);
        let image = self
            .change(arriving, move |store| {
                pulled.name(store, &reference)?;
                store.find(&reference)?.ok_or_else(|| ChangeError::NotFound(reference.to_string()))
            })
            .await?;
        if before.is_some_and(|before| before != image.digest) {
            // The name refers to a new image; the old one may be unused now.
            self.remove_soon().await?;
        }
        let image = Arc::new(image);
        self.known().insert(name.to_owned(), image.clone());
        Ok(image)
    }

    /// Records in a pod's directory which layers it uses, before anything is started on them.
    pub(crate) async fn hold(&self, pod: &Path, images: &[Arc<Image>]) -> io::Result<()> {
        if images.is_empty() {
            return Ok(());
        }
        let _no_layer_goes = self.removing.read().await;
        let layers: BTreeSet<&Path> =
            images.iter().flat_map(|image| &image.layers).map(PathBuf::as_path).collect();
        if let Some(gone) = layers.iter().find(|layer| !layer.is_dir()) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("layer {} was removed", gone.display()),
            ));
        }
        std::fs::create_dir_all(pod)?;
        std::fs::write(pod.join(LAYERS_IN_USE), serde_json::to_vec(&layers)?)
    }

    fn in_use(&self) -> io::Result<BTreeSet<PathBuf>> {
        let mut in_use = BTreeSet::new();
        for pod in std::fs::read_dir(&self.pods)? {
            match std::fs::read(pod?.path().join(LAYERS_IN_USE)) {
                Ok(bytes) => in_use.extend(serde_json::from_slice::<Vec<PathBuf>>(&bytes)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(in_use)
    }

    /// Returns a temporary file for an archive. It is deleted when it is closed.
    pub(crate) fn unfinished_archive(&self) -> io::Result<std::fs::File> {
        let directory = self.store.unfinished();
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::CLOEXEC;
        Ok(rustix::fs::open(&directory, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?.into())
    }

    /// Imports the images of an archive.
    pub(crate) async fn import(
        self: &Arc<Self>,
        archive: std::fs::File,
        name: Option<&str>,
    ) -> Result<Vec<Imported>, ChangeError> {
        let name: Option<Reference> = name.map(str::parse).transpose()?;
        let arriving = self.arriving().await;
        self.change(arriving, move |store| Ok(import(store, archive, name.as_ref(), Limits::default())?))
            .await
    }

    /// Lists all images.
    pub(crate) fn list(&self) -> Result<Vec<Named>, StoreError> {
        self.store.list()
    }

    /// Removes a name and the layers that only it needed. Layers of present containers stay until
    /// those are gone.
    pub(crate) async fn remove(self: &Arc<Self>, name: &str) -> Result<(), ChangeError> {
        let reference: Reference = name.parse()?;
        if !self.store.forget(&reference)? {
            return Err(ChangeError::NotFound(reference.to_string()));
        }
        self.changed();
        self.remove_soon().await
    }

    /// Removes unused layers, now or when no image is being added any more.
    async fn remove_soon(self: &Arc<Self>) -> Result<(), ChangeError> {
        {
            let mut adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
            if adding.count > 0 {
                adding.remove_after = true;
                return Ok(());
            }
        }
        self.remove_unused().await
    }

    async fn remove_unused(self: &Arc<Self>) -> Result<(), ChangeError> {
        let images = self.clone();
        let task = tokio::spawn(async move {
            let _nothing_comes = images.removing.write().await;
            {
                let mut adding = images.adding.lock().unwrap_or_else(PoisonError::into_inner);
                if adding.count > 0 {
                    adding.remove_after = true;
                    return Ok(());
                }
            }
            let working = images.clone();
            let removing = tokio::task::spawn_blocking(move || {
                let in_use = working.in_use().map_err(ChangeError::InUse)?;
                Ok(working.store.collect(&in_use)?)
            });
            removing.await.unwrap_or(Err(ChangeError::Cancelled))
        });
        task.await.unwrap_or(Err(ChangeError::Cancelled))
    }

    /// Blocks removals until the guard is dropped.
    async fn arriving(self: &Arc<Self>) -> Arriving {
        let _not_while_removing = self.removing.read().await;
        self.adding.lock().unwrap_or_else(PoisonError::into_inner).count += 1;
        Arriving(self.clone())
    }

    /// Runs a change to the store on a blocking thread, to its end even if the client has left.
    async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        arriving: Arriving,
        change: impl FnOnce(&Store) -> Result<T, ChangeError> + Send + 'static,
    ) -> Result<T, ChangeError> {
        let images = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            let result = change(&images.store);
            images.changed();
            (result, arriving)
        });
        let (result, arriving) = task.await.map_err(|_| ChangeError::Cancelled)?;
        drop(arriving);
        info!(ok = result.is_ok(), "images changed");
        result
    }

    fn changed(&self) {
        self.known().clear();
        self.changes.send_modify(|count| *count += 1);
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Image>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the properties of an image that decisions need, under the name that a pod uses.
pub(crate) fn facts(name: &str, image: &Image) -> ImageFacts {
    let repository = name.parse::<Reference>().map_or_else(
        |_| name.to_owned(),
        |reference| format!("{}/{}", reference.registry(), reference.repository()),
    );
    ImageFacts { id: format!("{repository}@{}", image.digest), user: image.config.config.user.clone() }
}
