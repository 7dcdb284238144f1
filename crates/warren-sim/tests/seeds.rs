//! Proof that mistakes are found, and that a seed always gives the same run.
//!
//! The controllers do not hold over every seed yet, about one in a hundred shows a fault of theirs; which, says
//! `cargo run --release --package warren-sim -- --seeds 20000`.

use warren_sim::mirror::Mutant;
use warren_sim::simulation::{Options, run};

#[test]
fn a_seed_always_gives_the_same_run() {
    for seed in 0..5 {
        let [first, second] = [0, 1].map(|_| {
            run(seed, Options { trace: usize::MAX, ..Options::default() })
                .map(|report| (report.steps, report.commits))
                .map_err(|violation| (violation.what, violation.trace))
        });
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Whether a mistake leads to a violation that says one of these, within 500 seeds.
fn is_found(mutant: Mutant, words: &[&str]) -> bool {
    (0..500)
        .filter_map(|seed| run(seed, Options { mutant, trace: 0 }).err())
        .any(|violation| words.iter().any(|word| violation.what.contains(word)))
}

#[test]
fn an_assignment_without_a_guard_is_found() {
    assert!(is_found(Mutant::NoAssignmentGuard, &["has served two claims"]));
}

#[test]
fn terminating_members_that_are_not_counted_are_found() {
    assert!(is_found(Mutant::TerminatingNotCounted, &["made a member of pool"]));
}
