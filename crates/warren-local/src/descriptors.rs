//! How many files and connections this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as a busy home needs: thousands of watches, and a socket or two for each pod. Not as many as there may be, because
/// some systems allow a billion.
const WANTED: u64 = 65_536;

/// Raises the limit of this process, as far as it may, and says what it is now. To be called when the zygote exists: what
/// runs in sandboxes keeps the limit that it always had.
pub fn raise_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.unwrap_or(u64::MAX).min(WANTED);
    let current = limit.current.unwrap_or(u64::MAX);
    if current >= allowed {
        return current;
    }
    let raised = Rlimit { current: Some(allowed), ..limit };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => allowed,
        Err(error) => {
            tracing::debug!(%error, "the limit of open files stays as it is");
            current
        }
    }
}
