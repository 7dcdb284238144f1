//! Settings that an administrator can change: their keys and fields.

use serde::Deserialize;
use serde_json::Value;
use warren_providers::{Wanted, check_image};

use super::answer::Failure;
use super::database::Database;
use crate::cli::ProviderName;

/// The key of [`Defaults`], for sandboxes for which a client names nothing.
pub const DEFAULTS: &str = "sandbox.defaults";
/// The cluster.
pub const KUBERNETES: &str = "sandbox.kubernetes";
/// The key of [`Mode`].
pub const MODE: &str = "sandbox.mode";

/// The key of [`Runner`].
pub const RUNNER: &str = "agent.runner";
/// The key of the directories in which repositories of runs may be.
pub const REPOSITORIES: &str = "agent.repositories";

/// The project whose sandbox is shared.
pub const SHARED_PROJECT: &str = "default";

/// Fields of [`DEFAULTS`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Defaults {
    /// The provider that runs sandboxes. A change takes effect at the next start.
    pub provider: Option<ProviderName>,
    /// Their image.
    pub image: Option<String>,
    /// Their memory, in MiB.
    pub memory_mb: Option<u32>,
    /// Their processors.
    pub cpu_cores: Option<f64>,
}

/// Fields of [`KUBERNETES`]; they take effect at the next start.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Kubernetes {
    /// The namespace.
    pub namespace: Option<String>,
    /// The kubeconfig; `~/.kube/config` if none is named.
    pub kube_config_path: Option<std::path::PathBuf>,
    /// The context in it.
    pub kube_context: Option<String>,
    /// The class of runtime that sandboxes run on; `none` for the cluster's default.
    pub runtime_class_name: Option<String>,
    /// The image of sandboxes.
    pub image: Option<String>,
}

/// The assignment of sandboxes to projects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// All projects use one.
    Shared,
    /// Each project has its own.
    #[default]
    PerProject,
}

/// The runner of agents, for runs that name none.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Runner {
    /// Its program.
    pub cmd: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// The directory it runs in.
    pub cwd: Option<String>,
    /// The time that it may take.
    pub timeout_ms: Option<u64>,
}

/// Checks a setting before it is stored.
pub fn check(key: &str, value: &Value) -> Result<(), Failure> {
    let invalid =
        |error: serde_json::Error| Failure::invalid("value", format!("is not a valid `{key}`: {error}"));
    // A list would be read as the fields in their order.
    if matches!(key, DEFAULTS | KUBERNETES | RUNNER) && !value.is_object() {
        return Err(Failure::invalid("value", format!("is not a valid `{key}`: it has to be an object")));
    }
    match key {
        DEFAULTS => {
            let defaults: Defaults = serde_json::from_value(value.clone()).map_err(invalid)?;
            Ok(apply(Wanted::default(), &defaults).check()?)
        }
        KUBERNETES => {
            let kubernetes: Kubernetes = serde_json::from_value(value.clone()).map_err(invalid)?;
            if let Some(image) = &kubernetes.image {
                check_image(image)?;
            }
            Ok(())
        }
        MODE => serde_json::from_value::<Mode>(value.clone()).map(drop).map_err(invalid),
        RUNNER => super::agent_runs::check_runner(serde_json::from_value(value.clone()).map_err(invalid)?),
        REPOSITORIES => {
            let named: Vec<std::path::PathBuf> = serde_json::from_value(value.clone()).map_err(invalid)?;
            super::agent_runs::check_allowed(&named)
        }
        _ => {
            let known = format!("`{DEFAULTS}`, `{KUBERNETES}`, `{MODE}`, `{RUNNER}` and `{REPOSITORIES}`");
            Err(Failure::invalid("key", format!("is none of {known}")))
        }
    }
}

/// Fills in what a client did not name. A pool or a template has its own.
pub fn apply(mut wanted: Wanted, defaults: &Defaults) -> Wanted {
    if wanted.pool.is_none() && wanted.template.is_none() {
        wanted.image = wanted.image.or_else(|| defaults.image.clone());
        wanted.memory_mb = wanted.memory_mb.or(defaults.memory_mb);
        wanted.cpu_cores = wanted.cpu_cores.or(defaults.cpu_cores);
    }
    wanted
}

/// Reads a setting; its default if it is not set.
pub async fn read<T: Default + for<'a> Deserialize<'a>>(
    database: &Database,
    key: &str,
) -> Result<T, Failure> {
    let value = database.settings().await?.remove(key);
    // Checked when it was stored; an older version may have stored something else.
    Ok(value.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_checked_before_they_are_stored() {
        for (key, value) in [
            (DEFAULTS, json!({ "provider": "warren", "memoryMb": 2048, "cpuCores": 2, "image": "busybox" })),
            (KUBERNETES, json!({ "namespace": "a", "kubeContext": "b", "runtimeClassName": "gvisor" })),
            (DEFAULTS, json!({ "provider": "docker" })),
            (RUNNER, json!({ "cmd": "agent", "args": ["--json"], "cwd": "/work", "timeoutMs": 60_000 })),
            (MODE, json!("shared")),
            (MODE, json!("per-project")),
        ] {
            assert_eq!(check(key, &value), Ok(()), "{key} {value}");
        }
        for (key, value, word) in [
            (DEFAULTS, json!({ "memoryMb": 1 }), "512 to 32768"),
            (DEFAULTS, json!({ "provider": "other" }), "unknown variant"),
            (DEFAULTS, json!([]), "not a valid"),
            (MODE, json!("both"), "unknown variant"),
            (RUNNER, json!({ "args": ["x"] }), "`args` goes with `cmd`"),
            (RUNNER, json!({ "cmd": "x", "cwd": "relative" }), "`cwd`"),
            (RUNNER, json!({ "timeoutMs": 1 }), "`timeoutMs`"),
            (RUNNER, json!({ "env": {} }), "unknown field"),
            (REPOSITORIES, json!(["relative"]), "absolute"),
            (REPOSITORIES, json!(["/"]), "below the root"),
            ("sandbox.other", json!({}), "`key`"),
        ] {
            let failure = check(key, &value).expect_err("refused");
            assert!(failure.message.contains(word), "{key} {value}: {}", failure.message);
        }
    }

    #[test]
    fn defaults_fill_in_what_is_not_named() {
        let defaults = Defaults { image: Some("a".to_owned()), memory_mb: Some(1024), ..Defaults::default() };
        let named = Wanted { image: Some("b".to_owned()), ..Wanted::default() };
        let applied = apply(named, &defaults);
        assert_eq!((applied.image.as_deref(), applied.memory_mb), (Some("b"), Some(1024)));
        let pool = Wanted { pool: Some("p".to_owned()), ..Wanted::default() };
        assert_eq!(apply(pool.clone(), &defaults), pool);
    }
}
