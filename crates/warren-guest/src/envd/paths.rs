//! Paths of requests, and what is told about the files behind them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lremovexattr, lsetxattr};
use serde_json::{Value, json};

use super::connect::{Code, Failure};
use super::user::{self, User, Users};

/// The names of attributes that hold what clients say about files begin so.
const METADATA: &str = "user.e2b.";
/// The most bytes of names and values in one file's metadata.
const LONGEST_METADATA: usize = 16 << 10;

/// Makes a path absolute: `~` and relative paths begin at the user's home. `.` and `..` are resolved by name.
pub(super) fn absolute(path: &str, user: &User) -> PathBuf {
    let path = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            user.home.join(rest.trim_start_matches('/'))
        }
        _ => user.home.join(path),
    };
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    clean
}

/// Reads a path from a request.
pub(super) fn wanted(name: &str, path: &str, user: &User) -> Result<PathBuf, Failure> {
    if path.contains('\0') {
        return Err(Failure::new(Code::InvalidArgument, format!("`{name}` contains a NUL")));
    }
    Ok(absolute(path, user))
}

/// Makes a directory and those above it. New ones belong to the user.
pub(super) fn make_directories(path: &Path, users: &Users, user: &User) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|path| path.symlink_metadata().is_err()).collect();
    for directory in missing.into_iter().rev() {
        match fs::create_dir(directory) {
            Ok(()) => give(directory, users, user)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    match path.metadata()?.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Makes what was created belong to its user.
pub(super) fn give(path: &Path, users: &Users, user: &User) -> io::Result<()> {
    match users.owner(user) {
        Some((uid, gid)) => chown(path, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// The names of users and groups, read once for a call.
#[derive(Debug)]
pub(super) struct Names {
    users: String,
    groups: String,
}

impl Names {
    pub(super) fn read() -> Names {
        let read = |path: &str| user::read_accounts(Path::new(path)).unwrap_or_default();
        Names { users: read("/etc/passwd"), groups: read("/etc/group") }
    }
}

/// Returns `EntryInfo` of a path, without following a link at its end.
pub(super) fn entry(path: &Path, names: &Names) -> io::Result<Value> {
    let found = path.symlink_metadata()?;
    let is_link = found.file_type().is_symlink();
    // The type of a link is that of its target. A link without a target is a link.
    let target = if is_link { path.metadata().ok() } else { None };
    let shown = target.as_ref().unwrap_or(&found);
    let kind = if shown.is_dir() {
        "FILE_TYPE_DIRECTORY"
    } else if shown.file_type().is_symlink() {
        "FILE_TYPE_SYMLINK"
    } else if shown.is_file() {
        "FILE_TYPE_FILE"
    } else {
        "FILE_TYPE_UNSPECIFIED"
    };
    let name = path.file_name().unwrap_or(OsStr::new("/"));
    let mut entry = json!({
        "name": name.to_string_lossy(), "type": kind, "path": path.to_string_lossy(),
        "size": shown.len().to_string(), "mode": found.mode() & 0o7777, "permissions": permissions(found.mode()),
        "owner": user::name_of(&names.users, found.uid()), "group": user::name_of(&names.groups, found.gid()),
        "modifiedTime": time(&found),
    });
    if is_link {
        entry["isSymlink"] = json!(true);
        if let Ok(target) = fs::read_link(path) {
            entry["symlinkTarget"] = json!(target.to_string_lossy());
        }
    }
    let metadata = metadata(path);
    if !metadata.is_empty() {
        entry["metadata"] = json!(metadata);
    }
    Ok(entry)
}

/// Writes permissions as `ls` does for a file.
fn permissions(mode: u32) -> String {
    let letters = "rwxrwxrwx".chars().enumerate();
    let shown = letters.map(|(number, letter)| if mode & (0o400 >> number) != 0 { letter } else { '-' });
    std::iter::once('-').chain(shown).collect()
}

/// Returns when a file was changed, as protobuf writes it in JSON.
fn time(found: &Metadata) -> String {
    let nanoseconds = u32::try_from(found.mtime_nsec()).unwrap_or(0);
    format!("{}.{nanoseconds:09}Z", date_and_time(u64::try_from(found.mtime()).unwrap_or(0)))
}

/// Writes seconds since 1970 as a date and a time, by the civil calendar counted from March.
fn date_and_time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Returns what clients have said about a file.
pub(super) fn metadata(path: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for name in attributes(path) {
        let Some(key) = name.strip_prefix(METADATA) else { continue };
        let mut value = vec![0; LONGEST_METADATA];
        if let Ok(length) = lgetxattr(path, name.as_str(), &mut value[..]) {
            found.insert(key.to_owned(), String::from_utf8_lossy(&value[..length]).into_owned());
        }
    }
    found
}

fn attributes(path: &Path) -> Vec<String> {
    let mut list = vec![0_u8; 64 << 10];
    let length = llistxattr(path, &mut list[..]).unwrap_or(0);
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.filter_map(|name| std::str::from_utf8(name).ok().map(str::to_owned)).collect()
}

/// Replaces what clients have said about a file.
pub(super) fn set_metadata(path: &Path, wanted: &BTreeMap<String, String>) -> io::Result<()> {
    for name in attributes(path) {
        if name.strip_prefix(METADATA).is_some_and(|key| !wanted.contains_key(key)) {
            lremovexattr(path, name.as_str())?;
        }
    }
    for (key, value) in wanted {
        lsetxattr(path, format!("{METADATA}{key}"), value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

/// Reads the metadata that an upload brings in its headers.
pub(super) fn metadata_of_request(headers: &http::HeaderMap) -> Result<BTreeMap<String, String>, Failure> {
    let mut found = BTreeMap::new();
    let mut length = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix("x-metadata-") else { continue };
        let value = value.to_str().unwrap_or_default();
        length += key.len() + value.len();
        if key.is_empty() || length > LONGEST_METADATA {
            return Err(Failure::new(
                Code::InvalidArgument,
                "the `X-Metadata-` headers are empty or too long",
            ));
        }
        found.insert(key.to_owned(), value.to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn someone() -> User {
        User { name: "user".to_owned(), uid: 1000, gid: 1000, home: "/home/user".into() }
    }

    #[test]
    fn relative_paths_begin_at_home() {
        for (path, expected) in [
            ("a/b", "/home/user/a/b"),
            ("/a/../b/./c", "/b/c"),
            ("../../../..", "/"),
            ("~", "/home/user"),
            ("~/x", "/home/user/x"),
            ("~x", "/home/user/~x"),
            ("", "/home/user"),
        ] {
            assert_eq!(absolute(path, &someone()), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = date_and_time;
        assert_eq!(at(0), "1970-01-01T00:00:00");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00");
        assert_eq!(at(1_798_675_200), "2026-12-31T00:00:00");
    }

    #[test]
    fn entries_say_what_links_lead_to() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "abc").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let names = Names { users: String::new(), groups: String::new() };
        let shown = entry(&link, &names).unwrap();
        assert_eq!(shown["type"], "FILE_TYPE_FILE");
        assert_eq!(shown["isSymlink"], true);
        assert_eq!(shown["size"], "3");
        assert_eq!(entry(&file, &names).unwrap()["isSymlink"], Value::Null);
        assert_eq!(permissions(0o100_754), "-rwxr-xr--");
    }
}
