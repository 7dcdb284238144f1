//! Runs `warren stop`, and ends leases.

use warren_client::kube::Client;
use warren_client::launch::Launched;
use warren_client::lease::cluster::{self, LeaseError};
use warren_client::lease::{Lease, Mismatch};

use super::{Leases, Stop};
use crate::destination::Destination;

/// The outcome of ending a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its object was deleted.
    Deleted,
    /// Its object did not exist, and the lease was forgotten as requested.
    Forgotten,
}

/// Ends leases.
pub async fn stop(arguments: &Stop) -> anyhow::Result<i32> {
    let destination = Destination::choose(&arguments.place, arguments.forget.flags())?;
    let leases = Leases::open(&destination)?;
    let forget = destination.config.is("forget-missing");
    for slug in &arguments.leases {
        leases.find(slug)?;
        let client = destination.connect().await?;
        let (_lock, lease) = leases.take(slug).await?;
        match end(&client, &leases, &lease, forget).await? {
            Ended::Deleted => println!("{}", lease.slug),
            Ended::Forgotten => {
                println!("{}", lease.slug);
                eprintln!("Forgot lease `{}`: its object `{}` is not there", lease.slug, lease.name);
            }
        }
    }
    Ok(0)
}

/// Deletes the object of a locked lease, if it still is that object, and removes the record.
pub async fn end(
    client: &Client,
    leases: &Leases,
    lease: &Lease,
    forget_missing: bool,
) -> anyhow::Result<Ended> {
    match examine(client, lease).await {
        Ok(root) => {
            cluster::delete(client, lease, &root).await?;
            leases.store.remove(lease)?;
            Ok(Ended::Deleted)
        }
        Err(error) if forget_missing && is_gone(&error) => {
            leases.store.remove(lease)?;
            Ok(Ended::Forgotten)
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads the object of a lease, and checks that it is the lease's.
pub async fn examine(client: &Client, lease: &Lease) -> Result<Launched, LeaseError> {
    cluster::get_checked(client, lease).await
}

/// Returns true if the lease's object does not exist: there is none of its name, or a later one.
pub fn is_gone(error: &LeaseError) -> bool {
    matches!(error, LeaseError::Missing { .. } | LeaseError::Mismatch(Mismatch { field: "metadata.uid", .. }))
}
