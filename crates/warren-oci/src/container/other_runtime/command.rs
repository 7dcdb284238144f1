//! The command line of a runtime, and running one of its commands.

use std::convert::Infallible;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use warren_sys::cgroup::Entrance;
use warren_sys::process;

use super::super::child::{self, Streams};
use super::super::program::Program;
use super::super::rootfs::{Step, StepError};
use super::super::writable_directory;
use crate::defaults;
use crate::protocol::{ContainerRequest, PodRequest, RuntimeKind, RuntimeProgram};

/// The parameters of a runtime for one container.
#[derive(Debug)]
pub(super) struct Invocation {
    program: RuntimeProgram,
    /// The runtime's state directory. It is in the pod's directory and is removed with it.
    state: PathBuf,
    /// The runtime's log, one JSON object per line.
    log: PathBuf,
}

/// The number of bytes read from the end of a runtime's log.
const LAST_WORDS: u64 = 16 << 10;

#[derive(Debug, Deserialize)]
struct Line {
    #[serde(default)]
    level: String,
    #[serde(default)]
    msg: String,
}

impl Invocation {
    pub(super) fn new(program: &RuntimeProgram, pod: &PodRequest, request: &ContainerRequest) -> Self {
        let directory = writable_directory(&pod.directory, &request.name, request.attempt);
        Self {
            program: program.clone(),
            state: pod.directory.join("runtime"),
            log: directory.join("runtime.log"),
        }
    }

    pub(super) fn kind(&self) -> RuntimeKind {
        self.program.kind
    }

    pub(super) fn state(&self) -> &Path {
        &self.state
    }

    /// Returns the whole command line of a command.
    pub(super) fn words(&self, command: &[&str]) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut words = vec![text(&self.program.path)];
        words.extend(["--root".to_owned(), text(&self.state), "--log".to_owned(), text(&self.log)]);
        words.extend(["--log-format", "json"].map(str::to_owned));
        if self.program.kind == RuntimeKind::Gvisor {
            // All its processes start in the container's cgroup, which has the limits.
            words.push("--ignore-cgroups".to_owned());
        }
        words.extend(command.iter().map(|word| (*word).to_owned()));
        words
    }

    /// Returns the last error in its log.
    pub(super) fn complaint(&self) -> Option<String> {
        let mut file = fs::File::open(&self.log).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS))).ok()?;
        let mut text = Vec::new();
        file.take(LAST_WORDS).read_to_end(&mut text).ok()?;
        complaint_in(&String::from_utf8_lossy(&text))
    }
}

fn complaint_in(log: &str) -> Option<String> {
    let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines.rfind(|line| ["error", "fatal"].contains(&line.level.as_str())).map(|line| line.msg)
}

/// The environment of a command.
pub(super) struct Surroundings<'a> {
    /// The cgroup to enter, if not the keeper's.
    pub(super) entrance: Option<&'a Entrance>,
    /// Its streams. If `None`, it has no input and writes to the shim's log.
    pub(super) streams: Option<Streams<'a>>,
    /// A descriptor that it inherits beside the standard ones.
    pub(super) kept: Option<BorrowedFd<'a>>,
}

/// Executes a command. Returns only on error.
pub(super) fn become_command(words: &[String], around: Surroundings<'_>) -> Result<Infallible, StepError> {
    // A command dies with the process that forked this one. The processes that it starts do not
    // inherit this.
    child::die_with_parent()?;
    rustix::process::setsid().step(|| "make a session".to_owned())?;
    if let Some(entrance) = around.entrance {
        entrance.enter().step(|| "enter the cgroup".to_owned())?;
    }
    match &around.streams {
        Some(streams) => child::take_streams(streams)?,
        None => {
            let null = child::open_null()?;
            let step = || "take the standard streams".to_owned();
            process::replace_standard_descriptor(null.as_fd(), 0).step(step)?;
        }
    }
    process::reset_signals(crate::shim::IGNORED_SIGNALS);
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    process::close_from_on_exec(3).step(|| "close descriptors".to_owned())?;
    if let Some(kept) = around.kept {
        super::keep_open(kept).step(|| "keep a descriptor".to_owned())?;
    }
    // A runtime gets none of our environment variables.
    Program::new(words, &[format!("PATH={}", defaults::PATH)])?.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_the_complaint() {
        let log = concat!(
            "{\"level\":\"warning\",\"msg\":\"hm\"}\n",
            "{\"msg\":\"no such file\",\"level\":\"error\",\"time\":\"2026\"}\n",
            "not json\n{\"level\":\"info\",\"msg\":\"later\"}\n"
        );
        assert_eq!(complaint_in(log).as_deref(), Some("no such file"));
        assert_eq!(complaint_in(""), None);
    }
}
