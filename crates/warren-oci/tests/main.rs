//! Tests with real containers on this machine. They need root: without it they fail, unless
//! `WARREN_SKIP_ROOT_TESTS` is set.

mod attach;
mod containers;
mod isolation;
mod older_kernels;
#[expect(clippy::unwrap_used, reason = "a helper of tests fails the test")]
mod support;
mod survival;
