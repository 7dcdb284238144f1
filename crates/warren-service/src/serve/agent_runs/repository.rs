//! Repositories of this machine: a commit's files go into the sandbox, and what the agent made of
//! them comes back as a commit on a branch of its own.
//!
//! A repository may be hostile, and so may be what comes back. Nothing of either is executed: there
//! is no checkout on this machine, and no command of git sees the repository's configuration but
//! the two that read and write one ref, which run without hooks and without any transport.
//! Everything else works in a bare repository of ours, which borrows the objects. The files of a
//! commit travel as an archive, without filters; the files that come back are read by us and handed
//! to `git fast-import`, which only writes objects.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command as Program;
use warren_providers::{Command, Provider};

use super::rows::Run;
use crate::serve::answer::Failure;

/// The directory of the files in the sandbox, if the request names none.
const DIRECTORY: &str = "/workspace";

/// The file that makes the directory. It is gone before the runner starts.
const MARKER: &str = ".warren-agent-run";

/// The limits of what comes back.
const MOST_BYTES: u64 = 1 << 30;
const MOST_FILES: usize = 100_000;
const LONGEST_PATH: usize = 4096;
const LARGEST_PATCH: u64 = 64 << 20;

/// The longest time that one command of git may take, and a copy into or out of a sandbox.
const GIT_TIMEOUT: Duration = Duration::from_secs(120);
const COPY_TIMEOUT: Duration = Duration::from_secs(600);

/// As much of an error of git or tar is passed on.
const LONGEST_ERROR: usize = 1000;

/// Attributes that leave files as they are stored. They go before those of the files themselves.
const ATTRIBUTES: &str = "* -filter -text -eol -ident -working-tree-encoding -export-ignore -export-subst\n";

/// A repository, as a client asks for it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewRepository {
    /// Its path on this machine.
    pub path: PathBuf,
    /// The branch, tag or commit to start from; `HEAD` if none is named.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    /// The directory in the sandbox.
    pub directory: Option<String>,
}

/// A repository of a run, as it is stored and shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repository {
    /// Its path on this machine.
    pub path: PathBuf,
    /// The directory in the sandbox.
    pub directory: String,
    /// The commit that the run starts from.
    pub base: String,
    /// The branch for the result.
    pub branch: String,
    /// The commit with the result, if the agent changed anything.
    pub commit: Option<String>,
}

fn failed(message: impl Into<String>) -> Failure {
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "AGENT_RUN_REPOSITORY_FAILED", message)
}

/// Returns the end of an error's text without characters that control a terminal.
fn said(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text: String =
        text.trim().chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    text.chars().rev().take(LONGEST_ERROR).collect::<Vec<char>>().into_iter().rev().collect()
}

/// Returns git with an environment of ours: no configuration of the user or the machine, no hooks,
/// no prompts, and no transport by which it could reach or start anything.
fn git(git_dir: &Path) -> Program {
    let mut program = Program::new("git");
    program
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/nonexistent")
        .env("LC_ALL", "C")
        .env("GIT_DIR", git_dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_ATTR_NOSYSTEM", "1")
        .env("GIT_NO_REPLACE_OBJECTS", "1")
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        // No protocol is allowed: a partial clone would fetch what is missing.
        .env("GIT_ALLOW_PROTOCOL", "")
        .arg("--no-pager")
        .args(["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=", "-c", "core.pager=cat"])
        .args(["-c", "protocol.allow=never", "-c", "protocol.ext.allow=never", "-c", "safe.directory=*"])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    program
}

/// Runs git to its end, and returns its output or what it said.
async fn run_git(mut program: Program) -> Result<Result<String, String>, Failure> {
    let ran = tokio::time::timeout(GIT_TIMEOUT, program.output()).await;
    let ran = ran.map_err(|_| failed("git took too long"))?;
    let output = ran.map_err(|error| failed(format!("run git, which has to be installed: {error}")))?;
    Ok(match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(said(&output.stderr)),
    })
}

