//! Runs a small part of the simulation: a few hundred seeds must pass, mistakes must be detected,
//! and a seed must always give the same run. `cargo run --release --package warren-sim -- --seeds
//! 20000` is the large run.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

use std::sync::atomic::{AtomicU64, Ordering};

use warren_sim::simulation::{Mutant, Options, Violation, run};

/// Seeds that found a bug once, with its description. A seed means another run whenever the
/// simulation is extended, so these are hints rather than proofs; each bug also has a test of its
/// own.
const REMARKABLE: [(u64, &str); 10] = [
    (
        61,
        "a claim that was sent to another pool, and kept the sandbox that was on its way to it beside the next",
    ),
    (310, "a claim that dropped the name of its sandbox, which another leader had just made anew"),
    (555, "a sandbox that came to its claim just as another leader dropped the name of it"),
    (1745, "a claim whose time ended within the second after a failure, and that was left to the backoff"),
    (1841, "a service that was wanted again, ended by a leader that still saw its sandbox want none"),
    (2087, "a claim that dropped its reference to a sandbox when another leader had just taken that for it"),
    (3478, "an answer that came while a list was under way was dropped, so that a pool made one too many"),
    (4412, "a create that arrives after its pool has counted at the server"),
    (6877, "an assignment that one leader drops and another carries out"),
    (17230, "a sandbox that expires by a clock that is ahead"),
];

/// The number of seeds that are run twice.
const SAME_RUN: u64 = 100;

/// Returns the first violation of the wanted kinds in a range of seeds, using every core.
fn first_violation(
    end: u64,
    mutant: Mutant,
    is_meant: impl Fn(u64, &str) -> bool + Sync,
) -> Option<(u64, Box<Violation>)> {
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
                    if let Err(violation) = run(seed, Options { mutant, trace: 0 })
                        && is_meant(seed, &violation.what)
                    {
                        found.lock().unwrap().push((seed, violation));
                    }
                }
            });
        }
    });
    found.into_inner().unwrap().into_iter().min_by_key(|(seed, _)| *seed)
}

/// Checks that a mistake is found by its effect. A seed that fails without it proves nothing about
/// it.
fn check_found(mutant: Mutant, signs: &[&str]) {
    check_found_within(500, mutant, signs);
}

fn check_found_within(seeds: u64, mutant: Mutant, signs: &[&str]) {
    let found = first_violation(seeds, mutant, |seed, what| {
        signs.iter().any(|sign| what.contains(sign)) && run(seed, Options::default()).is_ok()
    });
    assert!(found.is_some(), "{mutant:?} is not found within {seeds} seeds");
}

#[test]
fn the_first_seeds_hold() {
    if let Some((seed, violation)) = first_violation(200, Mutant::None, |_, _| true) {
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

/// Hash maps have random keys in each run, so any behaviour that depends on their order differs
/// sooner or later.
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

/// Two sandboxes for a claim, two claims for a sandbox, or a lost commitment.
#[test]
fn an_assignment_without_a_guard_is_found() {
    let signs = ["has served two claims", "sandboxes:", "was swapped for", "dropped its assignment"];
    check_found(Mutant::NoAssignmentGuard, &signs);
}

#[test]
fn terminating_members_that_are_not_counted_are_found() {
    check_found(Mutant::TerminatingNotCounted, &["made a member of pool"]);
}

#[test]
fn an_owner_that_is_not_asked_for_is_found() {
    check_found(Mutant::OwnerNotAsked, &[" again for "]);
}

#[test]
fn a_deletion_without_a_guard_is_found() {
    check_found(Mutant::NoDeletionGuard, &["deleted sandbox"]);
}

#[test]
fn a_sandbox_taken_without_its_pods_name_is_found() {
    check_found(Mutant::NoPodName, &["does not name its pod"]);
}

#[test]
fn a_member_of_a_lost_node_that_is_given_away_is_found() {
    // Nodes are seldom lost.
    check_found_within(2000, Mutant::NodeLossNotTold, &["although its node is lost"]);
}

/// A waiting claim that is not reconciled at its deadline.
#[test]
fn a_claim_that_is_not_woken_for_its_deadline_is_found() {
    check_found(Mutant::ClaimNotWoken, &["was to be Ready or to end by"]);
}

/// A verdict that another leader's or a late request overwrites.
#[test]
fn a_verdict_without_a_guard_is_found() {
    check_found_within(2000, Mutant::NoVerdictGuard, &["had ended, and"]);
}
