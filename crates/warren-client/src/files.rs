//! Reads and writes files in a sandbox.
//!
//! [`Files`] is the whole interface that tools need, so that another implementation can use a
//! daemon inside the sandbox. [`ByExec`] uses programs that nearly every image has: `sh`, `head`,
//! `tail`, `wc`, `stat`, `find`, `xargs` and `grep`, of GNU or BusyBox. Scripts are constants;
//! paths and patterns are their arguments.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use kube::Client;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::exec::{Exec, ExecError, ExecRequest, Streams};

/// The largest file that is written or edited.
pub const LARGEST: usize = 8 << 20;

/// The longest output of a listing or search.
const MOST_PRINTED: usize = 8 << 20;

/// A pod that commands run in.
#[derive(Clone)]
pub struct Place {
    /// The home's client.
    pub client: Client,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
}

impl Place {
    /// Runs a command and carries its streams. Dropping the future disconnects, and the node kills
    /// the command.
    pub async fn run<I, O, E>(
        &self,
        command: Vec<String>,
        stdin: Option<I>,
        stdout: O,
        stderr: E,
    ) -> Result<i32, ExecError>
    where
        I: AsyncRead + Unpin,
        O: AsyncWrite + Unpin,
        E: AsyncWrite + Unpin,
    {
        let request = ExecRequest {
            namespace: self.namespace.clone(),
            pod: self.pod.clone(),
            container: None,
            command,
            stdin: stdin.is_some(),
            tty: false,
        };
        let exec = Exec::start(&self.client, request).await?;
        let (_, resize) = mpsc::channel(1);
        match stdin {
            Some(stdin) => exec.run(Streams { stdin, stdout, stderr, resize }).await,
            None => exec.run(Streams { stdin: tokio::io::empty(), stdout, stderr, resize }).await,
        }
    }
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The size of the whole file.
    pub size: u64,
}

/// A file in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// `file`, `directory`, `symlink` or `other`.
    pub kind: &'static str,
    /// Its size in bytes.
    pub size: u64,
    /// The time of its last change, in seconds since 1970.
    pub modified: i64,
}

/// A line that a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The file.
    pub path: String,
    /// The line's number, from 1.
    pub line: u64,
    /// The line.
    pub text: String,
}

/// A search for text in files.
#[derive(Clone, Debug)]
pub struct Search<'a> {
    /// The directory or file.
    pub path: &'a str,
    /// The text, or an extended regular expression.
    pub pattern: &'a str,
    /// True if `pattern` is a regular expression.
    pub regex: bool,
    /// The files to search, as a shell pattern for their names.
    pub name: &'a str,
}

