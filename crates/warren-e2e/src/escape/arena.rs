//! The environment of the attempts: one home, an attacker, a neighbour, and objects on the host
//! that must not change.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use warren_api::Sandbox;
use warren_client::exec::{Exec, ExecRequest, Streams};
use warren_client::kube::api::Api;
use warren_client::kube::{Client, ResourceExt as _};
use warren_client::sandbox;

use super::Walls;
use super::processes::processes_with;
use crate::gvisor;
use crate::local_home::{Ended, LocalHome, warren_binary};

/// The deadline of every wait: each takes a fraction of a second on an idle machine.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// A text that no sandbox may ever print.
pub const SECRET: &str = "only-the-host-knows-this";

/// The name of a variable in the daemon's environment, with [`SECRET`] as its value.
pub const VARIABLE: &str = "WARREN_ESCAPE_SECRET";

/// A home under attack.
pub struct Arena {
    /// The API of the home.
    pub client: Client,
    walls: Walls,
    attacker: Sandbox,
    neighbour: Sandbox,
    bystander: Child,
    below_usr: Option<BelowUsr>,
    binary: (PathBuf, std::fs::Metadata),
    settings: Vec<(&'static str, String)>,
    // The last field: dropping it stops the home after everything else is gone.
    home: LocalHome,
}

/// Kernel settings that attempts try to change.
const SETTINGS: &[&str] = &[
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/panic",
    "/proc/sys/vm/drop_caches",
];

impl Arena {
    /// Starts a home; `None`, with a printed reason, where these attempts cannot be made.
    pub async fn start(walls: Walls) -> Result<Option<Self>> {
        let home = match walls {
            Walls::Native | Walls::Gvisor => LocalHome::new(),
            Walls::OrdinaryUser => LocalHome::of_an_ordinary_user(),
        };
        let Some(home) = home else { return Ok(None) };
        if !Path::new("/usr/bin/perl").exists() {
            println!("skipped: the attempts are written in perl, which this machine lacks");
            return Ok(None);
        }
        let runsc = match walls {
            Walls::Native | Walls::OrdinaryUser => None,
            Walls::Gvisor => match gvisor::built_runsc() {
                None => return Ok(None),
                found => found,
            },
        };
        let below_usr = BelowUsr::make(home.path())?;
        let secret = home.path().join("secret");
        std::fs::write(&secret, SECRET)?;
        if let Some(user) = home.user() {
            user.give(&secret)?;
        }
        let mut command = home.command();
        command.env(VARIABLE, SECRET).args(["up", "--detach"]);
        if let Some(runsc) = &runsc {
            command.arg("--runtime").arg(gvisor::named(runsc));
        }
        let ended: Ended = command.output().context("run warren")?.into();
        ensure!(ended.code == Some(0), "the home does not start: {ended:?}");
        let client = home.client().await;
        if runsc.is_some() {
            gvisor::class_is_there(&client).await?;
        }
        let attacker = start(&client, walls, "attacker", json!({})).await?;
        let neighbour = start(&client, walls, "neighbour", json!({})).await?;
        let mut bystander = Command::new("sleep");
        bystander.arg("100000").stdout(Stdio::null());
        let bystander = home.as_its_user(&mut bystander).spawn().context("run sleep")?;
        let binary = warren_binary();
        let settings = SETTINGS.iter().map(|path| (*path, read_setting(path))).collect();
        let binary = (binary.to_owned(), std::fs::metadata(binary)?);
        Ok(Some(Self { client, walls, attacker, neighbour, bystander, below_usr, binary, settings, home }))
    }

    /// Returns true, with a printed note about `what`, if a sandbox has a kernel of its own. An
    /// attempt then reaches only that kernel, and the host is checked from outside alone.
    pub fn has_of_its_own(&self, what: &str) -> bool {
        let has = self.walls == Walls::Gvisor;
        if has {
            println!("note: of the sandbox's own kernel: {what}");
        }
        has
    }

