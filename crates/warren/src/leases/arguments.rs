//! Arguments of the commands for leases.

use std::time::Duration;

use clap::Args;

use crate::cli::{Output, Place};
use crate::config::{self, Layer};

/// Examples for `warren warmup --help`.
const WARMUP_EXAMPLES: &str = "\
Examples:
  warren warmup --id mine                          a sandbox of this machine's own image
  warren warmup --id mine --pool python --ttl 2h   one that waits in a warm pool
  warren run --id mine -- cargo test               run in it, as often as you like
  warren stop mine";

/// `warren warmup`.
#[derive(Args, Debug)]
#[command(after_help = WARMUP_EXAMPLES)]
pub struct Warmup {
    #[command(flatten)]
    pub place: Place,
    /// What to call the lease: lower-case letters, digits and `-` [default: `lease-` and six random characters]
    #[arg(long, alias = "slug", value_name = "SLUG")]
    pub id: Option<String>,
    /// Take a sandbox of this warm pool
    #[arg(long, value_name = "POOL")]
    pub pool: Option<String>,
    /// Make a sandbox from this template
    #[arg(long, value_name = "TEMPLATE", conflicts_with = "pool")]
    pub template: Option<String>,
    /// Make a sandbox from this image [default in the local home: this machine's own `/usr`]
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["pool", "template"])]
    pub image: Option<String>,
    /// The container in which commands run [default: the pod's default container]
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// The directory that files are sent to and commands run in [default: `/workspace`]
    #[arg(long, short, value_name = "DIR")]
    pub workdir: Option<String>,
    /// End the sandbox after this time, such as `90m` [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub ttl: Option<Duration>,
    /// How long to wait for the sandbox to become Ready, such as `90s` [default: 180s]
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub ready_timeout: Option<Duration>,
    #[command(flatten)]
    pub output: Output,
}

impl Warmup {
    /// Returns the settings that are given by flags.
    pub fn flags(&self) -> Layer {
        let seconds =
            |duration: Option<Duration>| duration.map(|duration| format!("{}ms", duration.as_millis()));
        let said = [
            ("pool", self.pool.clone()),
            ("container", self.container.clone()),
            ("workdir", self.workdir.clone()),
            ("ttl", seconds(self.ttl)),
            ("sandbox-ready-timeout", seconds(self.ready_timeout)),
        ];
        said.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// `warren status`.
#[derive(Args, Debug)]
pub struct Status {
    #[command(flatten)]
    pub place: Place,
    /// Wait until it is Ready, or cannot become Ready any more
    #[arg(long)]
    pub wait: bool,
    /// The lease: its slug or its id
    #[arg(value_name = "SLUG")]
    pub lease: String,
    #[command(flatten)]
    pub output: Output,
}

/// Forgetting leases whose object the server does not have.
#[derive(Args, Clone, Copy, Debug)]
pub struct Forget {
    /// Forget leases whose object is not there; make sure first that this is the right cluster
    #[arg(long)]
    pub forget_missing: bool,
}

impl Forget {
    /// Returns the setting that is given by the flag.
    pub fn flags(self) -> Layer {
        let said = self.forget_missing.then(|| ("forget-missing", "true".to_owned()));
        said.into_iter().collect()
    }
}

/// `warren stop`.
#[derive(Args, Debug)]
pub struct Stop {
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub forget: Forget,
    /// The leases: their slugs or ids
    #[arg(required = true, value_name = "SLUG")]
    pub leases: Vec<String>,
}

/// `warren cleanup`.
#[derive(Args, Debug)]
pub struct Cleanup {
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub forget: Forget,
    /// Remove leases that no command has used for so long [default: 30m]
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub idle_timeout: Option<Duration>,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Output,
}
