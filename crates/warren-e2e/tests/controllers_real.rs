//! Runs the controllers' suite on a real control plane with simulated nodes.

use std::process::ExitCode;

use warren_e2e::controllers::harness::Home;
use warren_e2e::controllers::{runner, suite};

fn main() -> ExitCode {
    runner::run(suite::scenarios(), async || Home::cluster().await.map(Some))
}
