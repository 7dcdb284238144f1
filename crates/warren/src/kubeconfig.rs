//! Runs `warren kubeconfig` and `warren router-url`.

use anyhow::{Context as _, ensure};
use serde_json::json;

use crate::cli::{self, Format};
use crate::home;

/// Prints the path of the kubeconfig.
pub fn kubeconfig(arguments: &cli::Kubeconfig) -> anyhow::Result<()> {
    let data_dir = home::data_dir(&arguments.home)?;
    let path = data_dir.kubeconfig();
    ensure!(path.exists(), home::NeverStarted { directory: data_dir.path().to_owned() });
    match arguments.output.output {
        Format::Text => println!("{}", path.display()),
        Format::Json => {
            let running = warren_local::holder(data_dir.path())?.is_some();
            println!("{}", json!({ "path": path, "running": running }));
        }
    }
    Ok(())
}

/// Prints the URL of the router.
pub fn router_url(arguments: &cli::RouterUrl) -> anyhow::Result<()> {
    let data_dir = home::data_dir(&arguments.home)?;
    let path = data_dir.router_url();
    ensure!(path.exists(), home::NeverStarted { directory: data_dir.path().to_owned() });
    let text = std::fs::read_to_string(&path).with_context(|| format!("read `{}`", path.display()))?;
    let url = text.trim_end();
    match arguments.output.output {
        Format::Text => println!("{url}"),
        Format::Json => {
            let running = warren_local::holder(data_dir.path())?.is_some();
            println!("{}", json!({ "url": url, "running": running }));
        }
    }
    Ok(())
}
