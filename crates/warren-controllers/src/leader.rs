//! One leader among several replicas, by a Lease. Whoever waits watches the lease, so a leader that goes in good order is
//! followed at once, and one that dies when its lease runs out.
//!
//! Leadership only saves quarrels. Two leaders for a moment (a paused process, a clock that jumps) are harmless: every
//! write that must happen once is guarded by the object's own version.

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How to take part in an election.
#[derive(Clone, Debug)]
pub struct Election {
    /// The namespace of the lease.
    pub namespace: String,
    /// Its name. The default is agent-sandbox's, so that its controller and ours never lead at the same time.
    pub name: String,
    /// Who we are; must differ between replicas.
    pub identity: String,
    /// How long a lease counts after it was last renewed.
    pub lease_duration: Duration,
    /// How often it is renewed.
    pub renew_period: Duration,
}

impl Election {
    /// An election with the names and times of agent-sandbox.
    #[must_use]
    pub fn new(namespace: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: "a3317529.agent-sandbox.x-k8s.io".to_owned(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_period: Duration::from_secs(2),
        }
    }

    /// Waits until we lead. Errors of the server are waited out. Cancel by dropping.
    pub async fn lead(self, client: Client) -> Leadership {
        let leases: Api<Lease> = Api::namespaced(client, &self.namespace);
        let only_this = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let mut changes =
            std::pin::pin!(watcher(leases.clone(), only_this).default_backoff().touched_objects());
        let mut seen: Option<(Option<String>, Instant)> = None;
        loop {
            match leases.get_opt(&self.name).await {
                Ok(lease) => {
                    let version = lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
                    // A lease runs out by our own clock since we saw it change: clocks of others are not compared.
                    let since = match &seen {
                        Some((known, since)) if *known == version => *since,
                        _ => Instant::now(),
                    };
                    seen = Some((version, since));
                    let expired = since.elapsed() >= self.lease_duration;
                    if (expired || lease.as_ref().is_none_or(|lease| is_free(lease, &self.identity)))
                        && let Some(lease) = self.take(&leases, lease).await
                    {
                        return Leadership::start(self, leases, lease);
                    }
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "lease could not be read")
                }
            }
            let expiry = seen.as_ref().map_or_else(Instant::now, |(_, since)| *since) + self.lease_duration;
            tokio::select! {
                _ = changes.next() => {}
                () = tokio::time::sleep_until(expiry.max(Instant::now() + self.renew_period)) => {}
            }
        }
    }

    /// Writes ourselves into the lease, guarded by the version that was seen. Nothing when somebody was quicker.
    async fn take(&self, leases: &Api<Lease>, present: Option<Lease>) -> Option<Lease> {
        let now = Some(MicroTime(Timestamp::now()));
        let seconds = i32::try_from(self.lease_duration.as_secs()).unwrap_or(i32::MAX).max(1);
        let spec = |transitions: i32| LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(seconds),
            acquire_time: now.clone(),
            renew_time: now.clone(),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        };
        let written = match present {
            None => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                let lease = Lease { metadata, spec: Some(spec(0)) };
                leases.create(&PostParams::default(), &lease).await
            }
            Some(mut lease) => {
                let transitions =
                    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
                lease.spec = Some(spec(transitions.saturating_add(1)));
                leases.replace(&self.name, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(lease) => Some(lease),
            Err(error) => {
                tracing::debug!(%error, "lease was not taken");
                None
            }
        }
    }
}

/// We lead, until [`Leadership::lost`] says otherwise. [`Leadership::release`] hands over at once; dropping it lets the
/// lease run out.
pub struct Leadership {
    lost: CancellationToken,
    stop: CancellationToken,
    renewing: tokio::task::JoinHandle<()>,
}

impl Leadership {
    fn start(election: Election, leases: Api<Lease>, lease: Lease) -> Self {
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        tracing::info!(identity = election.identity, "leading");
        let renewing = tokio::spawn(renew(election, leases, lease, lost.clone(), stop.clone()));
        Self { lost, stop, renewing }
    }

    /// Waits until we lead no longer: the lease could not be renewed in time, or somebody else has it.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Gives the lease up, so that the next one need not wait for it to run out. To be called when all work has ended.
    pub async fn release(mut self) {
        self.stop.cancel();
        // The task ends by itself; should it have panicked, the lease runs out.
        let _ = (&mut self.renewing).await;
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

async fn renew(
    election: Election,
    leases: Api<Lease>,
    mut lease: Lease,
    lost: CancellationToken,
    stop: CancellationToken,
) {
    // Stop before others may start, also if the server does not answer at all: they wait for the whole duration since they saw the
    // last renewal, which is no earlier than when it was sent.
    let margin = election.lease_duration.saturating_sub(election.renew_period);
    let mut until = Instant::now() + margin;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(election.renew_period) => {}
        }
        let sent = Instant::now();
        match tokio::time::timeout_at(until, renew_once(&election, &leases, &mut lease)).await {
            Ok(Renewal::Renewed) => until = sent + margin,
            Ok(Renewal::NotNow) if Instant::now() < until => {}
            Ok(Renewal::NotNow | Renewal::Lost) | Err(_) => return lost.cancel(),
        }
    }
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = Some(String::new());
    }
    let params = PostParams::default();
    match tokio::time::timeout_at(until, leases.replace(&election.name, &params, &lease)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "lease was not released, it runs out");
        }
        Err(_) => tracing::warn!("lease was not released in time, it runs out"),
    }
}

/// What became of an attempt to renew a lease.
enum Renewal {
    Renewed,
    /// Nothing is known, or it can be tried again.
    NotNow,
    /// Somebody else has it.
    Lost,
}

async fn renew_once(election: &Election, leases: &Api<Lease>, lease: &mut Lease) -> Renewal {
    if let Some(spec) = &mut lease.spec {
        spec.renew_time = Some(MicroTime(Timestamp::now()));
    }
    match leases.replace(&election.name, &PostParams::default(), lease).await {
        Ok(next) => {
            *lease = next;
            Renewal::Renewed
        }
        // Somebody touched it, or took it away (which a real server calls a conflict, too): read it again, and go on only if it still
        // is ours, or nobody's. Whoever is first to make another one leads.
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {
            match leases.get_opt(&election.name).await {
                Ok(Some(live)) if is_held_by(&live, &election.identity) => {
                    *lease = live;
                    Renewal::NotNow
                }
                Ok(Some(_)) => Renewal::Lost,
                Ok(None) => match election.take(leases, None).await {
                    Some(next) => {
                        *lease = next;
                        Renewal::Renewed
                    }
                    None => Renewal::NotNow,
                },
                Err(error) => {
                    tracing::debug!(%error, "lease could not be read");
                    Renewal::NotNow
                }
            }
        }
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "lease was not renewed");
            Renewal::NotNow
        }
    }
}

fn is_free(lease: &Lease, identity: &str) -> bool {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    holder.is_empty() || holder == identity
}

fn is_held_by(lease: &Lease, identity: &str) -> bool {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(identity)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use kube::client::Body;
    use kube::{Api, Client};
    use tokio::time::Instant;

    use super::{Election, Leadership};

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_server_never_answers_stops_before_others_start() {
        let silence =
            |_: http::Request<Body>| std::future::pending::<Result<http::Response<Body>, tower::BoxError>>();
        let leases = Api::namespaced(Client::new(tower::service_fn(silence), "default"), "default");
        let election = Election::new("default", "first");
        let (duration, started) = (election.lease_duration, Instant::now());
        Leadership::start(election, leases, Lease::default()).lost().await;
        assert!(started.elapsed() < duration, "{:?}", started.elapsed());
    }
}
