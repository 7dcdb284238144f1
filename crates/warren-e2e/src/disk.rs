//! A small disk in a mount namespace of its own, which a test can fill, make read-only and lose,
//! without effects on the rest of the machine.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// The disk. It exists as long as the process that holds its namespace; dropping this ends that
/// process.
#[derive(Debug)]
pub struct SmallDisk {
    holder: Child,
    place: TempDir,
}

impl SmallDisk {
    /// Makes a file system in memory.
    ///
    /// # Errors
    ///
    /// Fails with the output of the tools.
    pub fn in_memory(megabytes: u32) -> Result<Self, String> {
        Self::hold(&format!("mount -t tmpfs -o size={megabytes}m,mode=0700 none \"$PLACE\""))
    }

    /// Makes one in memory that is mounted `noexec`.
    ///
    /// # Errors
    ///
    /// Fails with the output of the tools.
    pub fn without_programs(megabytes: u32) -> Result<Self, String> {
        Self::hold(&format!("mount -t tmpfs -o size={megabytes}m,mode=0700,noexec none \"$PLACE\""))
    }

    /// Makes an ext4 file system on a loop device, over a file in memory.
    ///
    /// # Errors
    ///
    /// Fails with the output of the tools. Not every machine has loop devices.
    pub fn on_loop_device(megabytes: u32) -> Result<Self, String> {
        Self::ext4(megabytes, "")
    }

    /// Makes one with room for this number of files.
    ///
    /// # Errors
    ///
    /// Fails with the output of the tools. Not every machine has loop devices.
    pub fn with_inodes(megabytes: u32, inodes: u32) -> Result<Self, String> {
        Self::ext4(megabytes, &format!("-N {inodes}"))
    }

    fn ext4(megabytes: u32, options: &str) -> Result<Self, String> {
        Self::hold(&format!(
            "mount -t tmpfs -o size={twice}m none \"$PLACE\" && truncate -s {megabytes}m \"$PLACE/image\" \
             && mkfs.ext4 -q -O ^metadata_csum_seed {options} \"$PLACE/image\" && mount -o loop,errors=remount-ro \"$PLACE/image\" \"$PLACE\"",
            twice = 2 * megabytes
        ))
    }

    fn hold(prepare: &str) -> Result<Self, String> {
        let place = tempfile::tempdir().map_err(|error| error.to_string())?;
        let script = format!("{prepare} >&2 && echo held && exec sleep infinity");
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .env("PLACE", place.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("run unshare: {error}"))?;
        let mut line = String::new();
        let stdout = holder.stdout.take().ok_or("stdout is piped")?;
        BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
        if line.trim() != "held" {
            let output = holder.wait_with_output().map_err(|error| error.to_string())?;
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(Self { holder, place })
    }

    /// Returns the disk's path inside its namespace.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Returns the disk's path outside its namespace.
    pub fn from_outside(&self) -> PathBuf {
        let inside = self.path().strip_prefix("/").unwrap_or(self.path());
        Path::new("/proc").join(self.holder.id().to_string()).join("root").join(inside)
    }

    /// Returns the prefix of a command that runs it in the disk's namespace.
    pub fn wrapper(&self) -> Vec<OsString> {
        vec!["nsenter".into(), format!("--mount=/proc/{}/ns/mnt", self.holder.id()).into(), "--".into()]
    }

    /// Runs a shell command in the disk's namespace; `$PLACE` is the disk's path.
    ///
    /// # Errors
    ///
    /// Returns its output if it fails.
    pub fn shell(&self, script: &str) -> Result<String, String> {
        let wrapper = self.wrapper();
        let output = Command::new(&wrapper[0])
            .args(&wrapper[1..])
            .args(["sh", "-c", script])
            .env("PLACE", self.path())
            .output()
            .map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("{script}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// Fills the disk completely.
    ///
    /// # Errors
    ///
    /// Fails if it could not be filled.
    pub fn fill(&self) -> Result<(), String> {
        // Most of it at once, if the file system can. dd ends with an error when the disk is full,
        // as intended; the smaller blocks take the rest.
        self.shell("fallocate -l $(($(stat -f -c '%f * %S' \"$PLACE\") - 262144)) \"$PLACE/filler\" 2>/dev/null; for size in 1M 4k 1; do dd if=/dev/zero of=\"$PLACE/filler\" bs=$size oflag=append conv=notrunc 2>/dev/null; done; test \"$(stat -f -c %a \"$PLACE\")\" -le 1").map(drop)
    }

    /// Frees the space that [`SmallDisk::fill`] took.
    ///
    /// # Errors
    ///
    /// Fails if it could not be freed.
    pub fn make_room(&self) -> Result<(), String> {
        self.shell("rm \"$PLACE/filler\"").map(drop)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // With its last process the namespace ends, with it its mounts, and with them a loop
        // device.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
