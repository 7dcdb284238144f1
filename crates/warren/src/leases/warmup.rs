//! Runs `warren warmup`: creates a sandbox that stays, and records it.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use warren_api::Sandbox;
use warren_client::kube::Client;
use warren_client::launch::{self, Launched};
use warren_client::lease::cluster::{self, CreateError};
use warren_client::lease::{ID_PREFIX, Kind, Lease, Pinned, State, check_slug, object_name};

use super::{Leases, Warmup};
use crate::cli::Format;
use crate::destination::Destination;
use crate::run::wanted;
use crate::signals::Signals;
use crate::{image, progress};

/// The time limit for a deletion on an overloaded server. The client library retries such requests
/// for minutes.
const DELETE_PATIENCE: Duration = Duration::from_secs(30);

/// Makes a lease and prints its slug.
pub async fn warmup(arguments: &Warmup) -> anyhow::Result<i32> {
    let destination = Destination::choose(&arguments.place, arguments.flags())?;
    let leases = Leases::open(&destination)?;
    let mut lease = lease(arguments, &destination)?;
    lease.scope = leases.fingerprint(&lease);
    let sandbox = match lease.kind {
        Kind::Claim => None,
        Kind::Sandbox => {
            let name = arguments.image.as_deref().unwrap_or(wanted::HOST_IMAGE);
            let description = wanted::Description { image: name, ..wanted::Description::default() };
            Some(description.sandbox(destination.is_local())?)
        }
    };
    let mut signals = Signals::listen().context("listen for signals")?;
    let client = destination.connect().await?;
    if let (Some(image), true) = (&arguments.image, destination.is_local())
        && wanted::is_fetched(image)
    {
        tokio::select! {
            signal = signals.ending() => return Ok(signal.exit_code()),
            pulled = image::pull(&client, image, true) => drop(pulled?),
        }
    }
    cluster::check_source(&client, &lease).await?;
    let _lock = {
        let _slugs = leases.store.lock_all()?;
        if leases.find(&lease.slug).is_ok() {
            anyhow::bail!(
                "there is a lease `{0}` already: `warren run --id {0} -- COMMAND` uses it, `warren stop {0}` ends it",
                lease.slug
            );
        }
        let lock = leases.lock(&lease).await?;
        // The record is on disk before the object is created, so the object can always be found.
        leases.store.write(&lease)?;
        lock
    };
    let made = make(&client, &leases, &mut lease, sandbox.as_ref(), &destination);
    let result = tokio::select! {
        result = made => result.map(|()| 0),
        signal = signals.ending() => Ok(signal.exit_code()),
    };
    match result {
        Ok(0) => {}
        given_up => {
            // A second Ctrl-C leaves the record as it is.
            signals.end_at_the_next();
            give_up(&client, &leases, &mut lease, &destination).await;
            return given_up;
        }
    }
    let flags = destination.flags();
    match arguments.output.output {
        Format::Json => println!(
            "{}",
            json!({ "lease": lease.slug, "id": lease.id, "object": lease.name, "expires": lease.expires })
        ),
        Format::Text => println!("{}", lease.slug),
    }
    eprintln!(
        "Lease `{0}` ends at {1}: `warren run{flags} --id {0} -- COMMAND` runs in it, `warren stop{flags} {0}` ends it",
        lease.slug, lease.expires
    );
    Ok(0)
}

/// Returns the record of a lease whose object is not created yet.
fn lease(arguments: &Warmup, destination: &Destination) -> anyhow::Result<Lease> {
    let slug = arguments.id.clone().unwrap_or_else(|| format!("lease-{}", random(6)));
    if let Err(fault) = check_slug(&slug) {
        anyhow::bail!("`--id {slug}` cannot name a lease: {fault}");
    }
    let config = &destination.config;
    let id = format!("{ID_PREFIX}{}", random(16));
    let name = object_name(&slug, &id);
    let (kind, pool) = match (&arguments.template, &arguments.image, config.text("pool")) {
        (Some(_), ..) => (Kind::Claim, Some(name.clone())),
        (None, None, Some(pool)) => (Kind::Claim, Some(pool.to_owned())),
        (None, None, None) if !destination.is_local() => return Err(wanted::NoWorkload.into()),
        _ => (Kind::Sandbox, None),
    };
    let now = super::now();
    let ttl = Duration::from_secs(config.duration("ttl").as_secs().max(1));
    let expires = now.checked_add(ttl).context("add `ttl` to the present time")?;
    Ok(Lease {
        slug,
        kind,
        namespace: destination.namespace.clone(),
        scope: String::new(),
        home: destination.to_string(),
        pool,
        template: arguments.template.clone(),
        chosen_container: config.text("container").filter(|_| kind == Kind::Claim).map(str::to_owned),
        workdir: config.text("workdir").map(str::to_owned),
        expires,
        created: now,
        last_used: now,
        state: State::Creating,
        uid: None,
        sandbox: None,
        pod: None,
        container: None,
        id,
        name,
    })
}

