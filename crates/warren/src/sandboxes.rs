//! The commands for existing sandboxes: `list`, `top`, `exec`, `shell`, `cp`, `diff`, `apply`,
//! `logs`, `events`, `explain`, `suspend`, `resume` and `delete`.

mod copy;
mod explain;
pub mod list;
mod suspend;
mod top;
mod view;

use std::time::Duration;

use anyhow::Context as _;
use futures::AsyncReadExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use warren_api::{Sandbox, SandboxClaim};
use warren_client::exec::ExecRequest;
use warren_client::kube::api::{Api, ListParams, LogParams};
use warren_client::kube::{Client, ResourceExt as _};
use warren_client::launch::container_of;
use warren_client::lease::store::LeaseLock;
use warren_client::lease::{Lease, cluster};
use warren_client::sandbox;
use warren_client::sync::Place;

use crate::cli::{self, Format};
use crate::config::Layer;
use crate::destination::Destination;
use crate::leases::Leases;
use crate::signals::Signals;
use crate::{environment, history, pools, run, terminal, words};

/// A sandbox, and its claim, if it was named by its claim.
#[derive(Debug)]
struct Found {
    sandbox: Option<Sandbox>,
    claim: Option<SandboxClaim>,
}

/// Carries out one of the commands and returns the exit code.
pub fn carry_out(command: &cli::Command) -> anyhow::Result<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    let code = runtime.block_on(async {
        match command {
            cli::Command::List(arguments) => list::list(arguments).await.map(|()| 0),
            cli::Command::Exec(arguments) => exec(arguments).await,
            cli::Command::Shell(arguments) => shell(arguments).await,
            cli::Command::Cp(arguments) => copy::copy(arguments).await.map(|()| 0),
            cli::Command::Diff(arguments) => view::diff(arguments).await.map(|()| 0),
            cli::Command::Apply(arguments) => view::apply(arguments).await.map(|()| 0),
            cli::Command::Logs(arguments) => logs(arguments).await.map(|()| 0),
            cli::Command::Events(arguments) => events(arguments).await.map(|()| 0),
            cli::Command::Explain(arguments) => explain::explain(arguments).await,
            cli::Command::Top(arguments) => top::top(arguments).await.map(|()| 0),
            cli::Command::Suspend(arguments) => suspend::suspend(arguments).await.map(|()| 0),
            cli::Command::Resume(arguments) => suspend::resume(arguments).await.map(|()| 0),
            cli::Command::Pool(arguments) => pools::pool(arguments).await,
            cli::Command::Template(arguments) => pools::template(arguments).await,
            cli::Command::Delete(arguments) => delete(arguments).await.map(|()| 0),
            _ => unreachable!("checked by the caller: a command for sandboxes"),
        }
    });
    // A thread may still be reading standard input; it is not waited for.
    runtime.shutdown_background();
    code
}

/// A connection to the API, and the namespace in use.
struct Reached {
    client: Client,
    namespace: String,
    destination: Destination,
}

/// Connects to the home that the arguments and settings name.
async fn reach(place: &cli::Place) -> anyhow::Result<Reached> {
    let destination = Destination::choose(place, Layer::new())?;
    let client = destination.connect().await?;
    Ok(Reached { client, namespace: destination.namespace.clone(), destination })
}

/// Opens the leases of this home; `None` without a directory for them, so that commands on other
/// sandboxes still work.
fn leases(reached: &Reached) -> Option<Leases> {
    let opened = Leases::open(&reached.destination);
    opened.inspect_err(|error| tracing::debug!(%error, "leases not read")).ok()
}

/// Finds a sandbox by its name, the name of its claim, or the slug of its lease.
async fn find(reached: &Reached, name: &str) -> anyhow::Result<Found> {
    let (client, namespace) = (&reached.client, &reached.namespace);
    let lease = leases(reached).and_then(|leases| leases.find(name).ok());
    let object = lease.as_ref().map_or(name, |lease| &lease.name);
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let reading = || format!("find sandbox `{namespace}/{object}`");
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
    if let Some(claim) = claims.get_opt(object).await.with_context(reading)? {
        let given = claim.status.as_ref().and_then(|status| status.sandbox.as_ref()?.name.clone());
        let sandbox = match given {
            Some(given) => sandboxes.get_opt(&given).await.with_context(reading)?,
            None => None,
        };
        return Ok(Found { sandbox, claim: Some(claim) });
    }
    match sandboxes.get_opt(object).await.with_context(reading)? {
        Some(sandbox) => Ok(Found { sandbox: Some(sandbox), claim: None }),
        None => {
            anyhow::bail!("there is no sandbox `{name}` in namespace `{namespace}`; `warren list` shows all")
        }
    }
}

