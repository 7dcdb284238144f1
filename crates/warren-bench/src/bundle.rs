//! An OCI bundle with a static busybox, for runtimes that are called directly.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::contender::Contender;

/// A root file system with busybox, and for each runtime a `config.json` based on the runtime's own
/// default.
pub struct Bundle {
    directory: TempDir,
}

impl Bundle {
    /// Makes the root file system. `/bin/busybox` must be statically linked.
    pub fn create() -> anyhow::Result<Bundle> {
        let directory = tempfile::tempdir()?;
        let bin = directory.path().join("rootfs/bin");
        fs::create_dir_all(&bin)?;
        fs::copy("/bin/busybox", bin.join("busybox"))
            .context("copy /bin/busybox (Debian: apt-get install busybox-static)")?;
        for applet in ["true", "sh"] {
            symlink("busybox", bin.join(applet))?;
        }
        Ok(Bundle { directory })
    }

    /// Returns the path of the root file system.
    pub fn rootfs(&self) -> PathBuf {
        self.directory.path().join("rootfs")
    }

    /// Returns `RUNTIME run` of this root file system. The configuration is the runtime's default
    /// with another command and without terminal.
    pub fn contender(&self, name: &'static str, runtime: &str) -> anyhow::Result<Contender> {
        let bundle = self.directory.path().join(runtime);
        fs::create_dir(&bundle)?;
        let status = Command::new(runtime).arg("spec").current_dir(&bundle).status();
        ensure!(status.with_context(|| format!("start {runtime}"))?.success(), "`{runtime} spec` failed");
        let config = bundle.join("config.json");
        let mut spec: serde_json::Value = serde_json::from_slice(&fs::read(&config)?)?;
        spec["process"]["args"] = serde_json::json!(["/bin/true"]);
        spec["process"]["terminal"] = false.into();
        spec["root"]["path"] = self.rootfs().display().to_string().into();
        fs::write(&config, serde_json::to_vec(&spec)?)?;
        let state = bundle.join("state").display().to_string();
        let bundle = bundle.display().to_string();
        Ok(Contender::new(name, runtime, ["--root", &state, "run", "--bundle", &bundle, "bench"]))
    }
}

/// Returns bubblewrap on the same root file system, with all namespaces that it supports.
pub fn bubblewrap(rootfs: &Path) -> Contender {
    let rootfs = rootfs.display().to_string();
    let arguments = [
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        &rootfs,
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "/bin/true",
    ];
    Contender::new("bwrap", "bwrap", arguments)
}
