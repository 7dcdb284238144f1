//! Runs the break-out suite in sandboxes with gVisor's kernel (`runtimeClassName: gvisor`).

use std::process::ExitCode;

use warren_e2e::escape::{self, Walls};

fn main() -> ExitCode {
    escape::run(Walls::Gvisor)
}
