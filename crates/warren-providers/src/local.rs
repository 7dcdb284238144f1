//! Direct execution on this machine, each sandbox in a directory of its own. There is no isolation:
//! it is for development, and refuses to be made without being told so.
//!
//! Paths of files are resolved below the sandbox's directory by the kernel (`openat2` with
//! `RESOLVE_IN_ROOT`), so that neither `..` nor a symbolic link leads out. Commands are bound by
//! nothing.

mod child;

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::broadcast;

use crate::by_exec::check_size;
use crate::error::{Code, ProviderError};
use crate::limits::{self, Network, Wanted, check_path};
use crate::process::{Command, Process};
use crate::provider::{
    Answer, Entry, Explanation, FileKind, FileStream, Happening, Health, Info, Metrics, Provider,
    ProviderEvent, Status, Step,
};

const MOST_SANDBOXES: usize = 64;
const PART: usize = 1 << 20;

/// Sandboxes that are directories. Clones share it.
#[derive(Clone, Debug)]
pub struct LocalProvider(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    events: broadcast::Sender<ProviderEvent>,
    /// Held while descriptions are changed.
    changing: Mutex<()>,
}

/// The record of a sandbox, in `sandbox.json` beside its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Stored {
    project: Option<String>,
    env: std::collections::BTreeMap<String, String>,
    stopped: bool,
    created: Timestamp,
    used: Timestamp,
}

impl LocalProvider {
    /// Uses a directory for sandboxes. Without `development` it refuses: commands run as this user,
    /// on this machine.
    pub fn open(root: &Path, development: bool) -> Result<Self, ProviderError> {
        if !development {
            let message =
                "the local provider isolates nothing; it is for development only, and has to be told so";
            return Err(ProviderError::new(Code::ProviderUnavailable, message));
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root);
        made.and_then(|()| root.canonicalize())
            .map(|root| {
                let (events, _) = broadcast::channel(256);
                Self(Arc::new(Inner { root, events, changing: Mutex::default() }))
            })
            .map_err(|error| {
                let message = format!("use the directory `{}`: {error}", root.display());
                ProviderError::new(Code::ProviderUnavailable, message)
            })
    }

