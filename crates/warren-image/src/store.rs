//! Images on this machine: documents and unpacked layers by digest, and the names that people use for them.
//!
//! One process has the store open (the daemon's lock sees to it); its threads share it. A layer appears under its name by
//! one rename, after everything in it has reached the disk; an image gets its name after all it needs is there. So a crash
//! leaves at most something unfinished, which [`Store::open`] removes, or a layer that nobody names, which
//! [`Store::collect`] does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::digest::Digest;
use crate::manifest::{Descriptor, Document, DocumentError, ImageConfig, Manifest};
use crate::reference::Reference;
use crate::unpack::{self, Limits, UnpackError};

/// The images of a machine.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    names: Mutex<Names>,
}

/// Manifests by the full name of their image.
type Names = BTreeMap<String, Digest>;

/// An image that is all there.
#[derive(Debug, Clone)]
pub struct Image {
    /// The digest of its manifest: what `imageID` shows.
    pub digest: Digest,
    /// How it wants to be run.
    pub config: ImageConfig,
    /// Its layers' directories, from the top down, as overlays want them.
    pub layers: Vec<PathBuf>,
    /// Bytes of its layers as they came, compressed.
    pub size: u64,
}

/// An image and one of its names.
#[derive(Debug, Clone)]
pub struct Named {
    /// The full name.
    pub name: String,
    /// The image.
    pub image: Image,
}

/// The store could not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or directory.
    #[error("{what} {path}")]
    File {
        /// What was tried.
        what: &'static str,
        /// On this.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The list of names is damaged.
    #[error("read the names of images in {path}; move it away to start with none")]
    Names {
        /// The list.
        path: PathBuf,
        /// Where.
        #[source]
        source: serde_json::Error,
    },
    /// The content is not what it is called.
    #[error("{what} is {found}, not {expected} as its name says")]
    Digest {
        /// What was to be stored.
        what: String,
        /// Its real digest.
        found: Digest,
        /// What was promised.
        expected: Digest,
    },
    /// Its length is not what was promised.
    #[error("{what} has {found} bytes, not {expected} as announced")]
    Size {
        /// What was to be stored.
        what: String,
        /// Its real length.
        found: u64,
        /// What was promised.
        expected: u64,
    },
    /// A layer.
    #[error("unpack layer {digest}")]
    Unpack {
        /// The layer, before compression.
        digest: Digest,
        /// Why it failed.
        #[source]
        source: UnpackError,
    },
    /// A document.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// An image cannot have a name before all of it is there.
    #[error("{missing} of image {name} is missing")]
    Incomplete {
        /// The image.
        name: String,
        /// What it lacks.
        missing: String,
    },
}

impl Store {
    /// Opens the store in a directory, and removes what an earlier process left unfinished.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let store = Self { directory: directory.to_owned(), names: Mutex::default() };
        let unfinished = store.unfinished();
        if unfinished.exists() {
            at("remove", &unfinished, fs::remove_dir_all(&unfinished))?;
        }
        for path in [&unfinished, &store.directory.join("documents"), &store.directory.join("layers")] {
            at("make", path, fs::create_dir_all(path))?;
        }
        let path = store.names_file();
        match fs::read(&path) {
            Ok(bytes) => {
                *store.names() =
                    serde_json::from_slice(&bytes).map_err(|source| StoreError::Names { path, source })?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(StoreError::File { what: "read", path, source }),
        }
        Ok(store)
    }

    /// A place for bytes on their way in. It is emptied when the store is opened again.
    pub fn unfinished(&self) -> PathBuf {
        self.directory.join("unfinished")
    }

    /// Keeps a document, if it is what its descriptor says.
    pub fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<(), StoreError> {
        let what = || format!("document {}", descriptor.digest);
        check(what, &Digest::of(bytes), &descriptor.digest, bytes.len() as u64, descriptor.size)?;
        let path = self.document_file(&descriptor.digest);
        match path.exists() {
            true => Ok(()),
            false => self.write(&path, bytes),
        }
    }

