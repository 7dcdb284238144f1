//! Runs `warren run`: a sandbox for one command, with this checkout in it.
//!
//! The sandbox has a lease ([`launch`](warren_client::launch)), so that it ends by itself if this
//! process is killed. Renewing the lease is the only write besides the create and the delete, and a
//! short command ends before it.

mod files;
mod leased;
mod mount;
mod publish;
mod refused;
mod toolchain;
pub mod wanted;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::io::{AsyncRead, Empty};
use tokio::sync::mpsc;
use warren_api::Sandbox;
use warren_api::blueprint::PodMetadata;
use warren_api::sandbox::ShutdownPolicy;
use warren_client::exec::{self, Exec, ExecError, ExecRequest, Streams};
use warren_client::kube::Client;
use warren_client::kube::api::Api;
use warren_client::launch::{self, Held, LEASE, Launch, Launched, Source};
use warren_client::lease::cluster::Guard;
use warren_client::sandbox::{self, SandboxKey};
use warren_client::sync::Place;

use crate::cli;
use crate::config::Layer;
use crate::destination::Destination;
use crate::environment;
use crate::history;
use crate::image;
use crate::progress;
use crate::signals::{Response, Signal, Signals};
use crate::terminal::{self, RawMode};
use crate::timings::Timings;
use crate::words;
use files::Files;
pub use mount::Mount;
use mount::Mounts;
use publish::Listening;
pub use publish::Publication;
pub use toolchain::Toolchain;

/// The exit code of a command that was ended by a closed pipe.
const BROKEN_PIPE: i32 = 128 + 13;

/// The exit code of a command that exceeded its time limit, as in `timeout`.
const TIMED_OUT: i32 = 124;

/// The time that a command may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(10);

/// The variable that distinguishes commands in one container.
pub const MARK: &str = "WARREN_EXEC";

/// The time limit for forwarding a signal.
const FORWARD_PATIENCE: Duration = Duration::from_secs(5);

/// Runs the command and returns its exit code.
pub fn run(mut arguments: cli::Run) -> anyhow::Result<i32> {
    let mut timings = Timings::start();
    let destination = Destination::choose(&arguments.place, flags(&arguments))?;
    let mounts = Mounts::find(&arguments.mount, destination.is_local())?;
    settle(&mut arguments, &destination, &mounts)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    let began = (Timestamp::now(), std::time::Instant::now());
    let mut isolation = None;
    let code = runtime.block_on(async {
        match arguments.id.clone() {
            Some(slug) => {
                leased::session(&slug, &arguments, &destination, &mut timings, &mut isolation).await
            }
            None => session(&arguments, &destination, &mounts, &mut timings, &mut isolation).await,
        }
    });
    // A thread may still be reading standard input; it is not waited for.
    runtime.shutdown_background();
    history::note(&history::Entry {
        began: began.0,
        took: began.1.elapsed(),
        command: &arguments.command,
        code: code.as_ref().ok().copied(),
        home: destination.to_string(),
        lease: arguments.id.as_deref(),
        isolation: isolation.as_deref(),
    });
    if arguments.timings {
        eprint!("{}", timings.table());
    }
    code
}

