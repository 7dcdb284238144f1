//! A minimal client of the Docker API, with a connection for each request.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use warren_testkit::docker::Docker;

use super::memory;
use super::pull::Image;

/// The command of an idle container.
const IDLE: [&str; 3] = ["/bin/busybox", "sleep", "100000"];
const ECHO: [&str; 3] = ["/bin/busybox", "echo", "x"];

/// A daemon with a resident container for commands. All containers end with it.
pub struct DockerApi {
    resident: String,
    /// The streams of a command that echoes its input.
    line: UnixStream,
    together: Vec<String>,
    daemon: Docker,
}

impl DockerApi {
    /// Starts a daemon.
    pub fn start(rootfs: &Path) -> anyhow::Result<DockerApi> {
        let daemon = Docker::start()?;
        daemon.import("bench", rootfs)?;
        let resident = run(&daemon, &IDLE)?;
        let wish = json!({"Cmd": ["/bin/busybox", "cat"], "AttachStdin": true, "AttachStdout": true});
        let line = start_exec(&daemon, &prepare_exec(&daemon, &resident, &wish)?)?;
        Ok(DockerApi { resident, line, together: Vec::new(), daemon })
    }

    /// Returns the processes from which all others of it descend. Each has the directory on its
    /// command line.
    pub fn seeds(&self) -> anyhow::Result<Vec<u32>> {
        memory::named(&self.daemon.directory().display().to_string())
    }

    /// Returns those of them that exist without any container.
    pub fn daemons(&self) -> anyhow::Result<Vec<u32>> {
        Ok(self.seeds()?.into_iter().filter(|pid| memory::name(*pid) != "containerd-shim").collect())
    }

    /// Runs a new container until its command has written its first byte.
    pub fn cold(&mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let wish = json!({"Image": "bench", "Cmd": ECHO, "AttachStdout": true});
        let container = id(&call(&self.daemon, "POST", "/containers/create", &wish)?)?;
        let path = format!("/containers/{container}/attach?stream=1&stdout=1");
        let mut output = upgrade(&self.daemon, &path, &Value::Null)?;
        call(&self.daemon, "POST", &format!("/containers/{container}/start"), &Value::Null)?;
        let first = read_frame(&mut output)?;
        let elapsed = begun.elapsed();
        ensure!(first == b"x\n", "a container wrote something else");
        remove(&self.daemon, &container)?;
        Ok(elapsed)
    }

    /// Runs a command in the resident container until its exit code is known.
    pub fn exec(&mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let exec = prepare_exec(&self.daemon, &self.resident, &json!({"Cmd": ECHO, "AttachStdout": true}))?;
        let mut output = start_exec(&self.daemon, &exec)?;
        let mut written = Vec::new();
        output.read_to_end(&mut written)?;
        let ended = call(&self.daemon, "GET", &format!("/exec/{exec}/json"), &Value::Null)?;
        let elapsed = begun.elapsed();
        ensure!(ended["ExitCode"] == 0 && written.ends_with(b"x\n"), "a command failed: {ended}");
        Ok(elapsed)
    }

    /// Sends a line to a command in the resident container and reads it back.
    pub fn round_trip(&mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.line.write_all(b"x\n")?;
        let back = read_frame(&mut self.line)?;
        let elapsed = begun.elapsed();
        ensure!(back == b"x\n", "another line came back");
        Ok(elapsed)
    }

    /// Starts a number of containers at once.
    pub fn start_many(&mut self, count: usize) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let daemon = &self.daemon;
        let started: Vec<anyhow::Result<String>> = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..count).map(|_| scope.spawn(|| run(daemon, &IDLE))).collect();
            starting.into_iter().filter_map(|starting| starting.join().ok()).collect()
        });
        let elapsed = begun.elapsed();
        for container in started {
            self.together.push(container?);
        }
        ensure!(self.together.len() == count, "only {} of {count} started", self.together.len());
        Ok(elapsed)
    }

    /// Removes them.
    pub fn end_many(&mut self) -> anyhow::Result<()> {
        self.together.drain(..).try_for_each(|container| remove(&self.daemon, &container))
    }

    /// Pulls an image a number of times, and removes it after each.
    pub fn pull(&mut self, pulls: usize, image: &Image) -> anyhow::Result<Vec<Duration>> {
        let registry = image.serve_beside(self.daemon.pid())?;
        let (name, tag) = registry.name.rsplit_once(':').context("an image has a tag")?;
        let mut times = Vec::with_capacity(pulls);
        for _ in 0..pulls {
            let begun = Instant::now();
            let told = send(
                &self.daemon,
                "POST",
                &format!("/images/create?fromImage={name}&tag={tag}"),
                &Value::Null,
            )?;
            times.push(begun.elapsed());
            // The answer begins before the pull, so an error is somewhere in its body.
            ensure!(!told.contains("errorDetail"), "docker does not pull: {told}");
            send(&self.daemon, "DELETE", &format!("/images/{}?force=1", registry.name), &Value::Null)?;
        }
        Ok(times)
    }
}

