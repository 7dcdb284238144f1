//! Who goes first when there is more to do than processors.

/// As for other services that a machine's work waits for.
const AHEAD: i32 = -10;

/// Puts this process ahead of what runs in sandboxes, if it may: the one that keeps them all must answer, however busy they are, and
/// however many are being started. To be called when the zygote exists, and no thread: those who come later are as their maker.
pub fn raise() {
    if let Err(error) = rustix::process::nice(AHEAD) {
        tracing::debug!(%error, "no priority over what runs in sandboxes");
    }
}
