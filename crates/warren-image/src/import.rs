//! Imports images from one file: an OCI layout in an archive, or the output of `docker save` or
//! `podman save`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Deserialize;

use crate::digest::Digest;
use crate::manifest::{
    Descriptor, Document, DocumentError, ImageConfig, Index, LARGEST_DOCUMENT, Manifest, RootFs,
};
use crate::reference::{self, Reference};
use crate::store::{Store, StoreError};
use crate::unpack::{self, Limits};

/// An imported image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Its name in this store.
    pub name: Reference,
    /// The digest of its manifest.
    pub digest: Digest,
}

/// An error of an import. Some of the archive's images may have been imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file could not be read.
    #[error("read the archive")]
    Read(#[source] io::Error),
    /// It is no archive, or not a complete one.
    #[error("this is no archive (`tar`), or not all of it")]
    NoArchive,
    /// It contains no image.
    #[error("the archive has neither `index.json` (an OCI layout) nor `manifest.json` (`docker save`)")]
    NoImage,
    /// It refers to a file that it does not contain.
    #[error("the archive lacks {0:?}")]
    Missing(String),
    /// A document is larger than the limit.
    #[error("{0:?} in the archive is larger than any document of an image")]
    TooLarge(String),
    /// An image has no name.
    #[error("an image in the archive has no usable name; give it one with `--name`")]
    Nameless,
    /// It has several images, but one name was given.
    #[error("the archive has {0} images, and a name was given for one")]
    TooManyForOneName(usize),
    /// The digest in a name is not that of the image.
    #[error("the image to be called {name} is {digest}")]
    OtherDigest {
        /// The name.
        name: String,
        /// The digest of the image.
        digest: Digest,
    },
    /// A name in the archive is invalid.
    #[error(transparent)]
    Name(#[from] reference::ParseError),
    /// A document of the archive is invalid.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The annotation with the name of an image in a layout. It is often only a tag.
const REFERENCE_NAME: &str = "org.opencontainers.image.ref.name";
/// The annotation with the full name, which containerd and docker write.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// The maximum nesting of indexes.
const DEEPEST_INDEX: usize = 4;
/// The maximum number of files. No archive of images has more.
const MOST_FILES: usize = 100_000;

/// Imports all images of an archive under their own names, or its only image under `name`. Layers
/// that the store already has are not unpacked again.
pub fn import(
    store: &Store,
    archive: File,
    name: Option<&Reference>,
    limits: Limits,
) -> Result<Vec<Imported>, ImportError> {
    let archive = Archive::index(uncompressed(archive, store, limits)?)?;
    let images = match (archive.files.contains_key("manifest.json"), archive.files.contains_key("index.json"))
    {
        // Archives of current docker versions are both. Only `manifest.json` has the full names.
        (true, _) => docker_images(&archive)?,
        (false, true) => layout_images(&archive)?,
        (false, false) => return Err(ImportError::NoImage),
    };
    if name.is_some() && images.len() != 1 {
        return Err(ImportError::TooManyForOneName(images.len()));
    }
    let mut imported = Vec::new();
    for image in images {
        let names = match name {
            Some(name) => vec![name.clone()],
            None if image.names.is_empty() => return Err(ImportError::Nameless),
            None => image.names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?,
        };
        let digest = image.store(&archive, store, limits)?;
        // Later code trusts a digest in a name, so check it here.
        if let Some(wrong) = names.iter().find(|name| name.digest().is_some_and(|named| *named != digest)) {
            return Err(ImportError::OtherDigest { name: wrong.to_string(), digest });
        }
        for name in names {
            store.name(&name, &digest)?;
            imported.push(Imported { name, digest: digest.clone() });
        }
    }
    Ok(imported)
}

/// An image in an archive.
struct Found {
    names: Vec<String>,
    content: Content,
}

struct LayoutImage {
    descriptor: Descriptor,
    document: Vec<u8>,
    manifest: Manifest,
}

enum Content {
    /// From a layout, where everything has a descriptor.
    Layout(Box<LayoutImage>),
    /// From `docker save`, which has only file names.
    Docker { config: String, layers: Vec<String> },
}

impl Found {
    /// Stores the image and returns the digest of its manifest.
    fn store(&self, archive: &Archive, store: &Store, limits: Limits) -> Result<Digest, ImportError> {
        match &self.content {
            Content::Layout(image) => {
                let LayoutImage { descriptor, document, manifest } = &**image;
                let config_bytes = archive.document(&blob(&manifest.config.digest))?;
                let config = ImageConfig::parse(&config_bytes, manifest)?;
                for (layer, diff_id) in manifest.layers.iter().zip(&config.rootfs.diff_ids) {
                    if !store.has_layer(diff_id) {
                        let bytes = archive.open(&blob(&layer.digest))?;
                        store.add_layer(bytes, Some(layer), diff_id, limits)?;
                    }
                }
                store.put_document(&manifest.config, &config_bytes)?;
                store.put_document(descriptor, document)?;
                Ok(descriptor.digest.clone())
            }
            Content::Docker { config, layers } => {
                let config_bytes = archive.document(config)?;
                let diff_ids = diff_ids(config, &config_bytes)?;
                if diff_ids.len() != layers.len() {
                    return Err(DocumentError::Layers { layers: layers.len(), names: diff_ids.len() }.into());
                }
                let mut descriptors = Vec::new();
                for (file, diff_id) in layers.iter().zip(&diff_ids) {
                    if !store.has_layer(diff_id) {
                        store.add_layer(archive.open(file)?, None, diff_id, limits)?;
                    }
                    // This manifest is our own and describes the uncompressed layers.
                    let media_type = "application/vnd.oci.image.layer.v1.tar";
                    descriptors.push(described(media_type, diff_id.clone(), archive.size(file)?));
                }
                let manifest = Manifest {
                    config: described(
                        "application/vnd.oci.image.config.v1+json",
                        Digest::of(&config_bytes),
                        config_bytes.len() as u64,
                    ),
                    layers: descriptors,
                };
                let document = serde_json::to_vec(&manifest)
                    .map_err(|source| DocumentError::Form { what: "the manifest".to_owned(), source })?;
                let digest = Digest::of(&document);
                store.put_document(&manifest.config, &config_bytes)?;
                let media_type = "application/vnd.oci.image.manifest.v1+json";
                store
                    .put_document(&described(media_type, digest.clone(), document.len() as u64), &document)?;
                Ok(digest)
            }
        }
    }
}

fn described(media_type: &str, digest: Digest, size: u64) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest,
        size,
        platform: None,
        annotations: BTreeMap::new(),
    }
}

