//! Finds, checks and starts the local home.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use warren_client::connect::{self, ConnectError};
use warren_client::home::{DataDir, Surroundings};
use warren_client::kube::Client;
use warren_local::Settings;

use crate::cli;
use crate::log;
use crate::progress;

/// The only line that a detached daemon writes to its standard output, for the process that started
/// it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", tag = "outcome")]
pub enum Report {
    /// The API answers.
    Ready {
        /// The daemon's process.
        pid: u32,
    },
    /// Another daemon is running, and its API answers.
    Running {
        /// That daemon's process.
        pid: u32,
        /// The settings that it was started with, if it reports them.
        settings: Option<Settings>,
    },
    /// It did not start.
    Failed {
        /// The error with its causes.
        error: String,
    },
}

/// The error of a request about a home that was never started.
#[derive(Debug, thiserror::Error)]
#[error("no local home has been started in `{}`", directory.display())]
pub struct NeverStarted {
    /// The data directory.
    pub directory: PathBuf,
}

/// Returns the data directory that the arguments and the environment name; makes it if it is
/// missing.
pub fn data_dir(home: &cli::Home) -> anyhow::Result<DataDir> {
    let path = DataDir::locate(home.data_dir.as_deref(), &Surroundings::of_this_process())?;
    Ok(DataDir::create(&path)?)
}

/// Connects to the local home; starts it first if it is not running.
pub async fn connect(home: &cli::Home) -> anyhow::Result<Client> {
    let data_dir = data_dir(home)?;
    match connect::local(&data_dir).await {
        Err(ConnectError::NotRunning { .. }) => {}
        result => return Ok(result?),
    }
    let directory = data_dir.clone();
    let start = tokio::task::spawn_blocking(move || start(&directory, None));
    progress::show_if_slow(|| format!("starting the local home in `{}`", data_dir.path().display()), start)
        .await
        .context("start the local home")??;
    Ok(connect::local(&data_dir).await?)
}

/// Starts a daemon in the background and returns when its API is ready. If two are started at once,
/// one of them stays, and both callers see a running home.
pub fn start(
    data_dir: &DataDir,
    flags: Option<(&cli::Listen, &cli::Registries, &cli::Runtimes, &cli::HostPaths)>,
) -> anyhow::Result<Report> {
    let log_path = data_dir.daemon_log();
    let log = log::open(&log_path).with_context(|| format!("open `{}`", log_path.display()))?;
    let program = std::env::current_exe().context("find this program's own file")?;
    let mut command = Command::new(&program);
    command.arg("daemon").arg("--data-dir").arg(data_dir.path());
    if let Some((listen, registries, runtimes, host_paths)) = flags {
        if let Some(address) = listen.listen {
            command.arg("--listen").arg(address.to_string());
        }
        if let Some(address) = listen.router_listen {
            command.arg("--router-listen").arg(address.to_string());
        }
        for registry in &registries.insecure_registry {
            command.arg("--insecure-registry").arg(registry);
        }
        for runtime in &runtimes.runtime {
            let mut named = OsString::from(format!("{}=", runtime.name));
            named.push(&runtime.path);
            command.arg("--runtime").arg(named);
        }
        for path in &host_paths.allow_host_path {
            command.arg("--allow-host-path").arg(path.to_string());
        }
    }
    let mut child = command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .with_context(|| format!("start `{}`", program.display()))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        // The pipe closes when the daemon ends, so this returns in either case.
        BufReader::new(stdout).read_line(&mut line).context("wait for the daemon")?;
    }
    match serde_json::from_str(&line) {
        Ok(Report::Failed { error }) => {
            let _ = child.wait();
            bail!("{error}")
        }
        Ok(report) => {
            if matches!(report, Report::Running { .. }) {
                let _ = child.wait();
            }
            Ok(report)
        }
        Err(_) => {
            let status = child.wait().context("wait for the daemon")?;
            bail!(
                "the daemon ended with {status} before it was ready; `{}` has its last words",
                log_path.display()
            )
        }
    }
}
