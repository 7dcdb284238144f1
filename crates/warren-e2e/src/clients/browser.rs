//! Chromium and the script that drives it over the web page.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use warren_testkit::kube::Cache;

use super::run;

/// The tools for the tests of the page: Chromium on this machine, and a directory with the script
/// and its packages.
#[derive(Debug)]
pub struct Browser {
    chromium: PathBuf,
    directory: TempDir,
}

impl Browser {
    /// Finds both, or installs them: Chromium by `apt-get` if this user is root, the packages by
    /// `npm` into the cache.
    ///
    /// # Errors
    ///
    /// Fails with the reason: no Chromium, no npm, or no way to get packages.
    pub fn find() -> Result<Self, String> {
        let chromium = chromium()?;
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/tests");
        let modules = modules(&tests)?;
        // Not in the checkout: packages are looked up beside the script.
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        for name in ["run.mjs", "browser.mjs"] {
            std::fs::copy(tests.join(name), directory.path().join(name))
                .map_err(|error| format!("copy {name}: {error}"))?;
        }
        std::os::unix::fs::symlink(modules, directory.path().join("node_modules"))
            .map_err(|error| format!("link the packages: {error}"))?;
        Ok(Self { chromium, directory })
    }

    /// Returns the command that drives the page behind this link. It requests a restart of the
    /// service by the line `restart`.
    pub fn command(&self, link: &str) -> Command {
        let mut command = Command::new("node");
        command
            .arg(self.directory.path().join("run.mjs"))
            .env("WARREN_UI_LINK", link)
            .env("WARREN_CHROMIUM", &self.chromium);
        command
    }
}

fn chromium() -> Result<PathBuf, String> {
    let path = PathBuf::from("/usr/bin/chromium");
    if !path.exists() && rustix::process::geteuid().is_root() {
        run(Command::new("apt-get").args(["update", "-qq"]))?;
        run(Command::new("apt-get")
            .args(["install", "-qq", "-y", "--no-install-recommends", "chromium"])
            .env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    match path.exists() {
        true => Ok(path),
        false => Err(format!("there is no {}", path.display())),
    }
}

/// Returns the `node_modules` in the cache with the packages of the lock file.
fn modules(tests: &Path) -> Result<PathBuf, String> {
    let lock = std::fs::read(tests.join("package-lock.json")).map_err(|error| error.to_string())?;
    let hash = lock.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let named = std::env::var_os("WARREN_KUBE_CACHE").map(PathBuf::from);
    let cache = Cache::locate(named, |name| std::env::var_os(name)).map_err(|error| error.to_string())?;
    let directory = cache.programs().with_file_name(format!("node-{hash:016x}"));
    let finished = directory.join("finished");
    if !finished.exists() {
        std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        for name in ["package.json", "package-lock.json"] {
            std::fs::copy(tests.join(name), directory.join(name)).map_err(|error| error.to_string())?;
        }
        run(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&directory))?;
        std::fs::write(&finished, "").map_err(|error| error.to_string())?;
    }
    Ok(directory.join("node_modules"))
}