    fn directory(&self, id: &str) -> Result<PathBuf, ProviderError> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        match !id.is_empty() && id.len() <= 64 && id.bytes().all(fits) {
            true => Ok(self.0.root.join(id)),
            false => Err(ProviderError::not_found(id)),
        }
    }

    fn stored(&self, id: &str) -> Result<Stored, ProviderError> {
        let file = self.directory(id)?.join("sandbox.json");
        let text = std::fs::read(&file).map_err(|_| ProviderError::not_found(id))?;
        serde_json::from_slice(&text).map_err(|error| {
            let message = format!("read `{}`: {error}", file.display());
            ProviderError::new(Code::ProviderUnavailable, message)
        })
    }

    fn store(&self, id: &str, stored: &Stored) -> Result<(), ProviderError> {
        let directory = self.directory(id)?;
        let (new, file) = (directory.join("sandbox.json.new"), directory.join("sandbox.json"));
        let write = || -> io::Result<()> {
            let mut output = std::fs::File::create(&new)?;
            output.write_all(&serde_json::to_vec(stored)?)?;
            output.sync_all()?;
            std::fs::rename(&new, &file)
        };
        write().map_err(|error| {
            ProviderError::new(Code::SandboxCreationFailed, format!("write `{}`: {error}", file.display()))
        })
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Stored)) -> Result<Info, ProviderError> {
        let _changing = self.0.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stored = self.stored(id)?;
        change(&mut stored);
        self.store(id, &stored)?;
        Ok(info(id, &stored))
    }

    /// Returns a running sandbox, and notes that it is used.
    fn running(&self, id: &str) -> Result<Stored, ProviderError> {
        let stored = self.stored(id)?;
        if stored.stopped {
            return Err(ProviderError::invalid_state("stopped"));
        }
        self.change(id, |stored| stored.used = Timestamp::now())?;
        Ok(stored)
    }

    fn emit(&self, step: Step, info: &Info) {
        // Without subscribers there is nothing to tell.
        let _ = self.0.events.send(ProviderEvent {
            step,
            sandbox_id: info.id.clone(),
            project_id: info.project_id.clone(),
            error: None,
        });
    }

    fn all(&self) -> Result<Vec<Info>, ProviderError> {
        let entries = std::fs::read_dir(&self.0.root)
            .map_err(|error| ProviderError::new(Code::ProviderUnavailable, error.to_string()))?;
        let ids = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut all: Vec<Info> = ids.filter_map(|id| Some(info(&id, &self.stored(&id).ok()?))).collect();
        all.sort_by(|one, other| other.created_at.cmp(&one.created_at).then_with(|| one.id.cmp(&other.id)));
        Ok(all)
    }

    fn make(&self, wanted: Wanted) -> Result<Info, ProviderError> {
        wanted.check()?;
        let refused = [
            ("image", wanted.image.is_some()),
            ("pool", wanted.pool.is_some()),
            ("template", wanted.template.is_some()),
            ("memoryMb", wanted.memory_mb.is_some()),
            ("cpuCores", wanted.cpu_cores.is_some()),
            ("pidsLimit", wanted.pids_limit.is_some()),
            ("diskMb", wanted.disk_mb.is_some()),
            ("network", wanted.network.is_some_and(|network| network != Network::Full)),
            ("allowedHosts", wanted.allowed_hosts.is_some()),
            ("allowedPorts", wanted.allowed_ports.is_some()),
        ];
        if let Some((field, _)) = refused.iter().find(|(_, given)| *given) {
            return Err(ProviderError::invalid(
                field,
                "cannot be kept by the local provider, which isolates nothing",
            ));
        }
        let _changing = self.0.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.all()?;
        if all.len() >= MOST_SANDBOXES {
            return Err(limits::too_many(MOST_SANDBOXES));
        }
        if let Some(project) = &wanted.project_id
            && all.iter().any(|info| info.project_id.as_ref() == Some(project))
        {
            let message = format!("project `{project}` has a sandbox already; start it, or remove it first");
            return Err(
                ProviderError::new(Code::SandboxAlreadyExists, message).with(json!({ "projectId": project }))
            );
        }
        let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(10).collect();
        let id = format!("local-{}", random.to_ascii_lowercase());
        let files = self.directory(&id)?.join("files");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&files).map_err(|error| {
            ProviderError::new(Code::SandboxCreationFailed, format!("create `{}`: {error}", files.display()))
        })?;
        let now = Timestamp::now();
        let stored =
            Stored { project: wanted.project_id, env: wanted.env, stopped: false, created: now, used: now };
        self.store(&id, &stored)?;
        Ok(info(&id, &stored))
    }

    /// Opens something below a sandbox's directory.
    fn open_below(&self, id: &str, path: &str, flags: OFlags) -> Result<OwnedFd, io::Error> {
        let files = self.directory(id).map_err(io::Error::other)?.join("files");
        let root =
            rustix::fs::open(files, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let relative = match path.trim_start_matches('/') {
            "" => ".",
            relative => relative,
        };
        // Mode only counts for files that are made, which `write` does.
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        Ok(rustix::fs::openat2(&root, relative, flags | OFlags::CLOEXEC, mode, ResolveFlags::IN_ROOT)?)
    }

    fn spawn(&self, id: &str, command: &Command) -> Result<Process, ProviderError> {
        command.check()?;
        if command.terminal.is_some() {
            return Err(ProviderError::new(Code::ProviderUnavailable, "the local provider has no terminals"));
        }
        let stored = self.running(id)?;
        let directory = command.directory.as_deref().unwrap_or("/");
        let opened = self.open_below(id, directory, OFlags::PATH | OFlags::DIRECTORY);
        let opened =
            opened.map_err(|error| ProviderError::invalid("cwd", format!("cannot be used: {error}")))?;
        let failed = |error: io::Error| {
            ProviderError::new(Code::SandboxExecFailed, format!("Command execution failed: {error}"))
                .with(json!({ "reason": error.to_string() }))
        };
        let number = std::os::fd::AsRawFd::as_raw_fd(&opened);
        let here = std::fs::read_link(format!("/proc/self/fd/{number}")).map_err(failed)?;
        let mut child = tokio::process::Command::new(&command.program);
        child
            .args(&command.arguments)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &here)
            .env("IS_SANDBOXED", "false")
            .envs(&stored.env)
            .envs(&command.env)
            .current_dir(&here)
            .process_group(0)
            .kill_on_drop(true)
            .stdin(if command.stdin { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = child.spawn().map_err(failed)?;
        let (process, inside) = Process::pair();
        tokio::spawn(child::carry(child, inside));
        Ok(process)
    }
}

fn info(id: &str, stored: &Stored) -> Info {
    Info {
        id: id.to_owned(),
        name: id.to_owned(),
        namespace: String::new(),
        project_id: stored.project.clone(),
        status: if stored.stopped { Status::Stopped } else { Status::Running },
        message: None,
        image: None,
        created_at: Some(stored.created),
        last_activity_at: Some(stored.used),
        ports: Vec::new(),
        labels: std::collections::BTreeMap::new(),
        network: Network::Full,
    }
}

fn file_error(code: Code, path: &str, error: &io::Error) -> ProviderError {
    match error.kind() {
        io::ErrorKind::NotFound => ProviderError::file_not_found(path),
        _ => ProviderError::new(code, format!("`{path}`: {error}")).with(json!({ "path": path })),
    }
}

impl Provider for LocalProvider {
    fn name(&self) -> &'static str {
        "local"
    }

    fn create(&self, wanted: Wanted) -> Answer<'_, Info> {
        Box::pin(async move {
            let info = self.make(wanted)?;
            for step in [Step::Creating, Step::Created, Step::Started] {
                self.emit(step, &info);
            }
            Ok(info)
        })
    }

    fn wait_running<'a>(&'a self, id: &'a str, _: Duration) -> Answer<'a, Info> {
        Box::pin(async move {
            let stored = self.stored(id)?;
            match stored.stopped {
                true => Err(ProviderError::invalid_state("stopped")),
                false => Ok(info(id, &stored)),
            }
        })
    }

    fn get<'a>(&'a self, project: &'a str) -> Answer<'a, Option<Info>> {
        Box::pin(async move {
            limits::check_identifier("projectId", project)?;
            Ok(self.all()?.into_iter().find(|info| info.project_id.as_deref() == Some(project)))
        })
    }

    fn get_by_id<'a>(&'a self, id: &'a str) -> Answer<'a, Option<Info>> {
        Box::pin(async move {
            match self.stored(id) {
                Ok(stored) => Ok(Some(info(id, &stored))),
                Err(error) if error.code == Code::SandboxNotFound => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn list(&self) -> Answer<'_, Vec<Info>> {
        Box::pin(async move { self.all() })
    }

    fn start<'a>(&'a self, id: &'a str) -> Answer<'a, Info> {
        Box::pin(async move {
            let info = self.change(id, |stored| stored.stopped = false)?;
            self.emit(Step::Started, &info);
            Ok(info)
        })
    }

    fn stop<'a>(&'a self, id: &'a str) -> Answer<'a, Info> {
        Box::pin(async move {
            let info = self.change(id, |stored| stored.stopped = true)?;
            self.emit(Step::Stopping, &info);
            self.emit(Step::Stopped, &info);
            Ok(info)
        })
    }

    fn remove<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let stored = self.stored(id)?;
            let directory = self.directory(id)?;
            std::fs::remove_dir_all(&directory).map_err(|error| {
                let message = format!("remove `{}`: {error}", directory.display());
                ProviderError::new(Code::SandboxRemovalFailed, message)
            })?;
            self.emit(Step::Removed, &info(id, &stored));
            Ok(())
        })
    }

    fn exec_stream<'a>(&'a self, id: &'a str, command: Command) -> Answer<'a, Process> {
        Box::pin(async move { self.spawn(id, &command) })
    }

    fn read<'a>(&'a self, id: &'a str, path: &'a str) -> Answer<'a, FileStream> {
        Box::pin(async move {
            let path = check_path(path)?;
            self.running(id)?;
            // A pipe would wait for its writer.
            let opened = self.open_below(id, &path, OFlags::RDONLY | OFlags::NONBLOCK);
            let failed = |error: &io::Error| file_error(Code::SandboxReadFailed, &path, error);
            let file = std::fs::File::from(opened.map_err(|error| failed(&error))?);
            let metadata = file.metadata().map_err(|error| failed(&error))?;
            if !metadata.is_file() {
                let message = format!("`{path}` is not a regular file");
                return Err(
                    ProviderError::new(Code::SandboxReadFailed, message).with(json!({ "path": path }))
                );
            }
            let size = metadata.len();
            let parts = stream::try_unfold((file, size, path), |(mut file, left, path)| async move {
                let most = usize::try_from(left).unwrap_or(usize::MAX).min(PART);
                if most == 0 {
                    return Ok(None);
                }
                let mut part = vec![0; most];
                let read = file.read_exact(&mut part);
                read.map_err(|error| file_error(Code::SandboxReadFailed, &path, &error))?;
                Ok(Some((part, (file, left - most as u64, path))))
            });
            Ok(FileStream { size, parts: parts.boxed() })
        })
    }

    fn write<'a>(&'a self, id: &'a str, path: &'a str, content: Vec<u8>) -> Answer<'a, ()> {
        Box::pin(async move {
            let path = check_path(path)?;
            check_size(&path, content.len())?;
            self.running(id)?;
            let write = || -> io::Result<()> {
                let mut above = String::new();
                let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
                for part in &parts[..parts.len() - 1] {
                    let parent = self.open_below(id, &above, OFlags::PATH | OFlags::DIRECTORY)?;
                    match rustix::fs::mkdirat(&parent, *part, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    above = format!("{above}/{part}");
                }
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK;
                std::fs::File::from(self.open_below(id, &path, flags)?).write_all(&content)
            };
            write().map_err(|error| {
                ProviderError::new(Code::SandboxWriteFailed, format!("Failed to write file: {path}: {error}"))
                    .with(json!({ "path": path }))
            })
        })
    }

    fn list_files<'a>(&'a self, id: &'a str, path: &'a str) -> Answer<'a, Vec<Entry>> {
        Box::pin(async move {
            let path = check_path(path)?;
            self.running(id)?;
            let list = || -> io::Result<Vec<Entry>> {
                let directory = self.open_below(id, &path, OFlags::RDONLY | OFlags::DIRECTORY)?;
                let mut entries = Vec::new();
                for entry in rustix::fs::Dir::read_from(&directory)? {
                    let entry = entry?;
                    if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                        continue;
                    }
                    let stat = rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
                    let name = entry.file_name().to_string_lossy().into_owned();
                    entries.push(Entry {
                        path: format!("{}/{name}", path.trim_end_matches('/')),
                        name,
                        kind: match FileType::from_raw_mode(stat.st_mode) {
                            FileType::RegularFile => FileKind::File,
                            FileType::Directory => FileKind::Directory,
                            FileType::Symlink => FileKind::Symlink,
                            _ => FileKind::Other,
                        },
                        size: u64::try_from(stat.st_size).unwrap_or(0),
                        modified_at: Timestamp::from_second(stat.st_mtime).ok(),
                    });
                }
                entries.sort_by(|one, other| one.name.cmp(&other.name));
                Ok(entries)
            };
            list().map_err(|error| file_error(Code::SandboxReadFailed, &path, &error))
        })
    }

    fn metrics<'a>(&'a self, id: &'a str) -> Answer<'a, Metrics> {
        Box::pin(async move {
            self.stored(id)?;
            let message = "Failed to get resource stats: the local provider counts nothing";
            Err(ProviderError::new(Code::SandboxStatsFailed, message))
        })
    }

    fn history<'a>(&'a self, id: &'a str) -> Answer<'a, Vec<Happening>> {
        Box::pin(async move { self.stored(id).map(|_| Vec::new()) })
    }

    fn explain<'a>(&'a self, id: &'a str) -> Answer<'a, Explanation> {
        Box::pin(async move {
            let stored = self.stored(id)?;
            let state = if stored.stopped { "is stopped; start it" } else { "runs, without isolation" };
            let summary = format!("Sandbox `{id}` {state}.");
            Ok(Explanation { ready: !stored.stopped, summary, reasons: Vec::new() })
        })
    }

    fn pull_image<'a>(&'a self, image: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let message = format!("the local provider has no images, so none `{image}`");
            Err(ProviderError::new(Code::ImageNotFound, message).with(json!({ "image": image })))
        })
    }

    fn is_image_available<'a>(&'a self, _: &'a str) -> Answer<'a, bool> {
        Box::pin(async move { Ok(false) })
    }

    fn health_check(&self) -> BoxFuture<'_, Health> {
        Box::pin(async move {
            let infos = self.all();
            Health {
                healthy: infos.is_ok(),
                message: infos.as_ref().err().map(|error| error.message.clone()),
                details: json!({ "provider": "local", "sandboxes": infos.map_or(0, |infos| infos.len()) }),
            }
        })
    }

    fn subscribe(&self) -> broadcast::Receiver<ProviderEvent> {
        self.0.events.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_provider_refuses_outside_of_development() {
        let directory = tempfile::tempdir().expect("make a directory");
        let error = LocalProvider::open(directory.path(), false).expect_err("refused");
        assert_eq!(error.code, Code::ProviderUnavailable);
    }

    #[tokio::test]
    async fn links_and_dots_do_not_lead_out_of_a_sandbox() {
        let directory = tempfile::tempdir().expect("make a directory");
        std::fs::write(directory.path().join("secret"), "outside").expect("write");
        let provider = LocalProvider::open(&directory.path().join("root"), true).expect("opened");
        let id = provider.create(Wanted::default()).await.expect("created").id;
        let outside = directory.path().display().to_string();
        let files = directory.path().join("root").join(&id).join("files");
        std::os::unix::fs::symlink(&outside, files.join("absolute")).expect("link");
        std::os::unix::fs::symlink("../../../secret", files.join("relative")).expect("link");
        for path in ["/absolute/secret", "/relative"] {
            let code = provider.read(&id, path).await.map(|file| file.size).expect_err("refused").code;
            assert_eq!(code, Code::SandboxFileNotFound, "{path}");
        }
        provider.write(&id, "/absolute/new", b"x".to_vec()).await.expect_err("refused");
        provider.write(&id, "/relative", b"inside".to_vec()).await.expect("written below the root");
        let secret = std::fs::read_to_string(directory.path().join("secret")).expect("read");
        assert_eq!(secret, "outside");
        assert!(!directory.path().join("new").exists());
        for id in ["..", "../x", "", "a/b"] {
            assert_eq!(provider.get_by_id(id).await.expect("asked"), None, "{id:?}");
        }
    }
}