/// Returns the settings that are given by flags.
fn flags(arguments: &cli::Run) -> Layer {
    let exact = |duration: Option<Duration>| duration.map(|duration| format!("{}ms", duration.as_millis()));
    let said = [
        ("pool", arguments.pool.clone()),
        ("container", arguments.container.clone()),
        ("exec-timeout", exact(arguments.timeout)),
        ("sandbox-ready-timeout", exact(arguments.ready_timeout)),
    ];
    said.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Fills in settings that have no flag on the command line.
fn settle(arguments: &mut cli::Run, destination: &Destination, mounts: &Mounts) -> anyhow::Result<()> {
    let config = &destination.config;
    let new = [&arguments.image, &arguments.memory, &arguments.cpus, &arguments.disk, &arguments.runtime];
    let new = new.into_iter().any(Option::is_some)
        || arguments.network.is_some()
        || !arguments.allow_host.is_empty()
        || !arguments.allow_port.is_empty()
        || !arguments.mount.is_empty()
        || !arguments.toolchain.is_empty();
    if arguments.id.is_none() {
        if !new && arguments.template.is_none() {
            arguments.pool = config.text("pool").map(str::to_owned);
        }
        let named = arguments.pool.is_some() || arguments.template.is_some() || arguments.image.is_some();
        if !destination.is_local() && !named {
            return Err(wanted::NoWorkload.into());
        }
    }
    arguments.allow_host = config.hosts(&arguments.allow_host);
    if !arguments.mount.is_empty() && arguments.sync.is_none() {
        // Nothing is sent. From inside one of the directories, the command runs in the current one.
        arguments.no_sync = true;
        let here = std::env::current_dir().and_then(|here| here.canonicalize()).ok();
        let here =
            here.filter(|here| mounts.contains(here)).and_then(|here| here.to_str().map(str::to_owned));
        arguments.workdir = arguments.workdir.take().or(here);
    }
    // A lease has a directory and a container of its own. The flag may name any directory: system
    // directories are refused only when files are sent into them.
    if arguments.id.is_none() && arguments.workdir.is_none() {
        arguments.workdir = config.text("workdir").map(str::to_owned);
    }
    let claims = arguments.pool.is_some() || arguments.template.is_some();
    arguments.container = config.text("container").filter(|_| claims).map(str::to_owned);
    arguments.sync_delete |= config.is("sync-delete") && !arguments.no_sync;
    arguments.exclude.splice(0..0, config.list("exclude"));
    // A test suite on the user's own machine may take longer than ten minutes; elsewhere it would
    // hold a shared resource.
    let has_end = arguments.id.is_some() || !destination.is_local() || config.is_said("exec-timeout");
    arguments.timeout = Some(config.duration("exec-timeout")).filter(|end| has_end && !end.is_zero());
    let failing = arguments.keep || arguments.keep_on_failure;
    arguments.keep |= !config.is("delete-on-release") && !failing;
    Ok(())
}

async fn session(
    arguments: &cli::Run,
    destination: &Destination,
    mounts: &Mounts,
    timings: &mut Timings,
    isolation: &mut Option<String>,
) -> anyhow::Result<i32> {
    let tty = arguments.tty || terminal::interactive();
    let variables = environment::variables(&arguments.env, tty, |name| std::env::var(name).ok())?;
    let files = Files::choose(arguments, None)?;
    let name = arguments.name.clone().unwrap_or_else(random_name);
    let mut new = wanted::wanted(arguments, &name, files.workdir(), destination.is_local())?;
    let shown = toolchain::Shown::find(&arguments.toolchain, destination.is_local())?;
    mounts.mount(&mut new);
    shown.mount(&mut new);
    let mut signals = Signals::listen().context("listen for signals")?;
    let listening = Listening::begin(&arguments.publish).await?;
    timings.mark("prepare");
    let client = tokio::select! {
        signal = signals.ending() => return Ok(signal.exit_code()),
        client = destination.connect() => client?,
    };
    timings.mark("connect");
    if let Some(image) = wanted::brings_image(arguments, destination.is_local()) {
        // Pulled before the sandbox is created: progress is shown, and no deadline runs.
        tokio::select! {
            signal = signals.ending() => return Ok(signal.exit_code()),
            pulled = image::pull(&client, image, true) => pulled?,
        };
        timings.mark("image");
    }

    // Not cancelled at a signal: only the answer shows whether the object exists.
    let launched = create(&client, arguments, &name, new, &destination.namespace).await?;
    timings.mark("create");

    let variables = format!("{}{}", shown.script(), environment::script(&variables));
    let mut session = Session {
        client: &client,
        arguments,
        tty,
        variables: &variables,
        files,
        guard: None,
        isolation: None,
    };
    let mut held = None;
    let within = destination.config.duration("sandbox-ready-timeout");
    let result = tokio::select! {
        result = session.serve_when_ready(&launched, within, listening, &mut held, &mut signals, timings) => result,
        never = launch::keep(&client, &launched) => match never {},
    };
    timings.mark("command");
    *isolation = session.known_isolation().await;
    signals.end_at_the_next();

    let failed = !matches!(result, Ok(0));
    let keep = arguments.keep || arguments.sync_only || arguments.keep_on_failure && failed;
    let ended = match keep && held.is_some() {
        true => launch::stay(&client, &launched).await,
        false => launch::delete(&client, &launched).await,
    };
    if let Err(error) = ended {
        let error = anyhow::Error::from(error)
            .context(format!("the sandbox ends by itself within {} s", LEASE.as_secs()));
        // The command's own result matters more than this error.
        eprintln!("warning: {}", crate::report::chain(&error));
    }
    timings.mark("delete");
    if held.is_none() && failed {
        toolchain::hint(&mounts.to_allow().chain(shown.to_allow()).collect::<Vec<_>>());
    }
    if let Some(held) = &held {
        if keep {
            say_kept(&launched.key().name, arguments, destination);
            if mounts.keeps_changes() {
                let name = &launched.key().name;
                eprintln!(
                    "`warren diff {name}` shows what it has changed here, `warren apply {name}` takes it over"
                );
            }
        }
        if failed {
            refused::say(&client, &held.place, arguments).await;
        }
    }
    result
}

/// Creates the sandbox, with a lease that begins now.
async fn create(
    client: &Client,
    arguments: &cli::Run,
    name: &str,
    mut new: Sandbox,
    namespace: &str,
) -> anyhow::Result<Launched> {
    let until = sandbox::lease_end(Timestamp::now(), LEASE);
    let source = match (&arguments.pool, &arguments.template) {
        (Some(pool), _) => Source::Pool(pool.clone()),
        (_, Some(template)) => Source::Template(template.clone()),
        _ => {
            new.spec.shutdown_time = Some(Time(until));
            new.spec.shutdown_policy = ShutdownPolicy::Delete;
            let made = sandbox::create(client, namespace, &new).await?;
            return Ok(Launched::Sandbox(Box::new(made)));
        }
    };
    let launch = Launch {
        key: SandboxKey { namespace: namespace.to_owned(), name: name.to_owned() },
        source,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        kept_directory: None,
        pod_metadata: PodMetadata::default(),
        env: BTreeMap::new(),
        limits: BTreeMap::new(),
        until,
    };
    Ok(launch::launch(client, &launch).await?)
}

fn say_kept(name: &str, arguments: &cli::Run, destination: &Destination) {
    let flags = destination.flags();
    if arguments.sync_only {
        println!("{name}");
    }
    eprintln!(
        "Kept sandbox `{name}`: `warren exec{flags} {name} -- COMMAND` runs more in it, `warren delete{flags} {name}` ends it"
    );
}

/// The state of a run once its sandbox is created.
struct Session<'a> {
    client: &'a Client,
    arguments: &'a cli::Run,
    tty: bool,
    variables: &'a str,
    files: Files,
    /// Checks the objects of a lease before anything is executed in its pod.
    guard: Option<Guard>,
    /// Reads the isolation of the containers, while the command runs.
    isolation: Option<tokio::task::JoinHandle<Option<String>>>,
}