    /// A document that was kept.
    pub fn document(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.document_file(digest);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => at("read", &path, other).map(Some),
        }
    }

    /// Whether a layer is there already, by its digest before compression.
    pub fn has_layer(&self, diff_id: &Digest) -> bool {
        self.layer_directory(diff_id).is_dir()
    }

    /// Unpacks a layer, if it is what it is called: `diff_id` before compression, and as it came what `descriptor` says.
    /// Two at once are no harm: the second one finds the first one's work and drops its own.
    pub fn add_layer(
        &self,
        bytes: impl Read,
        descriptor: Option<&Descriptor>,
        diff_id: &Digest,
        limits: Limits,
    ) -> Result<(), StoreError> {
        let unfinished = self.unfinished();
        let place = at("make a directory in", &unfinished, tempfile::tempdir_in(&unfinished))?;
        let directory = place.path().join("layer");
        at("make", &directory, fs::create_dir(&directory))?;
        let unpacked = unpack::unpack(bytes, &directory, limits)
            .map_err(|source| StoreError::Unpack { digest: diff_id.clone(), source })?;
        if let Some(promised) = descriptor {
            let what = || format!("layer {}", promised.digest);
            check(what, &unpacked.blob, &promised.digest, unpacked.blob_size, promised.size)?;
        }
        let what = || format!("layer {} unpacked", unpacked.blob);
        check(what, &unpacked.diff_id, diff_id, 0, 0)?;
        let target = self.layer_directory(diff_id);
        match fs::rename(&directory, &target) {
            Ok(()) => {}
            Err(_) if target.is_dir() => {}
            Err(source) => return Err(StoreError::File { what: "make", path: target, source }),
        }
        self.sync("layers")
    }

    /// Gives an image a name, once all of it is there. An image that had the name before loses it.
    pub fn name(&self, reference: &Reference, manifest: &Digest) -> Result<Image, StoreError> {
        let name = reference.to_string();
        let image = self.load(&name, manifest)?;
        let mut names = self.names();
        let mut changed = names.clone();
        changed.insert(name, manifest.clone());
        self.save(&changed)?;
        *names = changed;
        Ok(image)
    }

    /// The image of this name, if it is here. One that was asked for by its digest is found under any name.
    pub fn find(&self, reference: &Reference) -> Result<Option<Image>, StoreError> {
        let names = self.names();
        // A digest may be that of an index; the name then leads to the manifest for this machine.
        let named = names.get(&reference.to_string());
        let digest =
            named.or_else(|| names.values().find(|known| Some(*known) == reference.digest())).cloned();
        drop(names);
        digest.map(|digest| self.load(&reference.to_string(), &digest)).transpose()
    }

    /// All images, by name.
    pub fn list(&self) -> Result<Vec<Named>, StoreError> {
        let names = self.names().clone();
        let load = |(name, digest): (String, Digest)| {
            let image = self.load(&name, &digest)?;
            Ok(Named { name, image })
        };
        names.into_iter().map(load).collect()
    }

    /// Takes a name away, and says whether it was there. What only it needed goes with the next [`Store::collect`].
    pub fn forget(&self, reference: &Reference) -> Result<bool, StoreError> {
        let mut names = self.names();
        let mut changed = names.clone();
        if changed.remove(&reference.to_string()).is_none() {
            return Ok(false);
        }
        self.save(&changed)?;
        *names = changed;
        Ok(true)
    }

    /// Removes what no name leads to and no container stands on. Call it only while nothing is being added.
    pub fn collect(&self, in_use: &BTreeSet<PathBuf>) -> Result<(), StoreError> {
        let names = self.names();
        let mut documents = BTreeSet::new();
        let mut layers = in_use.clone();
        for (name, digest) in names.iter() {
            let (manifest, image) = self.load_with_manifest(name, digest)?;
            documents.extend([digest.hex().to_owned(), manifest.config.digest.hex().to_owned()]);
            layers.extend(image.layers);
        }
        for path in self.content("documents")? {
            let known =
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| documents.contains(name));
            if !known {
                at("remove", &path, fs::remove_file(&path))?;
            }
        }
        for path in self.content("layers")? {
            if !layers.contains(&path) {
                // First out of sight in one step: half a layer must never be found under its name.
                let unfinished = self.unfinished();
                let place = at("make a directory in", &unfinished, tempfile::tempdir_in(&unfinished))?;
                at("remove", &path, fs::rename(&path, place.path().join("layer")))?;
            }
        }
        Ok(())
    }

    fn content(&self, kind: &str) -> Result<Vec<PathBuf>, StoreError> {
        let directory = self.directory.join(kind);
        let entries = at("read", &directory, fs::read_dir(&directory))?;
        entries.map(|entry| at("read", &directory, entry.map(|entry| entry.path()))).collect()
    }

    fn load(&self, name: &str, digest: &Digest) -> Result<Image, StoreError> {
        self.load_with_manifest(name, digest).map(|(_, image)| image)
    }

    fn load_with_manifest(&self, name: &str, digest: &Digest) -> Result<(Manifest, Image), StoreError> {
        let incomplete = |missing: String| StoreError::Incomplete { name: name.to_owned(), missing };
        let read =
            |digest: &Digest| self.document(digest)?.ok_or_else(|| incomplete(format!("document {digest}")));
        let what = format!("the manifest {digest}");
        let Document::Manifest(manifest) = Document::parse(&what, &read(digest)?)? else {
            return Err(DocumentError::Unknown(what).into());
        };
        let config = ImageConfig::parse(&read(&manifest.config.digest)?, &manifest)?;
        let layers: Vec<PathBuf> =
            config.rootfs.diff_ids.iter().rev().map(|id| self.layer_directory(id)).collect();
        if let Some(missing) = config.rootfs.diff_ids.iter().find(|id| !self.has_layer(id)) {
            return Err(incomplete(format!("layer {missing}")));
        }
        let size = manifest.layers.iter().map(|layer| layer.size).sum();
        Ok((manifest, Image { digest: digest.clone(), config, layers, size }))
    }

    fn save(&self, names: &Names) -> Result<(), StoreError> {
        let path = self.names_file();
        let text = serde_json::to_vec_pretty(names)
            .map_err(|source| StoreError::Names { path: path.clone(), source })?;
        self.write(&path, &text)
    }

    /// All of a file or nothing of it, on disk when this returns.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let write = || -> io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(self.unfinished())?;
            file.write_all(bytes)?;
            file.as_file().sync_all()?;
            file.persist(path)?;
            path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
        };
        at("write", path, write())
    }

    fn sync(&self, kind: &str) -> Result<(), StoreError> {
        let path = self.directory.join(kind);
        at("sync", &path, File::open(&path).and_then(|directory| directory.sync_all()))
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names_file(&self) -> PathBuf {
        self.directory.join("names.json")
    }

    fn document_file(&self, digest: &Digest) -> PathBuf {
        self.directory.join("documents").join(digest.hex())
    }

    fn layer_directory(&self, diff_id: &Digest) -> PathBuf {
        self.directory.join("layers").join(diff_id.hex())
    }
}

fn check(
    what: impl Fn() -> String,
    found: &Digest,
    expected: &Digest,
    found_size: u64,
    expected_size: u64,
) -> Result<(), StoreError> {
    if found_size != expected_size {
        return Err(StoreError::Size { what: what(), found: found_size, expected: expected_size });
    }
    match found == expected {
        true => Ok(()),
        false => Err(StoreError::Digest { what: what(), found: found.clone(), expected: expected.clone() }),
    }
}

fn at<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<T, StoreError> {
    result.map_err(|source| StoreError::File { what, path: path.to_owned(), source })
}
