//! `cargo xtask runsc`: builds gVisor's `runsc` for the tests of runtime classes.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use warren_testkit::kube::{Cache, build_runsc};

pub fn run() -> Result<ExitCode> {
    let named = std::env::var_os("WARREN_KUBE_CACHE").map(PathBuf::from);
    let cache = Cache::locate(named, |name| std::env::var_os(name))?;
    println!("{}", build_runsc(&cache)?.display());
    Ok(ExitCode::SUCCESS)
}