    /// Returns the text by which the host recognises the command lines of a sandbox's processes:
    /// this word from the program, unless the host's kernel does not see the program.
    pub async fn mark_of(&self, sandbox: &Sandbox, word: &str) -> Result<String> {
        if self.walls != Walls::Gvisor {
            return Ok(word.to_owned());
        }
        let directory = self.pod_directory(sandbox).await?;
        Ok(directory.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Checks that every process of the attacker's sandbox has a filter of the host's kernel.
    pub async fn filtered_outside(&self) -> Result<()> {
        let mark = self.mark_of(&self.attacker, "").await?;
        let pids = processes_with(&mark);
        ensure!(!pids.is_empty(), "no process of the sandbox is found");
        for pid in pids {
            // A process that serves an exec may end meanwhile.
            let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
            ensure!(status.contains("Seccomp:\t2"), "{status}");
        }
        Ok(())
    }

    /// Returns true, with a printed note about `what`, if this home lacks a feature that an attempt
    /// needs. An ordinary user's home has neither cgroups nor ids to assign, and its pods'
    /// conditions say so.
    pub fn lacks(&self, what: &str) -> bool {
        let lacks = self.home.user().is_some();
        if lacks {
            println!("note: not in the home of an ordinary user: {what}");
        }
        lacks
    }

    /// Returns the data directory.
    pub fn data_dir(&self) -> &Path {
        self.home.path()
    }

    /// Returns a process of the host that is not Warren's.
    pub fn bystander(&self) -> u32 {
        self.bystander.id()
    }

    /// Returns files in `/usr` that only the host's root may read, if this machine allows the test
    /// to make them.
    pub fn below_usr(&self) -> Option<&Path> {
        self.below_usr.as_ref().map(|made| made.0.as_path())
    }

    /// Runs a shell script in the attacker's sandbox.
    pub async fn shell(&self, script: &str) -> Result<Ended> {
        self.run(&self.attacker, &["sh", "-c", script]).await
    }

    /// Runs a perl program in the attacker's sandbox.
    pub async fn perl(&self, program: &str) -> Result<Ended> {
        self.run(&self.attacker, &["perl", "-e", program]).await
    }

    /// Runs a shell script in the neighbour's sandbox.
    pub async fn neighbour(&self, script: &str) -> Result<Ended> {
        self.run(&self.neighbour, &["sh", "-c", script]).await
    }

    /// Runs a shell script in the attacker's sandbox that must fail, and not for lack of a program.
    pub async fn shell_fails(&self, script: &str) -> Result<Ended> {
        let ended = self.shell(script).await?;
        ensure!(
            !matches!(ended.code, Some(0 | 126 | 127)) && !ended.stderr.contains("not found"),
            "`{script}`: {ended:?}"
        );
        Ok(ended)
    }

    /// Makes system calls in the attacker's sandbox, each given by name, number and arguments in
    /// perl's syntax. All must be refused.
    pub async fn calls_refused(&self, calls: &[(&str, i64, &str)]) -> Result<()> {
        let mut program = String::new();
        for (name, number, arguments) in calls {
            // Perl lets the kernel write to variables, but not to literals.
            program.push_str(&format!(
                "$r = syscall({number}, map {{ my $copy = $_; $copy }} ({arguments})); print '{name} ', ($r == -1 ? $! + 0 : 'result'), qq(\\n);\n"
            ));
        }
        let ended = self.perl(&program).await?;
        ensure!(ended.code == Some(0), "{ended:?}");
        let refusals = [libc::EPERM, libc::ENOSYS, libc::EACCES, libc::EROFS].map(|error| error.to_string());
        for ((name, ..), line) in calls.iter().zip(ended.stdout.lines()) {
            let answer = line.strip_prefix(name).unwrap_or_default().trim().to_owned();
            // Another kernel may have other error codes.
            let refused = refusals.contains(&answer) || (self.walls == Walls::Gvisor && answer != "result");
            ensure!(refused, "{name} was answered with `{answer}`");
        }
        ensure!(ended.stdout.lines().count() == calls.len(), "{ended:?}");
        Ok(())
    }

    /// Creates a sandbox for an attempt. Its container has these fields in addition to an image and
    /// a name; `volumes`, `restartPolicy` and `beside` (more containers) are its pod's.
    pub async fn sandbox(&self, name: &str, container: Value) -> Result<Sandbox> {
        start(&self.client, self.walls, name, container).await
    }

    /// Creates a sandbox that need not become Ready.
    pub async fn sandbox_unready(&self, name: &str, container: Value) -> Result<Sandbox> {
        Ok(sandbox::create(&self.client, "default", &manifest(self.walls, name, container)?).await?)
    }

    /// Deletes a sandbox and waits until its pod is gone.
    pub async fn delete(&self, sandbox: &Sandbox) -> Result<()> {
        let name = sandbox::pod_name(sandbox);
        sandbox::delete(&self.client, sandbox).await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        until("the pod is gone", async || Ok(pods.get_opt(&name).await?.is_none().then_some(()))).await
    }

    /// Returns a sandbox's pod once it meets a condition.
    pub async fn pod_until(
        &self,
        sandbox: &Sandbox,
        what: &str,
        condition: impl Fn(&Pod) -> bool,
    ) -> Result<Pod> {
        let name = sandbox::pod_name(sandbox);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        until(what, async || Ok(pods.get_opt(&name).await?.filter(|pod| condition(pod)))).await
    }

    /// Returns the directory of a sandbox's pod.
    pub async fn pod_directory(&self, sandbox: &Sandbox) -> Result<PathBuf> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let uid = pods.get(&sandbox::pod_name(sandbox)).await?.uid().context("a uid")?;
        Ok(self.home.path().join("pods").join(uid))
    }

    /// Returns the directory of the attacker's pod.
    pub async fn attackers_directory(&self) -> Result<PathBuf> {
        self.pod_directory(&self.attacker).await
    }

    /// Runs a program in a sandbox to its end.
    pub async fn run(&self, sandbox: &Sandbox, command: &[&str]) -> Result<Ended> {
        self.run_with(sandbox, command, false).await
    }

    /// Runs a program on a terminal in the attacker's sandbox.
    pub async fn on_a_terminal(&self, command: &[&str]) -> Result<Ended> {
        self.run_with(&self.attacker, command, true).await
    }

    async fn run_with(&self, sandbox: &Sandbox, command: &[&str], tty: bool) -> Result<Ended> {
        let request = ExecRequest {
            namespace: "default".to_owned(),
            pod: sandbox::pod_name(sandbox),
            container: None,
            command: command.iter().map(|&word| word.to_owned()).collect(),
            stdin: false,
            tty,
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let (_, resize) = tokio::sync::mpsc::channel(1);
        let streams = Streams { stdin: tokio::io::empty(), stdout: &mut stdout, stderr: &mut stderr, resize };
        let run =
            async { Ok::<_, anyhow::Error>(Exec::start(&self.client, request).await?.run(streams).await?) };
        let code = tokio::time::timeout(DEADLINE, run)
            .await
            .with_context(|| format!("{command:?} never ended"))?
            .with_context(|| format!("run {command:?}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let ended = Ended { code: Some(code), stdout: text(&stdout), stderr: text(&stderr) };
        ensure!(!ended.stdout.contains(SECRET), "a secret of the host came out: {ended:?}");
        Ok(ended)
    }

    /// Checks that the host and the neighbour are unchanged.
    pub async fn check_outside(&self) -> Result<()> {
        let command = std::fs::read(format!("/proc/{}/cmdline", self.bystander())).unwrap_or_default();
        ensure!(command.starts_with(b"sleep"), "a process of the host is gone");
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.bystander()))?;
        ensure!(!status.contains("State:\tT") && status.contains("TracerPid:\t0"), "{status}");
        let (binary, before) = &self.binary;
        let now = std::fs::metadata(binary)?;
        use std::os::unix::fs::MetadataExt as _;
        ensure!(
            (now.len(), now.mtime(), now.ino()) == (before.len(), before.mtime(), before.ino()),
            "the binary has changed"
        );
        for (path, before) in &self.settings {
            ensure!(read_setting(path) == *before, "{path} has changed");
        }
        ensure!(std::fs::read_to_string(self.home.path().join("secret"))? == SECRET, "a file has changed");
        if let Some(below_usr) = self.below_usr() {
            ensure!(std::fs::read_to_string(below_usr.join("private"))? == SECRET, "a file has changed");
        }
        let said = self.neighbour("echo alive").await.context("the neighbour does not answer")?;
        ensure!(said.stdout == "alive\n", "{said:?}");
        Ok(())
    }

    /// Stops everything and checks that nothing is left.
    pub async fn end(mut self) -> Result<()> {
        self.delete(&self.attacker).await?;
        self.delete(&self.neighbour).await?;
        self.bystander.kill()?;
        self.bystander.wait()?;
        tokio::task::block_in_place(|| self.home.assert_nothing_left());
        Ok(())
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Arena").field("home", &self.home).finish_non_exhaustive()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Already ended, unless a check has failed.
        let _ = self.bystander.kill();
        let _ = self.bystander.wait();
    }
}

/// Waits for a condition.
pub async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let wait = async {
        loop {
            if let Some(value) = condition().await? {
                return Ok(value);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(DEADLINE, wait).await {
        Ok(value) => value,
        Err(_) => bail!("waited in vain: {what}"),
    }
}

fn read_setting(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn manifest(walls: Walls, name: &str, container: Value) -> Result<Sandbox> {
    let mut container = container;
    container["name"] = json!("main");
    container["image"] = json!("warren.dev/host");
    let mut take = |name: &str, default: Value| {
        container.as_object_mut().and_then(|fields| fields.remove(name)).unwrap_or(default)
    };
    let (volumes, policy) = (take("volumes", json!([])), take("restartPolicy", json!("Never")));
    let mut containers = take("beside", json!([]));
    if let Some(containers) = containers.as_array_mut() {
        containers.insert(0, container);
    }
    Ok(serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": { "name": name },
        "spec": { "podTemplate": { "spec": {
            "containers": containers, "volumes": volumes, "restartPolicy": policy,
            "terminationGracePeriodSeconds": 1,
            "runtimeClassName": (walls == Walls::Gvisor).then_some(gvisor::CLASS),
        } } },
    }))?)
}

async fn start(client: &Client, walls: Walls, name: &str, container: Value) -> Result<Sandbox> {
    let created = sandbox::create(client, "default", &manifest(walls, name, container)?).await?;
    Ok(sandbox::wait_ready(client, created, DEADLINE).await?)
}

/// Files in the machine's own `/usr` during the suite.
#[derive(Debug)]
struct BelowUsr(PathBuf);

impl BelowUsr {
    fn make(data_dir: &Path) -> Result<Option<Self>> {
        let unique = data_dir.file_name().context("a directory has a name")?.to_string_lossy();
        let directory = PathBuf::from(format!("/usr/local/share/warren-escape{unique}"));
        if let Err(error) = std::fs::create_dir_all(&directory) {
            println!("note: /usr/local/share cannot be written, so no private files are put there: {error}");
            return Ok(None);
        }
        let made = Self(directory);
        let closed = made.0.join("closed");
        std::fs::create_dir(&closed)?;
        for (path, mode) in
            [(made.0.join("private"), 0o600), (made.0.join("group"), 0o640), (closed.join("inner"), 0o644)]
        {
            std::fs::write(&path, SECRET)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
        }
        std::fs::write(made.0.join("public"), "for everybody")?;
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700))?;
        Ok(Some(made))
    }
}

impl Drop for BelowUsr {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
