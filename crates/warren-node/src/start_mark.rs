//! A file in a pod's directory from just before its shim is forked until it is cleaned up.
//!
//! A daemon may die right after it had a shim forked, which then is there without listening yet. Whoever comes next, another
//! daemon or `warren down`, sees by the mark that a shim may be on its way: one that nobody waited for would be a leak.

use std::io;
use std::path::Path;
use std::time::Duration;

const NAME: &str = "starting";
const RECORD: &str = "state.json";
/// How long a forked shim may take until it listens: milliseconds, on a machine that does nothing else.
const UNBORN_SHIM: Duration = Duration::from_secs(5);

/// A shim is about to be forked. The record of the one before, which has ended, goes first: it would be taken for the new one's.
pub(crate) fn set(pod_directory: &Path) -> io::Result<()> {
    match std::fs::remove_file(pod_directory.join(RECORD)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::write(pod_directory.join(NAME), "")
}

/// Nobody has been forked, or all has been cleaned up. That it is not there is no error.
pub(crate) fn clear(pod_directory: &Path) {
    let _ = std::fs::remove_file(pod_directory.join(NAME));
}

/// How long a shim that has been asked for may still be in coming; `None` if it has been there or nobody asked.
pub fn shim_may_come_within(pod_directory: &Path) -> Option<Duration> {
    // Its record is written right after it listens.
    if pod_directory.join(RECORD).exists() {
        return None;
    }
    // Counted from the start, not from now: daemons that are killed again and again would wait for ever otherwise.
    let begun = std::fs::metadata(pod_directory.join(NAME)).and_then(|mark| mark.modified()).ok()?;
    let left = UNBORN_SHIM.saturating_sub(begun.elapsed().unwrap_or_default());
    (!left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_may_come_from_the_mark_until_its_record() {
        let pod = tempfile::tempdir().unwrap();
        assert_eq!(shim_may_come_within(pod.path()), None);
        set(pod.path()).unwrap();
        assert!(shim_may_come_within(pod.path()).is_some_and(|left| left <= UNBORN_SHIM));
        std::fs::write(pod.path().join(RECORD), "{}").unwrap();
        assert_eq!(shim_may_come_within(pod.path()), None);
        // And again from the next mark on.
        set(pod.path()).unwrap();
        assert!(shim_may_come_within(pod.path()).is_some());
        let long_ago = std::time::SystemTime::now() - 2 * UNBORN_SHIM;
        let mark = std::fs::File::options().write(true).open(pod.path().join(NAME)).unwrap();
        mark.set_modified(long_ago).unwrap();
        assert_eq!(shim_may_come_within(pod.path()), None);
    }
}
