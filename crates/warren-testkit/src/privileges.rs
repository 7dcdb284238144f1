//! What a test may do on this machine.

/// Whether a test that makes real containers must be left out. A run without root must not look like a pass, so it fails
/// unless `WARREN_SKIP_ROOT_TESTS` says that this is understood.
pub fn skip_without_root() -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    assert!(
        std::env::var_os("WARREN_SKIP_ROOT_TESTS").is_some(),
        "this test makes real containers and needs root; set WARREN_SKIP_ROOT_TESTS to leave such tests out"
    );
    eprintln!("skipped: not root, and WARREN_SKIP_ROOT_TESTS is set");
    true
}
