//! Runs `warren oci`: our containers as an OCI runtime, for bundles of other tools.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use warren_oci::bundle::{CreateOptions, ExecOptions, Runtime};

#[derive(Args, Debug)]
pub struct Oci {
    /// Where to keep what is known about containers
    #[arg(long, env = "WARREN_OCI_ROOT", value_name = "DIR", default_value = "/run/warren-oci")]
    root: PathBuf,
    /// A file to write errors to, besides standard error
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// How errors are written to that file
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"], default_value = "text")]
    log_format: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a container from a bundle, ready to be started.
    Create(Create),
    /// Run the program of a container that was created.
    Start(Id),
    /// Print the state of a container.
    State(Id),
    /// Send a signal to a container.
    Kill(Kill),
    /// Remove a container that has stopped.
    Delete(Delete),
    /// Create and start a container, wait for its end, and delete it.
    Run(Create),
    /// Run a further program in a container.
    Exec(Exec),
    /// Print the states of all containers.
    List,
}

#[derive(Args, Debug)]
struct Id {
    /// The container's name
    id: String,
}

#[derive(Args, Debug)]
struct Create {
    /// The bundle's directory
    #[arg(long, short, value_name = "DIR", default_value = ".")]
    bundle: PathBuf,
    /// A file to write the container's process id to
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// A unix socket that the container's terminal is sent to
    #[arg(long, value_name = "SOCKET")]
    console_socket: Option<PathBuf>,
    #[command(flatten)]
    id: Id,
}

#[derive(Args, Debug)]
struct Kill {
    /// All processes of the container, not only the first
    #[arg(long, short)]
    all: bool,
    #[command(flatten)]
    id: Id,
    /// The signal, by name or number
    #[arg(default_value = "TERM", value_parser = signal)]
    signal: i32,
}

#[derive(Args, Debug)]
struct Delete {
    /// Kill it first if it has not stopped
    #[arg(long, short)]
    force: bool,
    #[command(flatten)]
    id: Id,
}

#[derive(Args, Debug)]
struct Exec {
    /// The directory to run it in
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Set an environment variable
    #[arg(long, short, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// The user and group to run it as, as numbers
    #[arg(long, short, value_name = "UID[:GID]", value_parser = user)]
    user: Option<(u32, u32)>,
    /// A file with a whole `process`, as in `config.json`
    #[arg(long, short, value_name = "FILE")]
    process: Option<PathBuf>,
    /// A file to write the process id to
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Return at once instead of waiting for its end
    #[arg(long, short)]
    detach: bool,
    #[command(flatten)]
    id: Id,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the command and returns an exit code.
pub fn oci(arguments: &Oci) -> anyhow::Result<i32> {
    let outcome = carry_out(arguments);
    if let (Err(error), Some(path)) = (&outcome, &arguments.log) {
        let line = match arguments.log_format.as_str() {
            "json" => serde_json::json!({ "level": "error", "msg": format!("{error:#}") }).to_string(),
            _ => format!("level=error msg={:?}", format!("{error:#}")),
        };
        let file = std::fs::File::options().create(true).append(true).open(path);
        file.and_then(|mut file| writeln!(file, "{line}"))
            .with_context(|| format!("write to {}", path.display()))?;
    }
    outcome
}

fn carry_out(arguments: &Oci) -> anyhow::Result<i32> {
    let runtime = Runtime::new(&arguments.root);
    match &arguments.command {
        Command::Create(create) => runtime.create(&create.id.id, &create.options())?,
        Command::Start(id) => runtime.start(&id.id)?,
        Command::State(id) => print(&runtime.state(&id.id)?)?,
        Command::Kill(kill) => runtime.kill(&kill.id.id, kill.signal, kill.all)?,
        Command::Delete(delete) => runtime.delete(&delete.id.id, delete.force)?,
        Command::Run(create) => return Ok(runtime.run(&create.id.id, &create.options())?),
        Command::Exec(exec) => return Ok(runtime.exec(&exec.id.id, &exec.options())?),
        Command::List => print(&runtime.list()?)?,
    }
    Ok(0)
}

fn print(value: &impl serde::Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

impl Create {
    fn options(&self) -> CreateOptions {
        CreateOptions {
            bundle: self.bundle.clone(),
            pid_file: self.pid_file.clone(),
            console_socket: self.console_socket.clone(),
        }
    }
}

impl Exec {
    fn options(&self) -> ExecOptions {
        ExecOptions {
            args: self.command.clone(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            user: self.user,
            process: self.process.clone(),
            pid_file: self.pid_file.clone(),
            detach: self.detach,
        }
    }
}

/// The signals in the order of their numbers, from 1 on.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

fn signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let by_name = SIGNALS.iter().zip(1..).find(|(name, _)| **name == short).map(|(_, number)| number);
    by_name
        .or_else(|| text.parse().ok().filter(|number| (1..=31).contains(number)))
        .ok_or_else(|| format!("`{text}` is not a signal"))
}

fn user(text: &str) -> Result<(u32, u32), String> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, "0"));
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a number"));
    Ok((number(uid)?, number(gid)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [("TERM", 15), ("SIGKILL", 9), ("usr1", 10), ("2", 2), ("SYS", 31)] {
            assert_eq!(signal(text), Ok(number));
        }
        assert!(signal("0").is_err() && signal("NONSENSE").is_err() && signal("64").is_err());
        assert_eq!((user("7"), user("7:8")), (Ok((7, 0)), Ok((7, 8))));
    }
}
