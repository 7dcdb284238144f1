//! Files with which clients find a home: its kubeconfig, and the URL of its router.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde_json::Value;

/// Writes a file atomically. Only its owner may read it.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    // Keep a file that is already right, so that a home can start on a full disk.
    if fs::read_to_string(path).is_ok_and(|known| known == text) {
        return Ok(());
    }
    let unfinished = path.with_extension("unfinished");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    fs::rename(unfinished, path)
}

/// Returns the port in an existing kubeconfig, if it can be read. With the same port, clients with
/// a copy of the file keep working after a restart.
pub fn port_of_last_time(path: &Path) -> Option<u16> {
    let config: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let server = config.pointer("/clusters/0/cluster/server")?.as_str()?;
    server.rsplit_once(':')?.1.parse().ok()
}

/// Returns the port in an existing file with a router's URL.
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
