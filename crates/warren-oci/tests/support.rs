//! A home whose daemon is the harness, and helpers for pods.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use warren_oci::client::ShimClient;
use warren_oci::host_image::HostImage;
use warren_oci::idmap::IdAllocator;
use warren_oci::protocol::{
    Answer, Call, ContainerRequest, ContainerState, ContainerStatus, Event, ExecRequest, ExitStatus, LogFile,
    Message, PodRequest, PodState, Refusal, TerminalSize,
};
use warren_oci::spec::{Limits, Process, Spec};
use warren_oci::{cgroup_names, cleanup};

/// Returns true if root tests are to be skipped. They need root, and a run without it must not look
/// like a pass: it fails unless it is told to skip.
pub fn skipped() -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    assert!(
        std::env::var_os("WARREN_SKIP_ROOT_TESTS").is_some(),
        "these tests make real containers and need root; set WARREN_SKIP_ROOT_TESTS to leave them out"
    );
    eprintln!("skipped: not root, and WARREN_SKIP_ROOT_TESTS is set");
    true
}

/// Waits for a condition. Fails after two minutes, which is long on any machine but an emulated one
/// (`cargo xtask vm`).
#[expect(
    clippy::disallowed_methods,
    reason = "this is the wait for a condition, and there is nothing to be woken by"
)]
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub struct Home {
    pub data: PathBuf,
    _temporary: tempfile::TempDir,
    pub id: String,
    image: HostImage,
    allocator: Mutex<IdAllocator>,
    harness: Mutex<Option<Harness>>,
    pub zygote_pid: i32,
}

struct Harness {
    child: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Home {
    pub fn new() -> Self {
        Self::below("")
    }

    /// Makes a home whose data directory is further down.
    pub fn below(path: &str) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let data = temporary.path().join(path);
        std::fs::create_dir_all(&data).unwrap();
        let id = format!("{:04x}{:04x}", std::process::id() & 0xffff, NEXT.fetch_add(1, Ordering::Relaxed));
        let mut child = Command::new(env!("CARGO_BIN_EXE_warren-oci-harness"))
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        Self {
            image: HostImage::prepare(&data).unwrap(),
            allocator: Mutex::new(IdAllocator::load(&data.join("pods"), &id).unwrap()),
            harness: Mutex::new(Some(Harness { child, input, output })),
            zygote_pid: line.trim().parse().expect("the harness says its zygote's pid"),
            data,
            id,
            _temporary: temporary,
        }
    }

    pub fn container(&self, uid: &str, name: &str, args: &[&str]) -> ContainerRequest {
        let mut process = Process::new(args.iter().copied());
        process.env = HostImage::default_environment();
        let mut spec = Spec::new(process);
        spec.linux.resources = Limits { memory_bytes: Some(256 << 20), pids: Some(256), ..Limits::default() };
        ContainerRequest {
            name: name.to_owned(),
            attempt: 0,
            spec,
            rootfs: self.image.rootfs(),
            log: LogFile::new(self.directory(uid).join("logs").join(name).join("0.log")),
        }
    }

    /// Starts a pod whose container `main` does nothing, for execs.
    pub fn idle_pod(&self, uid: &str) -> Pod {
        let command = HostImage::default_command();
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let pod = self.pod(uid, vec![self.container(uid, "main", &command)]);
        pod.wait("main", |container| matches!(container.status, ContainerStatus::Running { .. }));
        pod
    }

    pub fn directory(&self, uid: &str) -> PathBuf {
        self.data.join("pods").join(uid)
    }

    pub fn pod(&self, uid: &str, containers: Vec<ContainerRequest>) -> Pod {
        self.pod_of(&self.request(uid, containers))
    }

    pub fn pod_of(&self, request: &PodRequest) -> Pod {
        let (shim_pid, first_id) = self.spawn(request);
        let directory = request.directory.clone();
        let client = eventually("the shim listens", || ShimClient::connect(&directory).ok());
        Pod { client, directory, shim_pid, first_id }
    }

    pub fn request(&self, uid: &str, containers: Vec<ContainerRequest>) -> PodRequest {
        let ids = self.allocator.lock().unwrap().allocate(uid).unwrap();
        PodRequest {
            uid: uid.to_owned(),
            directory: self.directory(uid),
            cgroup: cgroup_names::pod(&self.id, uid),
            hostname: uid.to_owned(),
            ids,
            network: None,
            runtime: None,
            proxy_port: None,
            sysctls: Vec::new(),
            activation: None,
            containers,
            trace: false,
        }
    }

    /// Spawns a shim. Returns its pid and the pod's first id.
    pub fn spawn(&self, request: &PodRequest) -> (i32, u32) {
        let mut guard = self.harness.lock().unwrap();
        let harness = guard.as_mut().expect("the daemon lives");
        let mut line = serde_json::to_string(request).unwrap();
        line.push('\n');
        harness.input.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        harness.output.read_line(&mut answer).unwrap();
        (answer.trim().parse().expect("the harness says the shim's pid"), request.ids.first)
    }

