//! Tests kills of any process at any time: running sandboxes go on, requests are completed, and
//! nothing is left behind.

use warren_e2e::crash;
use warren_e2e::local_home::LocalHome;

/// Every victim at every moment once. A round takes about a second on an idle machine.
const ROUNDS: u64 = 15;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn choices() -> (u64, u64) {
    let rounds = number("WARREN_CRASH_ROUNDS").unwrap_or(ROUNDS);
    let seed = number("WARREN_CRASH_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}, {rounds} rounds");
    (rounds, seed)
}

/// `WARREN_CRASH_ROUNDS=200` makes it longer, `WARREN_CRASH_SEED` repeats its choices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_outlive_every_kill_and_nothing_is_left() {
    let Some(home) = LocalHome::new() else { return };
    let (rounds, seed) = choices();
    let outcome = crash::run(&home, rounds, seed).await.unwrap_or_else(|error| panic!("{error}"));
    println!("{outcome:#?}");
    assert_eq!(outcome.kills, rounds, "{outcome:?}");
}

/// A fifth as many rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn going_down_while_sandboxes_start_leaves_nothing() {
    let Some(home) = LocalHome::new() else { return };
    let (rounds, seed) = choices();
    crash::go_down(&home, rounds.div_ceil(5), seed).await.unwrap_or_else(|error| panic!("{error}"));
}
