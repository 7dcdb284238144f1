//! The command line: every subcommand and flag, with the text that `--help` shows.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use warren_local::{HostPath, NamedRuntime};

use crate::{controller, node, oci};

/// Isolated, stateful sandboxes for AI agents, on this machine or on a cluster.
#[derive(Debug, Parser)]
#[command(name = "warren", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a sandbox of its own, and delete the sandbox afterwards.
    Run(Run),
    /// Start the local home: the API, the controllers and the node, in one process.
    Up(Up),
    /// Stop the local home.
    Down(Down),
    /// Run the controllers for a cluster, with the flags of agent-sandbox's controller.
    Controller(Box<controller::Flags>),
    /// Take pods of a cluster and run them on this machine, as its kubelet would.
    Node(Box<node::Node>),
    /// Serve sandboxes as MCP tools to an agent (`warren-service mcp`).
    #[command(disable_help_flag = true)]
    Mcp(Service),
    /// Bring images to the local home, list and remove them.
    Image(Image),
    /// Print where the kubeconfig of the local home is.
    Kubeconfig(Kubeconfig),
    /// Print manifests that were written for `v1alpha1` as `v1beta1`.
    Migrate(Migrate),
    /// Say what this machine lacks for sandboxes, and how to mend it.
    Doctor(Doctor),
    /// Run containers from bundles, as other OCI runtimes do (`runc`, `crun`).
    Oci(oci::Oci),
    /// Print the version.
    Version(Version),
    /// What `up --detach` starts: the local home without a terminal.
    #[command(hide = true)]
    Daemon(Daemon),
}

/// Where the local home is.
#[derive(Args, Clone, Debug)]
pub struct Home {
    /// The data directory [default: `/var/lib/warren` for root, else `$XDG_DATA_HOME/warren`]
    #[arg(long, env = "WARREN_HOME", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Arguments for `warren-service`, which has the help for them.
#[derive(Args, Debug)]
pub struct Service {
    /// Flags and subcommands; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<OsString>,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs; stable.
    Json,
}

/// The option that chooses a [`Format`].
#[derive(Args, Clone, Copy, Debug)]
pub struct Output {
    /// How to print the result
    #[arg(long, short, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
}

#[derive(Args, Debug)]
pub struct Run {
    #[command(flatten)]
    pub home: Home,
    /// Use the API that this kubeconfig names instead of the local home
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir")]
    pub kubeconfig: Option<PathBuf>,
    /// A name for the sandbox [default: `run-` and ten random characters]
    #[arg(long)]
    pub name: Option<String>,
    /// The namespace to create it in
    #[arg(long, short, default_value = warren_client::connect::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// The image; the default is this machine's own `/usr`, read-only, under a writable layer
    #[arg(long, default_value = "warren.dev/host")]
    pub image: String,
    /// Most memory it may use, as a Kubernetes quantity such as `512Mi`
    #[arg(long, value_name = "QUANTITY")]
    pub memory: Option<String>,
    /// Most processor time it may use, as a Kubernetes quantity such as `2` or `500m`
    #[arg(long, value_name = "QUANTITY")]
    pub cpus: Option<String>,
    /// Most it may write to the disk, as a Kubernetes quantity such as `2Gi`
    #[arg(long, value_name = "QUANTITY")]
    pub disk: Option<String>,
    /// What it reaches; without it, the home's default: named hosts through a proxy
    #[arg(long, value_enum, value_name = "MODE")]
    pub network: Option<Network>,
    /// A host that it may reach, instead of the default ones: a name, `*.` and a name, or a block of addresses
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub allow: Vec<String>,
    /// A port of those hosts, or several as `FIRST-LAST`, instead of 443 and 80
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    pub allow_port: Vec<String>,
    /// Set an environment variable; without a value, pass on the one from here
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// The directory to run the command in
    #[arg(long, short, value_name = "DIR")]
    pub workdir: Option<String>,
    /// How long to wait for the sandbox to become Ready
    #[arg(long, default_value = "60", value_name = "SECONDS")]
    pub ready_timeout: u64,
    /// Print how long each step took, to standard error
    #[arg(long)]
    pub timings: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// How much network a sandbox has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// Its own loopback
    None,
    /// Hosts that are allowed, through a proxy
    Restricted,
    /// Everything but this machine, its link and other pods
    Full,
}

impl Network {
    /// As the annotation has it.
    pub fn name(self) -> &'static str {
        match self {
            Network::None => "none",
            Network::Restricted => "restricted",
            Network::Full => "full",
        }
    }
}