    /// Kills the daemon like `kill -9`.
    pub fn kill_daemon(&self) {
        let mut harness = self.harness.lock().unwrap().take().expect("the daemon lives");
        harness.child.kill().unwrap();
        harness.child.wait().unwrap();
    }

    pub fn cgroups(&self) -> Vec<PathBuf> {
        let name = cgroup_names::home(&self.id);
        // Version 2 has it at the top, version 1 below each controller.
        let roots = std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|root| root.unwrap().path());
        std::iter::once(PathBuf::from("/sys/fs/cgroup"))
            .chain(roots)
            .map(|root| root.join(&name))
            .filter(|path| path.is_dir())
            .collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Clean up after a failed test.
        for uid in cleanup::pods_with_cgroups(&self.id).unwrap_or_default() {
            if let Ok(client) = ShimClient::connect(&self.directory(&uid)) {
                let _ = client.call(Call::Shutdown, drop);
            }
            let _ = cleanup::kill_pod(&self.id, &uid);
        }
        let _ = cleanup::remove_home_cgroup(&self.id);
        if let Some(mut harness) = self.harness.lock().unwrap().take() {
            drop(harness.input);
            let _ = harness.child.wait();
        }
    }
}

pub struct Pod {
    pub client: ShimClient,
    pub directory: PathBuf,
    pub shim_pid: i32,
    pub first_id: u32,
}

#[derive(Debug)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
    pub exit: ExitStatus,
}

impl Pod {
    pub fn state(&self) -> PodState {
        match self.client.call(Call::State, drop).unwrap() {
            (Answer::State { state }, _) => state,
            other => panic!("unexpected {other:?}"),
        }
    }

    pub fn wait(&self, container: &str, condition: impl Fn(&ContainerState) -> bool) -> ContainerState {
        eventually(&format!("{container} gets there, it is {:?}", self.state()), || {
            let state = self.state().containers.remove(container)?;
            if let ContainerStatus::Failed { refusal, .. } = &state.status
                && !condition(&state)
            {
                panic!("the container failed: {refusal}");
            }
            condition(&state).then_some(state)
        })
    }

    pub fn request(args: &[&str]) -> ExecRequest {
        ExecRequest {
            container: "main".to_owned(),
            args: args.iter().map(|&text| text.to_owned()).collect(),
            env: Vec::new(),
            cwd: None,
            user: None,
            terminal: None,
            stdin: false,
        }
    }

    /// Starts a process. Returns its number and descriptors.
    pub fn start(&self, request: ExecRequest) -> Result<(u64, Vec<OwnedFd>), Refusal> {
        match self.client.call(Call::Exec(request), drop) {
            Ok((Answer::Exec { exec, .. }, descriptors)) => Ok((exec, descriptors)),
            Err(warren_oci::client::CallError::Refused(refusal)) => Err(refusal),
            other => panic!("unexpected {other:?}"),
        }
    }

    pub fn wait_exit(&self, number: u64) -> ExitStatus {
        loop {
            match self.client.receive().unwrap().expect("the shim lives").message {
                Message::Event(Event::ExecExited { exec, exit }) if exec == number => return exit,
                _ => {}
            }
        }
    }

    /// Runs a process until it ends.
    pub fn run(&self, mut request: ExecRequest, input: &[u8]) -> Output {
        request.stdin = !input.is_empty();
        let has_input = request.stdin;
        let (number, descriptors) = self.start(request).unwrap();
        let mut files = descriptors.into_iter().map(std::fs::File::from);
        if has_input {
            files.next().unwrap().write_all(input).unwrap();
        }
        let (mut stdout, mut stderr) = (files.next().unwrap(), files.next().unwrap());
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).unwrap();
        Output {
            stdout: String::from_utf8_lossy(&bytes).into_owned(),
            stderr: String::from_utf8_lossy(&reader.join().unwrap()).into_owned(),
            exit: self.wait_exit(number),
        }
    }

    pub fn shell(&self, script: &str) -> Output {
        self.run(Self::request(&["sh", "-c", script]), b"")
    }

    pub fn terminal(&self, script: &str, columns: u16, rows: u16) -> (u64, std::fs::File) {
        let mut request = Self::request(&["sh", "-c", script]);
        request.terminal = Some(TerminalSize { columns, rows });
        let (number, descriptors) = self.start(request).unwrap();
        (number, descriptors.into_iter().next().unwrap().into())
    }

    pub fn shutdown(self) -> PodState {
        let state = match self.client.call(Call::Shutdown, drop).unwrap() {
            (Answer::State { state }, _) => state,
            other => panic!("unexpected {other:?}"),
        };
        cleanup::remove_pod_directory(&self.directory).unwrap();
        state
    }
}
