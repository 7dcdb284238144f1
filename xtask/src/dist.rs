//! `cargo xtask dist`: makes all files of a release reproducibly, in one directory.
//!
//! The same commit and toolchain give the same bytes: archives have sorted entries and the commit's
//! time, and the compiler leaves the checkout's path out.

mod debian;
mod manual;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::archive::{Entry, gzip, sha256, tar};
use crate::{image, workspace};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Args)]
pub struct Arguments {
    /// The directory to fill
    #[arg(long, default_value = "target/dist")]
    output: PathBuf,
    /// Package this binary instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = workspace::root();
    let epoch = workspace::source_date()?;
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => workspace::release_binary()?,
    };
    let manual = manual::Manual::of(&binary)?;
    let binary = fs::read(&binary).with_context(|| format!("read `{}`", binary.display()))?;
    let architecture = std::env::consts::ARCH;
    let read = |path: &str| fs::read(root.join(path)).with_context(|| format!("read `{path}`"));

    let base = format!("warren-{VERSION}-{architecture}-linux");
    let mut entries = vec![
        Entry::directory(format!("{base}/")),
        Entry::file(format!("{base}/warren"), 0o755, binary.clone()),
        Entry::file(format!("{base}/LICENSE"), 0o644, read("LICENSE")?),
        Entry::file(format!("{base}/README.md"), 0o644, read("README.md")?),
        Entry::file(format!("{base}/warren.service"), 0o644, read("deploy/systemd/warren.service")?),
    ];
    entries.extend(manual.entries(&base)?);
    let tarball = gzip(&tar(entries, epoch)?)?;
    let package = debian::package(debian::Contents {
        version: VERSION,
        binary: binary.clone(),
        license: read("LICENSE")?,
        unit: read("deploy/systemd/warren.service")?,
        manual: manual.entries("./usr")?,
        epoch,
    })?;
    let mut files = vec![
        (format!("{base}.tar.gz"), tarball),
        (debian::file_name(VERSION), package),
        (format!("warren-{VERSION}-image.tar"), image::archive(binary, &format!("warren:{VERSION}"), epoch)?),
        (format!("warren-chart-{VERSION}.tgz"), chart(&root, epoch)?),
        (format!("warren-{VERSION}.spdx.json"), sbom::spdx(epoch)?),
        ("install.sh".to_owned(), read("deploy/install.sh")?),
    ];
    for name in ["sandbox.yaml", "extensions.yaml", "sandbox-with-extensions.yaml"] {
        files.push((name.to_owned(), read(&format!("deploy/manifests/{name}"))?));
    }
    files.sort();

    let mut sums = String::new();
    for (name, bytes) in &files {
        sums.push_str(&format!("{}  {name}\n", sha256(bytes)));
        image::write(&arguments.output.join(name), bytes)?;
    }
    image::write(&arguments.output.join("SHA256SUMS"), sums.as_bytes())?;
    print!("{sums}");
    eprintln!("{} files in `{}`", files.len() + 1, arguments.output.display());
    Ok(ExitCode::SUCCESS)
}

/// Returns the chart in the form of `helm package`.
fn chart(root: &Path, epoch: u64) -> Result<Vec<u8>> {
    let directory = root.join("deploy/helm");
    let mut entries = Vec::new();
    collect(&directory, &directory.join("warren"), &mut entries)?;
    gzip(&tar(entries, epoch)?)
}

fn collect(base: &Path, directory: &Path, entries: &mut Vec<Entry>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("read `{}`", directory.display()))? {
        let path = entry.with_context(|| format!("read `{}`", directory.display()))?.path();
        if path.is_dir() {
            collect(base, &path, entries)?;
        } else {
            let name = path.strip_prefix(base).context("name a file of the chart")?;
            let content = fs::read(&path).with_context(|| format!("read `{}`", path.display()))?;
            entries.push(Entry::file(name.to_string_lossy(), 0o644, content));
        }
    }
    Ok(())
}