/// Finds the directory with a repository's objects and refs, and refuses what would lead elsewhere.
fn git_dir(path: &Path) -> Result<PathBuf, Failure> {
    let refused = |problem: &str| Err(Failure::invalid("repository.path", problem));
    if !path.is_absolute() || path.as_os_str().as_bytes().iter().any(u8::is_ascii_control) {
        return refused("has to be absolute, without control characters");
    }
    let inside = path.join(".git");
    let is_directory = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let git_dir = match std::fs::symlink_metadata(&inside) {
        Ok(found) if found.is_dir() => inside,
        Ok(_) => return refused("has a `.git` that leads elsewhere; name the repository that it belongs to"),
        Err(_) => path.to_owned(),
    };
    let own =
        std::fs::metadata("/proc/self").map(|own| own.uid()).map_err(|error| failed(error.to_string()))?;
    if !std::fs::symlink_metadata(&git_dir).is_ok_and(|found| found.uid() == own) {
        return refused("belongs to another user than the service");
    }
    if !["objects", "objects/pack", "objects/info", "refs", "refs/heads"]
        .iter()
        .all(|name| is_directory(&git_dir.join(name)))
    {
        return refused("is not a git repository, or parts of it lead elsewhere");
    }
    if git_dir.join("objects/info/alternates").symlink_metadata().is_ok()
        || git_dir.join("commondir").symlink_metadata().is_ok()
    {
        return refused("borrows the objects of another repository; name that one");
    }
    Ok(git_dir)
}

/// Checks the name of a branch, tag or commit.
fn check_reference(reference: &str) -> Result<(), Failure> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./+".contains(&byte);
    let valid = !reference.is_empty()
        && reference.len() <= 255
        && !reference.starts_with(['-', '/', '.'])
        && !reference.contains("..")
        && reference.bytes().all(fits);
    match valid {
        true => Ok(()),
        false => Err(Failure::invalid("repository.ref", "is not the name of a branch, tag or commit")),
    }
}

/// Checks a part of the branch's name beyond what identifiers can have.
fn check_part(field: &str, part: Option<&String>) -> Result<String, Failure> {
    let part =
        part.ok_or_else(|| Failure::invalid(field, "is needed with `repository`: it names the branch"))?;
    match part.contains("..") || part.ends_with(".lock") {
        true => Err(Failure::invalid(field, "has `..` or ends in `.lock`, which a branch cannot have")),
        false => Ok(part.clone()),
    }
}

impl Repository {
    /// Checks a request, and finds the commit to start from. `allowed` are the directories in which
    /// repositories may be.
    pub async fn find(
        new: NewRepository,
        run: &Run,
        allowed: &[PathBuf],
        scratch: &Path,
    ) -> Result<Self, Failure> {
        let agent = check_part("agentId", run.agent.as_ref())?;
        let task = check_part("taskId", run.task.as_ref())?;
        let path =
            new.path.canonicalize().ok().filter(|path| allowed.iter().any(|one| path.starts_with(one)));
        let Some(path) = path else {
            let problem =
                "is not there, or below none of the directories of the setting `agent.repositories`";
            return Err(Failure::invalid("repository.path", problem));
        };
        let git_dir = git_dir(&path)?;
        let directory = new.directory.unwrap_or_else(|| DIRECTORY.to_owned());
        let directory = warren_providers::check_path(&directory).map_err(|error| {
            Failure::invalid("repository.directory", error.message.trim_start_matches("`path` "))
        })?;
        if directory == "/" {
            return Err(Failure::invalid("repository.directory", "is the root; name a directory below it"));
        }
        let reference = new.reference.unwrap_or_else(|| "HEAD".to_owned());
        check_reference(&reference)?;
        let mut resolve = git(&git_dir);
        resolve.args(["rev-parse", "--verify", "--quiet", &reference]);
        let unknown = || {
            let problem = format!("names no commit of the repository: `{reference}`");
            Failure::invalid("repository.ref", problem)
        };
        let named = run_git(resolve).await?.map_err(|_| unknown())?;
        let branch = format!("agent/{agent}/{task}");
        let mut exists = git(&git_dir);
        exists.args(["show-ref", "--verify", "--quiet", &format!("refs/heads/{branch}")]);
        if run_git(exists).await?.is_ok() {
            let message =
                format!("the repository has a branch `{branch}` already; delete it, or name another task");
            let details = Box::new(json!({ "branch": branch }));
            return Err(Failure {
                details,
                ..Failure::new(StatusCode::CONFLICT, "AGENT_RUN_BRANCH_EXISTS", message)
            });
        }
        let mut found = Self { path, directory, base: named, branch, commit: None };
        // A tag leads to its commit. Its objects are read without the repository's configuration.
        let own = found.borrow_objects(scratch).await?;
        let mut peel = git(own.path());
        peel.args(["rev-parse", "--verify", "--quiet", &format!("{}^{{commit}}", found.base)]);
        found.base = run_git(peel).await?.map_err(|_| unknown())?;
        Ok(found)
    }

