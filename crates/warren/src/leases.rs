//! The commands for leases: `warmup`, `status`, `stop` and `cleanup`; `run --id` is in
//! [`crate::run`].
//!
//! The rules are in [`warren_client::lease`]. A lease is used or ended only under its lock, after
//! its record was read again.

mod arguments;
mod cleanup;
mod status;
mod stop;
mod warmup;

use std::path::PathBuf;

use anyhow::Context as _;
use jiff::Timestamp;
use warren_client::home::Surroundings;
use warren_client::lease::Lease;
use warren_client::lease::store::{LeaseLock, LeaseStore};

use crate::destination::Destination;

pub use arguments::{Cleanup, Status, Stop, Warmup};
pub use stop::end;
pub use warmup::pin;

/// Carries out one of the commands and returns the exit code.
pub fn carry_out(command: &crate::cli::Command) -> anyhow::Result<i32> {
    use crate::cli::Command;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    let code = runtime.block_on(async {
        match command {
            Command::Warmup(arguments) => warmup::warmup(arguments).await,
            Command::Status(arguments) => status::status(arguments).await,
            Command::Stop(arguments) => stop::stop(arguments).await,
            Command::Cleanup(arguments) => cleanup::cleanup(arguments).await,
            _ => unreachable!("checked by the caller: a command for leases"),
        }
    });
    runtime.shutdown_background();
    code
}

/// The error of an unknown lease.
#[derive(Debug, thiserror::Error)]
#[error("there is no lease `{slug}` in {home}, namespace `{namespace}`")]
pub struct NoLease {
    /// The slug or id.
    pub slug: String,
    /// The home as readable text.
    pub home: String,
    /// The namespace.
    pub namespace: String,
}

/// Returns the directory for state of the command line: `$WARREN_STATE_DIR`, else `warren` in the
/// user's directory for state.
pub fn state_directory() -> anyhow::Result<PathBuf> {
    let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(directory) = named("WARREN_STATE_DIR") {
        return Ok(directory);
    }
    if let Some(directory) = named("XDG_STATE_HOME") {
        return Ok(directory.join("warren"));
    }
    let home = Surroundings::of_this_process().home;
    let home = home.context("there is no home directory; name a directory with `WARREN_STATE_DIR`")?;
    Ok(home.join(".local/state/warren"))
}

/// Returns the present time in whole seconds, as in objects.
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// The leases of one home and namespace.
#[derive(Debug)]
pub struct Leases {
    /// All records.
    pub store: LeaseStore,
    identity: (String, String),
    namespace: String,
    home: String,
}

impl Leases {
    /// Opens the leases of a destination.
    pub fn open(destination: &Destination) -> anyhow::Result<Self> {
        Ok(Self {
            store: LeaseStore::open(&state_directory()?)?,
            identity: destination.identity()?,
            namespace: destination.namespace.clone(),
            home: destination.to_string(),
        })
    }

    /// Returns the fingerprint of a lease's scope in this home.
    pub fn fingerprint(&self, lease: &Lease) -> String {
        lease.scope_in(&self.identity.0, &self.identity.1).fingerprint()
    }

    /// Lists the leases of this home and namespace. Unreadable records are reported to the user and
    /// left alone.
    pub fn list(&self) -> anyhow::Result<Vec<Lease>> {
        let (mut leases, faults) = self.store.list()?;
        for fault in faults {
            eprintln!("warning: {}", crate::report::chain(&fault.into()));
        }
        leases.retain(|lease| lease.namespace == self.namespace && self.fingerprint(lease) == lease.scope);
        Ok(leases)
    }

    /// Finds a lease by its slug or its id.
    pub fn find(&self, slug: &str) -> anyhow::Result<Lease> {
        let found = self.list()?.into_iter().find(|lease| lease.slug == slug || lease.id == slug);
        found.ok_or_else(|| self.no_lease(slug))
    }

    fn no_lease(&self, slug: &str) -> anyhow::Error {
        let (home, namespace) = (self.home.clone(), self.namespace.clone());
        NoLease { slug: slug.to_owned(), home, namespace }.into()
    }

    /// Finds a lease, locks it, and reads its record again. Waits for a command that holds the
    /// lock.
    pub async fn take(&self, slug: &str) -> anyhow::Result<(LeaseLock, Lease)> {
        let found = self.find(slug)?;
        let lock = self.lock(&found).await?;
        let lease = self.store.get(&found.id)?.ok_or_else(|| self.no_lease(slug))?;
        Ok((lock, lease))
    }

    /// Locks a lease. If another command holds the lock, prints that and waits.
    pub async fn lock(&self, lease: &Lease) -> anyhow::Result<LeaseLock> {
        if let Some(lock) = self.store.try_lock(&lease.id)? {
            return Ok(lock);
        }
        eprintln!("Waiting for the command that uses lease `{}`", lease.slug);
        let (store, id) = (self.store.clone(), lease.id.clone());
        Ok(tokio::task::spawn_blocking(move || store.lock(&id)).await.context("wait for the lock")??)
    }
}
