//! The images of this node: those that pods ask for by name, and those that people bring.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tracing::{info, warn};
use warren_decide::pod::{ImageFacts, PullPolicy};
use warren_image::import::{ImportError, Imported, import};
use warren_image::reference::{self, Reference};
use warren_image::store::{Image, Named, Store, StoreError};
use warren_image::unpack::Limits;

use crate::worker::chain;

/// A file in a pod's directory that lists the layers its containers stand on, so that also the next daemon knows.
const LAYERS_IN_USE: &str = "layers";

/// The images of this node.
#[derive(Debug)]
pub(crate) struct Images {
    store: Store,
    pods: PathBuf,
    /// What was looked up before, by the name that pods use.
    known: Mutex<HashMap<String, Arc<Image>>>,
    /// Held while layers come or go, so that none goes that is about to be used.
    changing: tokio::sync::RwLock<()>,
    /// Counts changes, for pods that wait for an image.
    changes: watch::Sender<u64>,
}

/// Why an image cannot be had.
#[derive(Debug)]
pub(crate) struct FetchFailure {
    /// As kubelet spells it.
    pub(crate) reason: &'static str,
    /// For people.
    pub(crate) message: String,
}

/// An image could not be taken in or out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error(transparent)]
    Name(#[from] reference::ParseError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("find out which layers are in use")]
    InUse(#[source] io::Error),
    #[error("there is no image `{0}`")]
    NotFound(String),
    #[error("the task was cancelled")]
    Cancelled,
}

impl Images {
    /// Opens the store of a data directory, and removes layers that nothing needs any more.
    pub(crate) fn open(data_dir: &Path, pods: &Path) -> Result<Self, StoreError> {
        let store = Store::open(&data_dir.join("images"))?;
        let images = Self {
            store,
            pods: pods.to_owned(),
            known: Mutex::default(),
            changing: tokio::sync::RwLock::default(),
            changes: watch::Sender::new(0),
        };
        match images.in_use() {
            Ok(in_use) => images.store.collect(&in_use)?,
            // Too much is kept then, never too little.
            Err(error) => warn!(%error, "layers in use not known; none removed"),
        }
        Ok(images)
    }

    /// Wakes when an image has come or gone.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The image that a pod asks for. There are no registries yet to ask for another, so what is here is taken, whatever the
    /// policy.
    pub(crate) fn fetch(&self, name: &str, policy: PullPolicy) -> Result<Arc<Image>, FetchFailure> {
        match self.find(name) {
            Ok(Some(image)) => Ok(image),
            Ok(None) if policy == PullPolicy::Never => Err(FetchFailure {
                reason: "ErrImageNeverPull",
                message: format!("Container image \"{name}\" is not present with pull policy of Never"),
            }),
            Ok(None) => Err(FetchFailure {
                reason: "ErrImagePull",
                message: format!(
                    "image \"{name}\" is not on this node, which fetches from no registry; bring it with `warren image import FILE`"
                ),
            }),
            Err(problem) => Err(FetchFailure { reason: "ErrImagePull", message: chain(&problem) }),
        }
    }

    fn find(&self, name: &str) -> Result<Option<Arc<Image>>, ChangeError> {
        if let Some(image) = self.known().get(name) {
            return Ok(Some(image.clone()));
        }
        let found = self.store.find(&name.parse()?)?.map(Arc::new);
        if let Some(image) = &found {
            self.known().insert(name.to_owned(), image.clone());
        }
        Ok(found)
    }

    /// Says in a pod's directory which layers it stands on. Before anything is started on them.
    pub(crate) async fn hold(&self, pod: &Path, images: &[Arc<Image>]) -> io::Result<()> {
        if images.is_empty() {
            return Ok(());
        }
        let _no_layer_goes = self.changing.read().await;
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

    /// A file for an archive on its way in. It vanishes when it is closed.
    pub(crate) fn unfinished_archive(&self) -> io::Result<std::fs::File> {
        let directory = self.store.unfinished();
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::CLOEXEC;
        Ok(rustix::fs::open(&directory, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?.into())
    }

    /// Takes in the images of an archive.
    pub(crate) async fn import(
        self: &Arc<Self>,
        archive: std::fs::File,
        name: Option<&str>,
    ) -> Result<Vec<Imported>, ChangeError> {
        let name: Option<Reference> = name.map(str::parse).transpose()?;
        self.change(move |store| Ok(import(store, archive, name.as_ref(), Limits::default())?)).await
    }

    /// All images.
    pub(crate) fn list(&self) -> Result<Vec<Named>, StoreError> {
        self.store.list()
    }

    /// Takes a name away, and what only it needed.
    pub(crate) async fn remove(self: &Arc<Self>, name: &str) -> Result<(), ChangeError> {
        let reference: Reference = name.parse()?;
        let images = self.clone();
        self.change(move |store| {
            let in_use = images.in_use().map_err(ChangeError::InUse)?;
            match store.remove(&reference, &in_use)? {
                true => Ok(()),
                false => Err(ChangeError::NotFound(reference.to_string())),
            }
        })
        .await
    }

    /// One change at a time, on a thread that may block, to its end also when the client has left.
    async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnOnce(&Store) -> Result<T, ChangeError> + Send + 'static,
    ) -> Result<T, ChangeError> {
        let images = self.clone();
        let task = tokio::spawn(async move {
            let alone = images.changing.write().await;
            let working = images.clone();
            let result = tokio::task::spawn_blocking(move || change(&working.store)).await;
            images.known().clear();
            drop(alone);
            images.changes.send_modify(|count| *count += 1);
            result.map_err(|_| ChangeError::Cancelled)?
        });
        let result = task.await.map_err(|_| ChangeError::Cancelled)?;
        info!(ok = result.is_ok(), "images changed");
        result
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Image>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What decisions need to know of an image that a pod calls by this name.
pub(crate) fn facts(name: &str, image: &Image) -> ImageFacts {
    let repository = name.parse::<Reference>().map_or_else(
        |_| name.to_owned(),
        |reference| format!("{}/{}", reference.registry(), reference.repository()),
    );
    ImageFacts { id: format!("{repository}@{}", image.digest), user: image.config.config.user.clone() }
}
