//! Runs `warren guest`: the daemon that the node puts into sandboxes, for images and clusters
//! without our node. It has the same code as the node's program.

use std::net::TcpListener;

use anyhow::Context as _;
use warren_guest::Api;

use crate::cli;

/// Serves until the process is ended.
pub fn guest(arguments: &cli::Guest) -> anyhow::Result<()> {
    let mut config = warren_guest::Config::from_environment(|name| std::env::var_os(name));
    if let Some(directory) = &arguments.base_dir {
        config.root = warren_guest::root::Root::new(directory);
    }
    let asked = [
        (Api::Runtime, Some(arguments.listen)),
        (Api::Files, arguments.rest_listen),
        (Api::Processes, arguments.grpc_listen),
    ];
    let mut listeners = Vec::new();
    for (api, address) in asked {
        let Some(address) = address else { continue };
        let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
        listeners.push((api, listener));
    }
    warren_guest::serve(config, listeners).context("serve")
}
