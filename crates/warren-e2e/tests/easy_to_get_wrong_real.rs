//! Runs the rows of `docs/compatibility.md` on a real control plane with simulated nodes.

use std::process::ExitCode;

use warren_e2e::controllers::harness::Home;
use warren_e2e::controllers::{rows, runner};

fn main() -> ExitCode {
    runner::run(rows::scenarios(), async || Ok(Some(Home::cluster().await?)))
}
