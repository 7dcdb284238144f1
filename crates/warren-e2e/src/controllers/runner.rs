//! Runs a list of scenarios in one home, several at a time, and prints the results in the format of
//! cargo's own test harness, so that tools can parse them.

use std::any::Any;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use futures::StreamExt as _;
use futures::future::BoxFuture;

use super::harness::Home;
use super::killer::Killer;
use super::place::Place;

/// The number of concurrent scenarios: two processors have enough to do with these, and no wait
/// gets near its deadline.
const AT_THE_SAME_TIME: usize = 6;

/// The time limit of a scenario: several waits, all of them near their deadline.
const LONGEST: Duration = Duration::from_secs(240);

/// The time limit for inspecting a failed scenario, in case the server is what failed.
const AFTERMATH: Duration = Duration::from_secs(20);

/// A test scenario.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The path of its function.
    pub name: &'static str,
    /// Runs it.
    pub run: fn(Place) -> BoxFuture<'static, Result<()>>,
    /// True if no other scenario may use the home meanwhile.
    pub alone: bool,
    /// True if the controllers are killed from time to time meanwhile.
    pub disturbed: bool,
}

impl Scenario {
    /// Returns the scenario with kills of the controllers.
    pub fn disturbed(self) -> Self {
        Self { disturbed: true, ..self }
    }

    /// Returns its name in the output: the function's name without its modules.
    fn title(&self) -> String {
        let name = self.name.rsplit("::").next().unwrap_or_default().trim();
        if self.disturbed { format!("{name}_though_the_controllers_are_killed") } else { name.to_owned() }
    }
}

/// Builds a list of scenarios from the names of async functions; those after `alone:` run alone in
/// the home.
#[macro_export]
macro_rules! scenarios {
    ($($($path:ident)::+),* $(,)? $(; alone: $($($alone:ident)::+),* $(,)?)?) => {
        vec![
            $($crate::scenarios!(@one false, $($path)::+),)*
            $($($crate::scenarios!(@one true, $($alone)::+),)*)?
        ]
    };
    (@one $is_alone:expr, $($path:ident)::+) => {
        $crate::controllers::runner::Scenario {
            name: stringify!($($path)::+),
            run: |place| Box::pin($($path)::+(place)),
            alone: $is_alone,
            disturbed: false,
        }
    };
}

/// Runs the scenarios that the command line names (all, if none) in a home, and prints their
/// results. `--list` only lists.
///
/// To be called by `main` of a test target with `harness = false`.
pub fn run<S>(scenarios: Vec<Scenario>, start: impl FnOnce() -> S) -> ExitCode
where
    S: Future<Output = Result<Option<Arc<Home>>>>,
{
    let mut words: Vec<String> = Vec::new();
    let mut exact = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--list" => {
                for scenario in &scenarios {
                    println!("{}: test", scenario.title());
                }
                return ExitCode::SUCCESS;
            }
            "--exact" => exact = true,
            // Other options of cargo's harness are ignored: output is never hidden, and no scenario
            // is ignored.
            option if option.starts_with('-') => {}
            word => words.push(word.to_owned()),
        }
    }
    let total = scenarios.len();
    let wanted = |name: &str| {
        words.is_empty()
            || words.iter().any(|word| if exact { name.ends_with(word) } else { name.contains(word) })
    };
    let chosen: Vec<Scenario> = scenarios.into_iter().filter(|scenario| wanted(&scenario.title())).collect();
    println!("\nrunning {} tests", chosen.len());
    let begun = Instant::now();
    let outcome = if chosen.is_empty() { Ok(None) } else { in_a_home(&chosen, start) };
    let (run, failed) = match outcome {
        Ok(Some(failed)) => (chosen.len(), failed),
        Ok(None) => (0, Vec::new()),
        Err(error) => {
            println!("\nthe home failed: {error:#}");
            (chosen.len(), chosen.iter().map(Scenario::title).collect())
        }
    };
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    if !failed.is_empty() {
        println!("\nfailures:");
        for name in &failed {
            println!("    {name}");
        }
    }
    println!(
        "\ntest result: {word}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        run - failed.len(),
        failed.len(),
        total - run,
        begun.elapsed().as_secs_f64(),
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the names of the failed ones; `None` if there is no home for such tests.
fn in_a_home<S>(chosen: &[Scenario], start: impl FnOnce() -> S) -> Result<Option<Vec<String>>>
where
    S: Future<Output = Result<Option<Arc<Home>>>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let Some(home) = start().await? else { return Ok(None) };
        let mut failed = Vec::new();
        let phase = |alone: bool, disturbed: bool| {
            let chosen = chosen.iter().copied();
            chosen.filter(move |scenario| (scenario.alone, scenario.disturbed) == (alone, disturbed))
        };
        failed.extend(several(&home, phase(false, false), AT_THE_SAME_TIME, None).await);
        if phase(false, true).next().is_some() {
            let killer = Killer::start(&home);
            failed.extend(several(&home, phase(false, true), AT_THE_SAME_TIME, Some(&killer)).await);
            println!("note: the controllers were killed {} times", killer.stop().await?);
        }
        failed.extend(several(&home, phase(true, false), 1, None).await);
        if failed.is_empty() {
            tokio::task::block_in_place(|| home.assert_nothing_left());
        }
        Ok(Some(failed))
    })
}