/// The pod condition with the isolation of its containers.
const ISOLATION: &str = "warren.dev/isolation";

/// Returns the isolation that a pod's node has reported.
async fn isolation_of(client: Client, place: Place) -> Option<String> {
    let pods: Api<Pod> = Api::namespaced(client, &place.namespace);
    let conditions = pods.get(&place.pod).await.ok()?.status?.conditions?;
    conditions.into_iter().find(|condition| condition.type_ == ISOLATION)?.reason
}

impl Session<'_> {
    /// Waits for the sandbox, then runs the session in it.
    async fn serve_when_ready(
        &mut self,
        launched: &Launched,
        within: Duration,
        listening: Listening,
        held: &mut Option<Held>,
        signals: &mut Signals,
        timings: &mut Timings,
    ) -> anyhow::Result<i32> {
        let what = || format!("waiting for sandbox `{}` to become Ready", launched.key());
        let waiting = progress::show_if_slow(what, launch::ready(self.client, launched, within));
        let ready = tokio::select! {
            signal = signals.ending() => return Ok(signal.exit_code()),
            ready = waiting => held.insert(ready?),
        };
        if let Some(container) = &self.arguments.container {
            ready.place.container.clone_from(container);
        }
        let place = ready.place.clone();
        timings.mark("ready");
        self.serve(&place, listening, signals, timings).await
    }

    async fn check(&self) -> anyhow::Result<()> {
        match &self.guard {
            Some(guard) => Ok(guard.check().await?),
            None => Ok(()),
        }
    }

    /// Sends files, runs the command, and fetches changed files.
    async fn serve(
        &mut self,
        place: &Place,
        listening: Listening,
        signals: &mut Signals,
        timings: &mut Timings,
    ) -> anyhow::Result<i32> {
        listening.serve(self.client, place);
        self.isolation = Some(tokio::spawn(isolation_of(self.client.clone(), place.clone())));
        let request = tokio::select! {
            signal = signals.ending() => return Ok(signal.exit_code()),
            request = self.prepare(place, timings) => request?,
        };
        let (request, sent) = match request {
            (Some(request), sent) => (request, sent),
            (None, _) => return Ok(0),
        };
        self.check().await?;
        // A lease's sandbox may run other commands: signals are for the one with this mark.
        let code = command(self.client, request, self.arguments.timeout, self.mark(), signals).await?;
        if let (Some(sent), Some(glob)) = (sent, &self.arguments.sync_back) {
            timings.mark("command");
            self.check().await?;
            let back = self.files.bring_back(self.client, place, &sent, glob, self.arguments.overwrite);
            let back = tokio::select! {
                signal = signals.ending() => return Ok(signal.exit_code()),
                back = back => back,
            };
            match (back, code) {
                // The command's failure is more important, and callers read its exit code.
                (Err(error), 1..) => crate::report::print(&error),
                (back, _) => back?,
            }
        }
        Ok(code)
    }

    /// Returns the isolation if it is known already.
    async fn known_isolation(&mut self) -> Option<String> {
        let asking = self.isolation.take().filter(tokio::task::JoinHandle::is_finished)?;
        asking.await.ok()?
    }

    /// Returns the mark of the command in a shared sandbox; empty in a sandbox of its own.
    fn mark(&self) -> &str {
        self.variables
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("export "))
            .filter(|_| self.guard.is_some())
            .unwrap_or_default()
    }

    /// Sends files and variables, and returns the request that runs the command; `None` if there is
    /// no command.
    async fn prepare(
        &mut self,
        place: &Place,
        timings: &mut Timings,
    ) -> anyhow::Result<(Option<ExecRequest>, Option<warren_client::sync::pack::SentFiles>)> {
        self.check().await?;
        if let (Some(_), Some(directory)) = (&self.guard, self.files.directory()) {
            let request = place.script(MAKE_DIRECTORY, &[directory], false);
            let made = exec::capture(self.client, request, tokio::io::empty(), tokio::io::sink()).await?;
            anyhow::ensure!(made.code == 0, "make `{directory}` in the sandbox: {}", made.complaint);
        }
        let sent = self.files.send(self.client, place).await?;
        if sent.is_some() {
            timings.mark("sync");
        }
        if self.arguments.sync_only {
            return Ok((None, sent));
        }
        if !self.variables.is_empty() {
            self.check().await?;
        }
        let file = match self.variables {
            "" => None,
            variables => match store_variables(self.client, place, variables).await {
                // In an image without a shell, the variables of the terminal are left out.
                Err(_) if self.arguments.env.is_empty() && self.arguments.toolchain.is_empty() => None,
                stored => Some(stored?),
            },
        };
        let program = words::program(&self.arguments.command);
        let request = ExecRequest {
            namespace: place.namespace.clone(),
            pod: place.pod.clone(),
            container: Some(place.container.clone()),
            command: words::prepared(program, file.as_deref(), self.directory()),
            stdin: self.tty || !terminal::stdin_is_null(),
            tty: self.tty,
        };
        Ok((Some(request), sent))
    }

    /// Returns the directory to change to, if the container does not start there.
    fn directory(&self) -> Option<&str> {
        let new = self.arguments.pool.is_none() && self.arguments.template.is_none() && self.guard.is_none();
        let directory = self.files.directory();
        directory.filter(|directory| !new || Some(*directory) != self.files.workdir())
    }
}

