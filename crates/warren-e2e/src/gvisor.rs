//! Homes whose pods can use gVisor's kernel.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use k8s_openapi::api::node::v1::RuntimeClass;
use warren_client::kube::runtime::wait;
use warren_client::kube::{Api, Client};
use warren_testkit::kube::{Cache, find_runsc};

use crate::streams::DEADLINE;

/// The runtime class that a home adds by default if it finds `runsc`.
pub const CLASS: &str = "gvisor";

/// Returns the `runsc` to test with, which may be an old release of a distribution; `None`, with a
/// printed reason, if there is none.
pub fn runsc() -> Option<PathBuf> {
    find(std::env::var_os("PATH"))
}

/// Returns the `runsc` that was built for tests, for tests that need more than old releases can do.
pub fn built_runsc() -> Option<PathBuf> {
    find(None)
}

fn find(search_path: Option<OsString>) -> Option<PathBuf> {
    let named = std::env::var_os("WARREN_KUBE_CACHE").map(PathBuf::from);
    let cache = Cache::locate(named, |name| std::env::var_os(name)).ok();
    let found = find_runsc(cache.as_ref(), search_path.as_ref());
    if found.is_none() {
        println!("skipped: there is no `runsc`; `cargo xtask runsc` builds it");
    }
    found
}

/// Returns its argument for `warren up --runtime`.
pub fn named(runsc: &Path) -> OsString {
    let mut words = OsString::from(format!("{CLASS}="));
    words.push(runsc);
    words
}

/// Waits until the home has the class.
pub async fn class_is_there(client: &Client) -> Result<()> {
    let classes: Api<RuntimeClass> = Api::all(client.clone());
    let there = wait::await_condition(classes, CLASS, |found: Option<&RuntimeClass>| found.is_some());
    tokio::time::timeout(DEADLINE, there).await.context("the class never is there")??;
    Ok(())
}
