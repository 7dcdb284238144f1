//! The files that tell clients how to reach a home: its kubeconfig, and the URL of its router.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde_json::Value;

/// Writes the file, for its owner only, whole or not at all.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    // One that is right already stays: a home comes back even on a full disk.
    if fs::read_to_string(path).is_ok_and(|known| known == text) {
        return Ok(());
    }
    let unfinished = path.with_extension("unfinished");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    fs::rename(unfinished, path)
}

/// The port in a kubeconfig that was written before; none if it cannot be read. Clients that have a copy of the file
/// go on working when a home comes back where it was.
pub fn port_of_last_time(path: &Path) -> Option<u16> {
    let config: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let server = config.pointer("/clusters/0/cluster/server")?.as_str()?;
    server.rsplit_once(':')?.1.parse().ok()
}

/// Returns the port in the file of a router's URL that was written before.
pub fn router_port_of_last_time(path: &Path) -> Option<u16> {
    fs::read_to_string(path).ok()?.trim().rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_last_time_is_found() {
        let directory = tempfile::tempdir().expect("make a directory");
        let path = directory.path().join("kubeconfig");
        assert_eq!(port_of_last_time(&path), None);
        write(&path, r#"{"clusters":[{"cluster":{"server":"https://127.0.0.1:4711"}}]}"#).expect("write");
        assert_eq!(port_of_last_time(&path), Some(4711));
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&path).expect("metadata").permissions().mode() & 0o777, 0o600);
    }
}
