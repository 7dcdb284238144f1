//! The state of a container between two commands: a directory with its record, its configuration as
//! it was at creation, and the socket for `start`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::config::Config;
use super::{Error, Step as _};
use crate::protocol::ProcessName;

/// The state of a container in the format of `state` and of hooks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The version of the specification that its configuration uses.
    pub oci_version: String,
    /// The name.
    pub id: String,
    /// The status.
    pub status: Status,
    /// The host's process id of its first process, or 0 if it is stopped.
    pub pid: i32,
    /// The bundle's directory.
    pub bundle: PathBuf,
    /// The annotations of its configuration.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The status of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It is being created.
    Creating,
    /// It is ready, and its program has not run.
    Created,
    /// Its program runs.
    Running,
    /// Its program has ended.
    Stopped,
}

impl std::fmt::Display for Status {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Creating => "creating",
            Self::Created => "created",
            Self::Running => "running",
            Self::Stopped => "stopped",
        })
    }
}

/// The record on disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) bundle: PathBuf,
    pub(super) cgroup: String,
    /// Its first process, once it exists.
    pub(super) process: Option<ProcessName>,
}

#[derive(Debug, Clone)]
pub(super) struct Place(pub(super) PathBuf);

impl Place {
    pub(super) fn socket(&self) -> PathBuf {
        self.0.join("start.sock")
    }

    /// Returns the path of a file that exists once the program was run.
    fn started(&self) -> PathBuf {
        self.0.join("started")
    }

    pub(super) fn set_started(&self) -> Result<(), Error> {
        fs::write(self.started(), "").step(|| "note that it was started".to_owned())
    }

    pub(super) fn write_config(&self, config: &Config) -> Result<(), Error> {
        let step = || "keep the configuration".to_owned();
        let bytes = serde_json::to_vec(config).map_err(std::io::Error::from).step(step)?;
        fs::write(self.0.join("config.json"), bytes).step(step)
    }

    pub(super) fn config(&self) -> Result<Config, Error> {
        let step = || "read the kept configuration".to_owned();
        let bytes = fs::read(self.0.join("config.json")).step(step)?;
        serde_json::from_slice(&bytes).map_err(std::io::Error::from).step(step)
    }

    /// Replaces the record atomically.
    pub(super) fn write(&self, record: &Record) -> Result<(), Error> {
        let step = || "write state.json".to_owned();
        let unfinished = self.0.join("state.json.unfinished");
        let bytes = serde_json::to_vec(record).map_err(std::io::Error::from).step(step)?;
        fs::write(&unfinished, bytes).step(step)?;
        fs::rename(&unfinished, self.0.join("state.json")).step(step)
    }

    pub(super) fn record(&self, id: &str) -> Result<Record, Error> {
        match fs::read(self.0.join("state.json")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::Unknown(id.to_owned())),
            other => {
                let step = || format!("read the state of `{id}`");
                serde_json::from_slice(&other.step(step)?).map_err(std::io::Error::from).step(step)
            }
        }
    }

    pub(super) fn status(&self, record: &Record) -> Status {
        match record.process {
            None => Status::Creating,
            Some(process) if !runs(process) => Status::Stopped,
            Some(_) if self.started().exists() => Status::Running,
            Some(_) => Status::Created,
        }
    }

    pub(super) fn state(&self, record: &Record, config: &Config) -> State {
        let status = self.status(record);
        let pid = record.process.filter(|_| status != Status::Stopped).map_or(0, |process| process.pid);
        State {
            oci_version: config.oci_version.clone(),
            id: record.id.clone(),
            status,
            pid,
            bundle: record.bundle.clone(),
            annotations: config.annotations.clone(),
        }
    }
}

/// Returns true if exactly this process exists and has not ended. A zombie has ended.
pub(super) fn runs(process: ProcessName) -> bool {
    let has_ended = fs::read_to_string(Path::new("/proc").join(process.pid.to_string()).join("stat"))
        .ok()
        .and_then(|stat| Some(stat.rsplit_once(") ")?.1.starts_with(['Z', 'X'])))
        .unwrap_or(true);
    !has_ended && process.is_alive()
}
