//! The `warren` binary: it parses arguments, calls the other crates, and prints the results. It
//! decides nothing about sandboxes and never opens the store. Every role is a subcommand; start at
//! [`cli`].

/// Replaces the standard library's `eprint!`, which panics if standard error cannot be written. A
/// daemon's standard error is a file on the disk that its sandboxes may fill.
macro_rules! eprint {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($words)*);
    }};
}

/// Replaces the standard library's `eprintln!`, for the same reason.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

mod cli;
mod config;
mod controller;
mod destination;
mod doctor;
mod down;
mod environment;
mod glob;
mod guest;
mod history;
mod home;
mod image;
mod kubeconfig;
mod leases;
mod log;
mod migrate;
mod node;
mod oci;
mod pools;
mod progress;
mod reference;
mod report;
mod router;
mod run;
mod sandboxes;
mod service;
mod signals;
mod tasks;
mod terminal;
mod timings;
mod token;
mod up;
mod version;
mod words;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use cli::Command;

/// The allocator. An API server allocates and frees trees of small strings in several threads all
/// the time; glibc's allocator took a third of a busy daemon's processor time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code of `run` for failures other than the command's own, as in other container tools.
const OWN_FAILURE: u8 = 125;

fn main() -> ExitCode {
    let words = controller::normalise(std::env::args_os());
    let runs_a_command = words.get(1).is_some_and(|word| word == "run" || word == "exec" || word == "shell");
    let failure = if runs_a_command { OWN_FAILURE } else { 1 };
    let cli = match cli::Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && runs_a_command => {
            // If standard error is closed, there is no other place for the message.
            let _ = error.print();
            return ExitCode::from(OWN_FAILURE);
        }
        Err(error) => error.exit(),
    };
    match &cli.command {
        Command::Controller(flags) => {
            log::begin(flags.logging.zap_log_level, flags.logging.as_json(std::io::stderr().is_terminal()));
            log::write_by_thread(None);
        }
        // A home's own user is the router's only client.
        Command::Up(_) | Command::Daemon(_) => log::begin("info,warren_router::access=off", false),
        Command::Router(flags) => {
            let access = if flags.access_log { "" } else { ",warren_router::access=off" };
            log::begin(&format!("info,kube_client=off{access}"), false);
            log::write_by_thread(None);
        }
        // The library logs each failed request in addition to us.
        Command::Node(_) => log::begin("info,kube_client=off", false),
        _ => log::begin("warn,kube_client=off", false),
    }
    let outcome = carry_out(cli.command);
    log::finish();
    match outcome {
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
        Command::Run(arguments) => return run::run(*arguments),
        Command::Warmup(_) | Command::Status(_) | Command::Stop(_) | Command::Cleanup(_) => {
            return leases::carry_out(&command);
        }
        Command::List(_)
        | Command::Exec(_)
        | Command::Shell(_)
        | Command::Cp(_)
        | Command::Diff(_)
        | Command::Apply(_)
        | Command::Logs(_)
        | Command::Events(_)
        | Command::Explain(_)
        | Command::Top(_)
        | Command::Suspend(_)
        | Command::Resume(_)
        | Command::Pool(_)
        | Command::Template(_)
        | Command::Delete(_) => return sandboxes::carry_out(&command),
        Command::Task(task) => return tasks::carry_out(&task.command),
        Command::Doctor(arguments) => return doctor::doctor(&arguments),
        Command::Oci(arguments) => return oci::oci(&arguments),
        Command::Up(arguments) => up::up(&arguments)?,
        Command::Down(arguments) => down::down(&arguments)?,
        Command::Controller(flags) => controller::controller(&flags)?,
        Command::Router(flags) => router::router(&flags)?,
        Command::Node(arguments) => node::node(&arguments)?,
        Command::History(arguments) => history::history(&arguments)?,
        Command::Guest(arguments) => guest::guest(&arguments)?,
        Command::Serve(arguments) => match service::exec("serve", &arguments)? {},
        Command::Mcp(arguments) => match service::exec("mcp", &arguments)? {},
        Command::E2b(arguments) => match service::exec("e2b", &arguments)? {},
        Command::Agent(arguments) => match service::exec("agent", &arguments)? {},
        Command::Image(arguments) => image::image(&arguments)?,
        Command::Config(cli::Config { command: cli::ConfigCommand::Show(arguments) }) => {
            let destination = destination::Destination::choose(&arguments.place, config::Layer::new())?;
            config::show(&destination.config, arguments.output);
        }
        Command::Kubeconfig(arguments) => kubeconfig::kubeconfig(&arguments)?,
        Command::RouterUrl(arguments) => kubeconfig::router_url(&arguments)?,
        Command::Token(command) => token::token(&command)?,
        Command::Migrate(arguments) => migrate::migrate(&arguments, &mut std::io::stdout().lock())?,
        Command::Completion(arguments) => {
            let mut script = Vec::new();
            let mut command = <cli::Cli as clap::CommandFactory>::command();
            clap_complete::generate(arguments.shell, &mut command, "warren", &mut script);
            // A reader that stops reading is not an error.
            let _ = std::io::stdout().write_all(&script);
        }
        Command::Man(arguments) => reference::write_manual(&arguments)?,
        Command::Version(arguments) => version::version(&arguments),
        Command::Daemon(arguments) => up::daemon(&arguments)?,
    }
    Ok(0)
}
