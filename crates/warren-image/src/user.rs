//! Looks up an image's user in its own `passwd` and `group` files.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// A user of an image, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The home directory, if the image lists the user.
    pub home: Option<String>,
}

/// An error of the lookup.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The user is not listed.
    #[error("unable to find user {0}: no matching entries in passwd file")]
    User(String),
    /// The group is not listed.
    #[error("unable to find group {0}: no matching entries in group file")]
    Group(String),
    /// A list could not be read.
    #[error("read {path} of the image")]
    Read {
        /// The path of the list.
        path: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The maximum size of a list in bytes. The lists come from the image, so they may be anything.
const LARGEST_LIST: u64 = 1 << 20;
const PASSWD: &str = "etc/passwd";
const GROUP: &str = "etc/group";

/// Looks up `USER`, `USER:GROUP` or the empty text (root) in an image. Each part is a name or a
/// number. Layers are given topmost first.
pub fn resolve(user: &str, layers: &[PathBuf]) -> Result<User, UserError> {
    let (user, group) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let number: Option<u32> = user.parse().ok();
    let passwd = list(layers, PASSWD)?;
    let known = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find_map(|fields| {
        let uid: u32 = fields.get(2)?.parse().ok()?;
        let gid: u32 = fields.get(3)?.parse().ok()?;
        let fits = match number {
            Some(number) => number == uid,
            None => fields[0] == user,
        };
        let home = fields.get(5).filter(|home| home.starts_with('/')).map(|home| (*home).to_owned());
        fits.then_some(User { uid, gid, home })
    });
    let mut found = match (known, number) {
        (Some(known), _) => known,
        (None, Some(uid)) => User { uid, gid: 0, home: None },
        (None, None) => return Err(UserError::User(shown(user))),
    };
    if let Some(group) = group.filter(|group| !group.is_empty()) {
        found.gid = match group.parse() {
            Ok(gid) => gid,
            Err(_) => group_id(&list(layers, GROUP)?, group).ok_or_else(|| UserError::Group(shown(group)))?,
        };
    }
    Ok(found)
}

fn group_id(groups: &str, name: &str) -> Option<u32> {
    let fields = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    fields.filter(|fields| fields[0] == name).find_map(|fields| fields.get(2)?.parse().ok())
}

fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Reads a file of the image from its topmost layer. Returns an empty text if no layer has it.
fn list(layers: &[PathBuf], path: &'static str) -> Result<String, UserError> {
    let read = || -> io::Result<String> {
        for layer in layers {
            match open(layer, path) {
                Ok(file)
                    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode)
                        == FileType::RegularFile =>
                {
                    let mut bytes = Vec::new();
                    File::from(file).take(LARGEST_LIST).read_to_end(&mut bytes)?;
                    return Ok(String::from_utf8_lossy(&bytes).into_owned());
                }
                // This layer removes the file, or it is a link, which is not followed.
                Ok(_) | Err(Errno::LOOP) => return Ok(String::new()),
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(String::new())
    };
    read().map_err(|source| UserError::Read { path, source })
}

fn open(layer: &Path, path: &str) -> Result<OwnedFd, Errno> {
    let layer = rustix::fs::open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Do not block: it may be a pipe.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(&layer, path, flags, Mode::empty(), within) {
        // This is a whiteout: the device 0:0 has no driver.
        Err(Errno::NXIO | Errno::NODEV) => {
            rustix::fs::openat2(&layer, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), within)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn users_and_groups_go_by_name_or_number() {
        let place = tempfile::tempdir().unwrap();
        let layers = [place.path().join("top"), place.path().join("base")];
        for layer in &layers {
            fs::create_dir_all(layer.join("etc")).unwrap();
        }
        fs::write(layers[1].join(PASSWD), "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/var/www:\nbad:x:y\n")
            .unwrap();
        fs::write(layers[0].join(GROUP), "staff:x:50:\n").unwrap();
        let user =
            |uid, gid, home: &str| User { uid, gid, home: (!home.is_empty()).then(|| home.to_owned()) };
        for (name, expected) in [
            ("", user(0, 0, "/root")),
            ("web", user(33, 34, "/var/www")),
            ("33", user(33, 34, "/var/www")),
            ("1000", user(1000, 0, "")),
            ("web:staff", user(33, 50, "/var/www")),
            ("1000:2000", user(1000, 2000, "")),
        ] {
            assert_eq!(resolve(name, &layers).unwrap(), expected, "{name}");
        }
        assert!(matches!(resolve("nobody", &layers), Err(UserError::User(_))));
        assert!(matches!(resolve("bad", &layers), Err(UserError::User(_))));
        assert!(matches!(resolve("web:none", &layers), Err(UserError::Group(_))));

        // The top layer wins, also if it has a link or removes the file.
        fs::remove_file(layers[0].join(GROUP)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", layers[0].join(PASSWD)).unwrap();
        assert!(matches!(resolve("web", &layers), Err(UserError::User(_))));
    }
}