    /// Makes a bare repository of ours that borrows the objects.
    async fn borrow_objects(&self, scratch: &Path) -> Result<tempfile::TempDir, Failure> {
        let git_dir = git_dir(&self.path)?;
        let made = || -> std::io::Result<tempfile::TempDir> {
            let own = tempfile::Builder::new().prefix("repository-").tempdir_in(scratch)?;
            for directory in ["objects/info", "objects/pack", "refs/heads", "info"] {
                std::fs::create_dir_all(own.path().join(directory))?;
            }
            std::fs::write(own.path().join("HEAD"), "ref: refs/heads/none\n")?;
            std::fs::write(own.path().join("config"), "[core]\n\tbare = true\n")?;
            std::fs::write(own.path().join("info/attributes"), ATTRIBUTES)?;
            let mut borrowed = git_dir.join("objects").into_os_string().into_encoded_bytes();
            borrowed.push(b'\n');
            std::fs::write(own.path().join("objects/info/alternates"), borrowed)?;
            Ok(own)
        };
        made().map_err(|error| failed(format!("make a directory for git: {error}")))
    }

    /// Copies the files of the commit into a sandbox that runs.
    pub async fn copy_in(
        &self,
        provider: &dyn Provider,
        sandbox: &str,
        scratch: &Path,
    ) -> Result<(), Failure> {
        let own = self.borrow_objects(scratch).await?;
        provider.write(sandbox, &format!("{}/{MARKER}", self.directory), Vec::new()).await?;
        let unpack = Command {
            directory: Some(self.directory.clone()),
            stdin: true,
            ..Command::new("sh", ["-c", &format!("rm -f {MARKER} && exec tar -xf -")])
        };
        let copying = async {
            let mut archive = git(own.path());
            let mut archive = archive
                .args(["archive", "--format=tar", &format!("{}^{{tree}}", self.base)])
                .spawn()
                .map_err(|error| failed(format!("run git, which has to be installed: {error}")))?;
            let mut process = provider.exec_stream(sandbox, unpack).await?;
            let (from, errors) = (archive.stdout.take(), archive.stderr.take());
            let to = process.stdin.take();
            let feed = async {
                if let (Some(mut from), Some(mut to)) = (from, to) {
                    // tar may end before it has read all: it says why.
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                    let _ = to.shutdown().await;
                }
            };
            let (mut of_git, mut of_tar, mut nothing) = (Vec::new(), Vec::new(), Vec::new());
            let read_git = async {
                if let Some(errors) = errors {
                    let _ = errors.take(1 << 16).read_to_end(&mut of_git).await;
                }
            };
            let (stdout, stderr) = (&mut process.stdout, &mut process.stderr);
            let read_tar = async {
                tokio::join!(async { drop(stderr.take(1 << 16).read_to_end(&mut of_tar).await) }, async {
                    drop(stdout.take(1 << 16).read_to_end(&mut nothing).await)
                });
            };
            tokio::join!(feed, read_git, read_tar);
            let archived = archive.wait().await.map_err(|error| failed(format!("run git: {error}")))?;
            if !archived.success() {
                return Err(failed(format!("read the files of `{}`: {}", self.base, said(&of_git))));
            }
            match process.wait().await? {
                0 => Ok(()),
                code => {
                    let said = said(&of_tar);
                    Err(failed(format!("unpack the files in the sandbox: tar exited with {code}: {said}")))
                }
            }
        };
        let copied = tokio::time::timeout(COPY_TIMEOUT, copying).await;
        copied.map_err(|_| failed("copying the files into the sandbox took too long"))?
    }

