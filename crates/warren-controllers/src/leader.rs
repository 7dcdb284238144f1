//! Elects one leader among several replicas by a Lease. Standby replicas watch the lease: a leader
//! that shuts down is followed at once, and one that dies when its lease expires.
//!
//! Leadership only avoids conflicts. Two leaders for a moment (a paused process, a clock that
//! jumps) are harmless: every write that must happen once is guarded by the object's own version.

use std::future::Future;
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

/// The time limit of one attempt. A request without an answer by then has a dead connection, and
/// there is time for another.
const ATTEMPT: Duration = Duration::from_secs(5);

/// The settings of an election.
#[derive(Clone, Debug)]
pub struct Election {
    /// The namespace of the lease.
    pub namespace: String,
    /// Its name. The default is agent-sandbox's, so that its controller and ours never lead at the
    /// same time.
    pub name: String,
    /// This replica's identity; must differ between replicas.
    pub identity: String,
    /// The time for which a lease is valid after its last renewal.
    pub lease_duration: Duration,
    /// The interval of renewals.
    pub renew_period: Duration,
}

impl Election {
    /// Returns an election with the names and times of agent-sandbox.
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

    /// Waits until this replica leads. Errors of the server are retried. Cancel by dropping.
    pub async fn lead(self, client: Client) -> Leadership {
        let leases: Api<Lease> = Api::namespaced(client, &self.namespace);
        let only_this = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let mut changes =
            std::pin::pin!(watcher(leases.clone(), only_this).default_backoff().touched_objects());
        let mut seen: Option<(Option<String>, Instant)> = None;
        loop {
            let mut look_again = Instant::now() + self.renew_period;
            match within(ATTEMPT, leases.get_opt(&self.name)).await {
                Ok(lease) => {
                    let version = lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
                    // A lease expires by our own clock, counted from when we saw it change: clocks
                    // of different machines are not compared.
                    let since = match &seen {
                        Some((known, since)) if *known == version => *since,
                        _ => Instant::now(),
                    };
                    seen = Some((version, since));
                    let sent = Instant::now();
                    let expiry = since + self.lease_duration;
                    if expiry > sent && lease.as_ref().is_some_and(|lease| !is_free(lease, &self.identity)) {
                        look_again = look_again.max(expiry);
                    } else if let Some(lease) = self.take(&leases, lease).await {
                        return Leadership::start(self, leases, lease, sent);
                    }
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "lease could not be read")
                }
            }
            tokio::select! {
                _ = changes.next() => {}
                () = tokio::time::sleep_until(look_again) => {}
            }
        }
    }

    /// Writes this replica into the lease, guarded by the observed version. Returns `None` if
    /// another was faster.
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
                within(ATTEMPT, leases.create(&PostParams::default(), &lease)).await
            }
            Some(mut lease) => {
                let transitions =
                    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
                lease.spec = Some(spec(transitions.saturating_add(1)));
                within(ATTEMPT, leases.replace(&self.name, &PostParams::default(), &lease)).await
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

/// The leadership, until [`Leadership::lost`] returns. [`Leadership::release`] hands over at once;
/// dropping this lets the lease expire.
pub struct Leadership {
    lost: CancellationToken,
    stop: CancellationToken,
    renewing: tokio::task::JoinHandle<()>,
}

impl Leadership {
    /// Starts to renew the lease, which is valid from when it was requested.
    fn start(election: Election, leases: Api<Lease>, lease: Lease, sent: Instant) -> Self {
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        tracing::info!(identity = election.identity, "leading");
        let renewing = tokio::spawn(renew(election, leases, lease, sent, lost.clone(), stop.clone()));
        Self { lost, stop, renewing }
    }

    /// Waits until this replica no longer leads: the lease could not be renewed in time, or another
    /// replica has it.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Releases the lease, so that the next leader need not wait for its expiry. To be called when
    /// all work has ended.
    pub async fn release(mut self) {
        self.stop.cancel();
        // The task ends by itself. If it has panicked, the lease expires.
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
    sent: Instant,
    lost: CancellationToken,
    stop: CancellationToken,
) {
    // Stop before other replicas may start, even if the server does not answer at all: they wait
    // for the whole duration since they saw the last renewal, at the earliest when it was sent.
    let margin = election.lease_duration.saturating_sub(election.renew_period);
    let mut until = sent + margin;
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

/// The result of an attempt to renew a lease.
enum Renewal {
    Renewed,
    /// The result is unknown, or it can be tried again.
    NotNow,
    /// Another replica has it.
    Lost,
}

async fn renew_once(election: &Election, leases: &Api<Lease>, lease: &mut Lease) -> Renewal {
    if let Some(spec) = &mut lease.spec {
        spec.renew_time = Some(MicroTime(Timestamp::now()));
    }
    match within(ATTEMPT, leases.replace(&election.name, &PostParams::default(), lease)).await {
        Ok(next) => {
            *lease = next;
            Renewal::Renewed
        }
        // The lease was changed or deleted (which a real server calls a conflict, too). Read it
        // again, and continue only if it is still ours or has no holder. If it is gone, the first
        // replica to make a new one leads.
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {
            match within(ATTEMPT, leases.get_opt(&election.name)).await {
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

/// Waits for an answer up to a limit. Without one, the outcome of the request is unknown.
async fn within<T>(limit: Duration, answer: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(kube::Error::Service(format!("no answer within {limit:?}").into())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use http::{Method, Request, Response, StatusCode};
    use k8s_openapi::api::coordination::v1::Lease;
    use kube::client::Body;
    use kube::{Api, Client};
    use tokio::time::Instant;

    use super::{Election, Leadership};

    /// Builds a server that never answers these requests about the lease, by their order. There is
    /// no lease, every write succeeds, and watches stay silent.
    fn server(is_silent: fn(usize) -> bool) -> Client {
        let asked = Arc::new(AtomicUsize::new(0));
        let answer = move |request: Request<Body>| {
            let is_read = request.method() == Method::GET;
            let is_watch = is_read && request.uri().path().ends_with("/leases");
            let is_heard =
                !is_watch && !is_silent(asked.fetch_add(usize::from(!is_watch), Ordering::Relaxed));
            async move {
                match (is_heard, is_read) {
                    (false, _) => std::future::pending().await,
                    (true, true) => {
                        let none = r#"{"status": "Failure", "reason": "NotFound", "code": 404}"#;
                        let none = Body::from(none.as_bytes().to_vec());
                        Response::builder().status(StatusCode::NOT_FOUND).body(none)
                    }
                    (true, false) => Response::builder().body(request.into_body()),
                }
            }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_server_never_answers_stops_before_others_start() {
        let leases = Api::namespaced(server(|_| true), "default");
        let election = Election::new("default", "first");
        let (duration, sent) = (election.lease_duration, Instant::now());
        tokio::time::advance(Duration::from_secs(4)).await;
        Leadership::start(election, leases, Lease::default(), sent).lost().await;
        assert!(sent.elapsed() < duration, "{:?}", sent.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_server_misses_a_request_goes_on() {
        let leases: Api<Lease> = Api::namespaced(server(|request| request == 0), "default");
        let election = Election::new("default", "first");
        let leadership = Leadership::start(election, leases, Lease::default(), Instant::now());
        let hour = Duration::from_secs(60 * 60);
        assert!(tokio::time::timeout(hour, leadership.lost()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_asks_again_when_the_server_misses_a_request() {
        // The first two are a read and a write.
        for is_silent in [(|request| request == 0) as fn(usize) -> bool, |request| request == 1] {
            let election = Election::new("default", "first");
            let duration = election.lease_duration;
            assert!(tokio::time::timeout(duration, election.lead(server(is_silent))).await.is_ok());
        }
    }
}