impl Drop for DockerApi {
    fn drop(&mut self) {
        // Otherwise its containers would outlive it.
        for container in self.together.iter().chain([&self.resident]) {
            let _ = remove(&self.daemon, container);
        }
    }
}

/// Creates and starts a container. Returns its id.
fn run(daemon: &Docker, command: &[&str]) -> anyhow::Result<String> {
    let container =
        id(&call(daemon, "POST", "/containers/create", &json!({"Image": "bench", "Cmd": command}))?)?;
    call(daemon, "POST", &format!("/containers/{container}/start"), &Value::Null)?;
    Ok(container)
}

fn remove(daemon: &Docker, container: &str) -> anyhow::Result<()> {
    send(daemon, "DELETE", &format!("/containers/{container}?force=1"), &Value::Null).map(drop)
}

/// Prepares a command in a container. Returns its id.
fn prepare_exec(daemon: &Docker, container: &str, wish: &Value) -> anyhow::Result<String> {
    id(&call(daemon, "POST", &format!("/containers/{container}/exec"), wish)?)
}

/// Starts a prepared command. Returns its streams.
fn start_exec(daemon: &Docker, exec: &str) -> anyhow::Result<UnixStream> {
    upgrade(daemon, &format!("/exec/{exec}/start"), &json!({"Detach": false, "Tty": false}))
}

fn id(answer: &Value) -> anyhow::Result<String> {
    Ok(answer["Id"].as_str().with_context(|| format!("no id in {answer}"))?.to_owned())
}

/// Sends a request whose answer is one JSON value or empty.
fn call(daemon: &Docker, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
    let answer = send(daemon, method, path, body)?;
    if answer.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(&answer).with_context(|| format!("{method} {path}: `{answer}`"))
}

/// Sends a request and returns the body of the answer. With HTTP/1.0 the answer ends with the
/// connection.
fn send(daemon: &Docker, method: &str, path: &str, body: &Value) -> anyhow::Result<String> {
    let mut stream = connect(daemon)?;
    stream.write_all(request(method, path, "1.0", "", body).as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| format!("{method} {path}"))?;
    let (head, body) =
        answer.split_once("\r\n\r\n").with_context(|| format!("{method} {path}: no answer"))?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status.starts_with('2'), "{method} {path} was answered {status}: {}", body.trim());
    Ok(body.to_owned())
}

/// Sends a request after which the connection carries a container's streams.
fn upgrade(daemon: &Docker, path: &str, body: &Value) -> anyhow::Result<UnixStream> {
    let mut stream = connect(daemon)?;
    let wish = "Connection: Upgrade\r\nUpgrade: tcp\r\n";
    stream.write_all(request("POST", path, "1.1", wish, body).as_bytes())?;
    // Read byte by byte: the bytes after the head belong to the stream.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).with_context(|| format!("POST {path}"))?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    ensure!(head.split(' ').nth(1) == Some("101"), "POST {path} was answered {head}");
    Ok(stream)
}

fn connect(daemon: &Docker) -> anyhow::Result<UnixStream> {
    UnixStream::connect(daemon.socket()).context("connect to dockerd")
}

fn request(method: &str, path: &str, version: &str, headers: &str, body: &Value) -> String {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    format!(
        "{method} {path} HTTP/{version}\r\nHost: docker\r\n{headers}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Reads one piece of output. Its header has the stream and the length.
fn read_frame(stream: &mut UnixStream) -> anyhow::Result<Vec<u8>> {
    let mut header = [0; 8];
    stream.read_exact(&mut header).context("read output")?;
    let length = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    let mut frame = vec![0; usize::try_from(length)?];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}
