//! Tells the program its commit and build date.

#[path = "build/origin.rs"]
mod origin;

use std::path::Path;

fn main() {
    let origin = origin::find(Path::new("../../.git"), |name| std::env::var(name).ok());
    for variable in origin::VARIABLES {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    // Only existing files: cargo treats a missing one as changed each time.
    for file in &origin.files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    println!("cargo::rustc-env=WARREN_GIT_COMMIT={}", origin.commit);
    println!("cargo::rustc-env=WARREN_BUILD_DATE={}", origin.date);
}
