//! Runs `warren node`: this machine as a node of a cluster.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use warren_client::home::DataDir;
use warren_local::{KubeletAccess, Member, MemberConfig, RegistryConfig};

use crate::cli::{Format, Output, Registries, Runtimes};
use crate::log;
use crate::up::credential_files;

/// The default address: kubelet's.
const LISTEN: &str = "0.0.0.0:10250";

#[derive(Args, Debug)]
pub struct Node {
    /// The cluster [default: as kubectl finds it, or as programs in pods do]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The node's name [default: this machine's]
    #[arg(long, env = "WARREN_NODE_NAME", value_name = "NAME")]
    pub name: Option<String>,
    /// The node's address [default: the one from which this machine reaches the API server]
    #[arg(long, env = "WARREN_NODE_IP", value_name = "ADDRESS")]
    pub node_ip: Option<IpAddr>,
    /// Where the API server reaches the node (TLS), for exec, logs and the like; port 0 takes a free one
    #[arg(long, env = "WARREN_NODE_LISTEN", value_name = "ADDRESS", default_value = LISTEN)]
    pub listen: SocketAddr,
    /// The serving certificate [default: one made for this run]
    #[arg(long, env = "WARREN_NODE_TLS_CERT_FILE", value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, env = "WARREN_NODE_TLS_PRIVATE_KEY_FILE", value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// The authority of clients' certificates [default: what the API server publishes]
    #[arg(long, env = "WARREN_NODE_CLIENT_CA_FILE", value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Serve volume claims of the class `standard`, which is made the default, with directories of this machine
    #[arg(long, env = "WARREN_NODE_SERVE_VOLUME_CLAIMS")]
    pub serve_volume_claims: bool,
    /// How long pods may take to leave when the node is asked to stop; 0 leaves them running
    #[arg(long, env = "WARREN_NODE_DRAIN_TIMEOUT", value_name = "SECONDS", default_value = "45")]
    pub drain_timeout: u64,
    /// The data directory, which is not that of a local home
    #[arg(long, env = "WARREN_NODE_DATA_DIR", value_name = "DIR", default_value = "/var/lib/warren-node")]
    pub data_dir: PathBuf,
    #[command(flatten)]
    pub registries: Registries,
    #[command(flatten)]
    pub runtimes: Runtimes,
    #[command(flatten)]
    pub output: Output,
}

/// Runs the node until SIGTERM or SIGINT.
pub fn node(arguments: &Node) -> anyhow::Result<()> {
    let data_dir = DataDir::create(&arguments.data_dir)?;
    let config = MemberConfig {
        directory: data_dir.path().to_owned(),
        kubeconfig: arguments.kubeconfig.clone(),
        name: arguments.name.clone(),
        address: arguments.node_ip,
        listen: arguments.listen,
        access: KubeletAccess {
            certificate: arguments.tls_cert_file.clone().zip(arguments.tls_private_key_file.clone()),
            client_authority: arguments.client_ca_file.clone(),
        },
        registries: RegistryConfig {
            credential_files: credential_files(|name| std::env::var_os(name)),
            insecure: arguments.registries.insecure_registry.clone(),
            ..RegistryConfig::default()
        },
        runtimes: arguments.runtimes.runtime.clone(),
        program_path: std::env::var_os("PATH"),
        serve_claims: arguments.serve_volume_claims,
        drain: Duration::from_secs(arguments.drain_timeout),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    warren_local::run_member(config, |member| {
        log::write_by_thread(None);
        announce(&data_dir, member, arguments.output.output);
    })?;
    Ok(())
}

fn announce(data_dir: &DataDir, member: &Member, format: Format) {
    let Member { pid, name, server, listen } = member;
    match format {
        Format::Json => {
            let line = json!({
                "dataDir": data_dir.path(), "pid": pid, "name": name, "server": server, "listen": listen,
            });
            // Continue if the reader of standard output is gone.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
        Format::Text => {
            eprintln!("This machine takes pods as the node `{name}` of {server} (process {pid}).");
        }
    }
}
