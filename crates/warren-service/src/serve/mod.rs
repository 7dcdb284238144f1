//! `warren serve`: sandboxes, terminals and durable sessions over HTTP, and the web page that uses
//! them.
//!
//! Routes are in [`routes`], authentication is in [`access`].

pub mod access;
mod agent_runs;
mod answer;
mod append;
mod assets;
mod changes;
mod cluster;
mod database;
mod fills;
mod listen;
mod network;
mod request;
mod routes;
mod sandboxes;
mod sessions;
mod settings;
mod tasks;
mod terminals;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use warren_client::connect;
use warren_client::home::{DataDir, Surroundings};
use warren_client::kube::Client;
use warren_mcp::Connect as _;
use warren_providers::{
    Connect, DockerOptions, DockerProvider, LocalProvider, Options, Provider, WarrenProvider,
};
use warren_sessions::{Limits, Store};

use crate::cli::{self, ProviderName};
use crate::home::Home;
use access::Access;
use agent_runs::AgentRuns;
pub use agent_runs::agent_run;
use changes::Changes;
use database::Database;
use fills::Fills;
use settings::{Defaults, Kubernetes};
use terminals::Terminals;

/// Everything that handlers use.
pub struct Service {
    /// The provider that runs sandboxes.
    provider: Arc<dyn Provider>,
    /// The home or cluster itself, for pools and claims, if the provider has one.
    reach: Option<Reach>,
    namespace: Option<String>,
    store: Store,
    database: Database,
    terminals: Arc<Terminals>,
    agent_runs: Arc<AgentRuns>,
    viewers: sessions::Viewers,
    changes: Changes,
    /// The fill of the pools in the last hour.
    fills: Fills,
    access: Access,
    /// Names by which the service is known beside those of loopback.
    hosts: Vec<String>,
    shutdown: CancellationToken,
}

/// Serves until a signal comes.
pub fn serve(arguments: cli::Serve) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start")?;
    runtime.block_on(run(arguments))
}

async fn run(arguments: cli::Serve) -> anyhow::Result<()> {
    if !arguments.listen.ip().is_loopback() {
        bail!(
            "`--listen {}` is not a loopback address; put a reverse proxy with TLS before the service, and name it with \
             `--host`",
            arguments.listen
        );
    }
    let data_dir = DataDir::locate(arguments.place.data_dir.as_deref(), &Surroundings::of_this_process())
        .and_then(|path| DataDir::create(&path))?;
    let directory = make_directory(&data_dir.path().join("service"))?;
    let _lock = lock(&directory)?;
    let database = Database::open(&directory.join("service.db"))?;
    let store =
        Store::open(&directory.join("sessions.db"), Limits::default()).context("open the sessions")?;
    let (reach, provider, namespace) = provider(&arguments, &database, &directory).await?;
    let shutdown = CancellationToken::new();
    let changes = Changes::new();
    let terminals =
        Terminals::new(provider.clone(), store.clone(), database.clone(), changes.clone(), shutdown.clone());
    terminals.end_earlier().await.map_err(failed)?;
    let agent_runs = AgentRuns::new(
        make_directory(&directory.join("repositories"))?,
        provider.clone(),
        store.clone(),
        database.clone(),
        changes.clone(),
        shutdown.clone(),
    );
    agent_runs.end_earlier().await.map_err(failed)?;
    let now = Timestamp::now();
    let new_key = first_key(&database, arguments.new_key, now).await?;
    let access =
        Access::new(database.keys().await.map_err(failed)?, database.logins(now).await.map_err(failed)?);
    let socket = TcpListener::bind(arguments.listen).await;
    let socket = socket.with_context(|| format!("listen on {}", arguments.listen))?;
    let address = socket.local_addr().context("listen")?;
    let service = Arc::new(Service {
        provider,
        reach: reach.clone(),
        namespace,
        store,
        database,
        terminals: terminals.clone(),
        agent_runs: agent_runs.clone(),
        viewers: sessions::Viewers::default(),
        changes: changes.clone(),
        fills: Fills::default(),
        access,
        hosts: arguments.host,
        shutdown: shutdown.clone(),
    });
    let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
    greet(address, new_key.as_deref());
    let watching = tokio::spawn(watch(service.clone(), changes));
    let cleaning = tokio::spawn(agent_runs.clone().clean_up());
    let answer = move |request| {
        let service = service.clone();
        async move { listen::answer(&service, request).await }
    };
    let serving = crate::listen::serve(answer, socket, shutdown.clone());
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shutdown.cancel();
    };
    tokio::join!(serving, stop);
    tokio::join!(terminals.close(), agent_runs.close());
    cleaning.abort();
    watching.abort();
    Ok(())
}

