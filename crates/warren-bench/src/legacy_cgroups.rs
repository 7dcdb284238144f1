//! crun refuses machines where cgroups of version 2 have controllers beside those of version 1. It can be shown the same machine
//! without version 2.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::Context;
use warren_sys::process::Namespaces;
use warren_sys::{mount, namespace};

/// Where version 2 is beside version 1.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

type Wish = (Command, Sender<io::Result<Child>>);

/// A thread that sees no version 2, and with it the processes that it starts.
pub struct LegacyCgroups {
    wishes: Sender<Wish>,
}

impl LegacyCgroups {
    /// `None` where there is nothing to hide.
    pub fn where_needed() -> anyhow::Result<Option<LegacyCgroups>> {
        let controllers = fs::read_to_string(format!("{UNIFIED}/cgroup.controllers")).unwrap_or_default();
        if controllers.trim().is_empty() {
            return Ok(None);
        }
        let (wishes, received) = mpsc::channel();
        let (told, hidden) = mpsc::channel();
        std::thread::spawn(move || {
            // Whoever asked waits for it.
            let _ = told.send(hide());
            serve(&received);
        });
        hidden.recv().context("the thread ended")?.context("hide cgroups of version 2")?;
        Ok(Some(LegacyCgroups { wishes }))
    }

    /// Starts a process there.
    pub fn spawn(&self, command: Command) -> anyhow::Result<Child> {
        let (answer, answered) = mpsc::channel();
        self.wishes.send((command, answer)).ok().context("the thread ended")?;
        Ok(answered.recv().context("the thread ended")??)
    }
}

/// Ends when the other end is dropped.
fn serve(wishes: &Receiver<Wish>) {
    for (mut command, answer) in wishes {
        let _ = answer.send(command.spawn());
    }
}

fn hide() -> io::Result<()> {
    namespace::unshare(Namespaces::MOUNT)?;
    mount::keep_mounts_private()?;
    mount::detach(File::open(UNIFIED)?.as_fd())
}
