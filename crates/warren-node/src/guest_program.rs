//! Installs the guest daemon's program, which the node embeds and mounts into containers.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The program, built by `build.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/warren-guest"));

/// The program's path in containers.
pub(crate) const GUEST_PATH: &str = "/.warren/guest";

/// Writes the program into the data directory, from which containers mount it, and removes earlier
/// versions: running containers keep theirs. Returns its path.
pub(crate) fn install(data_directory: &Path) -> io::Result<PathBuf> {
    let directory = data_directory.join("images").join("guest");
    fs::create_dir_all(&directory)?;
    let path = directory.join(env!("WARREN_GUEST_HASH"));
    for entry in fs::read_dir(&directory)? {
        let entry = entry?.path();
        if entry != path {
            fs::remove_file(&entry)?;
        }
    }
    // The final name exists only once the file is complete and on the disk.
    if !path.exists() {
        let unfinished = path.with_extension("unfinished");
        let mut file = fs::File::create_new(&unfinished)?;
        file.write_all(PROGRAM)?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_there_once_and_only_in_its_present_version() {
        let data = tempfile::tempdir().unwrap();
        let path = install(data.path()).unwrap();
        fs::write(path.with_file_name("older"), "").unwrap();
        fs::write(path.with_file_name("other.unfinished"), "").unwrap();
        assert_eq!(install(data.path()).unwrap(), path);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert_eq!(fs::read(&path).unwrap(), PROGRAM);
    }
}
