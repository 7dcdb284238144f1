//! The pod's state on disk.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};

use crate::protocol::PodState;

/// Replaces `state.json` in one step. It is not synced: it has to outlive the shim, not the machine, for after a power
/// cut no process of the pod is left to tell about.
pub(super) fn write(pod_directory: &Path, state: &PodState) -> io::Result<()> {
    let unfinished = pod_directory.join("state.json.unfinished");
    fs::write(&unfinished, serde_json::to_vec(state)?)?;
    let path = pod_directory.join("state.json");
    // ext4 sends to the disk at once what takes the place of another file, and others wait for the disk meanwhile. Two that change
    // places it leaves alone.
    match rustix::fs::renameat_with(CWD, &unfinished, CWD, &path, RenameFlags::EXCHANGE) {
        Ok(()) => fs::remove_file(&unfinished),
        // There is none yet, or the file system cannot.
        Err(_) => fs::rename(&unfinished, &path),
    }
}