    /// Brings the files back as a commit on the branch. Returns none if nothing was changed; then
    /// there is no branch.
    pub async fn bring_back(
        &self,
        provider: &dyn Provider,
        sandbox: &str,
        run: &Run,
        scratch: &Path,
    ) -> Result<Option<String>, Failure> {
        let own = self.borrow_objects(scratch).await?;
        let archive = own.path().join("result.tar");
        let fetched = tokio::time::timeout(COPY_TIMEOUT, self.fetch(provider, sandbox, &archive)).await;
        fetched.map_err(|_| failed("copying the files out of the sandbox took too long"))??;
        let commit = self.import(own.path(), &archive, run).await?;
        let tree = async |commit: &str| {
            let mut program = git(own.path());
            program.args(["rev-parse", "--verify", &format!("{commit}^{{tree}}")]);
            run_git(program).await?.map_err(failed)
        };
        if tree(&commit).await? == tree(&self.base).await? {
            return Ok(None);
        }
        let source = git_dir(&self.path)?;
        self.hand_over(own.path(), &source, &commit).await?;
        // Only if there is still no such branch.
        let mut update = git(&source);
        let (name, none) = (format!("refs/heads/{}", self.branch), "0".repeat(commit.len()));
        update.args(["update-ref", &name, &commit, &none]);
        run_git(update)
            .await?
            .map_err(|said| failed(format!("make the branch `{}`: {said}", self.branch)))?;
        Ok(Some(commit))
    }

    /// Writes the files of the sandbox into an archive on this machine.
    async fn fetch(&self, provider: &dyn Provider, sandbox: &str, to: &Path) -> Result<(), Failure> {
        let pack =
            Command { directory: Some(self.directory.clone()), ..Command::new("tar", ["-cf", "-", "."]) };
        let mut process = provider.exec_stream(sandbox, pack).await?;
        let written = |error: std::io::Error| failed(format!("write `{}`: {error}", to.display()));
        let mut file = tokio::fs::File::create(to).await.map_err(written)?;
        let (stdout, stderr) = (&mut process.stdout, &mut process.stderr);
        let mut errors = Vec::new();
        let mut limited = stdout.take(MOST_BYTES + 1);
        let (copied, _) = tokio::join!(tokio::io::copy(&mut limited, &mut file), async {
            drop(stderr.take(1 << 16).read_to_end(&mut errors).await)
        });
        if copied.map_err(written)? > MOST_BYTES {
            return Err(failed(format!("the files have more than {MOST_BYTES} bytes")));
        }
        file.flush().await.map_err(written)?;
        match process.wait().await? {
            0 => Ok(()),
            code => {
                let said = said(&errors);
                Err(failed(format!("pack the files in the sandbox: tar exited with {code}: {said}")))
            }
        }
    }

    /// Makes a commit of an archive, in the repository of ours.
    async fn import(&self, own: &Path, archive: &Path, run: &Run) -> Result<String, Failure> {
        let mut list = git(own);
        list.args(["ls-tree", "-r", "-z", "--full-tree", &self.base]);
        let listed = run_git(list).await?.map_err(failed)?;
        let mut program = git(own);
        program.args(["fast-import", "--quiet", "--done", "--date-format=raw"]);
        program.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut program = program.into_std();
        let commit = Commit {
            base: self.base.clone(),
            agent: run.agent.clone().unwrap_or_default(),
            message: format!("{}\n\nAgent-Run: {}\n", run.title, run.id),
            seconds: Timestamp::now().as_second(),
            submodules: submodules(&listed),
        };
        let archive = archive.to_owned();
        let importing = tokio::task::spawn_blocking(move || {
            let file = std::fs::File::open(&archive).map_err(|error| error.to_string())?;
            let mut child = program.spawn().map_err(|error| format!("run git: {error}"))?;
            let written = match child.stdin.take() {
                Some(input) => write_commit(BufReader::new(file), BufWriter::new(input), &commit),
                None => Err("git has no input".to_owned()),
            };
            // Its input has ended: git ends as well, without `done` with an error.
            let output = child.wait_with_output().map_err(|error| error.to_string())?;
            match (written, output.status.success()) {
                (Ok(()), true) => Ok(()),
                (Err(problem), _) if output.status.success() => Err(problem),
                (written, _) => {
                    Err(format!("{} {}", written.err().unwrap_or_default(), said(&output.stderr)))
                }
            }
        });
        match importing.await {
            Ok(Ok(())) => {}
            Ok(Err(problem)) => return Err(failed(format!("make the commit: {}", problem.trim()))),
            Err(error) => return Err(failed(error.to_string())),
        }
        let mut resolve = git(own);
        resolve.args(["rev-parse", "--verify", "refs/heads/result"]);
        run_git(resolve).await?.map_err(failed)
    }

