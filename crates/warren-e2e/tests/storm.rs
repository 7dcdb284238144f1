//! Tests that no acknowledged write is lost, whenever the daemon is killed.

use warren_e2e::local_home::warren_binary;
use warren_e2e::storm;
use warren_testkit::privileges::skip_without_root;

/// Each round is a start, some hundred writes and a kill: about a second on an idle machine.
const ROUNDS: u64 = 12;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `WARREN_STORM_ROUNDS=100` makes it longer, `WARREN_STORM_SEED` repeats its choices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_every_kill() {
    if skip_without_root() {
        return;
    }
    warren_binary();
    let directory = tempfile::tempdir().expect("make a data directory");
    let rounds = number("WARREN_STORM_ROUNDS").unwrap_or(ROUNDS);
    let seed = number("WARREN_STORM_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}, {rounds} rounds");
    let outcome = storm::run(directory.path(), rounds, seed).await.unwrap_or_else(|error| panic!("{error}"));
    println!("{outcome:#?}");
    assert_eq!(outcome.kills, rounds);
    assert!(outcome.acknowledged >= rounds, "{outcome:?}");
}
