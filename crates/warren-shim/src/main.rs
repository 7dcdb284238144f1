//! The program of the zygote and of all shims. It is small because there are as many of it as there are sandboxes, and has nothing
//! in it but `warren-oci`: start reading there. `warren-node` builds it and carries it with it, as bytes, so that there is one file
//! to install.

use std::process::ExitCode;

fn main() -> ExitCode {
    warren_oci::zygote::run()
}
