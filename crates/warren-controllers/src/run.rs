//! The controllers as a program of their own: it opens endpoints, waits for leadership, works, and
//! undoes all of that in reverse order. Every replica watches and answers probes, but only the
//! leader writes, so a new leader begins with full caches.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::config::Config;
use crate::connect::Connection;
use crate::endpoint::{Answer, BindAddress, Endpoint};
use crate::leader::Election;
use crate::secure_serving::{SecureServing, SecureServingError};
use crate::start::Controllers;
use crate::telemetry::Telemetry;

/// The time that running reconciles may take at the end; the number of the Kubernetes controller
/// library.
const PATIENCE: Duration = Duration::from_secs(30);

/// The configuration of a controller program.
#[derive(Clone, Debug)]
pub struct Program {
    /// The controllers' own settings.
    pub controllers: Config,
    /// The settings of leader election. Without it the program works at once, even if others do.
    pub election: Option<Election>,
}

/// The error of a controller program that ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An endpoint could not be opened, usually because another process has the port.
    #[error("serve {what} on `{address}`")]
    Bind {
        /// `metrics` or `health probes`.
        what: &'static str,
        /// Its address.
        address: BindAddress,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another replica leads, or may lead by now. A supervisor should restart the program, to wait
    /// for its turn.
    #[error("the lease was lost, so others may lead now")]
    LeaseLost,
}

/// The endpoints for operators: bound first, so that a port in use is found before anything else
/// happens.
pub struct Endpoints {
    metrics: Option<Endpoint>,
    health: Option<Endpoint>,
}

impl Endpoints {
    /// Binds the addresses for `/metrics`, and for `/healthz` and `/readyz`. The latter two never
    /// use TLS, as kubelet's probes do not.
    pub async fn open(metrics: Option<&BindAddress>, health: Option<&BindAddress>) -> Result<Self, RunError> {
        Ok(Self { metrics: open("metrics", metrics).await?, health: open("health probes", health).await? })
    }

    /// Serves `/metrics` over HTTPS instead of HTTP.
    pub fn secure_metrics(self, serving: SecureServing) -> Result<Self, SecureServingError> {
        let tls = serving.prepare()?;
        Ok(Self { metrics: self.metrics.map(|endpoint| endpoint.over_tls(tls)), ..self })
    }

    /// Returns the address of `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Endpoint::address)
    }

    /// Returns the address of the probes.
    #[must_use]
    pub fn health(&self) -> Option<SocketAddr> {
        self.health.as_ref().map(Endpoint::address)
    }
}

/// Runs until `shutdown`. Then running work is finished and the lease released at once. After a
/// `kill -9` at any point the next process continues from the API server's state.
pub async fn run(
    connection: Connection,
    telemetry: Telemetry,
    program: Program,
    endpoints: Endpoints,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let Endpoints { metrics, health } = endpoints;
    let Connection { client, lease, .. } = connection;
    let controllers = Controllers::stand_by(client, program.controllers, telemetry.clone());

    let (stop, endpoints) = (CancellationToken::new(), TaskTracker::new());
    if let Some(endpoint) = metrics {
        let scrape = controllers.scrape();
        endpoints.spawn(endpoint.serve(stop.clone(), move |path| {
            (path == "/metrics")
                .then(|| Answer { content_type: crate::telemetry::CONTENT_TYPE, body: scrape.text() })
        }));
    }
    if let Some(endpoint) = health {
        endpoints.spawn(endpoint.serve(stop.clone(), ping));
    }

    let outcome = lead(lease, &telemetry, &controllers, program.election, &shutdown).await;
    stop.cancel();
    endpoints.close();
    endpoints.wait().await;
    outcome
}

/// Waits for leadership, works for as long as it lasts, and releases it.
async fn lead(
    lease: Client,
    telemetry: &Telemetry,
    controllers: &Controllers,
    election: Option<Election>,
    shutdown: &CancellationToken,
) -> Result<(), RunError> {
    let leadership = match election {
        None => None,
        Some(election) => {
            let name = election.name.clone();
            telemetry.set_leading(&name, false);
            // A replica that cannot list objects, for example without permissions, cannot work, and
            // leaves the lease to others.
            let seeing = async {
                controllers.wait_until_listed().await;
                election.lead(lease).await
            };
            let leadership = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                leadership = seeing => leadership,
            };
            telemetry.set_leading(&name, true);
            Some((name, leadership))
        }
    };
    controllers.lead();
    let lost = async {
        match &leadership {
            Some((_, leadership)) => leadership.lost().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = lost => return Err(RunError::LeaseLost),
    }
    info!("stopping");
    if tokio::time::timeout(PATIENCE, controllers.stop()).await.is_err() {
        info!("passes were cut off");
    }
    if let Some((name, leadership)) = leadership {
        leadership.release().await;
        telemetry.set_leading(&name, false);
    }
    // The next leader need not wait for the last events.
    controllers.tell_the_rest().await;
    info!("stopped");
    Ok(())
}

async fn open(what: &'static str, address: Option<&BindAddress>) -> Result<Option<Endpoint>, RunError> {
    let Some(address) = address else { return Ok(None) };
    let failed = |source| RunError::Bind { what, address: address.clone(), source };
    let endpoint = Endpoint::bind(address).await.map_err(failed)?;
    info!(what, address = %endpoint.address(), "listening");
    Ok(Some(endpoint))
}

/// Answers both probes: they only show that the process runs. A controller that has lost its server
/// waits for it, and a restart would not help.
fn ping(path: &str) -> Option<Answer> {
    let known =
        ["/healthz", "/healthz/", "/healthz/ping", "/readyz", "/readyz/", "/readyz/ping"].contains(&path);
    known.then(|| Answer { content_type: "text/plain; charset=utf-8", body: "ok".to_owned() })
}
