//! The built-in image `warren.dev/host`: the machine's own programs without its identity and
//! secrets.
//!
//! `/usr` (and `/bin`, `/sbin`, `/lib*` where they are not links into it) is the host's, below an
//! overlay. Everything else is a skeleton in the data directory, made from an allow-list: a file of
//! the host is in the container only if it is named here. Files of the system directories that not
//! every user may read are hidden ([`private_files`]).

mod private_files;

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use warren_sys::init;

use self::private_files::Covers;
use crate::protocol::{Overlay, Rootfs};

/// The path inside of the program that is the image's default entry point.
pub const INIT_PATH: &str = "/.warren/init";

/// Its path in the skeleton.
const INIT: &str = ".warren/init";

/// The prepared image.
#[derive(Debug, Clone)]
pub struct HostImage {
    skeleton: PathBuf,
    system: Vec<PathBuf>,
    covers: Covers,
}

/// The image could not be prepared.
#[derive(Debug, thiserror::Error)]
#[error("prepare {path} for the host image")]
pub struct PrepareError {
    /// The file or directory.
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: io::Error,
}

/// Empty directories with their modes.
const DIRECTORIES: &[(&str, u32)] = &[
    (".warren", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/local", 0o755),
    ("var/log", 0o755),
    ("var/mail", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
    ("workspace", 0o777),
];

/// Files and directories of `/etc` that are copied if they exist. They are public on any machine:
/// programs find libraries, certificates, alternatives and time zones through them. There are no
/// accounts, keys, host names or package sources.
const COPIED: &[&str] = &[
    "alternatives",
    "bash.bashrc",
    "ca-certificates.conf",
    "debian_version",
    "environment.d",
    "ethertypes",
    "gai.conf",
    "inputrc",
    "java-17-openjdk/security/java.security",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "magic",
    "magic.mime",
    "mime.types",
    "nanorc",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "profile",
    "protocols",
    "python3",
    "redhat-release",
    "rpc",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vim",
    "xattr.conf",
];

/// Files with contents of our own.
const WRITTEN: &[(&str, &str)] = &[
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\n\
         daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
         bin:x:2:2:bin:/bin:/usr/sbin/nologin\n\
         sys:x:3:3:sys:/dev:/usr/sbin/nologin\n\
         mail:x:8:8:mail:/var/mail:/usr/sbin/nologin\n\
         www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n\
         sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    (
        "etc/group",
        "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\ndisk:x:6:\nmail:x:8:\nshadow:x:42:\n\
         www-data:x:33:\nutmp:x:43:\nstaff:x:50:\nusers:x:100:\nsandbox:x:1000:\nnogroup:x:65534:\n",
    ),
    (
        "etc/hosts",
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n",
    ),
    (
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n\
                           protocols: files\nservices: files\nethers: files\nrpc: files\n",
    ),
    ("etc/resolv.conf", ""),
    ("etc/host.conf", "multi on\n"),
    ("etc/hostname", "sandbox\n"),
    ("etc/shells", "/bin/sh\n/bin/bash\n"),
    ("etc/fstab", ""),
];

impl HostImage {
    /// Makes the skeleton below `data_directory`, or reuses the existing one if the host has not
    /// changed. Call it at every start. After a crash part-way, a later call ignores the incomplete
    /// skeleton.
    pub fn prepare(data_directory: &Path) -> Result<Self, PrepareError> {
        let parent = data_directory.join("images").join("host");
        let stamp = stamp();
        let skeleton = parent.join(&stamp);
        let system = system_directories();
        let covers = Covers::begin(system.clone(), parent.clone());
        if skeleton.join("etc").is_dir() {
            return Ok(Self { skeleton, system, covers });
        }
        let unfinished = parent.join(format!("{stamp}.unfinished"));
        if unfinished.exists() {
            at(&unfinished, fs::remove_dir_all(&unfinished))?;
        }
        at(&unfinished, fs::create_dir_all(&unfinished))?;
        fill(&unfinished)?;
        // Running pods use an older skeleton as their lower directory, so it is kept; it is small.
        at(&skeleton, fs::rename(&unfinished, &skeleton))?;
        Ok(Self { skeleton, system, covers })
    }

    /// Returns the host path of the program at [`INIT_PATH`].
    pub fn init(&self) -> PathBuf {
        self.skeleton.join(INIT)
    }

    /// Returns the root file system of a container on this image. The first call may wait until
    /// every file of the system directories has been checked.
    pub fn rootfs(&self) -> Rootfs {
        let mut overlays =
            vec![Overlay { target: "/".into(), lower: vec![self.skeleton.clone()], view: None }];
        overlays.extend(self.system.iter().map(|directory| {
            let lower = self.covers.of(directory).into_iter().chain([directory.clone()]).collect();
            Overlay { target: directory.clone(), lower, view: None }
        }));
        Rootfs { overlays }
    }

    /// Returns the default command of the image.
    pub fn default_command() -> Vec<String> {
        vec![INIT_PATH.to_owned()]
    }

    /// Returns the default environment of the image.
    pub fn default_environment() -> Vec<String> {
        vec![format!("PATH={}", crate::defaults::PATH), "HOME=/root".to_owned(), "LANG=C.UTF-8".to_owned()]
    }
}

/// Returns a hash of everything that the skeleton depends on. It is made anew when the hash
/// changes.
fn stamp() -> String {
    use std::os::unix::fs::MetadataExt;
    // FNV-1a: it names a set of times and protects against nothing.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add_bytes = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add_bytes(init::PROGRAM);
    let mut add = |number: u64| add_bytes(&number.to_le_bytes());
    add(LAYOUT_VERSION);
    for name in
        COPIED.iter().map(|name| Path::new("/etc").join(name)).chain(ROOT_LINKS.iter().map(PathBuf::from))
    {
        if let Ok(metadata) = fs::symlink_metadata(&name) {
            add(metadata.mtime() as u64);
            add(metadata.mtime_nsec() as u64);
            add(metadata.ino());
        }
    }
    format!("{hash:016x}")
}

/// Increase this when [`fill`] makes something else from the same host.
const LAYOUT_VERSION: u64 = 2;

/// Directories that are links into `/usr` on merged systems and contain programs on others.
const ROOT_LINKS: &[&str] = &["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

fn system_directories() -> Vec<PathBuf> {
    std::iter::once("/usr")
        .chain(ROOT_LINKS.iter().copied())
        .map(PathBuf::from)
        .filter(|path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()))
        .collect()
}

fn fill(skeleton: &Path) -> Result<(), PrepareError> {
    at(skeleton, fs::set_permissions(skeleton, fs::Permissions::from_mode(0o755)))?;
    for (name, mode) in DIRECTORIES {
        let path = skeleton.join(name);
        at(&path, fs::create_dir(&path))?;
        at(&path, fs::set_permissions(&path, fs::Permissions::from_mode(*mode)))?;
    }
    for link in ROOT_LINKS {
        let path = skeleton.join(&link[1..]);
        match fs::symlink_metadata(link) {
            Ok(metadata) if metadata.is_symlink() => {
                let target = at(Path::new(link), fs::read_link(link))?;
                at(&path, symlink(target, &path))?;
            }
            Ok(metadata) if metadata.is_dir() => at(&path, fs::create_dir(&path))?,
            _ => {}
        }
    }
    at(skeleton, symlink("../run", skeleton.join("var/run")))?;
    at(skeleton, symlink("../proc/self/mounts", skeleton.join("etc/mtab")))?;
    for name in COPIED {
        copy(&Path::new("/etc").join(name), &skeleton.join("etc").join(name))?;
    }
    for (name, text) in WRITTEN {
        let path = skeleton.join(name);
        at(&path, fs::write(&path, text))?;
        at(&path, fs::set_permissions(&path, fs::Permissions::from_mode(0o644)))?;
    }
    let path = skeleton.join(INIT);
    at(&path, write_program(&path, init::PROGRAM))
}

/// Writes the program and syncs it, because it is never checked again.
fn write_program(path: &Path, program: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create_new(path)?;
    file.write_all(program)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    file.sync_all()
}

/// Copies a file or directory of the host. Links are copied as links. Only files that all users may
/// read are copied, so that a key stored beside certificates is left out.
fn copy(from: &Path, to: &Path) -> Result<(), PrepareError> {
    let Ok(metadata) = fs::symlink_metadata(from) else { return Ok(()) };
    if let Some(parent) = to.parent() {
        at(parent, fs::create_dir_all(parent))?;
    }
    if metadata.is_symlink() {
        let target = at(from, fs::read_link(from))?;
        at(to, symlink(target, to))
    } else if metadata.is_dir() {
        at(to, fs::create_dir_all(to))?;
        for entry in at(from, fs::read_dir(from))? {
            let entry = at(from, entry)?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        Ok(())
    } else if metadata.is_file() && metadata.permissions().mode() & 0o004 != 0 {
        at(to, fs::copy(from, to))?;
        at(to, fs::set_permissions(to, fs::Permissions::from_mode(0o644)))
    } else {
        Ok(())
    }
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, PrepareError> {
    result.map_err(|source| PrepareError { path: path.to_owned(), source })
}