/// A sandbox and its home.
pub struct Identity {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// True if it is in the local home.
    pub is_local: bool,
}

/// Returns the sandbox that a name refers to.
pub async fn identity(place: &cli::Place, name: &str) -> anyhow::Result<Identity> {
    let reached = reach(place).await?;
    let sandbox = find(&reached, name).await?.sandbox;
    let sandbox = sandbox.with_context(|| format!("claim `{name}` has no sandbox yet"))?;
    let uid = sandbox.uid().with_context(|| format!("sandbox `{name}` has no UID"))?;
    let is_local = reached.destination.is_local();
    Ok(Identity { namespace: reached.namespace.clone(), name: sandbox.name_any(), uid, is_local })
}

/// The container of a sandbox in which commands run. A lease is locked meanwhile, unless a `run`
/// holds its lock.
struct Entered {
    place: Place,
    lease: Option<(Leases, Lease, Option<LeaseLock>)>,
}

impl Entered {
    /// Records that the lease was used.
    fn leave(self) {
        let Some((leases, mut lease, Some(_lock))) = self.lease else { return };
        lease.last_used = crate::leases::now();
        if let Err(error) = leases.store.write(&lease) {
            eprintln!("warning: {}", crate::report::chain(&error.into()));
        }
    }
}

/// Finds the container of a sandbox in which commands run. For a lease, it starts at the lease's
/// own object, and checks every owner and UID on the way.
async fn enter(reached: &Reached, name: &str, container: Option<&str>) -> anyhow::Result<Entered> {
    let client = &reached.client;
    if let Some(leases) = leases(reached)
        && let Ok(lease) = leases.find(name)
    {
        let lock = leases.store.try_lock(&lease.id)?;
        let lease = leases.store.get(&lease.id)?.unwrap_or(lease);
        let root = cluster::get_checked(client, &lease).await?;
        let chain = cluster::resolve(client, &lease, &root, None).await?;
        let container = container.map_or(chain.container, str::to_owned);
        let place = Place { namespace: lease.namespace.clone(), pod: chain.pod.name, container };
        return Ok(Entered { place, lease: Some((leases, lease, lock)) });
    }
    let found = find(reached, name).await?;
    let sandbox = found.sandbox.with_context(|| format!("claim `{name}` has no sandbox yet"))?;
    if !matches!(sandbox::progress(&sandbox), sandbox::Progress::Ready) {
        anyhow::bail!("sandbox `{name}` is not Ready; `warren explain {name}` says why");
    }
    let pod = sandbox::pod_name(&sandbox);
    let container = match container {
        Some(container) => container.to_owned(),
        None => container_of(client, &sandbox, &pod).await?,
    };
    Ok(Entered { place: Place { namespace: reached.namespace.clone(), pod, container }, lease: None })
}

async fn exec(arguments: &cli::Exec) -> anyhow::Result<i32> {
    let tty = arguments.tty || terminal::interactive();
    let variables = environment::variables(&arguments.env, tty, |name| std::env::var(name).ok())?;
    let reached = reach(&arguments.place).await?;
    let entered = enter(&reached, &arguments.sandbox, arguments.container.as_deref()).await?;
    let program = words::program(&arguments.command);
    let variables = environment::script(&variables);
    let directory = arguments.workdir.as_deref();
    let began = Timestamp::now();
    let code = attach(&reached.client, &entered.place, program, &variables, directory, tty).await;
    history::note(&history::Entry {
        began,
        took: Duration::try_from(Timestamp::now().duration_since(began)).unwrap_or_default(),
        command: &arguments.command,
        code: code.as_ref().ok().copied(),
        home: reached.destination.to_string(),
        lease: entered.lease.as_ref().map(|(_, lease, _)| lease.slug.as_str()),
        isolation: None,
    });
    entered.leave();
    code
}

async fn shell(arguments: &cli::Shell) -> anyhow::Result<i32> {
    let reached = reach(&arguments.place).await?;
    let entered = enter(&reached, &arguments.sandbox, None).await?;
    let tty = terminal::interactive();
    let variables = environment::variables(&[], tty, |name| std::env::var(name).ok())?;
    let program = words::shell();
    let variables = environment::script(&variables);
    let code = attach(&reached.client, &entered.place, program, &variables, None, tty).await;
    entered.leave();
    code
}

async fn attach(
    client: &Client,
    place: &Place,
    program: Vec<String>,
    variables: &str,
    directory: Option<&str>,
    tty: bool,
) -> anyhow::Result<i32> {
    let mut signals = Signals::listen().context("listen for signals")?;
    // The sandbox may run other commands: signals are for the one with this mark.
    let mark = format!("{}={}", run::MARK, run::random_name());
    let variables = format!("export {mark}\n{variables}");
    let file = run::store_variables(client, place, &variables).await?;
    let request = ExecRequest {
        namespace: place.namespace.clone(),
        pod: place.pod.clone(),
        container: Some(place.container.clone()),
        command: words::prepared(program, Some(&file), directory),
        stdin: tty || !terminal::stdin_is_null(),
        tty,
    };
    run::command(client, request, None, &mark, &mut signals).await
}

