//! Runs the controllers' suite on the local home: a real daemon, real containers.

use std::process::ExitCode;

use warren_e2e::controllers::harness::Home;
use warren_e2e::controllers::{runner, suite};

fn main() -> ExitCode {
    runner::run(suite::scenarios(), Home::local)
}
