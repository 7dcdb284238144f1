//! The part of the binary that runs inside containers.

use std::process::ExitCode;

use warren_oci::host_image::{INIT_ARGUMENT, INIT_PATH};
use warren_oci::init;

/// What runs as the first process of a container that only has to be there, whatever its image. The node brings the program.
pub fn init_command() -> Vec<String> {
    vec![INIT_PATH.to_owned(), INIT_ARGUMENT.to_owned()]
}

/// Runs a container's first process if that is what this process was started as, and returns its exit code at the
/// container's end. Recognised by the path that only containers have, so that `warren init` means nothing outside.
pub fn container_init() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let started_as_init = arguments.next()? == INIT_PATH && arguments.next()? == INIT_ARGUMENT;
    started_as_init.then(|| match init::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("init: {error}");
            ExitCode::FAILURE
        }
    })
}
