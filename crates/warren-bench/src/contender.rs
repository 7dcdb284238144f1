//! A way to run `true` in isolation.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::legacy_cgroups::LegacyCgroups;

/// One way to run a command in isolation. The caller keeps what it needs between rounds (a daemon,
/// a bundle on disk).
pub struct Contender {
    /// The name in the table.
    pub name: &'static str,
    program: std::path::PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    place: Option<LegacyCgroups>,
}

impl Contender {
    /// Creates a contender that runs `program` with `arguments`.
    pub fn new(
        name: &'static str,
        program: impl Into<std::path::PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Contender { name, program: program.into(), arguments, environment: Vec::new(), place: None }
    }

    /// Adds an environment variable.
    pub fn environment(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((key, value.into()));
        self
    }

    /// Makes it run where only version 1 of cgroups is visible.
    pub fn place(mut self, place: Option<LegacyCgroups>) -> Self {
        self.place = place;
        self
    }

    /// Runs once. Returns the time from before the process is made to after it has ended. Fails if
    /// the process does.
    pub fn time_once(&self) -> anyhow::Result<Duration> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        let started = Instant::now();
        let spawned = match &self.place {
            Some(place) => place.spawn(command),
            None => command.spawn().map_err(Into::into),
        };
        let output =
            spawned.with_context(|| format!("start {}", self.program.display()))?.wait_with_output()?;
        let elapsed = started.elapsed();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{} ended with {}: {}", self.name, output.status, said.trim());
        }
        Ok(elapsed)
    }
}
