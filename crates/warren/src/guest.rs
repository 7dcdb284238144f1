//! `warren guest`: the daemon that the node puts into sandboxes, for images and clusters without our
//! node. It is the same code in another program.

use std::net::TcpListener;

use anyhow::Context as _;

use crate::cli;

/// Serves until it is ended.
pub fn guest(arguments: &cli::Guest) -> anyhow::Result<()> {
    let mut config = warren_guest::Config::from_environment(|name| std::env::var_os(name));
    if let Some(directory) = &arguments.base_dir {
        config.root = warren_guest::root::Root::new(directory);
    }
    let listen = arguments.listen;
    let listener = TcpListener::bind(listen).with_context(|| format!("listen on {listen}"))?;
    warren_guest::serve(config, listener).with_context(|| format!("serve on {listen}"))
}
