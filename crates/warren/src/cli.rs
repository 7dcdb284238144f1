//! The command line: every subcommand and flag, with the text that `--help` shows.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use warren_local::{HostPath, NamedRuntime};

use crate::run::{Mount, Publication, Toolchain};
use crate::tasks::arguments as tasks;
use crate::{config, controller, history, leases, node, oci, pools, router};

/// Isolated, stateful sandboxes for AI agents, on this machine or on a cluster.
#[derive(Debug, Parser)]
#[command(name = "warren", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command on this checkout in a sandbox of its own, and delete the sandbox afterwards.
    Run(Box<Run>),
    /// Ask for a sandbox that stays, and lease it under a name.
    Warmup(Box<leases::Warmup>),
    /// Say how a lease stands.
    Status(leases::Status),
    /// End leases, and delete their sandboxes.
    Stop(leases::Stop),
    /// Remove leases whose time is over or that are not used any more.
    Cleanup(leases::Cleanup),
    /// List sandboxes and leases.
    #[command(alias = "ls", alias = "ps")]
    List(List),
    /// Run a command in a sandbox that exists.
    Exec(Exec),
    /// Open a shell in a sandbox.
    Shell(Shell),
    /// Copy a file or a directory into a sandbox or out of it.
    Cp(Cp),
    /// Say what a sandbox has changed in the directories that it sees by `run --mount`.
    Diff(Diff),
    /// Take over what a sandbox has changed in the directories that it sees by `run --mount`.
    Apply(Apply),
    /// Print the log of a sandbox.
    Logs(Logs),
    /// Print how much processor time and memory sandboxes use.
    Top(List),
    /// Print the last commands that were run in sandboxes, and how they ended.
    History(history::History),
    /// Suspend sandboxes: their processes end, their volumes stay.
    Suspend(Suspend),
    /// Start suspended sandboxes again.
    Resume(Suspend),
    /// List, make, scale and delete warm pools.
    Pool(pools::Pool),
    /// List, make and delete the templates that pools make sandboxes from.
    Template(pools::Template),
    /// Print the events about a sandbox, its claim and its pod.
    Events(Events),
    /// Say why a sandbox is not Ready, and what to do about it.
    Explain(Explain),
    /// Delete sandboxes, or claims with their sandboxes.
    #[command(alias = "rm")]
    Delete(Delete),
    /// Run commands to their end as tasks, each in a sandbox of its own, and keep their results.
    Task(tasks::Task),
    /// Start the local home: the API, the controllers and the node, in one process.
    Up(Up),
    /// Stop the local home.
    Down(Down),
    /// Run the controllers for a cluster, with the flags of agent-sandbox's controller.
    Controller(Box<controller::Flags>),
    /// Pass requests on to the sandboxes of a cluster, with the flags of agent-sandbox's router.
    Router(Box<router::Flags>),
    /// Take pods of a cluster and run them on this machine, as its kubelet would.
    Node(Box<node::Node>),
    /// Serve the runtime API of a sandbox: run commands, read and write files.
    Guest(Guest),
    /// Serve sandboxes, terminals and sessions over HTTP, with a web page (`warren-service serve`).
    #[command(disable_help_flag = true)]
    Serve(Service),
    /// Serve sandboxes as MCP tools to an agent (`warren-service mcp`).
    #[command(disable_help_flag = true)]
    Mcp(Service),
    /// Serve E2B's API on loopback, for programs that use E2B's SDKs (`warren-service e2b`).
    #[command(disable_help_flag = true)]
    E2b(Service),
    /// Run agents in sandboxes, each a command with a prompt (`warren-service agent`).
    #[command(disable_help_flag = true)]
    Agent(Service),
    /// Bring images to the local home, list and remove them.
    Image(Image),
    /// Show the settings that are in force.
    Config(Config),
    /// Print where the kubeconfig of the local home is.
    Kubeconfig(Kubeconfig),
    /// Print the URL of the local home's router, for SDKs that connect to sandboxes directly.
    RouterUrl(RouterUrl),
    /// Make tokens that open one sandbox to another user or program, through the router.
    #[command(subcommand)]
    Token(Token),
    /// Print manifests that were written for `v1alpha1` as `v1beta1`.
    Migrate(Migrate),
    /// Say what this machine or a cluster lacks for sandboxes, and how to mend it.
    Doctor(Doctor),
    /// Run containers from bundles, as other OCI runtimes do (`runc`, `crun`).
    Oci(oci::Oci),
    /// Print a script that completes commands and options in a shell.
    Completion(Completion),
    /// Write the manual, a page for `man` about each command, into a directory.
    Man(Man),
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
pub struct Guest {
    /// The address to listen on
    #[arg(long, env = "WARREN_GUEST_LISTEN", default_value = "0.0.0.0:8888", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Serve sandboxd's REST API too, on this address, usually port 8080
    #[arg(long, env = "WARREN_GUEST_REST_LISTEN", value_name = "ADDRESS")]
    pub rest_listen: Option<SocketAddr>,
    /// Serve sandboxd's gRPC API too, on this address, usually port 9090
    #[arg(long, env = "WARREN_GUEST_GRPC_LISTEN", value_name = "ADDRESS")]
    pub grpc_listen: Option<SocketAddr>,
    /// Where paths begin and commands run [default: `/app` if it is there, else `/workspace`]
    #[arg(long, env = "SANDBOX_BASE_DIR", value_name = "DIR")]
    pub base_dir: Option<PathBuf>,
}

