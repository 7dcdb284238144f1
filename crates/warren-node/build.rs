//! Builds `warren-shim`, which is no part of this crate's library but in it, as bytes.
//!
//! By a cargo of its own: a stable one does not let a crate depend on another's program. It is optimised for size whatever the daemon is
//! built for, and in a directory that all such builds share.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "warren-shim";
/// In the workspace's manifest.
const PROFILE: &str = "shim";

/// What it is made from: crates of ours, below `crates`, and how they and those of others are built.
const OURS: [&str; 3] = ["warren-shim", "warren-oci", "warren-sys"];
const PARTS: [&str; 4] = ["Cargo.toml", "build.rs", "init", "src"];
const ALL: [&str; 3] = ["Cargo.toml", "Cargo.lock", ".cargo/config.toml"];

fn main() {
    let ours = OURS.iter().flat_map(|crate_| PARTS.map(|part| format!("../{crate_}/{part}")));
    // What is not there would count as changed.
    for source in ours.chain(ALL.map(|file| format!("../../{file}"))).filter(|path| Path::new(path).exists())
    {
        println!("cargo::rerun-if-changed={source}");
    }
    let (target, own) = (variable("TARGET"), PathBuf::from(variable("OUT_DIR")));
    let directory = shared(&own).join("shim");
    let status = Command::new(variable("CARGO"))
        .args(["build", "--quiet", "--locked", "--package", PROGRAM, "--profile", PROFILE, "--target"])
        .arg(&target)
        .arg("--target-dir")
        .arg(&directory)
        // How this crate is checked, and with which flags, is for this crate. The others are in the workspace's configuration.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .expect("run cargo");
    assert!(status.success(), "cargo could not build `{PROGRAM}`: {status}");
    let built = directory.join(&target).join(PROFILE).join(PROGRAM);
    fs::copy(&built, own.join(PROGRAM)).unwrap_or_else(|error| panic!("copy {}: {error}", built.display()));
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets `{name}`"))
}

/// The directory that everything is built in, which cargo marks.
fn shared(own: &Path) -> &Path {
    own.ancestors().find(|directory| directory.join("CACHEDIR.TAG").exists()).unwrap_or(own)
}