/// Runs this many at a time, and returns the failed ones.
async fn several(
    home: &Arc<Home>,
    scenarios: impl Iterator<Item = Scenario>,
    width: usize,
    killer: Option<&Killer>,
) -> Vec<String> {
    futures::stream::iter(scenarios)
        .map(async |scenario| (!one(home, scenario, killer).await).then(|| scenario.title()))
        .buffer_unordered(width)
        .filter_map(std::future::ready)
        .collect()
        .await
}

async fn one(home: &Arc<Home>, scenario: Scenario, killer: Option<&Killer>) -> bool {
    let begun = Instant::now();
    let outcome = loop {
        match attempt(home, scenario, killer).await {
            // A scenario that ended before the controllers were killed has proved nothing: repeat
            // it.
            Ok(Shown::Nothing) => {}
            outcome => break outcome,
        }
    };
    let (seconds, title) = (begun.elapsed().as_secs_f64(), scenario.title());
    match outcome {
        Ok(_) => {
            println!("test {title} ... ok <{seconds:.1}s>");
            true
        }
        Err(error) => {
            // The causes come first, since they name the problem. The outermost error is the long
            // one.
            let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
            println!(
                "test {title} ... FAILED <{seconds:.1}s>\n--- {title}: {}\n{error}---",
                causes.join(": ")
            );
            false
        }
    }
}

/// The result of a scenario that has not failed.
enum Shown {
    Everything,
    /// It was to be disturbed, and was not.
    Nothing,
}

/// Runs it in a namespace of its own, and cleans up.
async fn attempt(home: &Arc<Home>, scenario: Scenario, killer: Option<&Killer>) -> Result<Shown> {
    match home.place(&scenario.title()).await {
        Ok(place) => {
            let place = place.disturbed(scenario.disturbed);
            let kills = killer.map(Killer::kills);
            let task = tokio::spawn((scenario.run)(place.clone()));
            let abort = task.abort_handle();
            let outcome = match tokio::time::timeout(LONGEST, task).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(ended)) => Err(match ended.try_into_panic() {
                    Ok(panic) => anyhow!("{}", words_of(panic.as_ref())),
                    Err(ended) => anyhow!(ended),
                }),
                Err(_) => {
                    abort.abort();
                    Err(anyhow!("not done after {LONGEST:?}"))
                }
            };
            let missed = killer.is_some_and(|killer| kills == Some(killer.kills()) && !killer.is_spent());
            match outcome {
                Ok(()) => {
                    place.clear().await?;
                    Ok(if missed { Shown::Nothing } else { Shown::Everything })
                }
                Err(error) => {
                    let dump = tokio::time::timeout(AFTERMATH, place.dump()).await;
                    let (dump, log) = (dump.unwrap_or_else(|_| "no answer\n".to_owned()), home.log());
                    // Remaining objects would only use resources of the others.
                    let _ = tokio::time::timeout(AFTERMATH, place.clear()).await;
                    Err(error.context(format!("in namespace {}\n{dump}{log}\n", place.namespace())))
                }
            }
        }
        Err(error) => Err(error.context("make a namespace")),
    }
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "panicked".to_owned(),
    }
}
