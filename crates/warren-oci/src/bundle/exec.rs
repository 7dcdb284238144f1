//! Runs another process in a running container.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use warren_sys::namespace;
use warren_sys::process::{self, CloneOptions, Exit, Fork, Namespaces, SingleThreaded};
use warren_sys::socket::Seqpacket;

use super::cgroups::Cgroups;
use super::config::{Config, NamespaceKind, Process};
use super::process::{Ready, limit};
use super::state::Record;
use super::{Error, Step as _};
use crate::container::set_ids;
use crate::protocol::ProcessName;

/// The options of [`super::Runtime::exec`].
#[derive(Debug, Clone, Default)]
pub struct ExecOptions {
    /// Program and arguments. May be empty if `process` names a file.
    pub args: Vec<String>,
    /// `NAME=value` lines, added to the container's own.
    pub env: Vec<String>,
    /// Working directory. The default is the container's own.
    pub cwd: Option<PathBuf>,
    /// User and group. The default is the container's own.
    pub user: Option<(u32, u32)>,
    /// A file with a whole `process` object, as in `config.json`.
    pub process: Option<PathBuf>,
    /// A file for the process id.
    pub pid_file: Option<PathBuf>,
    /// Returns at once instead of waiting for the end of the process.
    pub detach: bool,
}

pub(super) fn exec(
    record: &Record,
    config: &Config,
    container: ProcessName,
    options: &ExecOptions,
) -> Result<i32, Error> {
    let proof = SingleThreaded::verify().step(|| "start a process".to_owned())?;
    let program = program(config, options)?;
    let ready = Ready::new(config, &program)?;
    let step = || "enter the container".to_owned();
    let pidfd = process::open_pidfd(container.pid).step(step)?;
    if !super::state::runs(container) {
        return Err(Error::Unknown(record.id.clone()));
    }
    // After this process enters a pid namespace, its children are in it.
    let pids = namespace::open(container.pid, "pid").step(step)?;
    namespace::enter_one(pids.as_fd()).step(step)?;
    let (ours, theirs) = Seqpacket::pair().step(step)?;
    match process::clone(proof, CloneOptions::default()).step(step)? {
        Fork::Child => {
            drop(ours);
            let become_it = || -> Result<std::convert::Infallible, Error> {
                theirs.receive(16).step(step)?;
                let mut all =
                    Namespaces::MOUNT.with(Namespaces::NETWORK).with(Namespaces::IPC).with(Namespaces::UTS);
                all = all.with(Namespaces::CGROUP);
                let is_own_user = config.has_new(NamespaceKind::User);
                if is_own_user {
                    all = all.with(Namespaces::USER);
                }
                namespace::enter(pidfd.as_fd(), all).step(step)?;
                if is_own_user {
                    set_ids(0, 0, &[]).step(step)?;
                }
                rustix::process::setsid().step(|| "make a session".to_owned())?;
                ready.become_program(&program)
            };
            let message = match become_it() {
                Err(error) => super::with_causes(&error),
                Ok(never) => match never {},
            };
            let _ = theirs.send(message.as_bytes(), &[]);
            process::exit_now(255)
        }
        Fork::Parent(child) => {
            drop(theirs);
            Cgroups::named(&record.cgroup)?.add(child.pid())?;
            limit(child.pid(), &program)?;
            ours.send(b"go", &[]).step(step)?;
            if let Some(packet) = ours.receive(64 << 10).step(step)? {
                let _ = child.wait();
                return Err(Error::Inside(String::from_utf8_lossy(&packet.bytes).into_owned()));
            }
            if let Some(path) = &options.pid_file {
                fs::write(path, child.pid().to_string()).step(|| format!("write {}", path.display()))?;
            }
            if options.detach {
                return Ok(0);
            }
            Ok(match child.wait().step(|| "wait for the process".to_owned())? {
                Exit::Code(code) => code,
                Exit::Signal(signal) => 128 + signal,
            })
        }
    }
}

fn program(config: &Config, options: &ExecOptions) -> Result<Process, Error> {
    let mut program = match &options.process {
        Some(path) => {
            let step = || format!("read {}", path.display());
            serde_json::from_slice(&fs::read(path).step(step)?).map_err(std::io::Error::from).step(step)?
        }
        None => {
            let own = config.process.clone();
            own.ok_or_else(|| Error::Config("the container has no `process` to be like".to_owned()))?
        }
    };
    if program.terminal && options.process.is_some() {
        return Err(Error::Config("a terminal for a further process is not supported".to_owned()));
    }
    program.terminal = false;
    if !options.args.is_empty() {
        program.args.clone_from(&options.args);
    }
    program.env.extend(options.env.iter().cloned());
    if let Some(cwd) = &options.cwd {
        program.cwd.clone_from(cwd);
    }
    if let Some((uid, gid)) = options.user {
        (program.user.uid, program.user.gid) = (uid, gid);
    }
    Ok(program)
}