#[derive(Args, Debug)]
pub struct Up {
    #[command(flatten)]
    pub home: Home,
    #[command(flatten)]
    pub listen: Listen,
    #[command(flatten)]
    pub registries: Registries,
    #[command(flatten)]
    pub runtimes: Runtimes,
    #[command(flatten)]
    pub host_paths: HostPaths,
    /// Return when the API is ready, and leave the home running in the background
    #[arg(long, short)]
    pub detach: bool,
    #[command(flatten)]
    pub output: Output,
}

/// Where the API listens, besides the socket in the data directory.
#[derive(Args, Clone, Debug)]
pub struct Listen {
    /// The address for kubectl and SDKs (TLS); port 0 takes a free one, the same as last time if possible
    #[arg(long, env = "WARREN_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
}

#[derive(Args, Debug)]
pub struct Down {
    #[command(flatten)]
    pub home: Home,
    /// Leave the processes of the sandboxes running; the next `warren up` finds them
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub output: Output,
}

/// How images are pulled from registries.
#[derive(Args, Clone, Debug)]
pub struct Registries {
    /// A registry that is spoken to without TLS, as images name it; those on loopback always are
    #[arg(long, env = "WARREN_INSECURE_REGISTRIES", value_name = "HOST[:PORT]", value_delimiter = ',')]
    pub insecure_registry: Vec<String>,
}

/// Who runs pods, besides ourselves.
#[derive(Args, Clone, Debug)]
pub struct Runtimes {
    /// Another OCI runtime, for pods with this `runtimeClassName`; `runsc` is `gvisor` by itself where it is found
    #[arg(long, env = "WARREN_RUNTIMES", value_name = "NAME=PATH", value_delimiter = ',')]
    pub runtime: Vec<NamedRuntime>,
}

/// What pods may have of this machine.
#[derive(Args, Clone, Debug)]
pub struct HostPaths {
    /// Pods may have this directory, and what is in it, as `hostPath` volumes: for reading, or with `:rw` for writing, too
    #[arg(long, env = "WARREN_ALLOW_HOST_PATHS", value_name = "DIR[:rw]", value_delimiter = ',')]
    pub allow_host_path: Vec<HostPath>,
}

#[derive(Args, Debug)]
pub struct Image {
    #[command(subcommand)]
    pub command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Take in the images of an archive: an OCI layout, or what `docker save` and `podman save` write.
    Import(ImageImport),
    /// Fetch an image from its registry, or what has changed of it.
    Pull(ImagePull),
    /// List the images.
    List(ImageList),
    /// Remove images; what containers still stand on stays until they are gone.
    Remove(ImageRemove),
}

#[derive(Args, Debug)]
pub struct ImageImport {
    #[command(flatten)]
    pub home: Home,
    /// The archive, a directory with an OCI layout, or `-` for standard input
    #[arg(value_name = "FILE|DIR")]
    pub archive: PathBuf,
    /// What to call the image, if the archive does not say or says something else
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct ImagePull {
    #[command(flatten)]
    pub home: Home,
    /// The image, such as `busybox`, `registry.example:5000/owner/tool:1.2` or `busybox@sha256:…`
    pub name: String,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct ImageList {
    #[command(flatten)]
    pub home: Home,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct ImageRemove {
    #[command(flatten)]
    pub home: Home,
    /// The images
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

#[derive(Args, Debug)]
pub struct Kubeconfig {
    #[command(flatten)]
    pub home: Home,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Migrate {
    /// Files with one or more YAML documents each; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Doctor {
    #[command(flatten)]
    pub home: Home,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Version {
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Daemon {
    #[command(flatten)]
    pub home: Home,
    #[command(flatten)]
    pub listen: Listen,
    #[command(flatten)]
    pub registries: Registries,
    #[command(flatten)]
    pub runtimes: Runtimes,
    #[command(flatten)]
    pub host_paths: HostPaths,
}