fn diff_ids(what: &str, config: &[u8]) -> Result<Vec<Digest>, DocumentError> {
    #[derive(Deserialize)]
    struct OnlyRootFs {
        rootfs: RootFs,
    }
    let parsed: OnlyRootFs = serde_json::from_slice(config)
        .map_err(|source| DocumentError::Form { what: format!("{what:?} in the archive"), source })?;
    Ok(parsed.rootfs.diff_ids)
}

/// Returns the images of an archive of `docker save`.
fn docker_images(archive: &Archive) -> Result<Vec<Found>, ImportError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Row {
        config: String,
        #[serde(default)]
        repo_tags: Option<Vec<String>>,
        layers: Vec<String>,
    }
    let rows: Vec<Row> = serde_json::from_slice(&archive.document("manifest.json")?)
        .map_err(|source| DocumentError::Form { what: "`manifest.json`".to_owned(), source })?;
    let found = |row: Row| Found {
        names: row.repo_tags.unwrap_or_default(),
        content: Content::Docker { config: row.config, layers: row.layers },
    };
    Ok(rows.into_iter().map(found).collect())
}

/// Returns the images of an OCI layout that fit this machine.
fn layout_images(archive: &Archive) -> Result<Vec<Found>, ImportError> {
    let index: Index = serde_json::from_slice(&archive.document("index.json")?)
        .map_err(|source| DocumentError::Form { what: "`index.json`".to_owned(), source })?;
    let mut images = Vec::new();
    for mut descriptor in index.manifests {
        let names = [CONTAINERD_NAME, REFERENCE_NAME]
            .iter()
            .find_map(|key| descriptor.annotations.get(*key))
            .cloned();
        for _ in 0..DEEPEST_INDEX {
            let document = archive.document(&blob(&descriptor.digest))?;
            match Document::parse(&format!("manifest {}", descriptor.digest), &document)? {
                Document::Index(index) => descriptor = index.for_this_machine()?.clone(),
                Document::Manifest(manifest) => {
                    let content = Content::Layout(Box::new(LayoutImage { descriptor, document, manifest }));
                    images.push(Found {
                        names: names.into_iter().filter(|name| is_whole(name)).collect(),
                        content,
                    });
                    break;
                }
            }
        }
    }
    match images.is_empty() {
        true => Err(ImportError::NoImage),
        false => Ok(images),
    }
}