/// Access to the files of one sandbox. Paths are absolute.
pub trait Files {
    /// Reads at most `most` bytes of a file from an offset on.
    fn read(&self, path: &str, offset: u64, most: u64) -> impl Future<Output = Result<Part, String>> + Send;
    /// Replaces a file's content, or makes the file and its parent directories. An existing file
    /// keeps its permissions, and is not changed before the new content is complete in the sandbox.
    fn write(&self, path: &str, content: &[u8]) -> impl Future<Output = Result<(), String>> + Send;
    /// Returns true if the path exists.
    fn exists(&self, path: &str) -> impl Future<Output = Result<bool, String>> + Send;
    /// Lists a directory, sorted by name.
    fn list(&self, path: &str) -> impl Future<Output = Result<Vec<Entry>, String>> + Send;
    /// Finds lines in files.
    fn search(&self, search: &Search<'_>) -> impl Future<Output = Result<Vec<Match>, String>> + Send;
}

/// Runs commands in a sandbox, for [`ByExec`].
pub trait Runner {
    /// Runs a command to its end and keeps its outputs. Dropping the future ends the command.
    fn run_and_keep(
        &self,
        command: Vec<String>,
        stdin: Option<&[u8]>,
        stdout: &mut Bounded,
        stderr: &mut Bounded,
    ) -> impl Future<Output = Result<i32, String>> + Send;
}

impl Runner for Place {
    async fn run_and_keep(
        &self,
        command: Vec<String>,
        stdin: Option<&[u8]>,
        stdout: &mut Bounded,
        stderr: &mut Bounded,
    ) -> Result<i32, String> {
        self.run(command, stdin, stdout, stderr).await.map_err(|error| chain(&error))
    }
}

/// [`Files`] by commands in the sandbox.
pub struct ByExec<R = Place> {
    /// The sandbox.
    pub place: R,
    /// The longest time that each command may take.
    pub timeout: Duration,
}

/// Reads a part of a file. Arguments: path, offset from 1, length.
const READ: &str = r#"
[ -e "$1" ] || { echo "there is no such file" >&2; exit 1; }
[ -f "$1" ] || { echo "not a regular file" >&2; exit 1; }
wc -c < "$1" && tail -c "+$2" "$1" | head -c "$3"
"#;

/// Writes a file. Arguments: path, length, a suffix for the temporary file that collects the
/// content.
const WRITE: &str = r#"
if [ -d "$1" ]; then echo "is a directory" >&2; exit 1; fi
parent=${1%/*}
mkdir -p "${parent:-/}" || exit 1
part=$1.$3
trap 'rm -f "$part"' EXIT
head -c "$2" > "$part" || exit 1
[ "$(wc -c < "$part")" -eq "$2" ] || { echo "the content did not arrive whole" >&2; exit 1; }
if [ -e "$1" ]; then cat "$part" > "$1"; else mv "$part" "$1"; fi
"#;

/// Lists a directory. Argument: path. Prints batches: names, each ended by NUL, and an empty one;
/// then a line for each, and NUL.
const LIST: &str = r#"
[ -d "$1" ] || { echo "not a directory" >&2; exit 1; }
cd "$1" || exit 1
for name in * .[!.]* ..?*; do
  if [ -e "$name" ] || [ -L "$name" ]; then printf './%s\0' "$name"; fi
done | xargs -0 sh -c '[ $# -gt 0 ] || exit 0; printf "%s\0" "$@" ""; stat -c "%s %Y %F" "$@"; printf "\0"' sh
"#;

/// Searches files. Arguments: path, name pattern, `-E` or `-F`, pattern. Prints `path NUL
/// line:text` if `grep` supports it.
const SEARCH: &str = r#"
[ -e "$1" ] || { echo "there is no such file or directory" >&2; exit 1; }
null=
if printf x | grep -q --null x 2>/dev/null; then null=--null; fi
find "$1" -type f -name "$2" -exec grep -HnI $null "$3" -e "$4" {} +
"#;

impl<R: Runner + Sync> ByExec<R> {
    async fn run(
        &self,
        script: &str,
        words: &[&str],
        stdin: Option<&[u8]>,
    ) -> Result<(i32, Vec<u8>, String), String> {
        let words = ["sh", "-c", script, "sh"].into_iter().chain(words.iter().copied());
        let (mut stdout, mut stderr) = (Bounded::new(MOST_PRINTED), Bounded::new(16 << 10));
        let words = words.map(str::to_owned).collect();
        let ran = self.place.run_and_keep(words, stdin, &mut stdout, &mut stderr);
        let ran = tokio::time::timeout(self.timeout, ran).await;
        let code = match ran {
            Ok(_) if stdout.full || stderr.full => {
                return Err(format!("more than {MOST_PRINTED} bytes to show; name a smaller part"));
            }
            Ok(Ok(code)) => code,
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(format!("`timeout`: not done within {} s", self.timeout.as_secs())),
        };
        let mut said = String::from_utf8_lossy(&stderr.bytes).trim().to_owned();
        if said.is_empty() && code != 0 {
            said = format!("exit code {code}");
        }
        Ok((code, stdout.bytes, said))
    }
}

impl<R: Runner + Sync> Files for ByExec<R> {
    async fn read(&self, path: &str, offset: u64, most: u64) -> Result<Part, String> {
        let words = [path, &(offset + 1).to_string(), &most.to_string()];
        let (code, mut bytes, said) = self.run(READ, &words, None).await?;
        if code != 0 {
            return Err(format!("read `{path}`: {said}"));
        }
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        let size = std::str::from_utf8(&bytes[..end]).ok().and_then(|size| size.trim().parse().ok());
        let size = size.ok_or_else(|| format!("read `{path}`: the sandbox's `wc` gives no size"))?;
        bytes.drain(..(end + 1).min(bytes.len()));
        Ok(Part { bytes, size })
    }

    async fn write(&self, path: &str, content: &[u8]) -> Result<(), String> {
        if content.len() > LARGEST {
            return Err(format!(
                "write `{path}`: {} bytes, and {LARGEST} are possible at once",
                content.len()
            ));
        }
        let suffix: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
        let words = [path, &content.len().to_string(), &format!("warren-{suffix}")];
        match self.run(WRITE, &words, Some(content)).await? {
            (0, ..) => Ok(()),
            (_, _, said) => Err(format!("write `{path}`: {said}")),
        }
    }

    async fn exists(&self, path: &str) -> Result<bool, String> {
        match self.run(r#"[ -e "$1" ] || [ -L "$1" ]"#, &[path], None).await? {
            (0, ..) => Ok(true),
            (1, _, _) => Ok(false),
            (_, _, said) => Err(format!("look for `{path}`: {said}")),
        }
    }

    async fn list(&self, path: &str) -> Result<Vec<Entry>, String> {
        let (code, bytes, said) = self.run(LIST, &[path], None).await?;
        if code != 0 {
            return Err(format!("list `{path}`: {said}"));
        }
        entries(&bytes).ok_or_else(|| format!("list `{path}`: the directory changed meanwhile; try again"))
    }

    async fn search(&self, search: &Search<'_>) -> Result<Vec<Match>, String> {
        let mode = if search.regex { "-E" } else { "-F" };
        let words = [search.path, search.name, mode, search.pattern];
        let (code, bytes, said) = self.run(SEARCH, &words, None).await?;
        let found = matches(&bytes);
        // `find` also fails when `grep` found nothing in some of the files.
        let failed = code != 0 && found.is_empty() && !said.starts_with("exit code");
        match failed {
            true => Err(format!("search `{}`: {said}", search.path)),
            false => Ok(found),
        }
    }
}

/// Formats an error and its causes in one line. A cause that only repeats the error before it is
/// left out.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// Parses the output of [`LIST`]. `None` if names and lines do not match: a file was deleted
/// meanwhile.
fn entries(bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut fields = bytes.split(|byte| *byte == 0).peekable();
    while fields.peek().is_some_and(|field| !field.is_empty()) {
        let names: Vec<&[u8]> = fields.by_ref().take_while(|name| !name.is_empty()).collect();
        let lines = std::str::from_utf8(fields.next()?).ok()?;
        let lines: Vec<&str> = lines.lines().collect();
        if names.len() != lines.len() {
            return None;
        }
        for (name, line) in names.into_iter().zip(lines) {
            let mut words = line.splitn(3, ' ');
            let (size, modified) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let kind = match words.next()? {
                "directory" => "directory",
                "symbolic link" => "symlink",
                kind if kind.starts_with("regular") => "file",
                _ => "other",
            };
            let name = String::from_utf8_lossy(name.strip_prefix(b"./").unwrap_or(name)).into_owned();
            entries.push(Entry { name, kind, size, modified });
        }
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Some(entries)
}

/// Parses the output of [`SEARCH`]. If `grep` does not support `--null`, a path ends at the first
/// `:` followed by a number.
fn matches(bytes: &[u8]) -> Vec<Match> {
    let text = String::from_utf8_lossy(bytes);
    let parse = |line: &str| {
        let (path, rest) = match line.split_once('\0') {
            Some(parts) => parts,
            None => line.match_indices(':').find_map(|(at, _)| {
                let rest = &line[at + 1..];
                let (number, _) = rest.split_once(':')?;
                number.parse::<u64>().ok()?;
                Some((&line[..at], rest))
            })?,
        };
        let (number, text) = rest.split_once(':')?;
        Some(Match { path: path.to_owned(), line: number.parse().ok()?, text: text.to_owned() })
    };
    text.lines().filter_map(parse).collect()
}

/// Collects bytes up to a limit, and fails beyond it.
#[derive(Debug)]
pub struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl Bounded {
    fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, full: false }
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.bytes.len() + bytes.len() > self.limit {
            self.full = true;
            return Poll::Ready(Err(io::ErrorKind::FileTooLarge.into()));
        }
        self.bytes.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script locally, as the sandbox would.
    fn run(script: &str, words: &[&str], stdin: &[u8]) -> (Option<i32>, Vec<u8>) {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().expect("run sh");
        // A script that reads no input may have ended.
        let _ = child.stdin.take().expect("stdin").write_all(stdin);
        let output = child.wait_with_output().expect("wait");
        (output.status.code(), output.stdout)
    }

    #[test]
    fn listing_names_hostile_files_exactly() {
        let directory = tempfile::tempdir().expect("make a directory");
        let names = ["-rf", "a\n5 6 directory", "b c", ".hidden", "$(x)", "*"];
        for name in names {
            std::fs::write(directory.path().join(name), "abc").expect("write");
        }
        std::fs::create_dir(directory.path().join("d")).expect("make");
        std::os::unix::fs::symlink("nowhere", directory.path().join("l")).expect("link");
        let path = directory.path().to_str().expect("a path");
        let (code, bytes) = run(LIST, &[path], b"");
        assert_eq!(code, Some(0));
        let listed = entries(&bytes).expect("whole");
        let kinds: Vec<(&str, &str)> = listed.iter().map(|entry| (&*entry.name, entry.kind)).collect();
        let mut expected: Vec<(&str, &str)> = names.iter().map(|name| (*name, "file")).collect();
        expected.extend([("d", "directory"), ("l", "symlink")]);
        expected.sort_unstable();
        assert_eq!(kinds, expected);
        let empty = tempfile::tempdir().expect("make a directory");
        let (code, bytes) = run(LIST, &[empty.path().to_str().expect("a path")], b"");
        assert_eq!((code, entries(&bytes)), (Some(0), Some(Vec::new())));
    }

    #[test]
    fn write_keeps_permissions_and_leaves_the_file_alone_when_content_is_cut_short() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("make a directory");
        let file = directory.path().join("new/deep/-x $(touch y)");
        let path = file.to_str().expect("a path");
        assert_eq!(run(WRITE, &[path, "3", "part"], b"abc").0, Some(0));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o751)).expect("set");
        assert_eq!(run(WRITE, &[path, "2", "part"], b"de").0, Some(0));
        assert_eq!(std::fs::read(&file).expect("read"), b"de");
        assert_eq!(file.metadata().expect("metadata").permissions().mode() & 0o777, 0o751);
        assert_eq!(run(WRITE, &[path, "9", "part"], b"cut").0, Some(1));
        assert_eq!(std::fs::read(&file).expect("read"), b"de");
        let left = std::fs::read_dir(file.parent().expect("a parent")).expect("list").count();
        assert_eq!(left, 1, "the partial file is removed");
    }

    #[test]
    fn read_gives_the_size_and_the_part() {
        let directory = tempfile::tempdir().expect("make a directory");
        let file = directory.path().join("f");
        std::fs::write(&file, "0123456789").expect("write");
        let path = file.to_str().expect("a path");
        assert_eq!(run(READ, &[path, "4", "3"], b""), (Some(0), b"10\n345".to_vec()));
        assert_eq!(run(READ, &["/dev/zero", "1", "3"], b"").0, Some(1));
    }

    #[test]
    fn search_takes_pattern_and_names_as_arguments() {
        let directory = tempfile::tempdir().expect("make a directory");
        let file = directory.path().join("a:7:b.txt");
        std::fs::write(&file, "one\n-e $(x) two\n").expect("write");
        std::fs::write(directory.path().join("c.md"), "-e $(x)\n").expect("write");
        let path = directory.path().to_str().expect("a path");
        let (_, bytes) = run(SEARCH, &[path, "*.txt", "-F", "-e $(x)"], b"");
        let expected = Match { path: file.display().to_string(), line: 2, text: "-e $(x) two".to_owned() };
        assert_eq!(matches(&bytes), [expected]);
        assert_eq!(matches(b"/x/y.c:12:int a: 3;\n")[0].line, 12);
    }
}
