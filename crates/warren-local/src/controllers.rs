//! Runs the controllers of a home on one machine. They write ahead of the disk. If the disk refuses
//! such a write, they start again from the state on disk, as after a crash.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use warren_apiserver::{ApiServer, Lost};
use warren_controllers::telemetry::{self, BuildInfo, Telemetry};
use warren_controllers::{Config, Controllers};

use crate::event_expiry;
use crate::home::in_process;

/// The longest time that a claim waits. On one machine no nodes are added, so a sandbox that is not
/// ready by then will never be.
const CLAIM_DEADLINE: Duration = Duration::from_secs(5 * 60);

/// The pause between claims after which a pool is refilled. Starting a container costs as much as
/// several claims, so refilling waits until claims pause. Claims at random times rarely pause this
/// long unless they are few.
const REFILL_AFTER: Duration = Duration::from_millis(500);

/// The fraction of a pool below which members are started beside claims, one at a time at first.
/// With a lower value, claims that continue for a minute would meet containers starting at full
/// speed when most sandboxes exist, which is when each start costs most.
const RESERVE: f64 = 0.5;

/// The number of pool members that start concurrently. It keeps two cores busy, and a new claim
/// does not wait behind hundreds of starts.
const STARTS: usize = 8;

/// Returns the configuration. The extensions (claims, pools, templates and tasks) are always on.
fn config() -> Config {
    Config {
        extensions: true,
        agent_tasks: true,
        claim_deadline: Some(CLAIM_DEADLINE),
        sandbox_warm_pool_replenish_delay: REFILL_AFTER,
        sandbox_warm_pool_reserve: RESERVE,
        sandbox_warm_pool_max_starting: Some(STARTS),
        ..Config::default()
    }
}

/// The pause before the controllers start again: a disk that refused one write rarely accepts the
/// next.
const REST: Duration = Duration::from_secs(1);

/// The controllers, and the task that restarts them.
pub struct LocalControllers {
    stop: CancellationToken,
    listed: CancellationToken,
    supervisor: JoinHandle<()>,
}

impl LocalControllers {
    /// Starts the controllers and returns at once.
    pub fn start(server: &ApiServer, build: BuildInfo) -> LocalControllers {
        let (stop, listed) = (CancellationToken::new(), CancellationToken::new());
        let first = Attempt::begin(server, &Telemetry::new(build));
        let client = kube::Client::new(in_process(server, "warren-event-expiry"), "default");
        tokio::spawn(event_expiry::run(client, stop.clone()));
        let supervisor = tokio::spawn(supervise(server.clone(), first, stop.clone(), listed.clone()));
        LocalControllers { stop, listed, supervisor }
    }

    /// Waits until all existing objects have been seen once.
    pub async fn wait_until_listed(&self) {
        self.listed.cancelled().await;
    }

    /// Returns when the task that keeps the controllers running has died.
    pub async fn died(&mut self) {
        // The panic has already been logged.
        let _ = (&mut self.supervisor).await;
    }

    /// Stops the controllers: running passes are completed and no new ones begin.
    pub async fn shutdown(self) {
        self.stop.cancel();
        if !self.supervisor.is_finished() {
            // The panic has already been logged.
            let _ = self.supervisor.await;
        }
    }
}

/// The controllers, until one of their writes is lost.
struct Attempt {
    controllers: Controllers,
    lost: Lost,
    telemetry: Telemetry,
}

impl Attempt {
    fn begin(server: &ApiServer, telemetry: &Telemetry) -> Attempt {
        let (transport, lost) = in_process(server, "warren-controllers").ahead_of_the_disk();
        let measured = telemetry.client_layer("in-process").around(transport);
        let client = kube::Client::new(measured, "default");
        let controllers = Controllers::stand_by(client, config(), telemetry.clone());
        // One machine has one home, so there is no other leader.
        controllers.lead();
        Attempt { controllers, lost, telemetry: telemetry.clone() }
    }
}

async fn supervise(
    server: ApiServer,
    mut attempt: Attempt,
    stop: CancellationToken,
    listed: CancellationToken,
) {
    let page = Arc::new(Mutex::new(attempt.controllers.scrape()));
    let shown = Arc::clone(&page);
    server.serve_metrics(telemetry::CONTENT_TYPE, move || {
        shown.lock().unwrap_or_else(PoisonError::into_inner).text()
    });
    loop {
        let run = async {
            attempt.controllers.wait_until_listed().await;
            listed.cancel();
            attempt.lost.wait().await;
        };
        tokio::select! {
            () = stop.cancelled() => return attempt.controllers.shutdown().await,
            () = run => {}
        }
        tracing::warn!(
            "the disk refused what the controllers had written; they begin again from what it has"
        );
        let telemetry = attempt.telemetry.clone();
        // Writes in progress are refused, because they may depend on the lost one.
        drop(attempt);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(REST) => {}
        }
        attempt = Attempt::begin(&server, &telemetry);
        *page.lock().unwrap_or_else(PoisonError::into_inner) = attempt.controllers.scrape();
    }
}
