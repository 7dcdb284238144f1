//! `cargo xtask kube`: the command line of [`warren_testkit::kube`].

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use warren_testkit::kube::{
    Binaries, Cache, KUBERNETES_VERSION, Lifetime, Listed, Settings, Supervisor, claim_directory,
    directory_of, down, list, run_component,
};

#[derive(Subcommand)]
pub enum Task {
    /// Start a control plane and print the path of its kubeconfig.
    Up(Up),
    /// End a control plane and remove what it left on disk.
    Down(Down),
    /// Show the control planes in the cache.
    List(Place),
    /// Build the programs into the cache if they are not there, and print where they are.
    Build(Place),
    /// Be the supervisor of a control plane; `up` starts it.
    #[command(hide = true)]
    Supervise(Supervise),
    /// Become a component of a control plane; the supervisor starts it.
    #[command(hide = true)]
    RunComponent(RunComponent),
}

/// Where programs and control planes are kept.
#[derive(Args, Clone)]
pub struct Place {
    /// Directory for built programs and running control planes [default: `warren/kube` in the
    /// user's cache directory]
    #[arg(long, env = "WARREN_KUBE_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Directory with ready programs (`kube-apiserver`, `kubectl`, ...) to use instead of building
    /// them
    #[arg(long, env = "WARREN_KUBE_BIN", value_name = "DIR")]
    bin: Option<PathBuf>,
}

#[derive(Args)]
pub struct Up {
    #[command(flatten)]
    place: Place,
    /// Directory for this control plane; must be empty or absent [default: a new one in the cache]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Let etcd wait for the disk on each write, as in production; for benchmarks of durable writes
    #[arg(long)]
    fsync: bool,
    /// Stay, and end the control plane when standard input is closed
    #[arg(long)]
    until_stdin_closes: bool,
}

#[derive(Args)]
pub struct Down {
    #[command(flatten)]
    place: Place,
    /// The control plane's directory or kubeconfig [default: the only one that there is]
    #[arg(value_name = "DIR|KUBECONFIG", conflicts_with = "all")]
    target: Option<PathBuf>,
    /// End every control plane in the cache
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
pub struct Supervise {
    #[command(flatten)]
    place: Place,
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    fsync: bool,
}

#[derive(Args)]
pub struct RunComponent {
    #[arg(long)]
    supervisor: u32,
    program: PathBuf,
    #[arg(last = false, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Place {
    fn cache(&self) -> Result<Cache> {
        Ok(Cache::locate(self.cache.clone(), |name| std::env::var_os(name))?)
    }

