//! The controllers of a home on one machine. They write ahead of the disk; should it refuse what they have counted on, they begin again from what
//! it has, as after a crash.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use warren_apiserver::{ApiServer, Lost};
use warren_controllers::telemetry::{self, BuildInfo, Telemetry};
use warren_controllers::{Config, Controllers};

use crate::event_expiry;
use crate::home::in_process;

/// How long a claim may wait in a home of one machine, where nobody adds nodes meanwhile: what is not ready by then will not be.
const CLAIM_DEADLINE: Duration = Duration::from_secs(5 * 60);

/// A pool is refilled when no claim has taken from it for this long, so that claims are not held up by the starts of containers
/// that replace what they take: one start is the work of several claims. Claims that come at random have no such pauses unless
/// they are few.
const REFILL_AFTER: Duration = Duration::from_millis(500);

/// Below this part of a pool, claims that do not pause are not waited for: members are started beside them, at first one at a time. With
/// less, claims that go on for a minute would find containers being started at full speed when there are most of them, and each
/// costs the more the more there are.
const RESERVE: f64 = 0.5;

/// Members of a pool that are started at the same time. Enough to keep two cores busy; few enough that a claim which comes
/// meanwhile does not wait for hundreds of them.
const STARTS: usize = 8;

/// One machine has one home, so claims, pools, templates and tasks are always served.
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

/// How long the controllers rest before they begin again: a disk that refused one write seldom takes the next.
const REST: Duration = Duration::from_secs(1);

/// The controllers, and whoever starts them again.
pub struct LocalControllers {
    stop: CancellationToken,
    listed: CancellationToken,
    supervisor: JoinHandle<()>,
}

impl LocalControllers {
    /// Starts them. Returns at once.
    pub fn start(server: &ApiServer, build: BuildInfo) -> LocalControllers {
        let (stop, listed) = (CancellationToken::new(), CancellationToken::new());
        let first = Attempt::begin(server, &Telemetry::new(build));
        let client = kube::Client::new(in_process(server, "warren-event-expiry"), "default");
        tokio::spawn(event_expiry::run(client, stop.clone()));
        let supervisor = tokio::spawn(supervise(server.clone(), first, stop.clone(), listed.clone()));
        LocalControllers { stop, listed, supervisor }
    }

    /// Waits until everything that exists has been seen once.
    pub async fn wait_until_listed(&self) {
        self.listed.cancelled().await;
    }

    /// Returns when the task that keeps the controllers running has died.
    pub async fn died(&mut self) {
        // A task that panicked has said so already.
        let _ = (&mut self.supervisor).await;
    }

    /// Stops: no new pass begins, and those under way are finished.
    pub async fn shutdown(self) {
        self.stop.cancel();
        if !self.supervisor.is_finished() {
            // A task that panicked has said so already.
            let _ = self.supervisor.await;
        }
    }
}

/// The controllers from their start until something that they wrote is lost.
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
        // One machine has one home: nobody else could lead.
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
        // What is still under way is refused with everything else that follows from what was lost.
        drop(attempt);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(REST) => {}
        }
        attempt = Attempt::begin(&server, &telemetry);
        *page.lock().unwrap_or_else(PoisonError::into_inner) = attempt.controllers.scrape();
    }
}
