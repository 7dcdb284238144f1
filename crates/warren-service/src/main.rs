//! The `warren-service` binary: what agents and their products connect to, beside the `warren`
//! binary that runs sandboxes.
//!
//! `warren serve`, `warren mcp`, `warren e2b` and `warren agent` start it. It parses arguments and
//! hands over to the crates that serve; start at [`cli`].

mod cli;
mod e2b;
mod home;
mod install;
mod listen;
mod mcp;
mod serve;

use std::process::ExitCode;

use clap::Parser as _;
use cli::{Command, McpCommand};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    // Standard output belongs to the protocol. What `rmcp` warns of are the errors that clients get
    // anyway.
    let filter = EnvFilter::try_from_env("WARREN_LOG").unwrap_or_else(|_| EnvFilter::new("warn,rmcp=error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let result = match cli.command {
        Command::Mcp(cli::Mcp { command: Some(McpCommand::Install(arguments)), .. }) => {
            install::install(&arguments)
        }
        Command::Mcp(cli::Mcp { command: Some(McpCommand::Key(arguments)), .. }) => mcp::key(arguments),
        Command::Agent(cli::Agent { command: cli::AgentCommand::Run(arguments) }) => {
            return serve::agent_run(*arguments);
        }
        Command::E2b(arguments) => e2b::e2b(arguments),
        Command::Mcp(cli::Mcp { client, command: None }) => mcp::mcp(client),
        Command::Serve(arguments) => serve::serve(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
