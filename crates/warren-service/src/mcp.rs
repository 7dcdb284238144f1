//! `warren mcp`: one client on standard input and output.

use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use warren_mcp::Config;

use crate::cli;
use crate::home::Home;

/// The image of the local home for which nothing has to be fetched: this machine's own `/usr`.
const HOST_IMAGE: &str = "warren.dev/host";

/// Serves the client until it goes or a signal comes.
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
    let cli::McpClient { place, all, lease } = arguments;
    let local_home = place.kubeconfig.is_none();
    let config = Config {
        session: uuid::Uuid::new_v4().to_string(),
        all,
        namespace: place.namespace,
        image: place.image.or_else(|| local_home.then(|| HOST_IMAGE.to_owned())),
        local_home,
        lease: Duration::from_secs(lease),
        most_sandboxes: place.max_sandboxes,
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
    warren_mcp::serve(config, home, (tokio::io::stdin(), tokio::io::stdout()), shutdown).await?;
    Ok(())
}