async fn logs(arguments: &cli::Logs) -> anyhow::Result<()> {
    let reached = reach(&arguments.place).await?;
    let found = find(&reached, &arguments.sandbox).await?;
    let sandbox = found.sandbox.context("the claim has no sandbox yet")?;
    let pods: Api<Pod> = Api::namespaced(reached.client.clone(), &reached.namespace);
    let parameters = LogParams {
        container: arguments.container.clone(),
        follow: arguments.follow,
        tail_lines: arguments.tail,
        ..LogParams::default()
    };
    let pod = sandbox::pod_name(&sandbox);
    let stream =
        pods.log_stream(&pod, &parameters).await.with_context(|| format!("read the log of pod `{pod}`"))?;
    let mut stream = std::pin::pin!(stream);
    let mut stdout = tokio::io::stdout();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let length = stream.read(&mut buffer).await.context("read the log")?;
        if length == 0 {
            return Ok(());
        }
        let written = async {
            stdout.write_all(&buffer[..length]).await?;
            stdout.flush().await
        };
        match written.await {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("print the log")?,
        }
    }
}

/// Returns the events about a sandbox, its claim and its pod, the oldest first.
async fn events_of(client: &Client, namespace: &str, found: &Found) -> anyhow::Result<Vec<Event>> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let mut names = std::collections::BTreeSet::new();
    if let Some(sandbox) = &found.sandbox {
        names.insert(sandbox.name_any());
        names.insert(sandbox::pod_name(sandbox));
    }
    names.extend(found.claim.as_ref().map(|claim| claim.name_any()));
    let mut events = Vec::new();
    for name in names {
        let list = ListParams::default().fields(&format!("involvedObject.name={name}"));
        events.extend(api.list(&list).await.context("list events")?.items);
    }
    events.sort_by_key(last_seen);
    Ok(events)
}

fn last_seen(event: &Event) -> Option<Timestamp> {
    let seen = event.last_timestamp.as_ref().map(|time| time.0);
    seen.or(event.event_time.as_ref().map(|time| time.0)).or(event
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0))
}

async fn events(arguments: &cli::Events) -> anyhow::Result<()> {
    let reached = reach(&arguments.place).await?;
    let found = find(&reached, &arguments.sandbox).await?;
    let events = events_of(&reached.client, &reached.namespace, &found).await?;
    let rows = events.iter().map(|event| {
        let object = &event.involved_object;
        json!({
            "time": last_seen(event),
            "type": event.type_,
            "reason": event.reason,
            "object": format!("{}/{}", object.kind.as_deref().unwrap_or_default(), object.name.as_deref().unwrap_or_default()),
            "count": event.count.unwrap_or(1),
            "message": event.message,
        })
    });
    match arguments.output.output {
        Format::Json => println!("{}", json!({ "events": rows.collect::<Vec<_>>() })),
        Format::Text => {
            let rows = rows
                .map(|row| ["time", "type", "reason", "object", "message"].map(|key| list::cell(&row[key])));
            print!(
                "{}",
                list::table(&["TIME", "TYPE", "REASON", "OBJECT", "MESSAGE"], &rows.collect::<Vec<_>>())
            );
        }
    }
    Ok(())
}

async fn delete(arguments: &cli::Delete) -> anyhow::Result<()> {
    let reached = reach(&arguments.place).await?;
    let client = &reached.client;
    let leases = leases(&reached);
    for name in &arguments.sandboxes {
        if leases.as_ref().is_some_and(|leases| leases.find(name).is_ok()) {
            anyhow::bail!("`{name}` is a lease: `warren stop {name}` ends it");
        }
        let found = find(&reached, name).await?;
        match (&found.claim, &found.sandbox) {
            (Some(claim), _) => sandbox::delete(client, claim).await?,
            (None, Some(sandbox)) => match claim_of(sandbox) {
                Some(claim) => anyhow::bail!("sandbox `{name}` belongs to claim `{claim}`; delete that one"),
                None => sandbox::delete(client, sandbox).await?,
            },
            (None, None) => {}
        }
        println!("{name}");
    }
    Ok(())
}

fn claim_of(sandbox: &Sandbox) -> Option<&str> {
    let owners = sandbox.metadata.owner_references.iter().flatten();
    let claim =
        owners.filter(|owner| owner.controller == Some(true)).find(|owner| owner.kind == "SandboxClaim");
    claim.map(|owner| owner.name.as_str())
}
