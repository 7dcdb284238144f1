//! Settings from flags, the environment, the project's `warren.toml` and the user's `config.toml`,
//! in this order.
//!
//! Files of a repository are not trusted. They may not choose the cluster, its credentials, the
//! workload that source and values are sent to, or a program. [`KEYS`] says which settings they may
//! have.

mod files;
mod show;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use show::show;

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// Its name in files; flags are the same with `--`, variables with `WARREN_`.
    pub name: &'static str,
    /// The value if it is not set.
    pub default: &'static str,
    /// True if a file in a repository may set it.
    pub project: bool,
    /// Returns the problem of a value.
    check: fn(&str) -> Result<(), String>,
}

/// All settings.
pub const KEYS: [Key; 16] = [
    Key { name: "context", default: "", project: false, check: anything },
    Key { name: "kubeconfig", default: "", project: false, check: absolute_paths },
    Key { name: "namespace", default: "default", project: false, check: plain_name },
    Key { name: "pool", default: "", project: false, check: plain_name },
    Key { name: "container", default: "", project: false, check: plain_name },
    Key { name: "workdir", default: "", project: false, check: work_directory },
    Key { name: "sandbox-ready-timeout", default: "180s", project: true, check: is_duration },
    Key { name: "pod-ready-timeout", default: "180s", project: true, check: is_duration },
    Key { name: "exec-timeout", default: "600s", project: true, check: is_duration },
    Key { name: "delete-on-release", default: "true", project: true, check: is_bool },
    Key { name: "forget-missing", default: "false", project: false, check: is_bool },
    Key { name: "ttl", default: "1h", project: true, check: is_duration },
    Key { name: "idle-timeout", default: "30m", project: true, check: is_duration },
    Key { name: "sync-delete", default: "false", project: true, check: is_bool },
    Key { name: "presets", default: "", project: false, check: are_presets },
    Key { name: "exclude", default: "", project: true, check: anything },
];

/// Settings that name objects of one cluster.
const OF_A_CLUSTER: [&str; 5] = ["context", "kubeconfig", "namespace", "pool", "container"];

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is not set.
    Default,
    /// The user's file.
    User(PathBuf),
    /// The file of the project.
    Project(PathBuf),
    /// A variable of the environment.
    Environment(String),
    /// A flag.
    Flag(String),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Default => formatter.write_str("default"),
            Origin::User(path) | Origin::Project(path) => write!(formatter, "{}", path.display()),
            Origin::Environment(name) => write!(formatter, "${name}"),
            Origin::Flag(name) => write!(formatter, "--{name}"),
        }
    }
}

/// The error of a setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value is refused.
    #[error("{origin}: `{key}` is `{value}`: {fault}")]
    Value {
        /// The origin of the value.
        origin: Origin,
        /// The setting.
        key: &'static str,
        /// The value.
        value: String,
        /// The problem of the value.
        fault: String,
    },
    /// The setting does not exist.
    #[error("`{}`: there is no setting `{key}`; `warren config show` lists them", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A file of a repository may not set this.
    #[error(
        "`{}` may not set `{key}`: a file in a repository chooses no cluster, no workload and no program",
        path.display()
    )]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A file cannot be read.
    #[error("read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The underlying I/O error.
        #[source]
        source: std::io::Error,
    },
    /// A file is not TOML.
    #[error("`{}` is no TOML: {fault}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The problem of the file.
        fault: String,
    },
}

/// The values of one layer, by the names of settings.
pub type Layer = BTreeMap<&'static str, String>;

/// The effective settings, each with its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    values: BTreeMap<&'static str, (String, Origin)>,
}

impl Config {
    /// Merges layers. `environment` looks up a variable; `flags` win over everything.
    pub fn merge(
        user: Option<(&Path, Layer)>,
        project: Option<(&Path, Layer)>,
        environment: impl Fn(&str) -> Option<String>,
        flags: &Layer,
    ) -> Result<Self, ConfigError> {
        let mut values = BTreeMap::new();
        for key in &KEYS {
            let said = |layer: &Option<(&Path, Layer)>, origin: fn(PathBuf) -> Origin| {
                let (path, layer) = layer.as_ref()?;
                Some((layer.get(key.name)?.clone(), origin(path.to_path_buf())))
            };
            let variable = variable(key.name);
            let from_here = || {
                let value = environment(&variable).filter(|value| !value.is_empty())?;
                Some((value, Origin::Environment(variable.clone())))
            };
            let flag = flags.get(key.name).map(|value| (value.clone(), Origin::Flag(key.name.to_owned())));
            if let (Some((path, layer)), false) = (&project, key.project)
                && layer.contains_key(key.name)
            {
                return Err(ConfigError::Untrusted { path: path.to_path_buf(), key: key.name.to_owned() });
            }
            let found = flag
                .or_else(from_here)
                .or_else(|| said(&project, Origin::Project))
                .or_else(|| said(&user, Origin::User))
                .unwrap_or_else(|| (key.default.to_owned(), Origin::Default));
            if let Err(fault) = (key.check)(&found.0) {
                return Err(ConfigError::Value { origin: found.1, key: key.name, value: found.0, fault });
            }
            values.insert(key.name, found);
        }
        Ok(Self { values })
    }

