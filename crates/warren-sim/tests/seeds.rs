//! The simulation in small: what holds in a few hundred seeds, proof that mistakes are found, and that a seed always gives
//! the same run. `cargo run --release --package warren-sim -- --seeds 20000` is the large one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

use std::sync::atomic::{AtomicU64, Ordering};

use warren_sim::simulation::{Mutant, Options, Violation, run};

/// Seeds that showed something once, with what it was. A seed means another run whenever the simulation learns something
/// new, so these are a memory of where to look rather than proofs; what each found is also a test of the part at fault.
const REMARKABLE: [(u64, &str); 4] = [
    (3478, "an answer that came while a list was under way was dropped, so that a pool made one too many"),
    (4412, "a create that arrives after its pool has counted at the server"),
    (6877, "an assignment that one leader drops and another carries out"),
    (17230, "a sandbox that expires by a clock that is ahead"),
];

/// How many seeds are run twice.
const SAME_RUN: u64 = 100;

/// The first violation in a range of seeds, found with every core.
fn first_violation(end: u64, mutant: Mutant) -> Option<(u64, Box<Violation>)> {
    let (next, found) = (AtomicU64::new(0), std::sync::Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || !found.lock().unwrap().is_empty() {
                        break;
                    }
                    if let Err(violation) = run(seed, Options { mutant, trace: 0 }) {
                        found.lock().unwrap().push((seed, violation));
                    }
                }
            });
        }
    });
    found.into_inner().unwrap().into_iter().min_by_key(|(seed, _)| *seed)
}

#[test]
fn the_first_seeds_hold() {
    if let Some((seed, violation)) = first_violation(200, Mutant::None) {
        panic!("seed {seed}, step {}: {}", violation.step, violation.what);
    }
}

#[test]
fn seeds_that_once_failed_hold() {
    for (seed, what) in REMARKABLE {
        if let Err(violation) = run(seed, Options::default()) {
            panic!("seed {seed} ({what}), step {}: {}", violation.step, violation.what);
        }
    }
}

/// Each run has hash maps with keys of their own, so whatever is done in their order differs sooner or later.
#[test]
fn a_seed_always_gives_the_same_run() {
    for seed in 0..SAME_RUN {
        let [first, second] =
            [0, 1].map(|_| match run(seed, Options { trace: usize::MAX, ..Options::default() }) {
                Ok(report) => report.trace,
                Err(violation) => violation.trace,
            });
        let differs = first.iter().zip(&second).find(|(first, second)| first != second);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}

#[test]
fn an_assignment_without_a_guard_is_found() {
    let (_, violation) = first_violation(500, Mutant::NoAssignmentGuard).expect("found within 500 seeds");
    assert!(is_about_claims(&violation.what), "{}", violation.what);
}

#[test]
fn terminating_members_that_are_not_counted_are_found() {
    let (_, violation) = first_violation(500, Mutant::TerminatingNotCounted).expect("found within 500 seeds");
    assert!(violation.what.contains("made a member of pool"), "{}", violation.what);
}

/// What goes wrong without the guard: two sandboxes for a claim or two claims for a sandbox, or a commitment that is lost.
fn is_about_claims(what: &str) -> bool {
    ["has served two claims", "sandboxes:", "was swapped for", "dropped its assignment"]
        .iter()
        .any(|word| what.contains(word))
}
