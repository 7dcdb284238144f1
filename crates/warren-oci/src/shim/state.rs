//! The pod's state on disk.

use std::fs;
use std::io;
use std::path::Path;

use crate::protocol::PodState;

/// Replaces `state.json` in one step. It is not synced: it has to outlive the shim, not the machine, for after a power
/// cut no process of the pod is left to tell about.
pub(super) fn write(pod_directory: &Path, state: &PodState) -> io::Result<()> {
    let unfinished = pod_directory.join("state.json.unfinished");
    fs::write(&unfinished, serde_json::to_vec(state)?)?;
    fs::rename(&unfinished, pod_directory.join("state.json"))
}