    /// Reads the files and the environment of this process, and merges them with flags.
    pub fn read(flags: &Layer) -> Result<Self, ConfigError> {
        files::read(flags)
    }

    /// Returns a value and its origin.
    pub fn get(&self, name: &'static str) -> (&str, &Origin) {
        self.values.get(name).map_or(("", &Origin::Default), |(value, origin)| (value, origin))
    }

    /// Returns a value; `None` if it is empty.
    pub fn text(&self, name: &'static str) -> Option<&str> {
        Some(self.get(name).0).filter(|value| !value.is_empty())
    }

    /// Returns a duration.
    pub fn duration(&self, name: &'static str) -> Duration {
        duration(self.get(name).0).unwrap_or_default()
    }

    /// Returns a switch.
    pub fn is(&self, name: &'static str) -> bool {
        self.get(name).0 == "true"
    }

    /// Returns a list.
    pub fn list(&self, name: &'static str) -> Vec<String> {
        self.text(name).map(|text| text.lines().map(str::to_owned).collect()).unwrap_or_default()
    }

    /// Replaces names of presets by their hosts. Other words stay as they are.
    pub fn hosts(&self, wanted: &[String]) -> Vec<String> {
        let presets: BTreeMap<&str, &str> =
            self.get("presets").0.lines().filter_map(|line| line.split_once('=')).collect();
        let hosts = wanted.iter().flat_map(|word| match presets.get(word.as_str()) {
            Some(hosts) => hosts.split(',').map(str::to_owned).collect(),
            None => vec![word.clone()],
        });
        hosts.collect()
    }

    /// Resets the settings about a cluster, except those from flags.
    pub fn leave_the_cluster(&mut self) {
        for key in KEYS.iter().filter(|key| OF_A_CLUSTER.contains(&key.name)) {
            if !matches!(self.get(key.name).1, Origin::Flag(_)) {
                self.values.insert(key.name, (key.default.to_owned(), Origin::Default));
            }
        }
    }

    /// Returns true if the setting comes from anywhere but its default.
    pub fn is_said(&self, name: &'static str) -> bool {
        *self.get(name).1 != Origin::Default
    }
}

fn variable(name: &str) -> String {
    format!("WARREN_{}", name.to_ascii_uppercase().replace('-', "_"))
}

/// Parses a duration such as `90s`, or a number of seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => warren_api::go_duration::parse(text).map_err(|error| error.to_string())?,
    };
    match duration <= LONGEST {
        true => Ok(duration),
        false => Err("it is longer than ten years".to_owned()),
    }
}

/// The longest duration: clocks can add it to the present time.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

fn anything(_: &str) -> Result<(), String> {
    Ok(())
}

/// Checks presets: lines of a name, `=`, and hosts separated by commas. A name must not contain a
/// dot: it could be a host's.
fn are_presets(value: &str) -> Result<(), String> {
    let plain = |name: &str| {
        !name.is_empty() && name.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'-')
    };
    let is_one =
        |line: &str| line.split_once('=').is_some_and(|(name, hosts)| plain(name) && !hosts.is_empty());
    match value.lines().all(is_one) {
        true => Ok(()),
        false => Err("a preset has a name of letters, digits and `-`, and a list of hosts".to_owned()),
    }
}

fn plain_name(value: &str) -> Result<(), String> {
    match value.chars().any(|letter| letter.is_whitespace() || letter == '/') {
        true => Err("it may have no blanks and no `/`".to_owned()),
        false => Ok(()),
    }
}

fn absolute_paths(value: &str) -> Result<(), String> {
    let relative = |path: &&str| !path.starts_with('/') && !path.starts_with("~/");
    match value.split(':').filter(|path| !path.is_empty()).find(relative) {
        Some(_) => Err("name it by an absolute path".to_owned()),
        None => Ok(()),
    }
}

fn work_directory(value: &str) -> Result<(), String> {
    match value.is_empty() {
        true => Ok(()),
        false => warren_client::sync::check_directory(value).map_err(|error| error.to_string()),
    }
}

fn is_duration(value: &str) -> Result<(), String> {
    duration(value).map(drop)
}

fn is_bool(value: &str) -> Result<(), String> {
    match value {
        "true" | "false" => Ok(()),
        _ => Err("it is `true` or `false`".to_owned()),
    }
}

#[cfg(test)]
mod tests;
