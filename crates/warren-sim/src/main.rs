//! Runs seeds of the simulation: `warren-sim --seeds 20000`, or one of them again with all its
//! events: `warren-sim --seed 17 --trace`.

use std::io::IsTerminal as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::{Parser, ValueEnum as _};
use warren_sim::simulation::{Mutant, Options, Violation, run};

/// The number of last events that are printed for a failing seed, unless `--trace` asks for all of
/// them.
const LAST_EVENTS: usize = 40;

/// Simulates the control plane with seeded faults.
#[derive(Parser)]
struct Arguments {
    /// Run this seed alone.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run this many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed of the range.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Print everything that happened, not only the last events.
    #[arg(long)]
    trace: bool,
    /// Stop after this many failures: the first ones are telling, the rest are the same again.
    #[arg(long, default_value_t = 5)]
    failures: usize,
    /// Make a deliberate mistake, to see it found.
    #[arg(long, value_enum)]
    mutant: Option<Mutant>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mutant = arguments.mutant.unwrap_or_default();
    let failed = match arguments.seed {
        Some(seed) => {
            let trace = if arguments.trace { usize::MAX } else { LAST_EVENTS };
            let result = run(seed, Options { mutant, trace });
            match result {
                Ok(report) => {
                    report.trace.iter().filter(|_| arguments.trace).for_each(|line| println!("  {line}"));
                    println!("seed {seed}: {} steps, {} writes, all well", report.steps, report.commits);
                }
                Err(violation) => {
                    show(seed, mutant, &violation);
                    return ExitCode::FAILURE;
                }
            }
            0
        }
        None => run_range(&arguments, mutant),
    };
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a range of seeds on every core. Returns the number of failures.
fn run_range(arguments: &Arguments, mutant: Mutant) -> usize {
    let started = Instant::now();
    let end = arguments.first + arguments.seeds;
    let (next, steps, commits, done) =
        (AtomicU64::new(arguments.first), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let failures: Mutex<Vec<(u64, String)>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let progress = std::io::stderr().is_terminal();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let enough = failures.lock().is_ok_and(|failures| failures.len() >= arguments.failures);
                    if seed >= end || enough {
                        break;
                    }
                    let result = catch_unwind(AssertUnwindSafe(|| run(seed, Options { mutant, trace: 0 })));
                    let failure = match result {
                        Ok(Ok(report)) => {
                            steps.fetch_add(report.steps, Ordering::Relaxed);
                            commits.fetch_add(report.commits, Ordering::Relaxed);
                            None
                        }
                        Ok(Err(violation)) => Some(violation.what),
                        Err(_) => Some("panicked".to_owned()),
                    };
                    if let (Some(what), Ok(mut failures)) = (failure, failures.lock()) {
                        failures.push((seed, what));
                    }
                    let count = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if progress && count.is_multiple_of(100) {
                        eprint!("\r{count} of {} seeds", arguments.seeds);
                    }
                }
            });
        }
    });
    if progress {
        eprintln!();
    }
    let mut failures = failures.into_inner().unwrap_or_default();
    failures.sort();
    for (seed, what) in &failures {
        match catch_unwind(|| run(*seed, Options { mutant, trace: LAST_EVENTS })) {
            Ok(Err(violation)) => show(*seed, mutant, &violation),
            _ => println!("seed {seed}: {what}"),
        }
    }
    let (count, seconds) = (done.into_inner(), started.elapsed().as_secs_f64());
    println!(
        "{count} seeds, {} steps, {} writes in {seconds:.1} s: {:.0} seeds/s",
        steps.into_inner(),
        commits.into_inner(),
        count as f64 / seconds
    );
    println!("{} passed, {} failed", count - failures.len() as u64, failures.len());
    failures.len()
}

fn show(seed: u64, mutant: Mutant, violation: &Violation) {
    println!("seed {seed}, step {}: {}", violation.step, violation.what);
    for line in &violation.trace {
        println!("  {line}");
    }
    let mistake = mutant.to_possible_value().map(|name| format!(" --mutant {}", name.get_name()));
    println!("  replay: cargo run -p warren-sim -- --seed {seed} --trace{}", mistake.unwrap_or_default());
}