/// Makes the directory `$1`: without files, nothing else makes it in a lease's sandbox.
const MAKE_DIRECTORY: &str = r#"mkdir -p -- "$1""#;

/// Writes standard input to a file that only its owner may read, in memory where possible, and
/// prints its name.
const STORE: &str = r#"
umask 077
for directory in /dev/shm /tmp; do
    if { cat > "$directory/$1"; } 2>/dev/null; then echo "$directory"; exit 0; fi
done
echo 'neither /dev/shm nor /tmp can be written to' >&2
exit 1
"#;

/// Stores the variables in a file in the sandbox, and returns its path.
pub async fn store_variables(client: &Client, place: &Place, variables: &str) -> anyhow::Result<String> {
    let name = format!(".warren-{}", random_name());
    let mut directory = exec::Bounded::new(64);
    let request = place.script(STORE, &[&name], true);
    let captured = exec::capture(client, request, variables.as_bytes(), &mut directory).await?;
    let directory = String::from_utf8_lossy(&directory.kept).trim().to_owned();
    anyhow::ensure!(
        captured.code == 0 && matches!(directory.as_str(), "/dev/shm" | "/tmp"),
        "pass the environment to the sandbox: {}",
        captured.complaint
    );
    Ok(format!("{directory}/{name}"))
}

