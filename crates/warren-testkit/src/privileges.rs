//! The privileges of a test on this machine.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns true if a test with real containers must be skipped. A run without root must not look
/// like a pass, so it fails unless `WARREN_SKIP_ROOT_TESTS` is set.
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

/// An ordinary user of this machine, for tests without root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrdinaryUser {
    uid: u32,
    gid: u32,
    /// True if this process belongs to the user.
    is_this_process: bool,
}

/// An unused user id: above those of people and services, and below the ranges for user namespaces.
const UNUSED: u32 = 64_213;

impl OrdinaryUser {
    /// Returns the user who runs this test. For root, returns an unused one. Returns `None`, with a
    /// printed reason, if such users cannot make user namespaces.
    pub fn find() -> Option<Self> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let user = match uid.is_root() {
            true => Self { uid: UNUSED, gid: UNUSED, is_this_process: false },
            false => Self { uid: uid.as_raw(), gid: gid.as_raw(), is_this_process: true },
        };
        // Check with a program that is not ours.
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

    /// Returns the user id.
    pub fn uid(self) -> u32 {
        self.uid
    }

    /// Makes a command run as this user, without supplementary groups.
    pub fn run(self, command: &mut Command) -> &mut Command {
        match self.is_this_process {
            true => command,
            false => command.gid(self.gid).uid(self.uid),
        }
    }

    /// Gives a file or directory to this user.
    pub fn give(self, path: &Path) -> io::Result<()> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
    }
}
