//! Runs `warren controller` as a process of its own, against the API of any home.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::controllers::harness::Home;
use crate::local_home::warren_binary;

/// A controller process. Dropping it kills it.
pub struct ControllerProcess {
    child: Child,
    metrics: SocketAddr,
}

impl ControllerProcess {
    /// Starts one for all kinds, with more arguments.
    pub fn start(home: &Home, more: &[&str]) -> Result<Self> {
        // A port that is free now stays free until the process has it, as no other process uses its
        // address.
        let own = Ipv4Addr::new(127, fastrand::u8(1..), fastrand::u8(..), fastrand::u8(1..255));
        let metrics = TcpListener::bind((own, 0)).context("find a port")?.local_addr()?;
        let child = Command::new(warren_binary())
            .arg("controller")
            .arg("--kubeconfig")
            .arg(home.kubeconfig())
            .args(["--extensions", "--health-probe-bind-address=0"])
            .arg(format!("--metrics-bind-address={metrics}"))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(home.log_file().context("open a log")?)
            .spawn()
            .context("start `warren controller`")?;
        Ok(Self { child, metrics })
    }

    /// Returns how many reconciles of claims it has made.
    pub async fn passes_over_claims(&self) -> Result<u64> {
        // It may need a moment until it listens.
        let Ok(mut stream) = TcpStream::connect(self.metrics).await else { return Ok(0) };
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let passes = "controller_runtime_reconcile_total{controller=\"sandboxclaim\"";
        let lines = answer.lines().filter(|line| line.starts_with(passes));
        Ok(lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum())
    }

    /// Kills it (`kill -9`).
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("kill a controller")?;
        self.child.wait().context("wait for its end")?;
        Ok(())
    }

    /// Asks it to stop, and waits until it has.
    pub fn leave(mut self) -> Result<ExitStatus> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("its process id")?;
        kill_process(pid, Signal::TERM).context("ask a controller to leave")?;
        self.child.wait().context("wait for its end")
    }

    /// Returns true if it still runs.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("look at a controller")?.is_none())
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