    /// Copies the new objects into the repository.
    async fn hand_over(&self, own: &Path, source: &Path, commit: &str) -> Result<(), Failure> {
        let mut pack = git(own);
        // Those that are borrowed are there already.
        pack.args(["pack-objects", "--local", "--revs", "--quiet"]).arg(own.join("handed"));
        pack.stdin(Stdio::piped());
        let mut child = pack.spawn().map_err(|error| failed(format!("run git: {error}")))?;
        if let Some(mut input) = child.stdin.take() {
            let wanted = format!("{commit}\n^{}\n", self.base);
            input.write_all(wanted.as_bytes()).await.map_err(|error| failed(format!("run git: {error}")))?;
        }
        let output = tokio::time::timeout(GIT_TIMEOUT, child.wait_with_output()).await;
        let output = output.map_err(|_| failed("git took too long"))?;
        let output = output.map_err(|error| failed(format!("run git: {error}")))?;
        if !output.status.success() {
            return Err(failed(format!("pack the commit: {}", said(&output.stderr))));
        }
        let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        // The index goes last: with it the pack counts.
        for suffix in ["pack", "idx"] {
            let to = source.join(format!("objects/pack/pack-{name}.{suffix}"));
            let from = own.join(format!("handed-{name}.{suffix}"));
            let copy = || -> std::io::Result<()> {
                let new = to.with_extension(format!("{suffix}.new"));
                let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&new)?;
                std::io::copy(&mut std::fs::File::open(&from)?, &mut file)?;
                file.sync_all()?;
                let mut permissions = file.metadata()?.permissions();
                permissions.set_readonly(true);
                file.set_permissions(permissions)?;
                std::fs::rename(&new, &to)
            };
            copy().map_err(|error| failed(format!("write `{}`: {error}", to.display())))?;
        }
        Ok(())
    }

    /// Returns the result as a patch.
    pub async fn patch(&self, scratch: &Path) -> Result<Option<Vec<u8>>, Failure> {
        let Some(commit) = &self.commit else { return Ok(None) };
        let own = self.borrow_objects(scratch).await?;
        let mut program = git(own.path());
        program.args(["diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"]);
        program.args([self.base.as_str(), commit.as_str(), "--"]);
        program.stderr(Stdio::null());
        let mut child = program.spawn().map_err(|error| failed(format!("run git: {error}")))?;
        let mut patch = Vec::new();
        let reading = async {
            if let Some(stdout) = child.stdout.take() {
                stdout.take(LARGEST_PATCH + 1).read_to_end(&mut patch).await?;
            }
            std::io::Result::Ok(())
        };
        let read =
            tokio::time::timeout(GIT_TIMEOUT, reading).await.map_err(|_| failed("git took too long"))?;
        read.map_err(|error| failed(format!("run git: {error}")))?;
        if patch.len() as u64 > LARGEST_PATCH {
            let message = format!(
                "the patch has more than {LARGEST_PATCH} bytes; fetch the branch `{}` of the repository",
                self.branch
            );
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "AGENT_RUN_PATCH_TOO_LARGE", message));
        }
        match child.wait().await.is_ok_and(|status| status.success()) {
            true => Ok(Some(patch)),
            false => Err(failed("git could not make the patch")),
        }
    }
}

/// A commit to write.
struct Commit {
    base: String,
    agent: String,
    message: String,
    seconds: i64,
    /// The submodules of the base, which no archive has: their paths and commits.
    submodules: Vec<(String, String)>,
}

/// Reads the submodules from a listing of a tree. Paths that are not UTF-8 are no submodules' here.
fn submodules(listed: &str) -> Vec<(String, String)> {
    let lines = listed.split('\0').filter_map(|line| line.strip_prefix("160000 commit "));
    lines
        .filter_map(|line| line.split_once('\t'))
        .map(|(id, path)| (path.to_owned(), id.to_owned()))
        .collect()
}

