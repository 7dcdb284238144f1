//! Serves a fresh API server on loopback until interrupted, for trying clients.
//!
//! Usage: `serve DIRECTORY [CRD.json…]`. All data is kept in the directory, and
//! `DIRECTORY/kubeconfig` is written.

use std::sync::Arc;

use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use warren_apiserver::pki::{self, Pki};
use warren_apiserver::{ApiServer, Config, NoNodes, Storage, TlsAccess, serve_tls, serve_unix};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let directory = std::path::PathBuf::from(arguments.next().ok_or("usage: serve DIRECTORY [CRD.json…]")?);
    std::fs::create_dir_all(&directory)?;
    let crds = arguments.map(|path| Ok(serde_json::from_slice(&std::fs::read(path)?)?));
    let crds = crds.collect::<Result<Vec<serde_json::Value>, Box<dyn std::error::Error>>>()?;
    let began = std::time::Instant::now();
    let config = Config {
        storage: Storage::File(directory.join("store.db")),
        crds,
        nodes: Arc::new(NoNodes),
        accounts: None,
        now: jiff::Timestamp::now,
        limits: Default::default(),
        audit: None,
    };
    let server = ApiServer::open(config).await?;
    let opened = began.elapsed();
    let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let pki = Pki::open(&directory.join("pki"), &hosts, jiff::Timestamp::now())?;
    let access = TlsAccess { config: pki.server_config()?, admin_token: Some(pki.admin_token()?) };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let kubeconfig = pki.kubeconfig(&format!("https://{}", listener.local_addr()?))?;
    pki::write_private(&directory.join("kubeconfig"), kubeconfig.as_bytes())?;
    let socket = directory.join("api.sock");
    let _ = std::fs::remove_file(&socket);
    let unix = UnixListener::bind(&socket)?;
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve_tls(server.clone(), listener, access, shutdown.clone()));
    let serving_unix = tokio::spawn(serve_unix(server.clone(), unix, shutdown.clone()));
    eprintln!("opened in {opened:?}, ready after {:?}", began.elapsed());
    tokio::signal::ctrl_c().await?;
    shutdown.cancel();
    serving.await?;
    serving_unix.await?;
    server.shutdown().await;
    Ok(())
}
