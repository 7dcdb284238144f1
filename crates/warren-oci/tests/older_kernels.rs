//! Runs all tests again, with overlays made as kernels before 6.15 need them.

use std::process::{Command, Stdio};

use crate::support::skipped;

#[test]
fn all_that_holds_here_holds_with_attached_layers() {
    if skipped() {
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "older_kernels"])
        .env("WARREN_OCI_LAYERING", "attached")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    // A filter that matches nothing would succeed as well.
    assert!(!text.contains("running 0 tests"), "{text}");
}
