//! Users as E2B's clients expect them: `user`, with the id 1000 and `/home/user`, is the default and is made if the
//! image does not have it.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use warren_proto::envd::{DEFAULT_HOME, DEFAULT_USER};

use super::connect::{Code, Failure};

/// The id of [`DEFAULT_USER`] where the image does not say another.
const DEFAULT_ID: u32 = 1000;
/// A longer file of accounts is not read.
const LONGEST_ACCOUNTS: u64 = 1 << 20;

/// An account of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) home: PathBuf,
}

/// The daemon's ability to run programs as other users.
#[derive(Debug)]
pub(super) struct Users {
    /// The daemon can start programs as other users. Otherwise all of them run as the daemon does.
    switches: bool,
}

impl Users {
    /// Finds out what can be done, and makes the default user.
    pub(super) fn prepare() -> Users {
        let is_root = rustix::process::geteuid().is_root();
        let switches = is_root && is_mapped("/proc/self/uid_map") && is_mapped("/proc/self/gid_map");
        if is_root && let Err(error) = make_default_user(Path::new("/"), switches) {
            eprintln!("make the user `{DEFAULT_USER}`: {error}");
        }
        Users { switches }
    }

    /// Returns the user that a request names, or the default.
    pub(super) fn named(&self, name: Option<&str>) -> Result<User, Failure> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_USER);
        let accounts = read_accounts(Path::new("/etc/passwd")).unwrap_or_default();
        match account(&accounts, |fields| fields.first() == Some(&name)) {
            Some(user) => Ok(user),
            // An image of which nothing can be changed.
            None if name == DEFAULT_USER => {
                let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
                Ok(User { name: name.to_owned(), uid: DEFAULT_ID, gid: DEFAULT_ID, home })
            }
            None => Err(Failure::new(Code::Unauthenticated, format!("there is no user `{name}`"))),
        }
    }

    /// Makes a command run as a user, if that is possible.
    pub(super) fn become_user(&self, command: &mut std::process::Command, user: &User) {
        use std::os::unix::process::CommandExt as _;
        if self.switches && user.uid != 0 {
            command.uid(user.uid).gid(user.gid);
        }
    }

    /// Returns the ids that a new file of a user gets, if it does not have them by itself.
    pub(super) fn owner(&self, user: &User) -> Option<(u32, u32)> {
        (self.switches && user.uid != 0).then_some((user.uid, user.gid))
    }
}

/// Returns the user that a request names in its `Authorization`. Only the name counts: who may ask is decided before.
pub(super) fn of_request(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let name = || {
        let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
        Some(decoded.split_once(':').map_or(decoded.as_str(), |(name, _)| name).to_owned())
    };
    name()
        .map(Some)
        .ok_or_else(|| Failure::new(Code::Unauthenticated, "`Authorization` is not `Basic` with a user"))
}

/// Returns the name of an account or group with an id, or the id.
pub(super) fn name_of(accounts: &str, id: u32) -> String {
    let id = id.to_string();
    let found = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let name = found.into_iter().find(|fields| fields.get(2) == Some(&id.as_str()));
    name.and_then(|fields| fields.first().map(|name| (*name).to_owned())).unwrap_or(id)
}

/// Reads `/etc/passwd` or `/etc/group`.
pub(super) fn read_accounts(path: &Path) -> io::Result<String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(LONGEST_ACCOUNTS).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn account(accounts: &str, is_wanted: impl Fn(&[&str]) -> bool) -> Option<User> {
    accounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields.as_slice() else { return None };
        is_wanted(&fields).then_some(())?;
        Some(User {
            name: (*name).to_owned(),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            home: PathBuf::from(if home.is_empty() { "/" } else { home }),
        })
    })
}

/// Returns whether the daemon's user namespace has the default user's id.
fn is_mapped(map: &str) -> bool {
    fs::read_to_string(map).is_ok_and(|text| contains(&text, DEFAULT_ID))
}

fn contains(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        matches!(numbers.as_slice(), [first, _, count] if (*first..first + count).contains(&u64::from(id)))
    })
}

/// Adds the default user to the accounts, and makes its home. Does nothing that is done already.
fn make_default_user(root: &Path, switches: bool) -> io::Result<()> {
    let user = add_default_user(root, switches)?;
    let home = root.join(user.home.strip_prefix("/").unwrap_or(&user.home));
    fs::create_dir_all(&home)?;
    chown(&home, Some(user.uid), Some(user.gid))?;
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755))
}

fn add_default_user(root: &Path, switches: bool) -> io::Result<User> {
    let (passwd, groups) = (root.join("etc/passwd"), root.join("etc/group"));
    let accounts = read_accounts(&passwd).unwrap_or_default();
    if let Some(user) = account(&accounts, |fields| fields.first() == Some(&DEFAULT_USER)) {
        return Ok(user);
    }
    let id = if switches { DEFAULT_ID } else { 0 };
    let line = format!("{DEFAULT_USER}:x:{id}:{id}:{DEFAULT_USER}:{DEFAULT_HOME}:/bin/bash\n");
    if switches {
        // First, because the id may have another name in the image and the first one counts.
        let group = format!("{DEFAULT_USER}:x:{id}:\n{}", read_accounts(&groups).unwrap_or_default());
        replace(&groups, &group)?;
        replace(&passwd, &format!("{line}{accounts}"))?;
    } else {
        // Root stays the name of the id 0.
        replace(&passwd, &format!("{}{line}", ended(accounts)))?;
    }
    Ok(User { name: DEFAULT_USER.to_owned(), uid: id, gid: id, home: DEFAULT_HOME.into() })
}

fn ended(mut text: String) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Writes a file whole or not at all.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let unfinished = path.with_extension("warren");
    fs::write(&unfinished, text)?;
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o644))?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_user_is_the_first_name_of_its_id() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let passwd = root.path().join("etc/passwd");
        fs::write(&passwd, "root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000::/home/sandbox:/bin/sh").unwrap();
        let user = add_default_user(root.path(), true).unwrap();
        assert_eq!((user.uid, user.home.as_path()), (1000, Path::new("/home/user")));
        assert_eq!(add_default_user(root.path(), true).unwrap(), user);
        let accounts = read_accounts(&passwd).unwrap();
        assert_eq!(name_of(&accounts, 1000), "user");
        assert_eq!(name_of(&accounts, 77), "77");
        assert_eq!(accounts.lines().count(), 3);
        let groups = read_accounts(&root.path().join("etc/group")).unwrap();
        assert_eq!(groups, "user:x:1000:\n");
    }

    #[test]
    fn user_of_a_request_is_the_name_before_the_colon() {
        let named = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            of_request(&headers).map_err(|failure| failure.code)
        };
        assert_eq!(named("Basic cm9vdDo="), Ok(Some("root".to_owned())));
        assert_eq!(named("Basic !"), Err(Code::Unauthenticated));
        assert_eq!(named("Bearer x"), Err(Code::Unauthenticated));
        assert_eq!(of_request(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn ids_are_looked_up_in_the_map_of_the_namespace() {
        assert!(contains("         0     100000      65536\n", 1000));
        assert!(contains("0 0 1\n1000 5 1", 1000));
        assert!(!contains("0 0 1", 1000));
        assert!(!contains("", 1000));
    }
}
