//! A Docker daemon with its own data, socket and network, which are removed when it is dropped.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The time limit of a start. dockerd takes about two seconds on an idle machine.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// A running dockerd, without images.
#[derive(Debug)]
pub struct Docker {
    daemon: Child,
    directory: TempDir,
}

impl Docker {
    /// Starts dockerd in its own network namespace. It ends with the thread that calls this.
    pub fn start() -> io::Result<Docker> {
        let directory = tempfile::tempdir()?;
        let daemon = start(directory.path())?;
        let mut docker = Docker { daemon, directory };
        docker.wait_until_it_listens()?;
        Ok(docker)
    }

    /// Starts dockerd. `None`, with a printed reason, if there is none on this machine or this is
    /// not root.
    pub fn start_or_skip() -> Option<Docker> {
        if crate::privileges::skip_without_root() {
            return None;
        }
        let found = Command::new("dockerd").arg("--version").stdout(Stdio::null()).status();
        if found.is_err() {
            eprintln!("skipped: no `dockerd` on this machine (Debian's package `docker.io` has it)");
            return None;
        }
        Some(Docker::start().expect("start dockerd"))
    }

    /// Ends it without a goodbye, and starts it again on the same data.
    pub fn restart(&mut self) -> io::Result<()> {
        self.end();
        self.daemon = start(self.directory.path())?;
        self.wait_until_it_listens()
    }

    /// Returns the directory with its data, its socket and everything else.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Returns the address of its socket, for `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.daemon.id()
    }

    /// Makes an image with the tag `latest` of a directory.
    pub fn import(&self, name: &str, rootfs: &Path) -> io::Result<()> {
        let tar = Command::new("tar")
            .arg("-C")
            .arg(rootfs)
            .args(["--numeric-owner", "--owner=0", "--group=0", "-c", "."])
            .stderr(Stdio::inherit())
            .output()?;
        if !tar.status.success() {
            return Err(io::Error::other("`tar` failed"));
        }
        let path = format!("/images/create?fromSrc=-&repo={name}&tag=latest");
        let answer = self.call("POST", &path, &tar.stdout)?;
        match answer.contains("errorDetail") {
            true => Err(io::Error::other(format!("import `{name}`: {answer}"))),
            false => Ok(()),
        }
    }

    /// Calls the API with JSON.
    pub fn call_json(&self, method: &str, path: &str, body: &serde_json::Value) -> io::Result<String> {
        // A body that the engine does not read resets the connection, and may lose the answer.
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, "application/json", body.as_bytes())
    }

    /// Calls the API and returns the body of an answer that is a success.
    pub fn call(&self, method: &str, path: &str, body: &[u8]) -> io::Result<String> {
        self.send(method, path, "application/x-tar", body)
    }

    fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> io::Result<String> {
        let mut stream = UnixStream::connect(self.socket())?;
        // With version 1.0 the answer is not in chunks and ends with the connection.
        let length = body.len();
        let head = format!("Host: docker\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n");
        write!(stream, "{method} {path} HTTP/1.0\r\n{head}\r\n")?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer.as_str(), ""));
        match head.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
            true => Ok(body.to_owned()),
            false => Err(io::Error::other(format!("{method} {path}: {answer}"))),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a foreign daemon: there is nothing to watch but its socket"
    )]
    fn wait_until_it_listens(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        while UnixStream::connect(self.socket()).is_err() {
            let ended = self.daemon.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                let last: Vec<_> = log.lines().rev().take(3).collect();
                return Err(io::Error::other(format!("dockerd does not come up: {}", last.join(" / "))));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn end(&mut self) {
        // dockerd is our child (`setpriv` and `unshare` without --fork become it), so the pid
        // cannot have been reused.
        let terminated = Command::new("kill").arg(self.daemon.id().to_string()).status();
        if terminated.is_ok_and(|status| status.success()) {
            let _ = self.daemon.wait();
        }
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        self.end();
    }
}

fn start(directory: &Path) -> io::Result<Child> {
    let log = fs::OpenOptions::new().create(true).append(true).open(directory.join("log"))?;
    let path = |name: &str| directory.join(name).display().to_string();
    // A socket of an earlier daemon would look like this one's.
    let _ = fs::remove_file(directory.join("socket"));
    Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "unshare", "--net"])
        .args(["dockerd", "--data-root", &path("data"), "--exec-root", &path("exec")])
        .args(["--pidfile", &path("pid"), "--host", &format!("unix://{}", path("socket"))])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("start dockerd (Debian: apt-get install docker.io): {error}"),
            )
        })
}

/// Makes a root file system of a static busybox, with a link for each of its programs and the user
/// 1000.
pub fn busybox(rootfs: &Path) -> io::Result<()> {
    let bin = rootfs.join("bin");
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(rootfs.join("etc"))?;
    fs::copy("/bin/busybox", bin.join("busybox")).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("copy /bin/busybox (Debian: apt-get install busybox-static): {error}"),
        )
    })?;
    let listed = Command::new("/bin/busybox").arg("--list").output()?;
    for name in String::from_utf8_lossy(&listed.stdout).lines().filter(|name| *name != "busybox") {
        symlink("busybox", bin.join(name))?;
    }
    fs::write(
        rootfs.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/workspace:/bin/sh\n",
    )?;
    fs::write(rootfs.join("etc/group"), "root:x:0:\nagent:x:1000:\n")
}
