//! gVisor's `runsc` for tests: built from the Go module proxy, otherwise the machine's own.
//!
//! Distributions have old releases. With Debian 12's, of 2022, even `ls` of the same Debian fails,
//! because it refuses a flag of `statx`. Users run newer ones.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::files::{create_private_directory, remove_directory, write_private};
use crate::kube::binaries::is_executable;
use crate::kube::cache::Cache;
use crate::kube::go_build::{BuildError, find_go, go_command, publish, run};

/// The release. gVisor publishes its releases for Go by date and commit only.
pub const GVISOR_VERSION: &str = "v0.0.0-20260905035102-160fafc42237";

/// Returns the `runsc` for tests, if any: the one of [`build_runsc`], otherwise the first on
/// `search_path`.
pub fn find_runsc(cache: Option<&Cache>, search_path: Option<&OsString>) -> Option<PathBuf> {
    let built = cache.map(Cache::runsc).into_iter();
    let others = search_path.into_iter().flat_map(std::env::split_paths).map(|place| place.join("runsc"));
    built.chain(others).find(|path| is_executable(path))
}

/// Builds `runsc` into the cache unless it is there, and returns its path. A build that is killed
/// leaves nothing that a later call would use.
pub fn build_runsc(cache: &Cache) -> Result<PathBuf, BuildError> {
    let place = cache.runsc();
    let lock = cache.lock_build()?;
    if is_executable(&place) {
        return Ok(place);
    }
    let go = find_go()?;
    let work = cache.build();
    remove_directory(&work)?;
    create_private_directory(&work)?;
    eprintln!("building runsc {GVISOR_VERSION}: once, a few minutes on a machine that has never built it");
    let module =
        format!("module warren.dev/runsc\n\ngo 1.24.0\n\nrequire gvisor.dev/gvisor {GVISOR_VERSION}\n");
    write_private(&work.join("go.mod"), module)?;
    let flags = format!("-s -w -X gvisor.dev/gvisor/runsc/version.version={GVISOR_VERSION}");
    let output = work.join("runsc");
    run(go_command(&go, &work)
        .args(["build", "-trimpath", "-ldflags", &flags, "-o"])
        .arg(&output)
        .arg("gvisor.dev/gvisor/runsc"))?;
    if let Some(directory) = place.parent() {
        create_private_directory(directory)?;
    }
    publish(&output, &place)?;
    remove_directory(&work)?;
    drop(lock);
    Ok(place)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_one_that_was_built_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::locate(Some(directory.path().join("cache")), |_| None).unwrap();
        let path = std::env::join_paths(["/nowhere".into(), directory.path().to_owned()]).unwrap();
        assert_eq!(find_runsc(Some(&cache), Some(&path)), None);
        let own = directory.path().join("runsc");
        for place in [own.clone(), cache.runsc()] {
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(&place, "").unwrap();
            fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(find_runsc(Some(&cache), Some(&path)), Some(place));
        }
        assert_eq!(find_runsc(None, Some(&path)), Some(own));
    }
}