/// Checks the path of a file that came back. None is for files that are left out: the directory
/// itself, and repositories of the agent's own.
fn checked(path: &[u8]) -> Result<Option<Vec<u8>>, String> {
    if path.len() > LONGEST_PATH {
        return Err("a path has more than 4096 bytes".to_owned());
    }
    let mut parts = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("a path has `..`".to_owned()),
            part if is_git(part) => return Ok(None),
            part => parts.push(part),
        }
    }
    let path = parts.join(&b'/');
    Ok((!path.is_empty() && !path.contains(&0)).then_some(path))
}

/// Tells whether a name is `.git`, or is the same on some file system: Windows and macOS fold
/// letters, cut names short and ignore characters.
fn is_git(name: &[u8]) -> bool {
    let ignored = |letter: char| matches!(letter, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    let text: String = String::from_utf8_lossy(name).chars().filter(|letter| !ignored(*letter)).collect();
    let text = text.to_lowercase();
    let text = text.split([':', '\\']).next().unwrap_or_default().trim_end_matches(['.', ' ']);
    text == ".git" || text == "git~1"
}

/// Quotes a path for `git fast-import`.
fn quoted(path: &[u8]) -> Vec<u8> {
    let mut text = vec![b'"'];
    for byte in path {
        match byte {
            b'"' | b'\\' => text.extend([b'\\', *byte]),
            0..0x20 => text.extend(format!("\\{byte:03o}").bytes()),
            byte => text.push(*byte),
        }
    }
    text.push(b'"');
    text
}

/// Writes the commands for `git fast-import` that make a commit of an archive's files.
fn write_commit(archive: impl Read, mut output: impl Write, commit: &Commit) -> Result<(), String> {
    let io = |error: std::io::Error| error.to_string();
    let Commit { base, agent, message, seconds, submodules } = commit;
    let head = format!(
        "feature done\ncommit refs/heads/result\ncommitter {agent} <{agent}@agent.invalid> {seconds} +0000\n\
         data {}\n{message}\nfrom {base}\ndeleteall\n",
        message.len()
    );
    output.write_all(head.as_bytes()).map_err(io)?;
    let mut written: HashSet<Vec<u8>> = HashSet::new();
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries().map_err(io)? {
        let mut entry = entry.map_err(io)?;
        let kind = entry.header().entry_type();
        let Some(path) = checked(&entry.path_bytes())? else { continue };
        if written.len() >= MOST_FILES {
            return Err(format!("there are more than {MOST_FILES} files"));
        }
        let name = quoted(&path);
        if kind.is_file() {
            let executable = entry.header().mode().map_err(io)? & 0o100 != 0;
            let mode = if executable { "100755" } else { "100644" };
            let size = entry.size();
            write_line(&mut output, &[b"M ", mode.as_bytes(), b" inline ", &name]).map_err(io)?;
            write_line(&mut output, &[b"data ", size.to_string().as_bytes()]).map_err(io)?;
            if std::io::copy(&mut entry, &mut output).map_err(io)? != size {
                return Err("the archive breaks off".to_owned());
            }
            output.write_all(b"\n").map_err(io)?;
        } else if kind.is_symlink() {
            let Some(target) = entry.link_name_bytes() else { continue };
            write_line(&mut output, &[b"M 120000 inline ", &name]).map_err(io)?;
            write_line(&mut output, &[b"data ", target.len().to_string().as_bytes()]).map_err(io)?;
            write_line(&mut output, &[&target]).map_err(io)?;
        } else if kind.is_hard_link() {
            // A second name of a file that came before.
            let Some(first) = entry.link_name_bytes().map(|link| checked(&link)).transpose()?.flatten()
            else {
                continue;
            };
            if !written.contains(&first) {
                return Err("a second name of a file comes before the file".to_owned());
            }
            write_line(&mut output, &[b"C ", &quoted(&first), b" ", &name]).map_err(io)?;
        } else {
            // Directories come with their files; pipes and devices are left out.
            continue;
        }
        written.insert(path);
    }
    for (path, id) in submodules {
        let below = |written: &Vec<u8>| {
            let rest = written.strip_prefix(path.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        if !written.iter().any(below) {
            write_line(&mut output, &[b"M 160000 ", id.as_bytes(), b" ", &quoted(path.as_bytes())])
                .map_err(io)?;
        }
    }
    output.write_all(b"done\n").map_err(io)?;
    output.flush().map_err(io)
}

fn write_line(output: &mut impl Write, parts: &[&[u8]]) -> std::io::Result<()> {
    for part in parts {
        output.write_all(part)?;
    }
    output.write_all(b"\n")
}

/// Returns the directories in which repositories may be, without those that are not there.
pub fn allowed(named: &[PathBuf]) -> Vec<PathBuf> {
    named.iter().filter_map(|path| path.canonicalize().ok()).collect()
}

/// Checks the setting that names them.
pub fn check_allowed(named: &[PathBuf]) -> Result<(), Failure> {
    let bad = named.iter().find(|path| !path.is_absolute() || path.as_os_str() == OsStr::new("/"));
    match bad {
        Some(path) => {
            let problem = format!("has `{}`; each has to be an absolute path below the root", path.display());
            Err(Failure::invalid("value", problem))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(entries: &[(&str, tar::EntryType, &str)]) -> Result<String, String> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            // As a hostile sandbox may write it: `set_path` would refuse.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            let data = if *kind == tar::EntryType::Regular { content.as_bytes() } else { b"" };
            if data.is_empty() && !content.is_empty() {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.set_size(data.len() as u64);
            header.set_cksum();
            builder.append(&header, data).expect("append");
        }
        let archive = builder.into_inner().expect("an archive");
        let commit = Commit {
            base: "b".repeat(40),
            agent: "coder".to_owned(),
            message: "m".to_owned(),
            seconds: 7,
            submodules: vec![("sub".to_owned(), "c".repeat(40))],
        };
        let mut output = Vec::new();
        write_commit(&archive[..], &mut output, &commit)?;
        let text = String::from_utf8(output).expect("text");
        Ok(text.split_once("deleteall\n").expect("a head").1.to_owned())
    }

    #[test]
    fn files_links_and_submodules_become_a_commit() {
        use tar::EntryType as Kind;
        let text = commands(&[
            ("./", Kind::Directory, ""),
            ("./a \"b\"\n", Kind::Regular, "x\n"),
            ("./second", Kind::Link, "./a \"b\"\n"),
            ("./link", Kind::Symlink, "/etc/passwd"),
            ("./pipe", Kind::Fifo, ""),
            ("./.git/hooks/pre-commit", Kind::Regular, "evil"),
            ("./deep/.GIT/config", Kind::Regular, "evil"),
        ]);
        let expected = format!(
            "M 100644 inline \"a \\\"b\\\"\\012\"\ndata 2\nx\n\nC \"a \\\"b\\\"\\012\" \"second\"\n\
             M 120000 inline \"link\"\ndata 11\n/etc/passwd\nM 160000 {} \"sub\"\ndone\n",
            "c".repeat(40)
        );
        assert_eq!(text, Ok(expected));
    }

    #[test]
    fn paths_that_lead_out_are_refused() {
        for path in ["../x", "a/../../x", "./.."] {
            let refused = commands(&[(path, tar::EntryType::Regular, "x")]);
            assert_eq!(refused, Err("a path has `..`".to_owned()), "{path}");
        }
        assert!(commands(&[("a", tar::EntryType::Link, "b")]).is_err());
        for name in [".git", ".GIT", ".git ", ".git.", "git~1", ".g\u{200c}it", ".git::$INDEX_ALLOCATION"] {
            assert!(is_git(name.as_bytes()), "{name:?}");
        }
        assert!(!is_git(b".github") && !is_git(b".gitignore") && !is_git(b"git"));
    }

    #[test]
    fn references_cannot_be_options_or_expressions() {
        for good in ["HEAD", "main", "feature/x-1", "v1.0"] {
            assert_eq!(check_reference(good), Ok(()), "{good}");
        }
        for bad in ["", "--upload-pack=x", "a..b", "HEAD@{1}", "a b", "HEAD^", ":/x", "a\nb"] {
            assert!(check_reference(bad).is_err(), "{bad:?}");
        }
    }
}