/// Which API to use, and where in it.
#[derive(Args, Clone, Debug)]
pub struct Place {
    #[command(flatten)]
    pub home: Home,
    /// Use the local home, whatever the settings say
    #[arg(long, conflicts_with_all = ["context", "kubeconfig"])]
    pub local: bool,
    /// Use the cluster of this context of the kubeconfig instead of the local home
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The kubeconfig, by an absolute path [default: `$KUBECONFIG`, else `~/.kube/config`]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The namespace [default: default]
    #[arg(long, short)]
    pub namespace: Option<String>,
}

/// The subcommands of `config`.
#[derive(Args, Debug)]
pub struct Config {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print every setting, its value, and where that comes from.
    Show(ConfigShow),
}

#[derive(Args, Debug)]
pub struct ConfigShow {
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub output: Output,
}

/// Examples for `warren run --help`.
const RUN_EXAMPLES: &str = "\
Examples:
  warren run -- cargo test                         this checkout, in a sandbox of its own
  warren run --sync-back -- cargo fmt              the same, and changed files come back
  warren run 'make && ./run-tests'                 one string is a line for a shell
  warren run --no-sync --image busybox -- sh       an image, and nothing of this machine
  warren run --allow-host packages.example -- pip install -r requirements.txt
  warren run --pool python -- pytest               a sandbox that waits in a warm pool
  warren run --mount . --keep -- cargo fmt         a view of this directory; `warren diff` and `apply` follow
  warren run --id mine -- cargo test               the sandbox of a lease (`warren warmup --id mine`)

The exit code is the command's: 126 if it cannot be executed, 127 if it is not found, 128 and the number of the signal \
that ended it; 124 after `--timeout`, 125 if Warren itself failed.";

