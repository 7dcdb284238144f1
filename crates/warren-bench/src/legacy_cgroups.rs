//! Hides version 2 of cgroups from crun. It refuses machines where version 2 has controllers beside
//! those of version 1.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::Context;
use warren_sys::process::Namespaces;
use warren_sys::{mount, namespace};

/// The mount point of version 2 beside version 1.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

type Wish = (Command, Sender<io::Result<Child>>);

/// A thread that does not see version 2, and starts processes that do not either.
pub struct LegacyCgroups {
    wishes: Sender<Wish>,
}

impl LegacyCgroups {
    /// Returns `None` if there is nothing to hide.
    pub fn where_needed() -> anyhow::Result<Option<LegacyCgroups>> {
        let controllers = fs::read_to_string(format!("{UNIFIED}/cgroup.controllers")).unwrap_or_default();
        if controllers.trim().is_empty() {
            return Ok(None);
        }
        let (wishes, received) = mpsc::channel();
        let (told, hidden) = mpsc::channel();
        std::thread::spawn(move || {
            // The caller waits for this message.
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

/// Serves requests until the other end is dropped.
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
