//! Builds `warren-shim` and `warren-guest`, programs that this crate's library embeds as bytes.
//!
//! A nested cargo builds them: stable cargo does not let a crate depend on another's program. They
//! are optimised for size in every profile of the daemon, in a directory that all such builds
//! share, and by one call, so that their common dependencies are built once.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [&str; 2] = ["warren-shim", "warren-guest"];
/// The profile of both programs, defined in the workspace's manifest.
const PROFILE: &str = "shim";

/// The inputs of both programs: our crates below `crates`, and the files that control how all
/// crates are built.
const OURS: [&str; 5] = ["warren-shim", "warren-guest", "warren-proto", "warren-oci", "warren-sys"];
const PARTS: [&str; 4] = ["Cargo.toml", "build.rs", "init", "src"];
const ALL: [&str; 3] = ["Cargo.toml", "Cargo.lock", ".cargo/config.toml"];

fn main() {
    let ours = OURS.iter().flat_map(|crate_| PARTS.map(|part| format!("../{crate_}/{part}")));
    // Cargo treats a missing file as changed.
    for source in ours.chain(ALL.map(|file| format!("../../{file}"))).filter(|path| Path::new(path).exists())
    {
        println!("cargo::rerun-if-changed={source}");
    }
    let (target, own) = (variable("TARGET"), PathBuf::from(variable("OUT_DIR")));
    let directory = shared(&own).join("shim");
    let status = Command::new(variable("CARGO"))
        .args(["build", "--quiet", "--locked", "--profile", PROFILE])
        .args(PROGRAMS.iter().flat_map(|program| ["--package", *program, "--bin", *program]))
        .arg("--target")
        .arg(&target)
        .arg("--target-dir")
        .arg(&directory)
        // The wrapper and flags of this build are for this crate. The programs use the workspace's
        // configuration.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .expect("run cargo");
    assert!(status.success(), "cargo could not build {PROGRAMS:?}: {status}");
    for program in PROGRAMS {
        let built = directory.join(&target).join(PROFILE).join(program);
        let bytes = fs::read(&built).unwrap_or_else(|error| panic!("read {}: {error}", built.display()));
        fs::write(own.join(program), &bytes).unwrap_or_else(|error| panic!("write {program}: {error}"));
        if program == "warren-guest" {
            println!("cargo::rustc-env=WARREN_GUEST_HASH={:016x}", hash(&bytes));
        }
    }
}

/// Computes FNV-1a. It tells versions apart and does not protect against tampering.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets `{name}`"))
}

/// Returns cargo's target directory, by the marker file that cargo puts there.
fn shared(own: &Path) -> &Path {
    own.ancestors().find(|directory| directory.join("CACHEDIR.TAG").exists()).unwrap_or(own)
}
