//! The pod's state on disk.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};

use crate::protocol::PodState;

/// Replaces `state.json` atomically. It is not synced: it must outlive the shim, not the machine,
/// because a power cut ends all processes of the pod.
pub(super) fn write(pod_directory: &Path, state: &PodState) -> io::Result<()> {
    let unfinished = pod_directory.join("state.json.unfinished");
    fs::write(&unfinished, serde_json::to_vec(state)?)?;
    let path = pod_directory.join("state.json");
    // On ext4 a rename that replaces a file is flushed to disk at once and delays other writers. An
    // exchange of two files is not.
    match rustix::fs::renameat_with(CWD, &unfinished, CWD, &path, RenameFlags::EXCHANGE) {
        Ok(()) => fs::remove_file(&unfinished),
        // The file does not exist yet, or the file system cannot exchange files.
        Err(_) => fs::rename(&unfinished, &path),
    }
}
