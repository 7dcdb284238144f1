//! `cargo xtask image`: makes an OCI archive of Warren without a container engine. It contains the
//! static binary and a user, but no shell.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use crate::archive::{Entry, gzip, sha256, tar};
use crate::workspace;

#[derive(Args)]
pub struct Arguments {
    /// Where to write the archive
    #[arg(long, default_value = "target/warren-image.tar")]
    output: PathBuf,
    /// The image's name, as `kubectl` and `docker load` show it
    #[arg(long, default_value = concat!("warren:", env!("CARGO_PKG_VERSION")))]
    name: String,
    /// Put this binary into the image instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => workspace::release_binary()?,
    };
    let binary = fs::read(&binary).with_context(|| format!("read `{}`", binary.display()))?;
    let archive = archive(binary, &arguments.name, workspace::source_date()?)?;
    write(&arguments.output, &archive)?;
    println!("{}", arguments.output.display());
    Ok(ExitCode::SUCCESS)
}

pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| format!("create `{}`", directory.display()))?;
    }
    fs::write(path, bytes).with_context(|| format!("write `{}`", path.display()))
}

/// Returns an OCI layout in a tar archive, which `warren image import`, `docker load` and `skopeo`
/// can read.
pub fn archive(binary: Vec<u8>, name: &str, epoch: u64) -> Result<Vec<u8>> {
    let layer = tar(
        vec![
            Entry::file("warren", 0o755, binary),
            Entry::directory("etc/"),
            Entry::file("etc/passwd", 0o644, "nonroot:x:65532:65532:nonroot:/:/\n"),
            Entry::directory("tmp/"),
        ],
        epoch,
    )?;
    let compressed = gzip(&layer)?;
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"User": "65532:65532", "Entrypoint": ["/warren"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))]},
    })
    .to_string()
    .into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", &config),
        "layers": [descriptor("layer.v1.tar+gzip", &compressed)],
    })
    .to_string()
    .into_bytes();
    let mut of_manifest = descriptor("manifest.v1+json", &manifest);
    of_manifest["annotations"] =
        json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name});
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [of_manifest],
    });
    // Versions of `docker load` that do not read OCI layouts need this file.
    let docker = json!([{"Config": blob(&config), "RepoTags": [name], "Layers": [blob(&compressed)]}]);
    let mut entries = vec![
        Entry::file("oci-layout", 0o644, json!({"imageLayoutVersion": "1.0.0"}).to_string()),
        Entry::file("index.json", 0o644, index.to_string()),
        Entry::file("manifest.json", 0o644, docker.to_string()),
    ];
    for bytes in [config, manifest, compressed] {
        entries.push(Entry::file(blob(&bytes), 0o644, bytes));
    }
    tar(entries, epoch)
}

fn blob(bytes: &[u8]) -> String {
    format!("blobs/sha256/{}", sha256(bytes))
}

fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": format!("application/vnd.oci.image.{kind}"),
        "digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len()})
}
