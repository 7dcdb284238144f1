//! A Docker daemon with its own data, socket and network, which are removed when it is dropped.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::contender::Contender;

/// The time limit of a start. dockerd takes about two seconds.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// A running dockerd with one image, `bench`, that contains only a static busybox.
pub struct Docker {
    daemon: Child,
    directory: TempDir,
}

impl Docker {
    /// Starts dockerd in its own network namespace and imports the image.
    pub fn start(rootfs: &Path) -> anyhow::Result<Docker> {
        let directory = tempfile::tempdir()?;
        let log = fs::File::create(directory.path().join("log"))?;
        let path = |name: &str| directory.path().join(name).display().to_string();
        let daemon = Command::new("unshare")
            .args(["--net", "dockerd", "--data-root", &path("data"), "--exec-root", &path("exec")])
            .args(["--pidfile", &path("pid"), "--host", &format!("unix://{}", path("socket"))])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start dockerd (Debian: apt-get install docker.io)")?;
        let mut docker = Docker { daemon, directory };
        docker.wait_until_it_listens()?;
        docker.import(rootfs)?;
        Ok(docker)
    }

    /// Returns `docker run --rm`, as a user types it.
    pub fn contender(&self) -> Contender {
        Contender::new("docker run --rm", "docker", ["run", "--rm", "bench", "/bin/true"])
            .environment("DOCKER_HOST", self.host())
    }

    /// Returns the directory with its data, its socket and everything else.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.daemon.id()
    }

    fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a foreign daemon: there is nothing to watch but its socket"
    )]
    fn wait_until_it_listens(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        while UnixStream::connect(self.directory.path().join("socket")).is_err() {
            let ended = self.daemon.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                let last: Vec<_> = log.lines().rev().take(3).collect();
                anyhow::bail!("dockerd does not come up: {}", last.join(" / "));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn import(&self, rootfs: &Path) -> anyhow::Result<()> {
        let mut tar =
            Command::new("tar").arg("-C").arg(rootfs).args(["-c", "."]).stdout(Stdio::piped()).spawn()?;
        let archive = tar.stdout.take().context("tar's output")?;
        let status = Command::new("docker")
            .args(["import", "-", "bench"])
            .env("DOCKER_HOST", self.host())
            .stdin(archive)
            .stdout(Stdio::null())
            .status()
            .context("run docker import")?;
        ensure!(tar.wait()?.success() && status.success(), "docker import of the busybox image failed");
        Ok(())
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        // dockerd is our child (`unshare` without --fork becomes it), so the pid cannot have been
        // reused.
        let terminated = Command::new("kill").arg(self.daemon.id().to_string()).status();
        if terminated.is_ok_and(|status| status.success()) {
            let _ = self.daemon.wait();
        }
    }
}
