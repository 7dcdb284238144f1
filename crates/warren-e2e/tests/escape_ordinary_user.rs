//! What hostile code in a sandbox tries, on the home of somebody who is not root.

use std::process::ExitCode;

use warren_e2e::escape::{self, Walls};

fn main() -> ExitCode {
    escape::run(Walls::OrdinaryUser)
}
