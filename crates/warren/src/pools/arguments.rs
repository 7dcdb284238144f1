//! Arguments of `warren pool` and `warren template`.

use clap::{Args, Subcommand};

use crate::cli::{Network, Output, Place};

/// `warren pool`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  warren template create tools --image debian:12 --memory 2Gi\n  \
                  warren pool create tools --template tools --replicas 3\n  warren run --pool tools -- make test")]
pub struct Pool {
    #[command(subcommand)]
    pub command: PoolCommand,
}

/// The subcommands of `pool`.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// List warm pools.
    List {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        output: Output,
    },
    /// Make a warm pool, which keeps sandboxes of a template ready.
    Create {
        #[command(flatten)]
        place: Place,
        /// The pool
        name: String,
        /// What its sandboxes are made from
        #[arg(long)]
        template: String,
        #[command(flatten)]
        replicas: Replicas,
    },
    /// Change how many sandboxes a pool keeps ready.
    Scale {
        #[command(flatten)]
        place: Place,
        /// The pool
        name: String,
        #[command(flatten)]
        replicas: Replicas,
    },
    /// Say how many sandboxes of a pool are ready; the exit code is 1 while some are missing.
    Status {
        #[command(flatten)]
        place: Place,
        /// The pool
        name: String,
        #[command(flatten)]
        output: Output,
    },
    /// Delete a pool, and the sandboxes that wait in it.
    #[command(alias = "rm")]
    Delete {
        #[command(flatten)]
        place: Place,
        /// The pool
        name: String,
    },
}

/// The size of a pool.
#[derive(Args, Clone, Copy, Debug)]
pub struct Replicas {
    /// How many sandboxes wait
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(0..))]
    pub replicas: i32,
}

/// `warren template`.
#[derive(Args, Debug)]
pub struct Template {
    #[command(subcommand)]
    pub command: TemplateCommand,
}

/// The subcommands of `template`.
#[derive(Debug, Subcommand)]
pub enum TemplateCommand {
    /// List templates.
    List {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        output: Output,
    },
    /// Make a template with one container.
    Create(Box<TemplateCreate>),
    /// Delete a template that no pool uses.
    #[command(alias = "rm")]
    Delete {
        #[command(flatten)]
        place: Place,
        /// The template
        name: String,
    },
}

/// `warren template create`.
#[derive(Args, Debug)]
pub struct TemplateCreate {
    #[command(flatten)]
    pub place: Place,
    /// The template
    pub name: String,
    #[command(flatten)]
    pub sandbox: Of,
}

/// What a sandbox of a template is like.
#[derive(Args, Debug)]
pub struct Of {
    /// The image [default in the local home: this machine's own `/usr`]
    #[arg(long)]
    pub image: Option<String>,
    /// Most memory it may use, as a Kubernetes quantity such as `512Mi`
    #[arg(long, value_name = "QUANTITY")]
    pub memory: Option<String>,
    /// Most processor time it may use, as a Kubernetes quantity such as `2` or `500m`
    #[arg(long, value_name = "QUANTITY")]
    pub cpus: Option<String>,
    /// Most it may write to the disk, as a Kubernetes quantity such as `2Gi`
    #[arg(long, value_name = "QUANTITY")]
    pub disk: Option<String>,
    /// Who runs it: the name of a RuntimeClass, such as `gvisor`
    #[arg(long, value_name = "CLASS")]
    pub runtime: Option<String>,
    /// What it reaches; without it, the home's default: named hosts through a proxy
    #[arg(long, value_enum, value_name = "MODE")]
    pub network: Option<Network>,
    /// A host that it may reach, instead of the default ones: a name, `*.` and a name, or a block of addresses
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub allow_host: Vec<String>,
    /// A port of those hosts, or several as `FIRST-LAST`, instead of 443 and 80
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    pub allow_port: Vec<String>,
    /// The directory its container starts in
    #[arg(long, short, value_name = "DIR")]
    pub workdir: Option<String>,
}
