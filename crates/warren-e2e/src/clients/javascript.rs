//! Sets up published clients for JavaScript.

use std::path::PathBuf;
use std::process::Command;

use warren_testkit::kube::Cache;

use super::run;

/// Finds the directory with a package in the cache, or makes it; returns the directory that the
/// package is found from.
///
/// # Errors
///
/// Fails with the reason: no npm here, or no way to get packages.
pub fn javascript_with(package: &str, version: &str) -> Result<PathBuf, String> {
    let named = std::env::var_os("WARREN_KUBE_CACHE").map(PathBuf::from);
    let cache = Cache::locate(named, |name| std::env::var_os(name)).map_err(|error| error.to_string())?;
    let name = package.trim_start_matches('@').replace('/', "-");
    let directory = cache.programs().with_file_name(format!("node-{name}-{version}"));
    let finished = directory.join("finished");
    if !finished.exists() {
        std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        std::fs::write(directory.join("package.json"), "{\"private\": true}")
            .map_err(|error| error.to_string())?;
        let wanted = format!("{package}@{version}");
        run(Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--no-package-lock", &wanted])
            .current_dir(&directory))?;
        std::fs::write(&finished, "").map_err(|error| error.to_string())?;
    }
    Ok(directory)
}
