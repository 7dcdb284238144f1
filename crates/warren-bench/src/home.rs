//! A local home for the duration of a measurement.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::contender::Contender;

/// A daemon with a new data directory. It is stopped when dropped.
pub struct Home {
    binary: PathBuf,
    directory: TempDir,
}

impl Home {
    /// Runs `warren up --detach` with a new data directory.
    pub fn start(binary: &Path) -> anyhow::Result<Home> {
        let home = Home { binary: binary.to_owned(), directory: tempfile::tempdir()? };
        let status = home.command("up").arg("--detach").stdout(Stdio::null()).status();
        ensure!(
            status.with_context(|| format!("start {}", binary.display()))?.success(),
            "`warren up` failed"
        );
        Ok(home)
    }

    /// Returns `warren run --no-sync -- true`: makes a new sandbox, runs the command, waits for its
    /// exit code, and removes the sandbox.
    pub fn cold_run(&self) -> Contender {
        Contender::new("warren run", &self.binary, ["run", "--no-sync", "--", "true"])
            .environment("WARREN_HOME", self.directory.path().display().to_string())
    }

    /// Returns its data directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the daemon's process id, from the lock file.
    pub fn daemon(&self) -> anyhow::Result<u32> {
        #[derive(serde::Deserialize)]
        struct Holder {
            pid: u32,
        }
        let lock = std::fs::read(self.directory.path().join("lock")).context("read who holds the home")?;
        Ok(serde_json::from_slice::<Holder>(&lock)?.pid)
    }

    fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(subcommand).env("WARREN_HOME", self.directory.path());
        command
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = self.command("down").stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}