/// Runs a command with this process's streams and signals, and returns its exit code. Signals go to
/// commands that have `mark` in their environment; an empty mark means all commands in the
/// container.
pub async fn command(
    client: &Client,
    request: ExecRequest,
    timeout: Option<Duration>,
    mark: &str,
    signals: &mut Signals,
) -> anyhow::Result<i32> {
    let place = Place {
        namespace: request.namespace.clone(),
        pod: request.pod.clone(),
        container: request.container.clone().unwrap_or_default(),
    };
    let pumping = attach(client, request);
    tokio::pin!(pumping);
    let mut deadline = timeout.map(|timeout| tokio::time::Instant::now() + timeout);
    let mut gives_up_with = None;
    let mut requests_to_end = 0;
    loop {
        let end = deadline.unwrap_or_else(|| tokio::time::Instant::now() + Duration::from_secs(3600));
        let signal = tokio::select! {
            // The command's end wins, even if a signal comes at the same time.
            biased;
            code = &mut pumping => {
                let code = code?;
                return Ok(if gives_up_with == Some(TIMED_OUT) { TIMED_OUT } else { code });
            }
            signal = signals.next() => signal,
            () = tokio::time::sleep_until(end), if deadline.is_some() => {
                if let Some(code) = gives_up_with {
                    return Ok(code);
                }
                if let Some(timeout) = timeout {
                    eprintln!("error: the command took longer than {timeout:?}, and is ended");
                }
                gives_up_with = Some(TIMED_OUT);
                Signal::TERM
            }
        };
        let response = signal.response(requests_to_end);
        requests_to_end += usize::from(signal.ends());
        let passed_on = response == Response::Forward && forward(client, &place, signal, mark).await;
        if signal.ends() && !passed_on {
            return Ok(gives_up_with.unwrap_or(signal.exit_code()));
        }
        if signal.ends() && signal != Signal::INT {
            gives_up_with.get_or_insert(signal.exit_code());
            deadline = Some(tokio::time::Instant::now() + GRACE);
        }
    }
}

/// Sends a signal (`$1`) to the commands that were started from outside: their parent is not in the
/// sandbox. With `$2`, to their process groups, as a terminal does; with `$3`, only to those that
/// have it in their environment.
const FORWARD: &str = r#"
for directory in /proc/[0-9]*; do
    pid=${directory#/proc/}
    if [ "$pid" = 1 ] || [ "$pid" = $$ ]; then continue; fi
    if [ -n "$3" ] && ! grep -q "$3" "$directory/environ"; then continue; fi
    while read -r key value; do
        if [ "$key" = PPid: ]; then
            if [ "$value" = 0 ]; then
                { [ -n "$2" ] && kill -s "$1" -- "-$pid"; } 2>/dev/null || kill -s "$1" "$pid"
            fi
            break
        fi
    done < "$directory/status"
done 2>/dev/null
:
"#;

/// Forwards a signal to the command. Returns false if that failed.
async fn forward(client: &Client, place: &Place, signal: Signal, mark: &str) -> bool {
    let group = if signal.is_for_the_group() { "group" } else { "" };
    let request = place.script(FORWARD, &[signal.name(), group, mark], false);
    let sending = exec::capture(client, request, tokio::io::empty(), tokio::io::sink());
    let sent = tokio::time::timeout(FORWARD_PATIENCE, sending).await;
    matches!(sent, Ok(Ok(captured)) if captured.code == 0)
}

async fn attach(client: &Client, request: ExecRequest) -> Result<i32, ExecError> {
    let exec = Exec::start(client, request.clone()).await?;
    let ended = if request.stdin {
        pump(exec, request.tty, tokio::io::stdin()).await
    } else {
        let nothing: Empty = tokio::io::empty();
        pump(exec, request.tty, nothing).await
    };
    match ended {
        // `warren run -- yes | head` is a success of `head`; it ends as `yes` would have.
        Err(ExecError::Output { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe => {
            Ok(BROKEN_PIPE)
        }
        ended => ended,
    }
}

/// Connects the command's streams with this process's own.
async fn pump<I: AsyncRead + Unpin>(exec: Exec, tty: bool, stdin: I) -> Result<i32, ExecError> {
    // Without a terminal there are no sizes: the sender is dropped at once.
    let (_, never) = mpsc::channel(1);
    let (raw, resize) = match tty {
        true => (RawMode::enter().ok(), terminal::sizes().unwrap_or(never)),
        false => (None, never),
    };
    let ended =
        exec.run(Streams { stdin, stdout: tokio::io::stdout(), stderr: tokio::io::stderr(), resize }).await;
    drop(raw);
    ended
}

/// Makes an unnamed file, for an archive of unknown size.
pub fn temporary_file() -> std::io::Result<std::fs::File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(std::env::temp_dir(), flags, Mode::from_raw_mode(0o600))?.into())
}

/// Generates a name here instead of by `generateName`, so that it is known before the request is
/// sent.
pub fn random_name() -> String {
    let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(10).collect();
    format!("run-{}", random.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_are_valid() {
        let (one, other) = (random_name(), random_name());
        assert_ne!(one, other);
        assert!(one.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit()));
    }
}
