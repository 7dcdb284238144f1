//! Runs the break-out suite on the local home: a real daemon, real containers.

use std::process::ExitCode;

use warren_e2e::escape::{self, Walls};

fn main() -> ExitCode {
    escape::run(Walls::Native)
}
