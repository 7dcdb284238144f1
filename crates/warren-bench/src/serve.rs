//! Runs our API server alone in a process, for the comparison with kube-apiserver and etcd. A home
//! would also start the pods of the objects that it gets.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use warren_apiserver::pki::{self, Pki};
use warren_apiserver::{ApiServer, Config, NoNodes, Storage, TlsAccess, serve_tls};

/// The hidden subcommand of a server's process.
pub const SUBCOMMAND: &str = "serve-api";

/// A running server. It is killed when dropped.
pub struct Server {
    process: Child,
    directory: TempDir,
}

impl Server {
    /// Starts this program again as a server.
    pub fn start() -> anyhow::Result<Server> {
        let directory = tempfile::tempdir()?;
        let mut process = Command::new("/proc/self/exe")
            .arg(SUBCOMMAND)
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the API server")?;
        let mut line = String::new();
        let stdout = process.stdout.take().context("the server's output")?;
        std::io::BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.trim() == "ready", "the API server did not come up");
        Ok(Server { process, directory })
    }

    /// Returns the path of its kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Serves a new store below `directory`, with our definitions, until standard input is closed
/// because the owner has ended.
pub async fn serve(directory: &Path) -> anyhow::Result<()> {
    let crds = warren_api::crds().into_iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
    let server = ApiServer::open(Config {
        storage: Storage::File(directory.join("store.db")),
        crds,
        nodes: Arc::new(NoNodes),
        accounts: None,
        now: jiff::Timestamp::now,
        limits: Default::default(),
        audit: None,
    })
    .await?;
    let pki = Pki::open(&directory.join("pki"), &["127.0.0.1".to_owned()], jiff::Timestamp::now())?;
    let access = TlsAccess { config: pki.server_config()?, admin_token: None };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let kubeconfig = pki.kubeconfig(&format!("https://{}", listener.local_addr()?))?;
    pki::write_private(&directory.join("kubeconfig"), kubeconfig.as_bytes())?;
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve_tls(server.clone(), listener, access, shutdown.clone()));
    println!("ready");
    tokio::task::spawn_blocking(|| std::io::stdin().lock().read_line(&mut String::new())).await??;
    shutdown.cancel();
    serving.await?;
    server.shutdown().await;
    Ok(())
}
