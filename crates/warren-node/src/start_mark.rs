//! A file in a pod's directory, from just before its shim is forked until its cleanup.
//!
//! A daemon may die right after its zygote has forked a shim, which then exists without listening
//! yet. The mark tells the next process, another daemon or `warren down`, that a shim may be
//! starting. A shim that no process waited for would leak.

use std::io;
use std::path::Path;
use std::time::Duration;

const NAME: &str = "starting";
const RECORD: &str = "state.json";
/// The time that a forked shim may take until it listens: milliseconds on an idle machine.
const UNBORN_SHIM: Duration = Duration::from_secs(5);

/// Marks that a shim is about to be forked. The record of the previous shim, which has ended, is
/// removed first: it would be taken for the new one's.
pub(crate) fn set(pod_directory: &Path) -> io::Result<()> {
    match std::fs::remove_file(pod_directory.join(RECORD)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::write(pod_directory.join(NAME), "")
}

/// Removes the mark: no shim was forked, or its cleanup is complete. A missing mark is no error.
pub(crate) fn clear(pod_directory: &Path) {
    let _ = std::fs::remove_file(pod_directory.join(NAME));
}

/// Returns how long a requested shim may still take to appear; `None` if it has appeared or was not
/// requested.
pub fn shim_may_come_within(pod_directory: &Path) -> Option<Duration> {
    // Its record is written right after it listens.
    if pod_directory.join(RECORD).exists() {
        return None;
    }
    // Counted from the fork, not from now: daemons that are killed repeatedly would otherwise wait
    // for ever.
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
        // The next mark starts a new wait.
        set(pod.path()).unwrap();
        assert!(shim_may_come_within(pod.path()).is_some());
        let long_ago = std::time::SystemTime::now() - 2 * UNBORN_SHIM;
        let mark = std::fs::File::options().write(true).open(pod.path().join(NAME)).unwrap();
        mark.set_modified(long_ago).unwrap();
        assert_eq!(shim_may_come_within(pod.path()), None);
    }
}
