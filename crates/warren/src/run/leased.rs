//! Runs `warren run --id`: a command in the sandbox of a lease, which stays afterwards.

use anyhow::Context as _;
use jiff::Timestamp;
use warren_client::kube::Client;
use warren_client::launch;
use warren_client::lease::cluster::{self, Guard, LeaseError};
use warren_client::lease::{self, Lease, LeaseStanding};

use super::files::{Files, WORKDIR};
use super::publish::Listening;
use super::{MARK, Session, random_name};
use crate::destination::Destination;
use crate::leases::{self, Leases};
use crate::signals::Signals;
use crate::timings::Timings;
use crate::{cli, environment, progress, terminal};

/// Runs the command. The lease stays locked until it has ended, so that it is not stopped or
/// cleaned up meanwhile.
pub async fn session(
    slug: &str,
    arguments: &cli::Run,
    destination: &Destination,
    timings: &mut Timings,
    isolation: &mut Option<String>,
) -> anyhow::Result<i32> {
    let tty = arguments.tty || terminal::interactive();
    let variables = environment::variables(&arguments.env, tty, |name| std::env::var(name).ok())?;
    let leases = Leases::open(destination)?;
    let mut signals = Signals::listen().context("listen for signals")?;
    let (_lock, mut lease) = tokio::select! {
        signal = signals.ending() => return Ok(signal.exit_code()),
        taken = leases.take(slug) => taken?,
    };
    let files = Files::choose(arguments, Some(lease.workdir.as_deref().unwrap_or(WORKDIR)))?;
    let listening = Listening::begin(&arguments.publish).await?;
    timings.mark("prepare");
    let client = tokio::select! {
        signal = signals.ending() => return Ok(signal.exit_code()),
        client = destination.connect() => client?,
    };
    timings.mark("connect");
    let guard = tokio::select! {
        signal = signals.ending() => return Ok(signal.exit_code()),
        guard = ready(&client, &leases, &mut lease, destination) => guard?,
    };
    timings.mark("ready");
    let place = guard.place();
    // The mark is the file's first line, where forwarding signals looks for it.
    let variables = format!("export {MARK}={}\n{}", random_name(), environment::script(&variables));
    let guard = Some(guard);
    let mut session =
        Session { client: &client, arguments, tty, variables: &variables, files, guard, isolation: None };
    let result = session.serve(&place, listening, &mut signals, timings).await;
    timings.mark("command");
    *isolation = session.known_isolation().await;
    lease.last_used = leases::now();
    leases.store.write(&lease)?;
    if arguments.sync_only && result.is_ok() {
        println!("{}", lease.slug);
    }
    if !matches!(result, Ok(0)) {
        super::refused::say(&client, &place, arguments).await;
    }
    result
}

/// Waits until the lease can be used. An expired one is removed.
async fn ready(
    client: &Client,
    leases: &Leases,
    lease: &mut Lease,
    destination: &Destination,
) -> anyhow::Result<Guard> {
    let forget = destination.config.is("forget-missing");
    let root = match cluster::get_checked(client, lease).await {
        Ok(root) => root,
        Err(error @ LeaseError::Missing { .. }) if forget => {
            leases.store.remove(lease)?;
            return Err(anyhow::Error::from(error).context("the lease is forgotten"));
        }
        Err(error) => return Err(error.into()),
    };
    if lease::judge(lease, Some(&root), Timestamp::now()) == LeaseStanding::Expired {
        let slug = &lease.slug;
        leases::end(client, leases, lease, forget).await?;
        anyhow::bail!(
            "lease `{slug}` expired at {} and is removed; `warren warmup --id {slug}` makes a new one",
            lease.expires
        );
    }
    let within = destination.config.duration("sandbox-ready-timeout");
    let what = || format!("waiting for lease `{}` to become Ready", lease.slug);
    progress::show_if_slow(what, launch::wait_ready(client, root, within)).await?;
    leases::pin(client, leases, lease, destination.config.duration("pod-ready-timeout")).await
}
