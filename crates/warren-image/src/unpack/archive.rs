//! The entries of an archive, including the extension headers before them. The headers are parsed
//! here, because the library would allocate any length that they claim.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tar::{Archive, EntryType};

use super::UnpackError;

/// The maximum size of an entry's extension header, in bytes.
const LARGEST_EXTENSION: u64 = 1 << 20;

/// One entry: its head, and the content of a file.
pub(super) struct Entry<'a, R: Read> {
    pub(super) head: Head,
    pub(super) content: tar::Entry<'a, R>,
}

#[derive(Debug)]
pub(super) struct Head {
    /// The path as written; not trusted.
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds and nanoseconds since 1970.
    pub(super) modified: (i64, i64),
    /// Extended attributes by name.
    pub(super) attributes: Vec<(String, Vec<u8>)>,
}

/// The kinds of entries in images.
#[derive(Debug)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink(PathBuf),
    HardLink(PathBuf),
    Fifo,
}

impl Head {
    /// Returns the name for messages.
    pub(super) fn shown(&self) -> String {
        shown(&self.path)
    }

    pub(super) fn refused(&self, why: impl Into<String>) -> UnpackError {
        UnpackError::Refused { name: self.shown(), why: why.into() }
    }
}

/// Shortens a name from an archive for messages.
fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().take(256).collect()
}

/// The extension headers of the next entry.
#[derive(Default)]
struct Extension {
    path: Option<PathBuf>,
    link: Option<PathBuf>,
    uid: Option<u64>,
    gid: Option<u64>,
    size: Option<u64>,
    modified: Option<(i64, i64)>,
    attributes: Vec<(String, Vec<u8>)>,
    sparse: bool,
}

pub(super) struct Entries<'a, R: Read> {
    raw: tar::Entries<'a, R>,
}

impl<'a, R: Read> Entries<'a, R> {
    pub(super) fn new(archive: &'a mut Archive<R>) -> io::Result<Self> {
        Ok(Self { raw: archive.entries()?.raw(true) })
    }

    pub(super) fn next(&mut self) -> Result<Option<Entry<'a, R>>, UnpackError> {
        let mut extension = Extension::default();
        loop {
            let Some(entry) = self.raw.next() else { return Ok(None) };
            let mut entry = entry.map_err(UnpackError::Read)?;
            match entry.header().entry_type() {
                EntryType::GNULongName => extension.path = Some(text(&mut entry)?),
                EntryType::GNULongLink => extension.link = Some(text(&mut entry)?),
                EntryType::XHeader => extension.read(&extension_bytes(&mut entry)?)?,
                // This applies to all later entries. In practice it contains only comments.
                EntryType::XGlobalHeader => {}
                _ => {
                    let head = head(&entry, extension)?;
                    return Ok(Some(Entry { head, content: entry }));
                }
            }
        }
    }
}

fn extension_bytes<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<Vec<u8>, UnpackError> {
    let name = shown(Path::new(OsStr::from_bytes(&entry.path_bytes())));
    let size = entry.header().entry_size().map_err(UnpackError::Read)?;
    if size > LARGEST_EXTENSION {
        let why = format!("a header of {size} bytes; {LARGEST_EXTENSION} is the most");
        return Err(UnpackError::Refused { name, why });
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(UnpackError::Read)?;
    Ok(bytes)
}

/// Reads a long name, which is in a separate entry with a zero byte at its end.
fn text<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<PathBuf, UnpackError> {
    let bytes = extension_bytes(entry)?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Ok(PathBuf::from(OsStr::from_bytes(&bytes[..end])))
}

impl Extension {
    /// Parses lines of the form `LENGTH KEY=VALUE\n`. The length counts the whole line.
    fn read(&mut self, bytes: &[u8]) -> Result<(), UnpackError> {
        let mut rest = bytes;
        while !rest.is_empty() && rest[0] != 0 {
            let line = record(rest).ok_or_else(|| {
                UnpackError::Read(io::Error::new(io::ErrorKind::InvalidData, "a damaged extended header"))
            })?;
            rest = &rest[line.length..];
            self.take(line.key, line.value);
        }
        Ok(())
    }

    fn take(&mut self, key: &str, value: &[u8]) {
        let path = || Some(PathBuf::from(OsStr::from_bytes(value)));
        let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        match key {
            "path" => self.path = path(),
            "linkpath" => self.link = path(),
            "uid" => self.uid = number(),
            "gid" => self.gid = number(),
            "size" => self.size = number(),
            "mtime" => self.modified = std::str::from_utf8(value).ok().and_then(time),
            _ if key.starts_with("GNU.sparse.") => self.sparse = true,
            _ => {
                if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                    self.attributes.push((name.to_owned(), value.to_owned()));
                }
            }
        }
    }
}

struct Record<'a> {
    length: usize,
    key: &'a str,
    value: &'a [u8],
}

fn record(bytes: &[u8]) -> Option<Record<'_>> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let line = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = line.iter().position(|byte| *byte == b'=')?;
    Some(Record { length, key: std::str::from_utf8(&line[..equals]).ok()?, value: &line[equals + 1..] })
}

/// Parses `SECONDS` or `SECONDS.FRACTION`.
fn time(text: &str) -> Option<(i64, i64)> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    Some((seconds.parse().ok()?, digits.parse().ok()?))
}

fn head<R: Read>(entry: &tar::Entry<'_, R>, extension: Extension) -> Result<Head, UnpackError> {
    let header = entry.header();
    let path = extension.path.unwrap_or_else(|| OsStr::from_bytes(&header.path_bytes()).into());
    let refused = |why: &str| UnpackError::Refused { name: shown(&path), why: why.to_owned() };
    let damaged = |_| refused("its header is damaged");
    let link = || {
        extension
            .link
            .clone()
            .or_else(|| header.link_name_bytes().map(|name| OsStr::from_bytes(&name).into()))
            .filter(|link: &PathBuf| !link.as_os_str().is_empty())
            .ok_or_else(|| refused("it is a link to nothing"))
    };
    if extension.sparse || header.entry_type() == EntryType::GNUSparse {
        return Err(refused("it is a sparse file in a form that images do not use"));
    }
    if extension.size.is_some_and(|size| header.entry_size().ok() != Some(size)) {
        return Err(refused("its two headers disagree about its size"));
    }
    let kind = match header.entry_type() {
        EntryType::Regular | EntryType::Continuous => Kind::File,
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => Kind::Symlink(link()?),
        EntryType::Link => Kind::HardLink(link()?),
        EntryType::Fifo => Kind::Fifo,
        EntryType::Char | EntryType::Block => return Err(refused("images cannot bring device nodes")),
        other => {
            return Err(refused(&format!("entries of type {:?} are not known", char::from(other.as_byte()))));
        }
    };
    let id = |value: u64| u32::try_from(value).map_err(|_| refused("its owner is no user id"));
    let modified = match extension.modified {
        Some(modified) => modified,
        None => (header.mtime().map_err(damaged)?.try_into().unwrap_or(0), 0),
    };
    Ok(Head {
        kind,
        mode: header.mode().map_err(damaged)? & 0o7777,
        uid: id(match extension.uid {
            Some(uid) => uid,
            None => header.uid().map_err(damaged)?,
        })?,
        gid: id(match extension.gid {
            Some(gid) => gid,
            None => header.gid().map_err(damaged)?,
        })?,
        modified,
        attributes: extension.attributes,
        path,
    })
}
