//! Measures one controller's reconciles and its queue, under the names of the Kubernetes controller
//! library.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::family::{Family, Histogram, Text, Values};
use super::metrics::{Metrics, QUEUE_BOUNDS, QUEUE_BUCKETS};
use crate::queue::{Outcome, WorkQueue};

/// The state of one controller's reconciles.
#[derive(Debug)]
pub(crate) struct Passes {
    metrics: Arc<Metrics>,
    queue: WorkQueue,
    workers: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The start times of running reconciles.
    running: HashMap<u64, Instant>,
    durations: Histogram<QUEUE_BOUNDS>,
    retries: u64,
}

impl Passes {
    pub(crate) fn new(metrics: Arc<Metrics>, queue: WorkQueue, workers: usize) -> Self {
        let controller = queue.name();
        for result in ["error", "requeue", "requeue_after", "success"] {
            metrics.passes.add([controller.into(), result.into()], 0);
        }
        metrics.pass_errors.add([controller.into()], 0);
        metrics.terminal_pass_errors.add([controller.into()], 0);
        metrics.pass_panics.add([controller.into()], 0);
        Self { metrics, queue, workers, state: Mutex::default() }
    }

    pub(crate) async fn measure(&self, pass: impl Future<Output = Outcome>) -> Outcome {
        let mut running = Running::begin(self);
        let outcome = pass.await;
        running.outcome = Some(outcome);
        outcome
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running reconcile. It ends when this is dropped, even by a panic.
struct Running<'a> {
    passes: &'a Passes,
    number: u64,
    began: Instant,
    outcome: Option<Outcome>,
}

impl<'a> Running<'a> {
    fn begin(passes: &'a Passes) -> Self {
        let began = Instant::now();
        let mut state = passes.state();
        let number = state.next;
        state.next += 1;
        state.running.insert(number, began);
        Self { passes, number, began, outcome: None }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let seconds = self.began.elapsed().as_secs_f64();
        let controller = self.passes.queue.name();
        {
            let mut state = self.passes.state();
            state.running.remove(&self.number);
            state.durations.observe(&QUEUE_BUCKETS, seconds);
            // Counted as in the Go libraries: every outcome that comes back by itself.
            state.retries += u64::from(!matches!(self.outcome, None | Some(Outcome::Done | Outcome::Gone)));
        }
        let metrics = &self.passes.metrics;
        metrics.pass_time.observe([controller.into()], seconds);
        let result = match self.outcome {
            Some(Outcome::Done | Outcome::Gone) => "success",
            Some(Outcome::LookAgain(_) | Outcome::NotNow(_)) => "requeue_after",
            Some(Outcome::Retry | Outcome::RetryWithin(_)) => "error",
            None if std::thread::panicking() => {
                metrics.pass_panics.add([controller.into()], 1);
                "error"
            }
            // Cut off at the end of the process.
            None => return,
        };
        if result == "error" {
            metrics.pass_errors.add([controller.into()], 1);
        }
        metrics.passes.add([controller.into(), result.into()], 1);
    }
}

/// Writes the queues and workers of several controllers.
pub(crate) fn write(all: &[Arc<Passes>], text: &mut Text) {
    let now = Instant::now();
    let mut numbers: [Vec<(Values<2>, f64)>; 4] = Default::default();
    let mut depths = Vec::new();
    let mut workers: [Vec<(Values<1>, f64)>; 2] = Default::default();
    let mut histograms: [Vec<(Values<2>, Histogram<QUEUE_BOUNDS>)>; 2] = Default::default();
    // Sorted by name, like everything on the page.
    let mut all: Vec<&Arc<Passes>> = all.iter().collect();
    all.sort_by_key(|passes| passes.queue.name());
    for passes in all {
        let name = passes.queue.name();
        let statistics = passes.queue.statistics();
        let state = passes.state();
        let ages = state.running.values().map(|began| now.duration_since(*began).as_secs_f64());
        let values = || [name.into(), name.into()];
        depths.push(([name.into(), name.into(), "".into()], statistics.depth as f64));
        let [adds, retries, unfinished, longest] = &mut numbers;
        adds.push((values(), statistics.added as f64));
        retries.push((values(), state.retries as f64));
        unfinished.push((values(), ages.clone().sum()));
        longest.push((values(), ages.fold(0.0, f64::max)));
        let [active, most] = &mut workers;
        active.push(([name.into()], state.running.len() as f64));
        most.push(([name.into()], passes.workers as f64));
        let [waits, works] = &mut histograms;
        waits.push((values(), statistics.waits));
        works.push((values(), state.durations));
    }
    let depth = Family {
        name: "workqueue_depth",
        help: "Keys that wait in a queue.",
        labels: ["name", "controller", "priority"],
    };
    text.numbers(&depth, "gauge", depths.iter().map(|(values, number)| (values, *number)));
    let [adds, retries, unfinished, longest] = &numbers;
    for (name, help, kind, samples) in [
        ("workqueue_adds_total", "Keys put into a queue.", "counter", adds),
        (
            "workqueue_retries_total",
            "Keys put back after a failure, or to be looked at again.",
            "counter",
            retries,
        ),
        (
            "workqueue_unfinished_work_seconds",
            "How long all passes under way have taken together.",
            "gauge",
            unfinished,
        ),
        (
            "workqueue_longest_running_processor_seconds",
            "How long the longest pass under way has taken.",
            "gauge",
            longest,
        ),
    ] {
        let family = Family { name, help, labels: ["name", "controller"] };
        text.numbers(&family, kind, samples.iter().map(|(values, number)| (values, *number)));
    }
    for ((name, help), samples) in [
        ("controller_runtime_active_workers", "Passes under way."),
        ("controller_runtime_max_concurrent_reconciles", "Passes that may be under way at a time."),
    ]
    .into_iter()
    .zip(&workers)
    {
        let family = Family { name, help, labels: ["controller"] };
        text.numbers(&family, "gauge", samples.iter().map(|(values, number)| (values, *number)));
    }
    for ((name, help), samples) in [
        ("workqueue_queue_duration_seconds", "How long keys wait in a queue."),
        ("workqueue_work_duration_seconds", "How long a pass over a key takes."),
    ]
    .into_iter()
    .zip(&histograms)
    {
        let family = Family { name, help, labels: ["name", "controller"] };
        text.histograms(&family, &QUEUE_BUCKETS, samples.iter().map(|(values, found)| (values, found)));
    }
}
