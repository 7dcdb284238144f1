//! `warren e2b`: E2B's API on loopback.

use std::io::Write as _;
use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use warren_client::home::{DataDir, Surroundings};
use warren_e2b::{ApiKey, Config};
use warren_mcp::Connect as _;

use crate::cli;
use crate::home::Home;

/// The file in the data directory that holds the API key.
const KEY: &str = "e2b-api-key";

/// Serves until a signal comes.
pub fn e2b(arguments: cli::E2b) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start")?;
    let result = runtime.block_on(serve(arguments));
    runtime.shutdown_background();
    result
}

async fn serve(arguments: cli::E2b) -> anyhow::Result<()> {
    if !arguments.listen.ip().is_loopback() {
        bail!(
            "`--listen {}` is not on loopback: the port has no TLS, and the key would be readable on the way",
            arguments.listen
        );
    }
    let path = DataDir::locate(arguments.data_dir.as_deref(), &Surroundings::of_this_process())?;
    let data_dir = DataDir::create(&path)?;
    let file = data_dir.path().join(KEY);
    let key = ApiKey::load_or_make(&file)
        .with_context(|| format!("read or make the API key in `{}`", file.display()))?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
    let listener = TcpListener::bind(arguments.listen).await;
    let listener = listener.with_context(|| format!("listen on `{}`", arguments.listen))?;
    let address = listener.local_addr().context("find the address")?;
    let home = Home::Local { data_dir: Some(path) };
    let client = home.connect().await.map_err(anyhow::Error::msg)?;
    introduce(address, &key).context("print the variables")?;
    let config = Config {
        client,
        namespace: arguments.namespace,
        key,
        domain: format!("localhost:{}", address.port()),
        network: arguments.network,
    };
    let shutdown = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    warren_e2b::serve(config, listener, shutdown).await;
    Ok(())
}

/// Prints the lines that make a shell's programs use this server; at once, also to a pipe, whose reader waits for them.
fn introduce(address: SocketAddr, key: &ApiKey) -> std::io::Result<()> {
    let key = key.text();
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "export E2B_API_KEY={key}")?;
    writeln!(stdout, "export E2B_API_URL=http://{address}")?;
    writeln!(stdout, "export E2B_SANDBOX_URL=http://{address}")?;
    stdout.flush()
}