    fn binaries(&self, cache: &Cache) -> Result<Binaries> {
        Ok(Binaries::ensure(cache, self.bin.as_deref(), std::env::var_os("PATH").as_ref())?)
    }
}

pub fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Up(up) if up.until_stdin_closes => up_until_stdin_closes(&up)?,
        Task::Up(up) => up_until_down(&up)?,
        Task::Down(arguments) => end(&arguments)?,
        Task::List(place) => show(&place.cache()?)?,
        Task::Build(place) => {
            let binaries = place.binaries(&place.cache()?)?;
            let directory = binaries.kube_apiserver.parent().unwrap_or(Path::new("/"));
            println!("{}", directory.display());
        }
        Task::Supervise(arguments) => supervise(&arguments)?,
        Task::RunComponent(component) => {
            let never = run_component(component.supervisor, &component.program, &component.arguments)
                .with_context(|| format!("become `{}`", component.program.display()))?;
            match never {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a control plane. This process is its supervisor.
fn up_until_stdin_closes(up: &Up) -> Result<()> {
    let cache = up.place.cache()?;
    let binaries = up.place.binaries(&cache)?;
    let directory = claim_directory(&cache, up.dir.as_deref())?;
    hold(Settings { binaries, directory, fsync: up.fsync, lifetime: Lifetime::UntilStdinCloses })
}

/// Starts a control plane whose supervisor continues after we have printed the path.
fn up_until_down(up: &Up) -> Result<()> {
    let started = Instant::now();
    let cache = up.place.cache()?;
    // Build here and not in the supervisor, so that the user sees the progress.
    up.place.binaries(&cache)?;
    let directory = claim_directory(&cache, up.dir.as_deref())?;
    match start_supervisor(up, &directory) {
        Ok(kubeconfig) => {
            eprintln!(
                "Kubernetes {KUBERNETES_VERSION} is ready after {:.1} s; `cargo xtask kube down {}` ends it",
                started.elapsed().as_secs_f32(),
                directory.display()
            );
            println!("{kubeconfig}");
            Ok(())
        }
        Err(error) => {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("remove `{}` after: {error:#}", directory.display()))?;
            Err(error)
        }
    }
}

fn start_supervisor(up: &Up, directory: &Path) -> Result<String> {
    let log = directory.join("supervisor.log");
    // Do not use the path: the file may be rebuilt while we build Kubernetes.
    let mut command = Command::new("/proc/self/exe");
    command.args(["kube", "supervise", "--dir"]).arg(directory);
    for (flag, value) in [("--cache", &up.place.cache), ("--bin", &up.place.bin)] {
        if let Some(value) = value {
            command.arg(flag).arg(value);
        }
    }
    if up.fsync {
        command.arg("--fsync");
    }
    let mut supervisor = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(&log).with_context(|| format!("create `{}`", log.display()))?)
        .spawn()
        .context("start the supervisor")?;
    let mut line = String::new();
    if let Some(stdout) = supervisor.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("read from the supervisor")?;
    }
    if line.is_empty() {
        // Wait for its end: until then it may write to the directory that our caller removes.
        supervisor.wait().context("wait for the supervisor")?;
        bail!("the control plane did not start: {}", fs::read_to_string(&log).unwrap_or_default().trim_end());
    }
    Ok(line.trim_end().to_owned())
}

fn supervise(arguments: &Supervise) -> Result<()> {
    // Leave the terminal's session, so that neither Ctrl-C nor the terminal's end reaches us.
    rustix::process::setsid().context("leave the terminal's session")?;
    let binaries = arguments.place.binaries(&arguments.place.cache()?)?;
    let directory = arguments.dir.clone();
    hold(Settings { binaries, directory, fsync: arguments.fsync, lifetime: Lifetime::UntilDown })
}

fn hold(settings: Settings) -> Result<()> {
    let supervisor = Supervisor::start(settings)?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", supervisor.kubeconfig().display())?;
    stdout.flush()?;
    Ok(supervisor.hold()?)
}

fn end(arguments: &Down) -> Result<()> {
    let run = arguments.place.cache()?.run();
    let targets = match &arguments.target {
        Some(target) => vec![directory_of(target)],
        None => {
            let all: Vec<PathBuf> = list(&run)?.into_iter().map(|listed| listed.directory).collect();
            if all.len() > 1 && !arguments.all {
                bail!(
                    "there are {} control planes in `{}`; name one, or all with `--all`",
                    all.len(),
                    run.display()
                );
            }
            if all.is_empty() {
                eprintln!("there is no control plane in `{}`", run.display());
            }
            all
        }
    };
    for directory in targets {
        down(&directory)?;
        eprintln!("ended the control plane in `{}`", directory.display());
    }
    Ok(())
}

fn show(cache: &Cache) -> Result<()> {
    let found = list(&cache.run())?;
    if found.is_empty() {
        eprintln!("there is no control plane in `{}`", cache.run().display());
    }
    for Listed { directory, record, running } in found {
        let state = if running { "running" } else { "ended" };
        println!(
            "{state}\t{}\t{}\t{}",
            record.version,
            record.server,
            directory.join("kubeconfig").display()
        );
    }
    Ok(())
}
