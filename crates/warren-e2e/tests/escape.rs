//! What hostile code in a sandbox tries, on the local home: a real daemon, real containers.

use std::process::ExitCode;

fn main() -> ExitCode {
    warren_e2e::escape::run()
}
