//! The limit of open files and connections of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Enough for a busy home: thousands of watches, and a socket or two for each pod. It is not the
/// maximum, because some systems allow a billion.
const WANTED: u64 = 65_536;

/// Raises the limit of this process as far as allowed and returns it. Call it after the zygote
/// exists: programs in sandboxes keep the original limit.
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
