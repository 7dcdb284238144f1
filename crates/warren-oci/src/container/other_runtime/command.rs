//! A runtime's command line, and how a process becomes one of its commands.

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

/// How a runtime is called for one container.
#[derive(Debug)]
pub(super) struct Invocation {
    program: RuntimeProgram,
    /// Where it keeps what it knows: in the pod's directory, so that it goes with the pod.
    state: PathBuf,
    /// What it has to say, a line of JSON each.
    log: PathBuf,
}

/// Of what a runtime said, so much is looked at from the end.
const LAST_WORDS: u64 = 16 << 10;

/// One line of a runtime's log.
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

    /// The directory of what the runtime knows.
    pub(super) fn state(&self) -> &Path {
        &self.state
    }

    /// The whole command line of one of its commands.
    pub(super) fn words(&self, command: &[&str]) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut words = vec![text(&self.program.path)];
        words.extend(["--root".to_owned(), text(&self.state), "--log".to_owned(), text(&self.log)]);
        words.extend(["--log-format", "json"].map(str::to_owned));
        if self.program.kind == RuntimeKind::Gvisor {
            // All its processes are born in the container's cgroup, whose limits are ours to set.
            words.push("--ignore-cgroups".to_owned());
        }
        words.extend(command.iter().map(|word| (*word).to_owned()));
        words
    }

    /// What it last complained about.
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

/// What a command has around it.
pub(super) struct Surroundings<'a> {
    /// The cgroup that it works in, if not the keeper's.
    pub(super) entrance: Option<&'a Entrance>,
    /// Its streams; without, it reads nothing and complains into the shim's log.
    pub(super) streams: Option<Streams<'a>>,
    /// A descriptor that it gets beside the standard ones.
    pub(super) kept: Option<BorrowedFd<'a>>,
}

/// Becomes a command. Returns only an error.
pub(super) fn become_command(words: &[String], around: Surroundings<'_>) -> Result<Infallible, StepError> {
    // Commands are the business of whoever forked this process; what they start is not, and does not inherit this.
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
    // Of our own environment nothing is meant for a runtime.
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
