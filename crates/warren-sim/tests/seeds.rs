//! The simulation finds nothing in the real decisions, and finds what is broken on purpose.

use warren_sim::{Broken, Options, run};

#[test]
fn no_seed_breaks_an_invariant() {
    for seed in 0..150 {
        if let Err(violation) = run(Options { seed, moves: 1500, broken: None }) {
            panic!("{violation}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let options = Options { seed: 7, moves: 1500, broken: None };
    let count = |options| run(options).map(|report| (report.writes, report.claims, report.crashes));
    assert_eq!(count(options), count(options));
}

#[test]
fn what_is_broken_on_purpose_is_caught() {
    for broken in [Broken::NoGuards, Broken::CountsNoTerminating] {
        let caught = (0..500).find(|&seed| run(Options { seed, moves: 1500, broken: Some(broken) }).is_err());
        assert!(caught.is_some(), "{broken:?} was not caught within 500 seeds");
    }
}