#[derive(Args, Debug)]
#[command(after_help = RUN_EXAMPLES)]
pub struct Run {
    #[command(flatten)]
    pub place: Place,
    /// A name for the sandbox [default: `run-` and ten random characters]
    #[arg(long)]
    pub name: Option<String>,
    /// Run in the sandbox of this lease, which stays afterwards
    #[arg(long, value_name = "SLUG", conflicts_with_all = OF_A_NEW_SANDBOX,
        conflicts_with_all = ["name", "pool", "template", "keep", "keep_on_failure", "container"])]
    pub id: Option<String>,
    /// The image; the default in the local home is this machine's own `/usr`, read-only, under a
    /// writable layer
    #[arg(long)]
    pub image: Option<String>,
    /// Take a sandbox of this warm pool
    #[arg(long, value_name = "POOL", conflicts_with_all = OF_A_NEW_SANDBOX)]
    pub pool: Option<String>,
    /// Make a sandbox from this template
    #[arg(long, value_name = "TEMPLATE", conflicts_with = "pool", conflicts_with_all = OF_A_NEW_SANDBOX)]
    pub template: Option<String>,
    /// The container in which the command runs [default: the pod's default container]
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// Leave the sandbox running afterwards, and print its name
    #[arg(long)]
    pub keep: bool,
    /// The same, if the command fails
    #[arg(long, conflicts_with = "keep")]
    pub keep_on_failure: bool,
    /// Send this directory instead of the checkout that the current directory is in
    #[arg(long, value_name = "DIR", conflicts_with = "no_sync")]
    pub sync: Option<PathBuf>,
    /// Send no files
    #[arg(long)]
    pub no_sync: bool,
    /// Send the files and run no command; the sandbox is kept
    #[arg(long, conflicts_with_all = ["no_sync", "command", "sync_back"])]
    pub sync_only: bool,
    /// Do not send files of this pattern, in the syntax of `.gitignore`; a file `.warrenignore` may
    /// hold more
    #[arg(long, value_name = "PATTERN", conflicts_with = "no_sync")]
    pub exclude: Vec<String>,
    /// Send the files however many and large they are
    #[arg(long, conflicts_with = "no_sync")]
    pub sync_large: bool,
    /// Delete what is in the work directory of the sandbox and not sent, such as files that were
    /// deleted here
    #[arg(long, conflicts_with = "no_sync")]
    pub sync_delete: bool,
    /// Show the tools of your home directory to the sandbox, read-only; the home has to be told,
    /// see docs/run.md
    #[arg(long, value_enum, value_name = "TOOLS", value_delimiter = ',',
        conflicts_with_all = ["id", "pool", "template"])]
    pub toolchain: Vec<Toolchain>,
    /// Show a directory to the sandbox at its own path instead of sending files: `cow` keeps what
    /// is written with the sandbox (`warren diff`, `warren apply`), `ro` lets nothing be written;
    /// the home has to be told, see docs/run.md
    #[arg(long, value_name = "DIR[:cow|:ro|:rw]",
        conflicts_with_all = ["id", "pool", "template", "sync_back", "sync_only"])]
    pub mount: Vec<Mount>,
    /// Bring changed files back afterwards: those that git does not ignore, or those of this
    /// pattern (`dist/**`)
    #[arg(long, value_name = "GLOB", num_args = 0..=1, require_equals = true, default_missing_value = "",
        conflicts_with = "no_sync")]
    pub sync_back: Option<String>,
    /// Let files from the sandbox replace those that were changed here meanwhile
    #[arg(long, requires = "sync_back")]
    pub overwrite: bool,
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
    /// A host that it may reach, instead of the default ones: a name, `*.` and a name, a block of
    /// addresses, or a preset of your settings
    #[arg(long, alias = "allow", value_name = "HOST", value_delimiter = ',')]
    pub allow_host: Vec<String>,
    /// A port of those hosts, or several as `FIRST-LAST`, instead of 443 and 80
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    pub allow_port: Vec<String>,
    /// Show a port of the sandbox on this machine while the command runs; HERE 0 takes a free one
    #[arg(long, short, value_name = "[[ADDRESS:]HERE:]PORT")]
    pub publish: Vec<Publication>,
    /// Set an environment variable; without a value, pass on the one from here
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// The directory that files are sent to and the command runs in [default: `/workspace` if files
    /// are sent]
    #[arg(long, short, value_name = "DIR")]
    pub workdir: Option<String>,
    /// End the command after this time, such as `90s` or `1h30m`, with exit code 124; 0 is no end
    /// [default: 10m in a lease and on a cluster]
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub timeout: Option<Duration>,
    /// Pass standard input on; this is always done
    #[arg(long, short)]
    pub interactive: bool,
    /// Give the command a terminal, even if this is not run on one
    #[arg(long, short)]
    pub tty: bool,
    /// How long to wait for the sandbox to become Ready, such as `90s` [default: 180s]
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub ready_timeout: Option<Duration>,
    /// Print how long each step took, to standard error
    #[arg(long)]
    pub timings: bool,
    /// The command and its arguments, or one string for a shell
    #[arg(required_unless_present = "sync_only", trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Options that say what a new sandbox is like; one of a pool or template is as the template says.
const OF_A_NEW_SANDBOX: [&str; 8] =
    ["image", "memory", "cpus", "disk", "runtime", "network", "allow_host", "allow_port"];

#[derive(Args, Debug)]
pub struct List {
    #[command(flatten)]
    pub place: Place,
    /// Those of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  warren exec mine -- cargo test\n  warren exec mine 'cd src && ls'")]
pub struct Exec {
    #[command(flatten)]
    pub place: Place,
    /// Set an environment variable; without a value, pass on the one from here
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// The directory to run the command in
    #[arg(long, short, value_name = "DIR")]
    pub workdir: Option<String>,
    /// The container; the default is the pod's default container
    #[arg(long, short, value_name = "NAME")]
    pub container: Option<String>,
    /// Pass standard input on; this is always done
    #[arg(long, short)]
    pub interactive: bool,
    /// Give the command a terminal, even if this is not run on one
    #[arg(long, short)]
    pub tty: bool,
    /// The sandbox, or its claim
    pub sandbox: String,
    /// The command and its arguments, or one string for a shell
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Args, Debug)]
pub struct Shell {
    #[command(flatten)]
    pub place: Place,
    /// The sandbox, or its claim
    pub sandbox: String,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  warren cp notes.txt mine:/workspace/\n  warren cp mine:/workspace/report.xml ."
)]
pub struct Cp {
    #[command(flatten)]
    pub place: Place,
    /// A path of this machine, or `SANDBOX:PATH`
    pub source: String,
    /// The other one of the two
    pub target: String,
}

/// Which changes of a sandbox are meant.
#[derive(Args, Debug)]
pub struct Changed {
    #[command(flatten)]
    pub place: Place,
    /// Also files that git ignores here, such as build output
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub output: Output,
    /// The sandbox
    pub sandbox: String,
    /// Only files of this pattern, such as `src/**`; a directory stands for everything in it
    #[arg(value_name = "GLOB")]
    pub pattern: Option<String>,
}

