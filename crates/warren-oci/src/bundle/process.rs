//! The last steps before a process becomes the bundle's program: its user, privileges and limits.

use std::convert::Infallible;
use std::io;

use rustix::fs::Mode;
use warren_sys::capability::{self, Capabilities, ProcessCapabilities};
use warren_sys::process;
use warren_sys::seccomp::Filter;

use super::config::{Config, Process};
use super::{Error, Step as _};
use crate::container::{Program, set_ids};

/// A fully described process. All of its settings are valid.
#[derive(Debug)]
pub(super) struct Ready {
    bounding: Capabilities,
    capabilities: ProcessCapabilities,
    filter: Option<Filter>,
}

impl Ready {
    pub(super) fn new(config: &Config, process: &Process) -> Result<Self, Error> {
        let set = |names: &[String]| {
            Capabilities::from_names(names.iter().map(String::as_str))
                .map_err(|name| Error::Config(format!("{name} is not a capability")))
        };
        let sets = &process.capabilities;
        for limit in &process.rlimits {
            crate::container::resource(&limit.kind).map_err(Error::from)?;
        }
        Ok(Self {
            bounding: set(&sets.bounding)?,
            capabilities: ProcessCapabilities {
                effective: set(&sets.effective)?,
                permitted: set(&sets.permitted)?,
                inheritable: set(&sets.inheritable)?,
                ambient: set(&sets.ambient)?,
            },
            filter: config.linux.seccomp.as_ref().map(super::seccomp::compile).transpose()?,
        })
    }

    /// Drops the privileges that the program must not have, and executes it. Returns only on error.
    pub(super) fn become_program(&self, process: &Process) -> Result<Infallible, Error> {
        let program = Program::new(&process.args, &process.env)?;
        let user = &process.user;
        let install = || match &self.filter {
            Some(filter) => filter.install().step(|| "install the system call filter".to_owned()),
            None => Ok(()),
        };
        self.bounding.bound().step(|| "drop capabilities".to_owned())?;
        rustix::thread::set_keep_capabilities(true).step(|| "keep capabilities".to_owned())?;
        set_ids(user.uid, user.gid, &user.additional_gids).step(|| format!("become user {}", user.uid))?;
        let step = || format!("change to the directory {}", process.cwd.display());
        rustix::process::chdir(&process.cwd).step(step)?;
        // A directory opened through a descriptor could be outside the container.
        let here = rustix::process::getcwd(Vec::new()).step(step)?;
        if !here.to_bytes().starts_with(b"/") {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not in the container"))
                .step(step);
        }
        rustix::process::umask(Mode::from_raw_mode(user.umask.unwrap_or(0o022)));
        process::reset_signals(process::ALL_SIGNALS);
        process::close_from_on_exec(3).step(|| "close descriptors".to_owned())?;
        // Install the filter as late as possible, because it may forbid anything. If the process
        // can gain no privileges, this is the very last step. Otherwise the kernel requires
        // privileges for it, so it comes just before the capabilities are dropped.
        let capabilities = || self.capabilities.set().step(|| "set capabilities".to_owned());
        if process.no_new_privileges {
            capabilities()?;
            rustix::thread::set_no_new_privs(true).step(|| "renounce new privileges".to_owned())?;
            install()?;
        } else {
            if user.uid != 0 {
                capability::take_up_permitted().step(|| "keep capabilities".to_owned())?;
            }
            install()?;
            capabilities()?;
        }
        Ok(program.run()?)
    }
}

/// Sets the resource limits of a process from outside, with the rights of the caller.
pub(super) fn limit(pid: i32, process: &Process) -> Result<(), Error> {
    let target = rustix::process::Pid::from_raw(pid);
    for limit in &process.rlimits {
        let step = || format!("set {}", limit.kind);
        let value = |number: u64| (number != u64::MAX).then_some(number);
        let new = rustix::process::Rlimit { current: value(limit.soft), maximum: value(limit.hard) };
        rustix::process::prlimit(target, crate::container::resource(&limit.kind)?, new).step(step)?;
    }
    Ok(())
}
