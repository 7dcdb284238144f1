//! Determines the commit and its date, from variables or from git's plain files. No program is run
//! and no clock is read, so the same files give the same program.

use std::fs;
use std::path::{Path, PathBuf};

/// Variables that override git: the commit, the date, and the date in seconds, which builds of
/// distributions set.
pub const VARIABLES: [&str; 3] = ["WARREN_GIT_COMMIT", "WARREN_BUILD_DATE", "SOURCE_DATE_EPOCH"];

/// A program's origin.
pub struct Origin {
    /// The commit, or `unknown`.
    pub commit: String,
    /// The date, or `unknown`.
    pub date: String,
    /// The files that were read.
    pub files: Vec<PathBuf>,
}

/// Determines the origin. `git` is the `.git` of the source: a directory, or a file that names one.
pub fn find(git: &Path, variable: impl Fn(&str) -> Option<String>) -> Origin {
    let [commit, date, seconds] = VARIABLES.map(|name| {
        let value = variable(name)?;
        // Each is passed to cargo on a line of its own.
        value.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
    });
    let mut files = Vec::new();
    let (head, since) = head(git, &mut files).map_or((None, None), |(head, since)| (Some(head), since));
    let seconds = seconds.and_then(|seconds| seconds.parse().ok()).or(since);
    let date = date.or_else(|| seconds.map(date_text));
    let unknown = || "unknown".to_owned();
    Origin { commit: commit.or(head).unwrap_or_else(unknown), date: date.unwrap_or_else(unknown), files }
}

/// Returns the commit that is checked out, and the time of the checkout, if it is recorded.
fn head(git: &Path, files: &mut Vec<PathBuf>) -> Option<(String, Option<u32>)> {
    let mut read = |path: PathBuf| {
        let text = fs::read(&path).ok()?;
        files.push(path);
        // Names of people come in any encoding.
        Some(String::from_utf8_lossy(&text).into_owned())
    };
    // In a further working tree `.git` is a file, and the shared files are elsewhere.
    let directory = match read(git.to_owned()) {
        Some(text) => git.parent()?.join(text.strip_prefix("gitdir:")?.trim()),
        None => git.to_owned(),
    };
    let common = match read(directory.join("commondir")) {
        Some(path) => directory.join(path.trim()),
        None => directory.clone(),
    };
    if let Some(log) = read(directory.join("logs/HEAD"))
        && let Some((commit, time)) = log.lines().last().and_then(moved)
    {
        return Some((commit, Some(time)));
    }
    let head = read(directory.join("HEAD"))?;
    let Some(branch) = head.trim().strip_prefix("ref: ") else { return Some((commit(head.trim())?, None)) };
    if let Some(text) = read(common.join(branch)) {
        return Some((commit(text.trim())?, None));
    }
    let packed = read(common.join("packed-refs"))?;
    let found = packed.lines().find_map(|line| line.strip_suffix(branch)?.strip_suffix(' '))?;
    Some((commit(found)?, None))
}

/// Parses a line of the log: the old commit, the new commit, the person, the time, and after a tab
/// the reason.
fn moved(line: &str) -> Option<(String, u32)> {
    let words: Vec<&str> = line.split('\t').next()?.split(' ').collect();
    let [_, after, .., seconds, _zone] = words[..] else { return None };
    Some((commit(after)?, seconds.parse().ok()?))
}

fn commit(text: &str) -> Option<String> {
    let is_one = [40, 64].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then(|| text.to_owned())
}

/// Formats seconds since 1970 as RFC 3339. Written here, because a crate for it would be built for
/// this alone.
fn date_text(seconds: u32) -> String {
    let (mut days, time) = (seconds / 86_400, seconds % 86_400);
    let is_leap =
        |year: u32| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u32::from(is_leap(year)) {
        days -= 365 + u32::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u32::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}
