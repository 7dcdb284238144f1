//! The command line: every subcommand and flag, with the text that `--help` shows.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Deserialize;

/// The programs that agents and their products connect to. `warren serve` is `warren-service
/// serve`, and so are `mcp`, `e2b` and `agent`.
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
    /// Serve sandboxes as MCP tools to the client on standard input and output, or to clients over
    /// HTTP.
    Mcp(Mcp),
    /// Serve E2B's API on loopback, for programs that use E2B's SDKs.
    E2b(E2b),
    /// Run agents in sandboxes.
    Agent(Agent),
}

#[derive(Args, Debug)]
#[command(disable_help_subcommand = true)]
pub struct Agent {
    #[command(subcommand)]
    pub command: AgentCommand,
}

#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Run an agent's program in a sandbox, print what it does, and remove the sandbox. The exit
    /// code is the program's; 124 if its time was over, 125 if it could not be run.
    Run(Box<AgentRun>),
}

/// An agent, and the sandbox it works in.
#[derive(Args, Debug)]
pub struct AgentRun {
    #[command(flatten)]
    pub place: Place,
    /// The prompt, for the program in `AGENT_PROMPT`; other users of this machine can see it here
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,
    /// The file with the prompt; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// A variable for the program, such as one with a credential; without a value, this process's
    /// own
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// The project that the run belongs to
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// The task
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
    /// The agent
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Copy the files of this git repository into the sandbox, and bring the result back as a
    /// commit on the branch `agent/AGENT/TASK`. What is not committed is not copied
    #[arg(long, value_name = "DIR", requires_all = ["agent", "task"])]
    pub repository: Option<PathBuf>,
    /// The branch, tag or commit to start from [default: `HEAD`]
    #[arg(long = "ref", value_name = "NAME", requires = "repository")]
    pub reference: Option<String>,
    /// Use this sandbox, and keep it, instead of one made for the run
    #[arg(long, value_name = "ID", conflicts_with_all = ["pool", "template", "memory_mb", "network", "allow_host"])]
    pub sandbox: Option<String>,
    /// Take the sandbox from this warm pool
    #[arg(long, value_name = "NAME", conflicts_with = "template")]
    pub pool: Option<String>,
    /// Make the sandbox from this template
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,
    /// The sandbox's memory, in MiB
    #[arg(long, value_name = "NUMBER")]
    pub memory_mb: Option<u32>,
    /// The network of the sandbox: `restricted`, `full` or `none` [default: `restricted`]
    #[arg(long, value_name = "MODE", value_parser = network)]
    pub network: Option<warren_providers::Network>,
    /// A host that the sandbox reaches; may be given several times
    #[arg(long, value_name = "HOST")]
    pub allow_host: Vec<String>,
    /// The directory that the program runs in
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// The time that the program may take, such as `90s` or `2h` [default: `1h`, at most `24h`]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<std::time::Duration>,
    /// The agent's program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

fn network(text: &str) -> Result<warren_providers::Network, String> {
    match text {
        "none" => Ok(warren_providers::Network::None),
        "restricted" => Ok(warren_providers::Network::Restricted),
        "full" => Ok(warren_providers::Network::Full),
        _ => Err("is none of `restricted`, `full` and `none`".to_owned()),
    }
}

fn duration(text: &str) -> Result<std::time::Duration, String> {
    let parsed: Option<jiff::SignedDuration> = text.parse().ok();
    let parsed = parsed.and_then(|parsed| std::time::Duration::try_from(parsed).ok());
    parsed.ok_or_else(|| "is not a duration such as `90s`, `30m` or `2h`".to_owned())
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
    /// The network of sandboxes of the template `base`: `restricted`, `full` or `none` [default:
    /// the home's, `restricted`]
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
    /// Print the configuration with which an MCP client starts Warren or reaches it over HTTP, or
    /// write it.
    Install(Install),
    /// Make, list and remove the keys of clients over HTTP. A server that runs notices at once.
    #[command(disable_help_subcommand = true)]
    Key(McpKey),
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
    /// The image of sandboxes for which the client names none [default: in the local home, this
    /// machine's own `/usr`]
    #[arg(long)]
    pub image: Option<String>,
    /// The number of sandboxes allowed at a time: of the client with `mcp`, of the namespace with
    /// `serve`
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
    /// Serve any number of clients over HTTP on this loopback address instead of one on standard
    /// input and output; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<std::net::SocketAddr>,
    /// With `--listen`: a client without a request or an open stream for so long is gone
    #[arg(long, default_value = "1800", value_name = "SECONDS", requires = "listen", value_parser = clap::value_parser!(u64).range(1..))]
    pub idle: u64,
}

#[derive(Args, Debug)]
pub struct McpKey {
    /// The data directory that the server uses [default: `/var/lib/warren` for root, else
    /// `$XDG_DATA_HOME/warren`]
    #[arg(long, env = "WARREN_HOME", value_name = "DIR", global = true)]
    pub data_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key and print it. It is shown this once.
    Add {
        /// The name of the key: small letters, digits and `-`
        name: String,
    },
    /// Print the names of the keys.
    List,
    /// Remove a key. Its clients are cut off, and their sandboxes deleted.
    Remove {
        /// The key's name
        name: String,
    },
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
    /// The provider that runs sandboxes; the local home if it cannot be used [default: the setting
    /// `sandbox.defaults`, else `warren`]
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["kubeconfig", "local_provider"])]
    pub provider: Option<ProviderName>,
    /// The Docker engine: `unix://PATH`, or `tcp://ADDRESS:PORT` on loopback [default:
    /// `unix:///var/run/docker.sock`]
    #[arg(long, env = "DOCKER_HOST", value_name = "ADDRESS")]
    pub docker_host: Option<String>,
    /// The Docker network of sandboxes that ask for the network `full`; without one they are
    /// refused
    #[arg(long, value_name = "NAME")]
    pub docker_network: Option<String>,
    /// The loopback address to listen on; port 0 is any that is free
    #[arg(long, default_value = "127.0.0.1:7340", value_name = "ADDRESS:PORT")]
    pub listen: std::net::SocketAddr,
    /// A name by which a reverse proxy makes the service known; may be given several times
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
    /// Run commands directly on this machine, each sandbox in a directory below this one, isolated
    /// by nothing
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
    /// Reach the server of `warren mcp --listen` at this URL instead of starting one. The key is
    /// read from the variable `WARREN_MCP_KEY` by the client
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
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
