//! Runs the break-out suite on the home of a user who is not root.

use std::process::ExitCode;

use warren_e2e::escape::{self, Walls};

fn main() -> ExitCode {
    escape::run(Walls::OrdinaryUser)
}
