//! Starts a control plane by the guard, prints its directory, and then ends in the way that its
//! argument names. The guard's tests run it as a stand-in for a test binary.

use std::io::{Read, Write};

use warren_testkit::kube::ControlPlane;

fn main() {
    let control_plane = ControlPlane::start();
    println!("{}", control_plane.directory().display());
    std::io::stdout().flush().expect("the test reads our output");
    match std::env::args().nth(1).as_deref() {
        Some("return") => {}
        Some("panic") => panic!("as the test wants it"),
        // Wait to be killed: the test does not close our input before.
        _ => {
            let _ = std::io::stdin().read(&mut [0]);
        }
    }
}
