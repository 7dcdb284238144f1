//! Runs the controllers' suite on a real control plane with this machine as its node: real
//! containers.

use std::process::ExitCode;

use warren_e2e::controllers::harness::Home;
use warren_e2e::controllers::{runner, suite};

fn main() -> ExitCode {
    runner::run(suite::scenarios(), Home::cluster_with_node)
}
