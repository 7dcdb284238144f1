//! `warren mcp`: one client on standard input and output, or many over HTTP.

mod http;
mod keys;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use keys::Keys;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use warren_client::home::{DataDir, Surroundings};
use warren_mcp::http::Clients;
use warren_mcp::{Config, Server};

use crate::cli::{self, KeyCommand};
use crate::home::Home;

/// The image of the local home for which nothing has to be fetched: this machine's own `/usr`.
const HOST_IMAGE: &str = "warren.dev/host";

/// The name of the key that the first start over HTTP makes.
const FIRST_KEY: &str = "default";

/// Serves the client until it goes, or clients over HTTP, or until a signal comes.
pub fn mcp(arguments: cli::McpClient) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start")?;
    let result = runtime.block_on(serve(arguments));
    // A thread may still wait for standard input.
    runtime.shutdown_background();
    result
}

async fn serve(arguments: cli::McpClient) -> anyhow::Result<()> {
    let cli::McpClient { place, all, lease, listen, idle } = arguments;
    let local_home = place.kubeconfig.is_none();
    let config = Config {
        session: session(),
        all,
        namespace: place.namespace,
        image: place.image.or_else(|| local_home.then(|| HOST_IMAGE.to_owned())),
        local_home,
        lease: Duration::from_secs(lease),
        most_sandboxes: place.max_sandboxes,
    };
    let door = match listen {
        Some(address) => Some(open_door(address, place.data_dir.as_deref()).await?),
        None => None,
    };
    let home = match place.kubeconfig {
        Some(kubeconfig) => Home::Cluster { kubeconfig, context: place.context },
        None => Home::Local { data_dir: place.data_dir },
    };
    let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("listen for signals")?;
    let shutdown = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    };
    let Some((keys, socket)) = door else {
        warren_mcp::serve(config, home, (tokio::io::stdin(), tokio::io::stdout()), shutdown).await?;
        return Ok(());
    };
    let home = Arc::new(home);
    let server = move || {
        let config = Config { session: session(), ..config.clone() };
        Server::new(config, Box::new(home.clone()))
    };
    let clients = Clients::new(server, Duration::from_secs(idle));
    let token = CancellationToken::new();
    let serving = http::serve(clients, keys, socket, token.clone());
    let stop = async {
        shutdown.await;
        token.cancel();
    };
    tokio::join!(serving, stop);
    Ok(())
}

/// Returns a mark for what a client makes. No other client can guess it.
fn session() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Listens for clients over HTTP, makes the first key, and prints both.
async fn open_door(address: SocketAddr, data_dir: Option<&Path>) -> anyhow::Result<(Keys, TcpListener)> {
    if !address.ip().is_loopback() {
        bail!(
            "`--listen {address}` is not a loopback address: the port has no TLS, and keys would be readable on the way"
        );
    }
    let keys = open_keys(data_dir)?;
    let socket = TcpListener::bind(address).await.with_context(|| format!("listen on `{address}`"))?;
    let address = socket.local_addr().context("find the address")?;
    let first = match keys.names()?.is_empty() {
        true => Some(keys.add(FIRST_KEY)?),
        false => None,
    };
    http::greet(address, first.as_deref());
    Ok((keys, socket))
}

fn open_keys(data_dir: Option<&Path>) -> anyhow::Result<Keys> {
    let path = DataDir::locate(data_dir, &Surroundings::of_this_process())?;
    Keys::open(DataDir::create(&path)?.path())
}

/// Makes, lists or removes keys.
pub fn key(arguments: cli::McpKey) -> anyhow::Result<()> {
    let keys = open_keys(arguments.data_dir.as_deref())?;
    match arguments.command {
        KeyCommand::Add { name } => println!("{}", keys.add(&name)?),
        KeyCommand::List => keys.names()?.iter().for_each(|name| println!("{name}")),
        KeyCommand::Remove { name } => keys.remove(&name)?,
    }
    Ok(())
}
