//! An OCI runtime called directly: runc or crun. It has no daemon; each operation is a process.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use tempfile::TempDir;

use crate::legacy_cgroups::LegacyCgroups;

const RESIDENT: &str = "resident";

/// A runtime, a resident container for commands, and the bundles.
pub struct OciRuntime {
    program: &'static str,
    directory: TempDir,
    /// The place to start its processes, if not beside us.
    place: Option<LegacyCgroups>,
    /// A command that echoes its input.
    line: Option<(Child, ChildStdin, ChildStdout)>,
    next: usize,
    together: Vec<String>,
}

impl OciRuntime {
    /// Makes bundles on a root file system and starts the resident container.
    pub fn start(
        program: &'static str,
        rootfs: &Path,
        place: Option<LegacyCgroups>,
    ) -> anyhow::Result<OciRuntime> {
        let mut runtime = OciRuntime {
            program,
            directory: tempfile::tempdir()?,
            place,
            line: None,
            next: 0,
            together: Vec::new(),
        };
        runtime.bundle("idle", rootfs, &["/bin/busybox", "sleep", "100000"])?;
        runtime.bundle("echo", rootfs, &["/bin/busybox", "echo", "x"])?;
        runtime.start_detached(RESIDENT)?.wait_for_success(program)?;
        let mut cat = runtime.command(&["exec", &runtime.id(RESIDENT), "/bin/busybox", "cat"]);
        cat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut line = runtime.spawn(cat)?;
        let (stdin, stdout) = (line.stdin.take().context("piped")?, line.stdout.take().context("piped")?);
        runtime.line = Some((line, stdin, stdout));
        Ok(runtime)
    }

    /// Returns the name of its program.
    pub fn name(&self) -> &'static str {
        self.program
    }

    /// Runs a new container until its command has written its first byte.
    pub fn cold(&mut self) -> anyhow::Result<Duration> {
        self.next += 1;
        let mut run =
            self.command(&["run", "--bundle", &self.path("echo"), &self.id(&self.next.to_string())]);
        run.stdout(Stdio::piped());
        let begun = Instant::now();
        let mut child = self.spawn(run)?;
        let mut first = [0];
        child.stdout.as_mut().context("piped")?.read_exact(&mut first).context("read the first byte")?;
        let elapsed = begun.elapsed();
        Started(child).wait_for_success(self.program)?;
        Ok(elapsed)
    }

    /// Runs a command in the resident container until it ends.
    pub fn exec(&mut self) -> anyhow::Result<Duration> {
        let mut echo = self.command(&["exec", &self.id(RESIDENT), "/bin/busybox", "echo", "x"]);
        echo.stdout(Stdio::piped()).stderr(Stdio::piped());
        let begun = Instant::now();
        let output = self.spawn(echo)?.wait_with_output()?;
        let elapsed = begun.elapsed();
        ensure!(
            output.stdout == b"x\n",
            "{} exec: {}",
            self.program,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(elapsed)
    }

    /// Sends a line to a command in the resident container and reads it back.
    pub fn round_trip(&mut self) -> anyhow::Result<Duration> {
        let (_, stdin, stdout) = self.line.as_mut().context("opened at the start")?;
        let mut back = [0; 2];
        let begun = Instant::now();
        stdin.write_all(b"x\n")?;
        stdout.read_exact(&mut back)?;
        let elapsed = begun.elapsed();
        ensure!(&back == b"x\n", "another line came back");
        Ok(elapsed)
    }

    /// Starts a number of containers at once.
    pub fn start_many(&mut self, count: usize) -> anyhow::Result<Duration> {
        let names: Vec<String> = (0..count).map(|number| format!("together-{number}")).collect();
        let begun = Instant::now();
        let starting: Vec<Started> =
            names.iter().map(|name| self.start_detached(name)).collect::<anyhow::Result<_>>()?;
        self.together = names;
        for started in starting {
            started.wait_for_success(self.program)?;
        }
        Ok(begun.elapsed())
    }

    /// Removes them.
    pub fn end_many(&mut self) -> anyhow::Result<()> {
        for name in std::mem::take(&mut self.together) {
            self.delete(&name);
        }
        Ok(())
    }

    /// Makes a bundle with the runtime's default configuration, another command and no terminal.
    fn bundle(&self, name: &str, rootfs: &Path, words: &[&str]) -> anyhow::Result<()> {
        let bundle = self.directory.path().join(name);
        fs::create_dir(&bundle)?;
        let status = Command::new(self.program).arg("spec").current_dir(&bundle).status();
        let program = self.program;
        ensure!(status.with_context(|| format!("start {program}"))?.success(), "`{program} spec` failed");
        let config = bundle.join("config.json");
        let mut spec: serde_json::Value = serde_json::from_slice(&fs::read(&config)?)?;
        spec["process"]["args"] = json!(words);
        spec["process"]["terminal"] = false.into();
        spec["root"]["path"] = rootfs.display().to_string().into();
        fs::write(&config, serde_json::to_vec(&spec)?)?;
        Ok(())
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// Returns the name of a container. It contains the runtime, because several may use the same
    /// cgroups.
    fn id(&self, name: &str) -> String {
        format!("warren-bench-{}-{name}", self.program)
    }

    fn spawn(&self, mut command: Command) -> anyhow::Result<Child> {
        let spawned = match &self.place {
            Some(place) => place.spawn(command),
            None => command.spawn().map_err(Into::into),
        };
        spawned.with_context(|| format!("start {}", self.program))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.args(["--root", &self.path("state")]).args(words).stdin(Stdio::null());
        command
    }

    fn start_detached(&self, name: &str) -> anyhow::Result<Started> {
        let log = fs::File::create(self.directory.path().join("log"))?;
        let mut run = self.command(&["run", "--detach", "--bundle", &self.path("idle"), &self.id(name)]);
        run.stdout(Stdio::null()).stderr(log);
        Ok(Started(self.spawn(run)?))
    }

    fn delete(&self, name: &str) {
        // A missing container is fine, and other failures cannot be reported here.
        let mut delete = self.command(&["delete", "--force", &self.id(name)]);
        delete.stdout(Stdio::null()).stderr(Stdio::null());
        if let Ok(mut child) = self.spawn(delete) {
            let _ = child.wait();
        }
    }
}

impl Drop for OciRuntime {
    fn drop(&mut self) {
        if let Some((mut child, stdin, _)) = self.line.take() {
            // It ends with its input.
            drop(stdin);
            let _ = child.wait();
        }
        for name in std::mem::take(&mut self.together).iter().map(String::as_str).chain([RESIDENT]) {
            self.delete(name);
        }
    }
}

struct Started(Child);

impl Started {
    fn wait_for_success(mut self, program: &str) -> anyhow::Result<()> {
        let status = self.0.wait()?;
        ensure!(status.success(), "{program} ended with {status}");
        Ok(())
    }
}
