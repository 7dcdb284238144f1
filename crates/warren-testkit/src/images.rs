//! Images for tests: layers of a few files, manifests, and archives as other tools write them.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tar::{EntryType, Header};
use warren_image::digest::Digest;

/// The archive of one layer.
pub struct Layer {
    archive: tar::Builder<Vec<u8>>,
}

impl Default for Layer {
    fn default() -> Self {
        Self::new()
    }
}

impl Layer {
    /// Creates an empty layer.
    pub fn new() -> Self {
        Self { archive: tar::Builder::new(Vec::new()) }
    }

    /// Adds a file with its mode and owner.
    #[must_use]
    pub fn file(mut self, path: &str, mode: u32, owner: u64, content: &[u8]) -> Self {
        let mut header = header(EntryType::Regular, mode, owner);
        header.set_size(content.len() as u64);
        self.archive.append_data(&mut header, path, content).expect("memory takes everything");
        self
    }

    /// Adds a file of the user who runs the test: only root can unpack those of others.
    #[must_use]
    pub fn own_file(mut self, path: &str, content: &[u8]) -> Self {
        let mut header = header(EntryType::Regular, 0o644, 0);
        header.set_uid(rustix::process::geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        header.set_size(content.len() as u64);
        self.archive.append_data(&mut header, path, content).expect("memory takes everything");
        self
    }

    /// Adds a directory with its mode and owner.
    #[must_use]
    pub fn directory(mut self, path: &str, mode: u32, owner: u64) -> Self {
        let mut header = header(EntryType::Directory, mode, owner);
        header.set_size(0);
        self.archive.append_data(&mut header, path, io::empty()).expect("memory takes everything");
        self
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn link(mut self, path: &str, target: &str) -> Self {
        let mut header = header(EntryType::Symlink, 0o777, 0);
        header.set_size(0);
        self.archive.append_link(&mut header, path, target).expect("memory takes everything");
        self
    }

    /// Adds an entry whose name is not checked.
    #[must_use]
    pub fn raw_file(mut self, path: &[u8], content: &[u8]) -> Self {
        let mut header = header(EntryType::Regular, 0o644, 0);
        header.set_size(content.len() as u64);
        header.as_old_mut().name[..path.len()].copy_from_slice(path);
        header.set_cksum();
        self.archive.append(&header, content).expect("memory takes everything");
        self
    }

    fn finish(self) -> Vec<u8> {
        self.archive.into_inner().expect("memory takes everything")
    }
}

fn header(kind: EntryType, mode: u32, owner: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(owner);
    header.set_gid(owner);
    header.set_mtime(0);
    header
}

/// A complete image.
#[derive(Debug, Clone)]
pub struct TestImage {
    /// The compressed layers, lowest first.
    pub layers: Vec<Vec<u8>>,
    /// The configuration.
    pub config: Vec<u8>,
    /// The manifest.
    pub manifest: Vec<u8>,
}

impl TestImage {
    /// Builds an image of these layers. `run` is its run configuration (`Env`, `Cmd`, `User`, …).
    pub fn new(run: Value, layers: Vec<Layer>) -> Self {
        let plain: Vec<Vec<u8>> = layers.into_iter().map(Layer::finish).collect();
        let diff_ids: Vec<String> = plain.iter().map(|layer| Digest::of(layer).to_string()).collect();
        let layers: Vec<Vec<u8>> = plain.iter().map(|layer| compressed(layer)).collect();
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = json!({
            "architecture": architecture, "os": "linux", "config": run,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        })
        .to_string()
        .into_bytes();
        let of = |kind: &str, bytes: &[u8]| json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest(bytes), "size": bytes.len()});
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": of("config.v1+json", &config),
            "layers": layers.iter().map(|layer| of("layer.v1.tar+gzip", layer)).collect::<Vec<_>>(),
        })
        .to_string()
        .into_bytes();
        Self { layers, config, manifest }
    }

    /// Returns the digest of the manifest.
    pub fn digest(&self) -> String {
        digest(&self.manifest)
    }

    /// Returns everything that a registry stores besides the manifest.
    pub fn blobs(&self) -> impl Iterator<Item = &[u8]> {
        self.layers.iter().chain([&self.config]).map(Vec::as_slice)
    }

    /// Returns an archive of an OCI layout that contains this image.
    pub fn layout(&self, name: Option<&str>) -> Vec<u8> {
        let mut annotations = json!({});
        if let Some(name) = name {
            annotations["io.containerd.image.name"] = name.into();
        }
        let index = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": self.digest(), "size": self.manifest.len(), "annotations": annotations,
        }]});
        let mut archive = Layer::new()
            .file("oci-layout", 0o644, 0, br#"{"imageLayoutVersion":"1.0.0"}"#)
            .file("index.json", 0o644, 0, index.to_string().as_bytes());
        for blob in self.blobs().chain([self.manifest.as_slice()]) {
            let name = format!("blobs/{}", digest(blob).replace(':', "/"));
            archive = archive.file(&name, 0o644, 0, blob);
        }
        archive.finish()
    }
}

/// Returns the digest of some bytes in the registry's notation.
pub fn digest(bytes: &[u8]) -> String {
    Digest::of(bytes).to_string()
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}
