//! Something that can run `true` in isolation, and how to ask it to.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::legacy_cgroups::LegacyCgroups;

/// One way of running a command in isolation. Whatever it needs to stay alive between rounds (a daemon, a bundle on disk) is
/// held by the caller.
pub struct Contender {
    /// What the table calls it.
    pub name: &'static str,
    program: std::path::PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    place: Option<LegacyCgroups>,
}

impl Contender {
    /// A contender that is started by running `program` with `arguments`.
    pub fn new(
        name: &'static str,
        program: impl Into<std::path::PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Contender { name, program: program.into(), arguments, environment: Vec::new(), place: None }
    }

    /// Adds a variable to the environment it runs with.
    pub fn environment(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((key, value.into()));
        self
    }

    /// Has it run where there are only cgroups of version 1.
    pub fn place(mut self, place: Option<LegacyCgroups>) -> Self {
        self.place = place;
        self
    }

    /// Runs once, from before the process is made to after it has ended, and fails if it does.
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
