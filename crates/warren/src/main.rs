//! The `warren` binary: it parses arguments, asks the other crates for what they mean, and renders the answer.
//! It decides nothing about sandboxes and never opens the store. Every role is a subcommand; start at [`cli`].

mod cli;
mod controller;
mod doctor;
mod down;
mod home;
mod image;
mod interrupt;
mod kubeconfig;
mod migrate;
mod node;
mod oci;
mod progress;
mod report;
mod run;
mod service;
mod terminal;
mod timings;
mod up;
mod version;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;
use cli::Command;
use tracing_subscriber::EnvFilter;

/// An API server makes and drops trees of small strings all day long, in several threads; glibc's allocator spent a third of a
/// busy daemon's time on that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What `run` ends with when it is not the command that failed, as other container tools do.
const OWN_FAILURE: u8 = 125;

fn main() -> ExitCode {
    let cli = cli::Cli::parse_from(controller::normalise(std::env::args_os()));
    match &cli.command {
        Command::Controller(flags) => {
            log(flags.logging.zap_log_level, flags.logging.as_json(std::io::stderr().is_terminal()));
        }
        Command::Up(_) | Command::Daemon(_) => log("info", false),
        // The library says each failed request as well as we do, only shorter.
        Command::Node(_) => log("info,kube_client=off", false),
        _ => log("warn", false),
    }
    let failure = if matches!(cli.command, Command::Run(_)) { OWN_FAILURE } else { 1 };
    match carry_out(cli.command) {
        // Exit codes have eight bits; the protocol carries them as text.
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            report::print(&error);
            report::exit_code(&error).unwrap_or(ExitCode::from(failure))
        }
    }
}

fn carry_out(command: Command) -> anyhow::Result<i32> {
    match command {
        Command::Run(arguments) => return run::run(&arguments),
        Command::Doctor(arguments) => return doctor::doctor(&arguments),
        Command::Oci(arguments) => return oci::oci(&arguments),
        Command::Up(arguments) => up::up(&arguments)?,
        Command::Down(arguments) => down::down(&arguments)?,
        Command::Controller(flags) => controller::controller(&flags)?,
        Command::Node(arguments) => node::node(&arguments)?,
        Command::Mcp(arguments) => match service::exec("mcp", &arguments)? {},
        Command::Image(arguments) => image::image(&arguments)?,
        Command::Kubeconfig(arguments) => kubeconfig::kubeconfig(&arguments)?,
        Command::Migrate(arguments) => migrate::migrate(&arguments, &mut std::io::stdout().lock())?,
        Command::Version(arguments) => version::version(&arguments),
        Command::Daemon(arguments) => up::daemon(&arguments)?,
    }
    Ok(0)
}

/// Diagnostics go to standard error; `WARREN_LOG` chooses what is said.
fn log(default: &str, as_json: bool) {
    let filter = EnvFilter::try_from_env("WARREN_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    match as_json {
        true => lines.json().init(),
        false => lines.init(),
    }
}