fn random(length: usize) -> String {
    let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(length).collect();
    random.to_ascii_lowercase()
}

/// Creates the object, waits for it, and pins the objects behind it.
async fn make(
    client: &Client,
    leases: &Leases,
    lease: &mut Lease,
    sandbox: Option<&Sandbox>,
    destination: &Destination,
) -> anyhow::Result<()> {
    let root = match cluster::create(client, lease, sandbox).await {
        Ok(root) => root,
        Err(CreateError::Refused(error)) => {
            leases.store.remove(lease)?;
            return Err(error.into());
        }
        Err(CreateError::Unknown(error)) => return Err(error.into()),
    };
    lease.uid = uid_of(&root);
    leases.store.write(lease)?;
    cluster::make_pool(client, lease, &root).await?;
    let within = destination.config.duration("sandbox-ready-timeout");
    let what = || format!("waiting for lease `{}` to become Ready", lease.slug);
    progress::show_if_slow(what, launch::wait_ready(client, root, within)).await?;
    pin(client, leases, lease, destination.config.duration("pod-ready-timeout")).await?;
    Ok(())
}

fn uid_of(root: &Launched) -> Option<String> {
    match root {
        Launched::Claim(claim) => claim.metadata.uid.clone(),
        Launched::Sandbox(sandbox) => sandbox.metadata.uid.clone(),
    }
}

/// Follows a lease whose object is Ready to its pod, waits for that, and records the objects.
pub async fn pin(
    client: &Client,
    leases: &Leases,
    lease: &mut Lease,
    within: Duration,
) -> anyhow::Result<cluster::Guard> {
    let root = cluster::get_checked(client, lease).await?;
    // Unset if its maker was killed before the answer came; the lease's labels were checked.
    lease.uid = uid_of(&root);
    let chain = cluster::resolve(client, lease, &root, None).await?;
    cluster::wait_pod(client, lease, &chain.pod, within).await?;
    let replaced = lease.pod.as_ref().is_some_and(|known: &Pinned| known.uid != chain.pod.uid);
    if replaced {
        eprintln!("note: lease `{}` has a new pod; what was not on a volume is gone", lease.slug);
    }
    lease.sandbox = Some(chain.sandbox.clone());
    lease.pod = Some(chain.pod.clone());
    lease.container = Some(chain.container.clone());
    lease.state = State::Ready;
    leases.store.write(lease)?;
    Ok(cluster::Guard::new(client, lease, &chain))
}

/// Ends a lease that did not become Ready. If the deletion fails, the record stays for `warren
/// stop`.
async fn give_up(client: &Client, leases: &Leases, lease: &mut Lease, destination: &Destination) {
    match leases.store.get(&lease.id) {
        // The creation was refused: there is no object.
        Ok(None) => return,
        // This record has the results of the abandoned task.
        Ok(Some(known)) => *lease = known,
        Err(_) => {}
    }
    let ended = tokio::time::timeout(DELETE_PATIENCE, super::end(client, leases, lease, false)).await;
    let error = match ended {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => error,
        Err(_) => anyhow::anyhow!("no answer within {} s", DELETE_PATIENCE.as_secs()),
    };
    lease.state = State::NotReady;
    if let Err(error) = leases.store.write(lease) {
        eprintln!("warning: {}", crate::report::chain(&error.into()));
    }
    eprintln!(
        "warning: lease `{0}` is kept, because its object `{1}` could not be deleted ({2}); end it with `warren stop{3} {0}`",
        lease.slug,
        lease.name,
        crate::report::chain(&error),
        destination.flags()
    );
}
