//! Runs the rows of `docs/compatibility.md` on the local home: a real daemon, real containers.

use std::process::ExitCode;

use warren_e2e::controllers::harness::Home;
use warren_e2e::controllers::{rows, runner};

fn main() -> ExitCode {
    runner::run(rows::scenarios(), Home::local)
}
