//! What a test may do on this machine.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether a test that makes real containers must be left out. A run without root must not look like a pass, so it fails
/// unless `WARREN_SKIP_ROOT_TESTS` says that this is understood.
pub fn skip_without_root() -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    assert!(
        std::env::var_os("WARREN_SKIP_ROOT_TESTS").is_some(),
        "this test makes real containers and needs root; set WARREN_SKIP_ROOT_TESTS to leave such tests out"
    );
    eprintln!("skipped: not root, and WARREN_SKIP_ROOT_TESTS is set");
    true
}

/// A user of this machine who is not root, for tests of what such a user can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrdinaryUser {
    uid: u32,
    gid: u32,
    /// Whether this very process is that user.
    is_this_process: bool,
}

/// Nobody's: above what distributions give to people and services, below their ranges for user namespaces.
const UNUSED: u32 = 64_213;

impl OrdinaryUser {
    /// Who runs this test, if that is not root; else somebody whom nobody knows. `None`, with a printed reason, where such users
    /// can make no user namespaces.
    pub fn find() -> Option<Self> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let user = match uid.is_root() {
            true => Self { uid: UNUSED, gid: UNUSED, is_this_process: false },
            false => Self { uid: uid.as_raw(), gid: gid.as_raw(), is_this_process: true },
        };
        // Judged by a program that is not ours.
        let mut probe = Command::new("unshare");
        probe.args(["--user", "--map-root-user", "--mount", "true"]).stdin(Stdio::null());
        match user.run(&mut probe).output() {
            Ok(output) if output.status.success() => Some(user),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                eprintln!("skipped: ordinary users can make no user namespaces here: {}", said.trim());
                None
            }
            Err(error) => {
                eprintln!("skipped: `unshare` cannot be run to see what ordinary users can do: {error}");
                None
            }
        }
    }

    /// Its number.
    pub fn uid(self) -> u32 {
        self.uid
    }

    /// Makes a command one of this user's, in no further groups.
    pub fn run(self, command: &mut Command) -> &mut Command {
        match self.is_this_process {
            true => command,
            false => command.gid(self.gid).uid(self.uid),
        }
    }

    /// Gives it a file or directory.
    pub fn give(self, path: &Path) -> io::Result<()> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
    }
}
