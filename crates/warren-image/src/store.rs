//! The images of this machine: documents and unpacked layers by digest, and the names of images.
//!
//! Only one process has the store open, which the daemon's lock ensures. Its threads share it. A
//! layer appears by a single rename, after all of it is on disk. An image gets its name after
//! everything that it needs is there. So a crash leaves at most unfinished files, which
//! [`Store::open`] removes, or a layer without a name, which [`Store::collect`] removes.

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

/// A complete image.
#[derive(Debug, Clone)]
pub struct Image {
    /// The digest of its manifest, which `imageID` shows.
    pub digest: Digest,
    /// Its configuration.
    pub config: ImageConfig,
    /// The directories of its layers, topmost first, as overlays need them.
    pub layers: Vec<PathBuf>,
    /// The size of its compressed layers in bytes.
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

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("{what} {path}")]
    File {
        /// The failed action.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The list of names is damaged.
    #[error("read the names of images in {path}; move it away to start with none")]
    Names {
        /// The path of the list.
        path: PathBuf,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// The digest of the content is not the expected one.
    #[error("{what} is {found}, not {expected} as its name says")]
    Digest {
        /// The content to be stored.
        what: String,
        /// Its actual digest.
        found: Digest,
        /// The expected digest.
        expected: Digest,
    },
    /// The length is not the expected one.
    #[error("{what} has {found} bytes, not {expected} as announced")]
    Size {
        /// The content to be stored.
        what: String,
        /// Its actual length.
        found: u64,
        /// The expected length.
        expected: u64,
    },
    /// A layer could not be unpacked.
    #[error("unpack layer {digest}")]
    Unpack {
        /// The digest of the uncompressed layer.
        digest: Digest,
        /// The cause.
        #[source]
        source: UnpackError,
    },
    /// A document is invalid.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The image is incomplete, so it cannot be named.
    #[error("{missing} of image {name} is missing")]
    Incomplete {
        /// The name.
        name: String,
        /// The missing part.
        missing: String,
    },
}

impl Store {
    /// Opens the store in a directory and removes unfinished files of an earlier process.
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

    /// Returns the directory for incoming bytes. It is emptied when the store is opened.
    pub fn unfinished(&self) -> PathBuf {
        self.directory.join("unfinished")
    }

    /// Stores a document, if it matches its descriptor.
    pub fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<(), StoreError> {
        let what = || format!("document {}", descriptor.digest);
        check(what, &Digest::of(bytes), &descriptor.digest, bytes.len() as u64, descriptor.size)?;
        let path = self.document_file(&descriptor.digest);
        match path.exists() {
            true => Ok(()),
            false => self.write(&path, bytes),
        }
    }

    /// Returns a stored document.
    pub fn document(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.document_file(digest);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => at("read", &path, other).map(Some),
        }
    }

    /// Returns true if the store has a layer, given its uncompressed digest.
    pub fn has_layer(&self, diff_id: &Digest) -> bool {
        self.layer_directory(diff_id).is_dir()
    }

    /// Unpacks a layer. Its uncompressed digest must be `diff_id`, and the compressed bytes must
    /// match `descriptor`. If two calls add the same layer, the second one finds it and discards
    /// its own.
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

    /// Names a complete image. An image that had the name before loses it.
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

    /// Returns the image of this name, if it is here. A reference with a digest matches an image
    /// under any name.
    pub fn find(&self, reference: &Reference) -> Result<Option<Image>, StoreError> {
        let names = self.names();
        // The digest may be that of an index. The name then leads to the manifest for this machine.
        let named = names.get(&reference.to_string());
        let digest =
            named.or_else(|| names.values().find(|known| Some(*known) == reference.digest())).cloned();
        drop(names);
        digest.map(|digest| self.load(&reference.to_string(), &digest)).transpose()
    }

    /// Returns all images, sorted by name.
    pub fn list(&self) -> Result<Vec<Named>, StoreError> {
        let names = self.names().clone();
        let load = |(name, digest): (String, Digest)| {
            let image = self.load(&name, &digest)?;
            Ok(Named { name, image })
        };
        names.into_iter().map(load).collect()
    }

    /// Removes a name. Returns false if it did not exist. Content without a name is removed by the
    /// next [`Store::collect`].
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

    /// Removes content without a name, unless a container uses it. Do not call it while content is
    /// being added.
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
                // First move it away in one step: an incomplete layer must never be found under its
                // name.
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

    /// Writes a file atomically. It is on disk when this returns.
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
