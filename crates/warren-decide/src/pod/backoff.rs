//! Computes how long a container that ended waits before it is restarted.

use jiff::SignedDuration;

use super::Exit;

/// The delay of the second restart; it doubles each time. The first restart has no delay. Kubelet's
/// numbers.
const FIRST: SignedDuration = SignedDuration::from_secs(10);
/// The longest delay of a restart; kubelet's number.
const LONGEST: SignedDuration = SignedDuration::from_secs(300);
/// A run of this length resets the back-off (kubelet: twice the longest wait).
const FORGIVEN_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// Returns the wait before restart number `restart + 1`.
pub fn restart_delay(restart: u32) -> SignedDuration {
    match restart {
        0 => SignedDuration::ZERO,
        // 10 s doubled five times exceeds the cap already; the shift cannot overflow.
        more => (FIRST * (1 << (more - 1).min(5))).min(LONGEST),
    }
}

/// Returns the wait after a run that ended like this. Kubelet keeps its counter in memory and
/// forgets it when it restarts. Ours is the restart count, which survives: a container that failed
/// often in the past waits long at once.
pub(super) fn delay_after(attempt: u32, exit: &Exit) -> SignedDuration {
    let ran = exit.finished_at.duration_since(exit.started_at);
    if ran >= FORGIVEN_AFTER { SignedDuration::ZERO } else { restart_delay(attempt) }
}