/// Prints where the service is. The first line of standard output is the link.
fn greet(address: SocketAddr, key: Option<&str>) {
    match key {
        Some(key) => {
            println!("http://{address}/#key={key}");
            eprintln!("The key in this link is shown this once; `--new-key` makes another one.");
        }
        None => {
            println!("http://{address}/");
            eprintln!("Log in with the key that the first start has shown; `--new-key` makes another one.");
        }
    }
}

async fn watch(service: Arc<Service>, changes: Changes) {
    // Started homes are watched; one that is not there now is when it was reached once.
    let Some(reach) = &service.reach else {
        let mut events = service.provider.subscribe();
        while !matches!(events.recv().await, Err(tokio::sync::broadcast::error::RecvError::Closed)) {
            changes.tell(changes::Topic::Sandboxes);
        }
        return;
    };
    let client = loop {
        match reach.connect(false).await {
            Ok(client) => break client,
            Err(error) => tracing::debug!(error, "home not watched yet"),
        }
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    };
    let namespace = service.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    changes.watch(client, namespace, service.fills.clone(), service.shutdown.clone()).await;
}

fn failed(failure: answer::Failure) -> anyhow::Error {
    anyhow::Error::msg(failure.message)
}

fn make_directory(path: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("create `{}`", path.display()))?;
    Ok(path.to_owned())
}

/// Holds the directory for this process: two would not know of each other's terminals.
fn lock(directory: &Path) -> anyhow::Result<std::fs::File> {
    let path = directory.join("lock");
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("open `{}`", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => bail!("another `warren serve` uses `{}`", directory.display()),
    }
}

/// Makes a key if there is none, or if one is asked for.
async fn first_key(database: &Database, new: bool, now: Timestamp) -> anyhow::Result<Option<String>> {
    if !new && !database.keys().await.map_err(failed)?.is_empty() {
        return Ok(None);
    }
    let key = access::secret("warren_").map_err(failed)?;
    database.add_key(access::hash(&key), now).await.map_err(failed)?;
    Ok(Some(key))
}

/// Chooses what runs sandboxes: what the command line names, else what the settings name, else the
/// local home. A cluster or a Docker engine that was chosen by its name and cannot be used gives
/// way to the local home.
async fn provider(
    arguments: &cli::Serve,
    database: &Database,
    directory: &Path,
) -> anyhow::Result<(Option<Reach>, Arc<dyn Provider>, Option<String>)> {
    let place = &arguments.place;
    if let Some(directory) = &arguments.local_provider {
        let provider = LocalProvider::open(directory, arguments.development)?;
        tracing::warn!(directory = %directory.display(), "commands run directly on this machine, isolated by nothing");
        return Ok((None, Arc::new(provider), None));
    }
    let options = |namespace: Option<String>, local_home: bool| Options {
        namespace,
        image: place.image.clone(),
        local_home,
        runtime_class: None,
        most_sandboxes: place.max_sandboxes,
    };
    let make = |reach: Reach, options: Options| {
        let namespace = options.namespace.clone();
        let provider: Arc<dyn Provider> = Arc::new(WarrenProvider::new(options, reach.clone()));
        (Some(reach), provider, namespace)
    };
    if let Some(kubeconfig) = &place.kubeconfig {
        let home = Home::Cluster { kubeconfig: kubeconfig.clone(), context: place.context.clone() };
        return Ok(make(Reach::new(home), options(place.namespace.clone(), false)));
    }
    let defaults: Defaults = settings::read(database, settings::DEFAULTS).await.map_err(failed)?;
    match arguments.provider.or(defaults.provider) {
        Some(ProviderName::Kubernetes) => {
            let settings: Kubernetes =
                settings::read(database, settings::KUBERNETES).await.map_err(failed)?;
            let made = cluster::kubeconfig(settings.kube_config_path.as_deref()).map(|kubeconfig| {
                let home = Home::Cluster { kubeconfig, context: settings.kube_context.clone() };
                let own = options(place.namespace.clone().or(settings.namespace.clone()), false);
                let own = Options {
                    image: own.image.clone().or(settings.image),
                    runtime_class: settings.runtime_class_name.filter(|class| class != "none"),
                    ..own
                };
                make(Reach::new(home), own)
            });
            match made {
                Ok(made) => {
                    let health = made.1.health_check().await;
                    if health.healthy {
                        return Ok(made);
                    }
                    let message = health.message.unwrap_or_default();
                    tracing::warn!(
                        message,
                        "the cluster of the settings cannot be used; using the local home"
                    );
                }
                Err(failure) => {
                    let message = failure.message;
                    tracing::warn!(
                        message,
                        "the cluster of the settings cannot be used; using the local home"
                    );
                }
            }
        }
        Some(ProviderName::Docker) => match docker(arguments, directory).await {
            Ok(provider) => return Ok((None, Arc::new(provider), None)),
            Err(error) => {
                let message = format!("{error:#}");
                tracing::warn!(message, "the Docker engine cannot be used; using the local home");
            }
        },
        Some(ProviderName::Warren) | None => {}
    }
    let reach = Reach::new(Home::Local { data_dir: place.data_dir.clone() });
    // The service runs without a home, and says so; the first sandbox tries to start it again.
    if let Err(error) = reach.connect(true).await {
        tracing::warn!(error, "the local home is not running");
    }
    Ok(make(reach, options(place.namespace.clone(), true)))
}

