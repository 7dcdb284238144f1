//! The program that the node puts into sandboxes. Without an argument it takes its listening socket
//! from the shim that starts it; with an address it listens there itself. `await-task FILE` waits for the command of a task
//! and becomes it.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use warren_guest::{Api, Config};

/// The time without a connection after which the daemon ends, so that the sandbox has its memory
/// back.
const IDLE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let [word, file] = arguments.as_slice()
        && word == "await-task"
    {
        let Err(stopped) = warren_guest::task::await_command(Path::new(file));
        eprintln!("warren-guest: {stopped}");
        return ExitCode::from(stopped.exit_code());
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("warren-guest: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut config = Config::from_environment(|name| std::env::var_os(name));
    let listeners = match std::env::args().nth(1) {
        Some(address) => vec![(Api::Runtime, TcpListener::bind(address)?)],
        None => {
            config.idle = Some(IDLE);
            warren_guest::inherited_listeners()?
        }
    };
    warren_guest::serve(config, listeners)
}
