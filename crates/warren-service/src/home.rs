//! The home that a client's sandboxes live in: found, and started if it is the local one.

use std::path::PathBuf;
use std::process::Stdio;

use warren_client::connect::{self, ConnectError};
use warren_client::home::{DataDir, Surroundings};
use warren_client::kube::Client;
use warren_mcp::{Connect, Connecting};

/// The home of sandboxes.
#[derive(Debug)]
pub enum Home {
    /// A data directory on this machine.
    Local {
        /// The directory that was named, if one was.
        data_dir: Option<PathBuf>,
    },
    /// A cluster.
    Cluster {
        /// The kubeconfig.
        kubeconfig: PathBuf,
        /// Which part of the kubeconfig.
        context: Option<String>,
    },
}

impl Home {
    async fn reach(&self, start: bool) -> Result<Client, String> {
        let data_dir = match self {
            Home::Cluster { kubeconfig, context } => {
                return connect::from_context(kubeconfig, context.as_deref()).await.map_err(chain);
            }
            Home::Local { data_dir } => {
                let path = DataDir::locate(data_dir.as_deref(), &Surroundings::of_this_process());
                path.and_then(|path| DataDir::create(&path)).map_err(chain)?
            }
        };
        match connect::local(&data_dir).await {
            Err(ConnectError::NotRunning { .. }) if start => {}
            result => return result.map_err(chain),
        }
        start_local(&data_dir).await?;
        connect::local(&data_dir).await.map_err(chain)
    }
}

impl Connect for Home {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(self.reach(true))
    }

    fn reconnect(&self) -> Connecting<'_> {
        Box::pin(self.reach(false))
    }

    fn router(&self) -> Result<String, String> {
        let Home::Local { data_dir } = self else {
            return Err("ports are opened in the local home only".to_owned());
        };
        let path = DataDir::locate(data_dir.as_deref(), &Surroundings::of_this_process());
        let file = path.and_then(|path| DataDir::create(&path)).map_err(chain)?.router_url();
        let text = std::fs::read_to_string(&file)
            .map_err(|error| format!("read the URL of the home's router in `{}`: {error}", file.display()))?;
        Ok(text.trim_end().to_owned())
    }
}

/// Starts the local home with `warren up --detach`; two at once settle between themselves which one stays.
async fn start_local(data_dir: &DataDir) -> Result<(), String> {
    let program = warren()?;
    let mut command = tokio::process::Command::new(&program);
    command.args(["up", "--detach", "--output", "json", "--data-dir"]).arg(data_dir.path());
    // The daemon outlives this process and must not hold the client's streams open.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().await.map_err(|error| format!("run `{}`: {error}", program.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "start the local home in `{}`: {}",
            data_dir.path().display(),
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// Finds the `warren` program: beside this one, else in `PATH`.
pub fn warren() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("find this program's own file: {error}"))?;
    let beside = own.with_file_name("warren");
    if beside.is_file() {
        return Ok(beside);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join("warren")).find(|file| file.is_file()).ok_or_else(
        || {
            format!(
                "there is no `warren` beside `{}` and none in PATH; install both programs into one directory, or start \
                 the home with `warren up`",
                own.display()
            )
        },
    )
}

fn chain(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
