//! The command line: every subcommand and flag, with the text that `--help` shows.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Deserialize;

/// What agents and their products connect to. `warren serve` is `warren-service serve`, and so are `mcp` and `e2b`.
#[derive(Debug, Parser)]
#[command(name = "warren-service", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve sandboxes, terminals and their sessions over HTTP on loopback, with a web page.
    Serve(Serve),
    /// Serve sandboxes as MCP tools to the client on standard input and output.
    Mcp(Mcp),
    /// Serve E2B's API on loopback, for programs that use E2B's SDKs.
    E2b(E2b),
}

/// Which home, and where to serve.
#[derive(Args, Debug)]
pub struct E2b {
    /// The data directory of the local home [default: `/var/lib/warren` for root, else
    /// `$XDG_DATA_HOME/warren`]
    #[arg(long, env = "WARREN_HOME", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where to listen, on loopback; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:7983", value_name = "ADDRESS:PORT")]
    pub listen: std::net::SocketAddr,
    /// The namespace of the sandboxes [default: `default`]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// What sandboxes of the template `base` reach: `restricted`, `full` or `none` [default: the home's,
    /// `restricted`]
    #[arg(long, value_name = "MODE", value_parser = ["restricted", "full", "none"])]
    pub network: Option<String>,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Mcp {
    #[command(flatten)]
    pub client: McpClient,
    #[command(subcommand)]
    pub command: Option<McpCommand>,
}

#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// Print the configuration with which an MCP client starts Warren, or write it.
    Install(Install),
}

/// Which home, and what is made there.
#[derive(Args, Debug)]
pub struct Place {
    /// The data directory of the local home [default: `/var/lib/warren` for root, else
    /// `$XDG_DATA_HOME/warren`]
    #[arg(long, env = "WARREN_HOME", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Use the cluster that this kubeconfig names instead of the local home
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig [default: its current one]
    #[arg(long, requires = "kubeconfig")]
    pub context: Option<String>,
    /// The namespace to work in [default: the context's, or `default`]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// The image of sandboxes for which the client names none [default: in the local home, this machine's
    /// own `/usr`]
    #[arg(long)]
    pub image: Option<String>,
    /// How many sandboxes there may be at a time: of the client with `mcp`, of the namespace with `serve`
    #[arg(long, default_value = "16", value_name = "NUMBER")]
    pub max_sandboxes: usize,
}

/// What an MCP client may do, and where.
#[derive(Args, Debug)]
pub struct McpClient {
    #[command(flatten)]
    pub place: Place,
    /// Let the client see and use all sandboxes of the namespace, not only those that it made
    #[arg(long)]
    pub all: bool,
    /// How long its sandboxes stay if this program is killed
    #[arg(long, default_value = "120", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(3..))]
    pub lease: u64,
}

/// A provider that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProviderName {
    /// The local home
    Warren,
    /// The cluster of the setting `sandbox.kubernetes`
    Kubernetes,
    /// A Docker engine
    Docker,
}

#[derive(Args, Debug)]
pub struct Serve {
    #[command(flatten)]
    pub place: Place,
    /// What runs sandboxes; the local home if it cannot be used [default: the setting `sandbox.defaults`, else `warren`]
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["kubeconfig", "local_provider"])]
    pub provider: Option<ProviderName>,
    /// The Docker engine: `unix://PATH`, or `tcp://ADDRESS:PORT` on loopback [default:
    /// `unix:///var/run/docker.sock`]
    #[arg(long, env = "DOCKER_HOST", value_name = "ADDRESS")]
    pub docker_host: Option<String>,
    /// The Docker network of sandboxes that ask for the network `full`; without one they are refused
    #[arg(long, value_name = "NAME")]
    pub docker_network: Option<String>,
    /// The loopback address to listen on; port 0 is any that is free
    #[arg(long, default_value = "127.0.0.1:7340", value_name = "ADDRESS:PORT")]
    pub listen: std::net::SocketAddr,
    /// A name by which a reverse proxy makes the service known; may be given several times
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
    /// Run commands directly on this machine, each sandbox in a directory below this one, isolated by nothing
    #[arg(long, value_name = "DIR", requires = "development", conflicts_with = "kubeconfig")]
    pub local_provider: Option<PathBuf>,
    /// Allow `--local-provider`, which is for development only
    #[arg(long)]
    pub development: bool,
    /// Make another key and print its link
    #[arg(long)]
    pub new_key: bool,
}

#[derive(Args, Debug)]
pub struct Install {
    /// The client; without one, all are printed
    #[arg(value_enum)]
    pub client: Option<Client>,
    /// Write the configuration into the client's own file instead of printing it
    #[arg(long, requires = "client")]
    pub write: bool,
}

/// An MCP client whose configuration is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Client {
    /// Claude Code, for the project in the current directory
    Claude,
    /// Claude Desktop
    ClaudeDesktop,
    /// Cursor
    Cursor,
    /// Visual Studio Code, for the project in the current directory
    Vscode,
    /// Gemini CLI
    Gemini,
    /// Codex
    Codex,
}