#[derive(Args, Debug)]
#[command(after_help = "Each line is `A` (added), `M` (modified) or `D` (deleted), and a path.")]
pub struct Diff {
    #[command(flatten)]
    pub of: Changed,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  warren apply mine\n  warren apply mine src\n\nNothing is written if a file was changed here since the sandbox was made, or must not be written."
)]
pub struct Apply {
    #[command(flatten)]
    pub of: Changed,
    /// Let files from the sandbox replace those that were changed here meanwhile
    #[arg(long)]
    pub overwrite: bool,
}

#[derive(Args, Debug)]
pub struct Logs {
    #[command(flatten)]
    pub place: Place,
    /// Go on as the log grows
    #[arg(long, short)]
    pub follow: bool,
    /// Print only so many lines of its end
    #[arg(long, value_name = "LINES")]
    pub tail: Option<i64>,
    /// The container; the default is the pod's only one
    #[arg(long, short, value_name = "NAME")]
    pub container: Option<String>,
    /// The sandbox, or its claim
    pub sandbox: String,
}

#[derive(Args, Debug)]
pub struct Events {
    #[command(flatten)]
    pub place: Place,
    /// The sandbox, or its claim
    pub sandbox: String,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Explain {
    #[command(flatten)]
    pub place: Place,
    /// The sandbox, or its claim
    pub sandbox: String,
}

#[derive(Args, Debug)]
pub struct Delete {
    #[command(flatten)]
    pub place: Place,
    /// The sandboxes, or their claims
    #[arg(required = true, value_name = "SANDBOX")]
    pub sandboxes: Vec<String>,
}

/// Arguments of `suspend` and `resume`.
#[derive(Args, Debug)]
pub struct Suspend {
    #[command(flatten)]
    pub place: Place,
    /// The sandboxes, their claims or their leases
    #[arg(required = true, value_name = "SANDBOX")]
    pub sandboxes: Vec<String>,
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
    /// The address for kubectl and SDKs (TLS); port 0 takes a free one, the same as last time if
    /// possible [default: 127.0.0.1:0]
    #[arg(long, env = "WARREN_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// The address of the router, on loopback (HTTP, for this user's programs only); port 0 as
    /// above [default: 127.0.0.1:0]
    #[arg(long, env = "WARREN_ROUTER_LISTEN", value_name = "ADDRESS")]
    pub router_listen: Option<SocketAddr>,
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
    /// Another OCI runtime, for pods with this `runtimeClassName`; `runsc` is `gvisor` by itself
    /// where it is found
    #[arg(long, env = "WARREN_RUNTIMES", value_name = "NAME=PATH", value_delimiter = ',')]
    pub runtime: Vec<NamedRuntime>,
}

/// What pods may have of this machine.
#[derive(Args, Clone, Debug)]
pub struct HostPaths {
    /// Pods may have this directory, and what is in it, as `hostPath` volumes: for reading, or with
    /// `:rw` for writing, too
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
    /// Take in the images of an archive: an OCI layout, or what `docker save` and `podman save`
    /// write.
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
pub struct RouterUrl {
    #[command(flatten)]
    pub home: Home,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand, Debug)]
pub enum Token {
    /// Print a token that opens a sandbox at the router for a while.
    Create(TokenCreate),
    /// Print the public key set for `warren router`; makes the key if the file is not there.
    Keys(TokenKeys),
}

#[derive(Args, Debug)]
pub struct TokenCreate {
    #[command(flatten)]
    pub place: Place,
    /// The sandbox, or its claim
    pub sandbox: String,
    /// How long the token is valid
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = config::duration)]
    pub ttl: Duration,
    /// The only port that it opens [default: every port]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The only HTTP method that it allows [default: every method]
    #[arg(long)]
    pub method: Option<String>,
    /// The only path that it opens, as it is sent [default: every path]
    #[arg(long)]
    pub path: Option<String>,
    /// The key that signs it, from `warren token keys` [default: that of the local home]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct TokenKeys {
    /// The file of the key, which is a secret
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// The name of a key that is made
    #[arg(long, value_name = "NAME", default_value = "warren")]
    pub kid: String,
}

#[derive(Args, Debug)]
pub struct Migrate {
    /// Files with one or more YAML documents each; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  warren doctor\n  warren doctor --context agents --namespace sandboxes --pool linux"
)]
pub struct Doctor {
    #[command(flatten)]
    pub place: Place,
    /// On a cluster, look at this warm pool, too
    #[arg(long, value_name = "POOL")]
    pub pool: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  warren completion bash > ~/.local/share/bash-completion/completions/warren"
)]
pub struct Completion {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  warren man ~/.local/share/man/man1 && man warren-run")]
pub struct Man {
    /// The directory, which is made if it is missing
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,
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
