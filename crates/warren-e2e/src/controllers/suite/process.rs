//! `warren controller` as a process of its own, against the API of any home.

use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::controllers::harness::Home;
use crate::local_home::warren_binary;

/// A controller process. Dropping it kills it.
pub struct ControllerProcess {
    child: Child,
}

impl ControllerProcess {
    /// Starts one, for all kinds, with more arguments. It listens nowhere.
    pub fn start(home: &Home, more: &[&str]) -> Result<Self> {
        let child = Command::new(warren_binary())
            .arg("controller")
            .arg("--kubeconfig")
            .arg(home.kubeconfig())
            .args(["--extensions", "--metrics-bind-address=0", "--health-probe-bind-address=0"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(home.log_file().context("open a log")?)
            .spawn()
            .context("start `warren controller`")?;
        Ok(Self { child })
    }

    /// `kill -9`.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("kill a controller")?;
        self.child.wait().context("wait for its end")?;
        Ok(())
    }

    /// Asks it to leave, and waits until it has.
    pub fn leave(mut self) -> Result<ExitStatus> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("its process id")?;
        kill_process(pid, Signal::TERM).context("ask a controller to leave")?;
        self.child.wait().context("wait for its end")
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("look at a controller")?.is_none())
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        // One that has ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
