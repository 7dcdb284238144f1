//! Chooses the destination of a command: the local home, or a named context of a kubeconfig.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use warren_client::connect;
use warren_client::home::{DataDir, Surroundings};
use warren_client::kube::Client;

use crate::config::{Config, Layer};
use crate::{cli, home};

/// A home of sandboxes.
#[derive(Clone, Debug)]
pub enum Target {
    /// The local home.
    Local(Box<cli::Home>),
    /// A cluster.
    Cluster {
        /// The kubeconfig, which may be several files.
        files: Vec<PathBuf>,
        /// The context. It is always named explicitly: the current one of a kubeconfig can change
        /// at any time.
        context: String,
    },
}

/// A target with its settings.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The home.
    pub target: Target,
    /// All settings.
    pub config: Config,
    /// The namespace.
    pub namespace: String,
}

/// The error of a missing context.
#[derive(Debug, thiserror::Error)]
#[error("a kubeconfig is named and no context in it")]
pub struct NoContext;

impl Destination {
    /// Chooses the target by flags and settings. `flags` are the settings for which the command has
    /// flags.
    pub fn choose(place: &cli::Place, mut flags: Layer) -> anyhow::Result<Self> {
        let kubeconfig = place.kubeconfig.as_ref().map(|path| path.to_string_lossy().into_owned());
        let said = [
            ("context", place.context.clone()),
            ("kubeconfig", kubeconfig),
            ("namespace", place.namespace.clone()),
        ];
        flags.extend(said.into_iter().filter_map(|(name, value)| Some((name, value?))));
        let mut config = Config::read(&flags)?;
        if place.local {
            config.leave_the_cluster();
        }
        let target = match (config.text("context"), config.text("kubeconfig")) {
            (None, None) => Target::Local(Box::new(place.home.clone())),
            (None, Some(_)) => return Err(NoContext.into()),
            (Some(context), file) => {
                let variable = std::env::var_os("KUBECONFIG");
                let files = kubeconfigs(file, variable, &Surroundings::of_this_process())?;
                Target::Cluster { files, context: context.to_owned() }
            }
        };
        let namespace = config.get("namespace").0.to_owned();
        Ok(Self { target, config, namespace })
    }

    /// Connects; starts the local home if it is not running.
    pub async fn connect(&self) -> anyhow::Result<Client> {
        match &self.target {
            Target::Local(place) => home::connect(place).await,
            Target::Cluster { files, context } => Ok(connect::from_kubeconfigs(files, context).await?),
        }
    }

    /// Returns true for the local home.
    pub fn is_local(&self) -> bool {
        matches!(self.target, Target::Local(_))
    }

    /// Returns the identity of the home on this machine: a data directory, or the files of a
    /// kubeconfig and the context.
    pub fn identity(&self) -> anyhow::Result<(String, String)> {
        match &self.target {
            Target::Local(place) => {
                Ok((home::data_dir(place)?.path().to_string_lossy().into_owned(), String::new()))
            }
            Target::Cluster { files, context } => {
                let files: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
                Ok((files.join(":"), context.clone()))
            }
        }
    }

    /// Returns the flags that name this home again, each with a blank before it.
    pub fn flags(&self) -> String {
        let namespace = match self.namespace.as_str() {
            connect::DEFAULT_NAMESPACE => String::new(),
            other => format!(" --namespace {other}"),
        };
        match &self.target {
            Target::Local(_) => namespace,
            Target::Cluster { context, .. } => format!(" --context {context}{namespace}"),
        }
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.target {
            Target::Local(place) => {
                let path = DataDir::locate(place.data_dir.as_deref(), &Surroundings::of_this_process());
                write!(formatter, "the local home in `{}`", path.unwrap_or_default().display())
            }
            Target::Cluster { context, .. } => write!(formatter, "context `{context}`"),
        }
    }
}

/// Returns the files of the kubeconfig: those of the setting, else those of `$KUBECONFIG`, else the
/// user's own. Each has to be absolute, so that no file of a repository becomes a cluster's
/// credentials.
fn kubeconfigs(
    setting: Option<&str>,
    variable: Option<OsString>,
    surroundings: &Surroundings,
) -> anyhow::Result<Vec<PathBuf>> {
    let named = setting.map(OsString::from).or(variable.filter(|value| !value.is_empty()));
    let home = surroundings.home.as_deref();
    let Some(named) = named else {
        let home = home.context("no kubeconfig is named, and there is no home directory to look for one")?;
        return Ok(vec![home.join(".kube/config")]);
    };
    let files = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    let expanded = files.map(|path| match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    });
    let files: Vec<PathBuf> = expanded.collect();
    if let Some(relative) = files.iter().find(|path| path.is_relative()) {
        anyhow::bail!("the kubeconfig `{}` is not named by an absolute path", Path::display(relative));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfigs_are_named_absolutely_and_the_nearest_saying_counts() {
        let surroundings =
            Surroundings { root: false, xdg_data_home: None, home: Some(PathBuf::from("/home/ada")) };
        let files = |setting: Option<&str>, variable: Option<&str>| {
            kubeconfigs(setting, variable.map(OsString::from), &surroundings)
        };
        assert_eq!(files(None, None).expect("valid"), [PathBuf::from("/home/ada/.kube/config")]);
        let both = [PathBuf::from("/a"), PathBuf::from("/home/ada/b")];
        assert_eq!(files(None, Some("/a:~/b")).expect("valid"), both);
        assert_eq!(files(Some("/c"), Some("/a")).expect("valid"), [PathBuf::from("/c")]);
        files(None, Some("./kubeconfig")).expect_err("relative");
        files(None, Some("/a:b")).expect_err("one is relative");
    }
}