/// Returns true if a name in a layout is more than a tag: `latest` is a tag, `owner/image` and
/// `image:latest` are names.
fn is_whole(name: &str) -> bool {
    name.contains(['/', ':'])
}

fn blob(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// An archive whose files can be read in any order.
struct Archive {
    file: File,
    /// The offset and length of each file's content.
    files: BTreeMap<String, (u64, u64)>,
}

impl Archive {
    fn index(mut file: File) -> Result<Self, ImportError> {
        file.seek(SeekFrom::Start(0)).map_err(ImportError::Read)?;
        let mut files = BTreeMap::new();
        let mut archive = tar::Archive::new(BufReader::new(file));
        let entries = archive.entries_with_seek().map_err(ImportError::Read)?;
        for entry in entries.raw(true).take(MOST_FILES) {
            let entry = entry.map_err(not_read)?;
            if entry.header().entry_type().is_file() {
                let size = entry.header().entry_size().map_err(not_read)?;
                files.insert(plain(&entry.path_bytes()), (entry.raw_file_position(), size));
            }
        }
        Ok(Self { file: archive.into_inner().into_inner(), files })
    }

    fn find(&self, name: &str) -> Result<(u64, u64), ImportError> {
        self.files.get(name).copied().ok_or_else(|| ImportError::Missing(name.chars().take(256).collect()))
    }

    fn size(&self, name: &str) -> Result<u64, ImportError> {
        Ok(self.find(name)?.1)
    }

    fn open<'a>(&'a self, name: &str) -> Result<impl Read + use<'a>, ImportError> {
        let (position, size) = self.find(name)?;
        let mut file = &self.file;
        file.seek(SeekFrom::Start(position)).map_err(ImportError::Read)?;
        Ok(file.take(size))
    }

    fn document(&self, name: &str) -> Result<Vec<u8>, ImportError> {
        if self.size(name)? > LARGEST_DOCUMENT {
            return Err(ImportError::TooLarge(name.to_owned()));
        }
        let mut bytes = Vec::new();
        self.open(name)?.read_to_end(&mut bytes).map_err(ImportError::Read)?;
        Ok(bytes)
    }
}

/// Decompresses an archive, so that its files can be read in any order.
fn uncompressed(mut file: File, store: &Store, limits: Limits) -> Result<File, ImportError> {
    let mut start = [0; 4];
    file.read_exact(&mut start).map_err(not_read)?;
    file.seek(SeekFrom::Start(0)).map_err(ImportError::Read)?;
    if start[..2] != [0x1f, 0x8b] && start != [0x28, 0xb5, 0x2f, 0xfd] {
        return Ok(file);
    }
    let mut plain = tempfile::tempfile_in(store.unfinished()).map_err(ImportError::Read)?;
    let mut bytes =
        unpack::plain(BufReader::with_capacity(1 << 16, file), limits.bytes).map_err(ImportError::Read)?;
    io::copy(&mut bytes, &mut plain).map_err(ImportError::Read)?;
    Ok(plain)
}

/// Converts a read error. The message does not quote the bytes: the file may be anything.
fn not_read(error: io::Error) -> ImportError {
    match error.kind() {
        io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            ImportError::NoArchive
        }
        _ => ImportError::Read(error),
    }
}

/// Returns a name in an archive without a leading `./`.
fn plain(bytes: &[u8]) -> String {
    let path = Path::new(OsStr::from_bytes(bytes));
    let path = path.strip_prefix(".").unwrap_or(path);
    path.to_string_lossy().into_owned()
}