/// Connects to the Docker engine, and removes what an earlier service has left half made there.
async fn docker(arguments: &cli::Serve, directory: &Path) -> anyhow::Result<DockerProvider> {
    let provider = DockerProvider::new(DockerOptions {
        host: arguments.docker_host.clone(),
        owner: docker_owner(directory)?,
        image: arguments.place.image.clone(),
        network: arguments.docker_network.clone(),
        most_sandboxes: arguments.place.max_sandboxes,
    })?;
    let health = provider.health_check().await;
    if !health.healthy {
        bail!(health.message.unwrap_or_default());
    }
    let removed = provider.recover().await?;
    if removed > 0 {
        tracing::info!(removed, "removed what was left half made on the Docker engine");
    }
    Ok(provider)
}

/// Returns the name by which this service knows its sandboxes among those of others on the same
/// engine.
fn docker_owner(directory: &Path) -> anyhow::Result<String> {
    let path = directory.join("docker-owner");
    match std::fs::read_to_string(&path) {
        Ok(owner) => return Ok(owner.trim().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("read `{}`", path.display())),
    }
    let owner = uuid::Uuid::new_v4().simple().to_string();
    // Complete or not there at all: another name would lose every sandbox.
    let write = || -> std::io::Result<()> {
        let new = directory.join("docker-owner.new");
        let mut file = std::fs::File::create(&new)?;
        std::io::Write::write_all(&mut file, owner.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)
    };
    write().with_context(|| format!("write `{}`", path.display()))?;
    Ok(owner)
}

/// A home, with the client that reached it. Clones share it.
#[derive(Clone)]
pub struct Reach(Arc<(Home, Mutex<Option<Client>>)>);

impl Reach {
    fn new(home: Home) -> Self {
        Self(Arc::new((home, Mutex::new(None))))
    }
}

impl Connect for Reach {
    fn connect(&self, start: bool) -> BoxFuture<'_, Result<Client, String>> {
        async move {
            let (home, known) = self.0.as_ref();
            let mut known = known.lock().await;
            if let (Home::Local { data_dir }, true) = (home, start && known.is_some()) {
                // The client finds a home that was restarted, but starts none.
                let path = DataDir::locate(data_dir.as_deref(), &Surroundings::of_this_process());
                let runs = match path.and_then(|path| DataDir::open(&path)) {
                    Ok(data_dir) => connect::local(&data_dir).await.is_ok(),
                    Err(_) => false,
                };
                if !runs {
                    *known = None;
                }
            }
            if let Some(client) = known.as_ref() {
                return Ok(client.clone());
            }
            let client = if start { home.connect().await } else { home.reconnect().await }?;
            *known = Some(client.clone());
            Ok(client)
        }
        .boxed()
    }
}
