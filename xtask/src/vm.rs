//! `cargo xtask vm`: runs the tests with real containers in a virtual machine with Debian's kernel:
//! Linux 6.1, cgroups of version 2, overlays as kernels before 6.15 need them.
//!
//! The processor is emulated, so it works without KVM but takes minutes. The machine gets a disk
//! with our static binaries, busybox, and [`GUEST`] as its init. Its serial console carries the
//! results.

mod cpio;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use self::cpio::Archive;
use crate::test::{Counts, parse_result};
use crate::workspace;

const FIRST: &str = include_str!("vm/first.sh");
const GUEST: &str = include_str!("vm/guest.sh");

/// The kernel modules for the disk and for containers.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "overlay"];

/// Programs that must be installed, with their Debian packages.
const NEEDED: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("mke2fs", "e2fsprogs"),
    ("strip", "binutils"),
    ("dash", "dash"),
];

#[derive(Args)]
pub struct Arguments {
    /// Only run commands as a user would, and the tests of what depends on the version of cgroups
    #[arg(long)]
    quick: bool,
    /// Succeed, with the reason, where there is no emulator or no kernel to be had
    #[arg(long)]
    optional: bool,
    /// Only these test programs, such as `real` (those of warren-oci) or `recovery`
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Give up after this many minutes
    #[arg(long, value_name = "MINUTES", default_value_t = 30)]
    deadline: u64,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let directory = workspace::root().join("target/vm");
    fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
    let kernel = match check_needed().and_then(|()| kernel(&directory.join("kernel"))) {
        Ok(kernel) => kernel,
        Err(error) if arguments.optional => {
            println!("skipped: {error:#}");
            println!("0 passed, 0 failed");
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => return Err(error),
    };
    let initramfs = directory.join("initramfs.cpio");
    fs::write(&initramfs, initramfs_bytes(&kernel)?).context("write the first file system")?;
    let disk = make_disk(&directory, arguments)?;
    let counts = boot(&kernel, &initramfs, &disk, Duration::from_secs(arguments.deadline * 60))?;
    println!("{} passed, {} failed", counts.passed, counts.failed);
    Ok(if counts.failed == 0 && counts.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_needed() -> Result<()> {
    let is_here = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        directories.any(|directory| directory.join(program).exists())
    };
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(program, _)| !is_here(program)).map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        bail!("run `apt-get install --no-install-recommends {}` first", missing.join(" "));
    }
    Ok(())
}

/// A kernel with its modules.
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

/// Returns Debian's kernel for virtual machines. The package is downloaded and only unpacked.
fn kernel(directory: &Path) -> Result<Kernel> {
    let find = |below: &str, prefix: &str| -> Option<PathBuf> {
        let entries = fs::read_dir(directory.join(below)).ok()?;
        entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
    };
    let found = || Some(Kernel { image: find("boot", "vmlinuz-")?, modules: find("lib/modules", "")? });
    if let Some(kernel) = found() {
        return Ok(kernel);
    }
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    let text = workspace::output(Command::new("apt-cache").args(["depends", "linux-image-cloud-amd64"]))?;
    let package = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .context("find the kernel's package: does `apt-get update` help?")?;
    workspace::output(Command::new("apt-get").args(["download", "-q", package]).current_dir(directory))?;
    let archive = find("", "linux-image-").context("find the kernel's package that was fetched")?;
    workspace::output(Command::new("dpkg-deb").arg("-x").args([&archive, directory]))?;
    found().context("find a kernel in its package")
}

fn initramfs_bytes(kernel: &Kernel) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["dev", "disk", "modules"] {
        archive.directory(directory);
    }
    archive.device("dev/console", 5, 1);
    archive.program("init", FIRST.as_bytes());
    archive.program("busybox", &fs::read(busybox()?).context("read busybox")?);
    let mut order = Vec::new();
    for name in MODULES {
        add_module(&kernel.modules, name, &mut order)?;
    }
    let mut names = String::new();
    for (name, bytes) in &order {
        archive.program(&format!("modules/{name}.ko"), bytes);
        names.push_str(&format!("{name}.ko\n"));
    }
    archive.program("modules/order", names.as_bytes());
    Ok(archive.finish())
}

/// Adds a module after its dependencies. A name without a file is built in.
fn add_module(modules: &Path, name: &str, order: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let name = name.replace('-', "_");
    if order.iter().any(|(known, _)| *known == name) {
        return Ok(());
    }
    let Some(path) = find_module(modules, &name)? else { return Ok(()) };
    let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    for dependency in dependencies(&bytes) {
        add_module(modules, &dependency, order)?;
    }
    order.push((name, bytes));
    Ok(())
}

fn find_module(directory: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if let Some(found) = find_module(&path, name)? {
                return Ok(Some(found));
            }
        } else if path.extension().is_some_and(|extension| extension == "ko")
            && path.file_stem().is_some_and(|stem| stem.to_string_lossy().replace('-', "_") == name)
        {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Returns the names in the line `depends=a,b` of a module's zero-terminated information.
fn dependencies(module: &[u8]) -> Vec<String> {
    module
        .split(|&byte| byte == 0)
        .find_map(|line| line.strip_prefix(b"depends="))
        .map(|list| String::from_utf8_lossy(list).into_owned())
        .into_iter()
        .flat_map(|list| list.split(',').map(str::to_owned).collect::<Vec<_>>())
        .filter(|name| !name.is_empty())
        .collect()
}

fn busybox() -> Result<PathBuf> {
    let path = PathBuf::from("/usr/bin/busybox");
    if path.exists() { Ok(path) } else { Ok(PathBuf::from("/bin/busybox")) }
}

/// Makes the disk with all files. It is `ext4`, because Linux 6.1 cannot map the owners of files in
/// memory.
fn make_disk(directory: &Path, arguments: &Arguments) -> Result<PathBuf> {
    let root = directory.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).context("remove the old disk's files")?;
    }
    for name in [
        "dev",
        "etc",
        "proc",
        "root",
        "sys",
        "tmp",
        "usr/bin",
        "usr/lib",
        "usr/lib64",
        "usr/local/bin",
        "var/lib",
        "var/tmp",
        "warren/tests",
        "warren/skip",
        "warren/only",
    ] {
        let path = root.join(name);
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    for (target, link) in [
        ("usr/bin", "bin"),
        ("usr/bin", "sbin"),
        ("bin", "usr/sbin"),
        ("usr/lib", "lib"),
        ("usr/lib64", "lib64"),
    ] {
        symlink(target, root.join(link)).with_context(|| format!("make {link}"))?;
    }
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n",
    )?;
    fs::write(root.join("etc/group"), "root:x:0:\nada:x:1000:\n")?;
    let busybox = busybox()?;
    let applets = workspace::output(Command::new(&busybox).arg("--list"))?;
    fs::copy(&busybox, root.join("usr/bin/busybox"))?;
    // Its `init` is not needed, and all others are programs of the host image.
    for applet in applets.lines().filter(|applet| !["init", "busybox"].contains(applet)) {
        symlink("busybox", root.join("usr/bin").join(applet)).with_context(|| format!("make {applet}"))?;
    }
    for program in HOST_PROGRAMS {
        add_program(&root, Path::new(program))?;
    }
    let modules = Path::new(PERL_MODULES);
    if modules.exists() {
        let parent = root.join(modules.strip_prefix("/").unwrap_or(modules)).parent().map(Path::to_owned);
        let parent = parent.context("find the place of perl's modules")?;
        fs::create_dir_all(&parent).with_context(|| format!("make {}", parent.display()))?;
        workspace::output(Command::new("cp").arg("--archive").arg(modules).arg(&parent))?;
    }
    fs::remove_file(root.join("usr/bin/sh"))?;
    symlink("dash", root.join("usr/bin/sh"))?;
    let init = root.join("usr/bin/init");
    fs::write(&init, GUEST)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;

    add_binaries(&root, arguments)?;
    let disk = directory.join("disk.img");
    let _ = fs::remove_file(&disk);
    let mke2fs = if Path::new("/usr/sbin/mke2fs").exists() { "/usr/sbin/mke2fs" } else { "mke2fs" };
    workspace::output(Command::new(mke2fs).args(["-q", "-t", "ext4", "-d"]).args([&root, &disk]).arg("2G"))?;
    Ok(disk)
}

/// Programs for tests that need more than busybox has: system calls by number, connections from a
/// shell, set-user-id bits, the text of an error. Also a shell, since busybox's prefers its own
/// programs to all others.
const HOST_PROGRAMS: [&str; 14] = [
    "/usr/bin/bash",
    "/usr/bin/chmod",
    "/usr/bin/cp",
    "/usr/bin/dash",
    "/usr/bin/date",
    "/usr/bin/head",
    "/usr/bin/id",
    "/usr/bin/mount",
    "/usr/bin/nsenter",
    "/usr/bin/perl",
    "/usr/bin/stat",
    "/usr/bin/touch",
    "/usr/bin/umount",
    "/usr/bin/unshare",
];

/// The directory of perl's base modules.
const PERL_MODULES: &str = "/usr/lib/x86_64-linux-gnu/perl-base";

/// Adds a program of this machine with its libraries. If it is missing, busybox replaces it.
fn add_program(root: &Path, program: &Path) -> Result<()> {
    if !program.exists() {
        return Ok(());
    }
    let listed = workspace::output(Command::new("ldd").arg(program))?;
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    for file in libraries.chain([program.to_owned()]) {
        let mut place = root.join(file.strip_prefix("/").unwrap_or(&file));
        // Resolve the top-level links, which are the same on the disk as here.
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
            let parent = parent.canonicalize()?;
            place = parent.join(file.file_name().unwrap_or_default());
        }
        let _ = fs::remove_file(&place);
        fs::copy(&file, &place).with_context(|| format!("copy {}", file.display()))?;
    }
    Ok(())
}

/// Builds and adds `warren`, the test programs with containers, and the files that they need.
fn add_binaries(root: &Path, arguments: &Arguments) -> Result<()> {
    let wanted: Vec<(&str, &str)> = TESTS
        .into_iter()
        .filter(|(_, test)| arguments.only.is_empty() || arguments.only.iter().any(|name| name == test))
        .filter(|(_, test)| !arguments.quick || QUICK.iter().any(|(name, _)| name == test))
        .collect();
    let mut built = Vec::new();
    if arguments.only.is_empty() || wanted.iter().any(|(package, _)| *package != "warren-oci") {
        let build = ["build", "--package", "warren", "--bin", "warren"];
        built.extend(workspace::build(&build)?);
    }
    for (package, test) in wanted {
        let build = ["test", "--no-run", "--package", package, "--test", test];
        built.extend(workspace::build(&build)?);
    }
    let mut names = BTreeSet::new();
    for (target, executable) in built {
        let is_test = target.kind.iter().any(|kind| kind == "test");
        let place = match (is_test, target.name.as_str()) {
            (true, name) => root.join("warren/tests").join(name),
            (false, "warren") => root.join("warren/warren"),
            // Tests know the paths of their package's programs from build time.
            (false, _) => root.join(executable.strip_prefix("/").unwrap_or(&executable)),
        };
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        workspace::output(Command::new("strip").arg("-o").args([&place, &executable]))?;
        names.insert(target.name);
    }
    for (name, skipped) in SKIPPED {
        let words: Vec<String> = skipped.iter().map(|test| format!("--skip {test}")).collect();
        fs::write(root.join("warren/skip").join(name), words.join(" "))?;
    }
    for (name, words) in QUICK.iter().filter(|_| arguments.quick) {
        fs::write(root.join("warren/only").join(name), words.join(" "))?;
    }
    eprintln!("on the disk: {}", names.into_iter().collect::<Vec<_>>().join(", "));
    Ok(())
}

/// The tests of warren-oci, and the end-to-end scenarios of the local home.
const TESTS: [(&str, &str); 5] = [
    ("warren-oci", "real"),
    ("warren-e2e", "local_home"),
    ("warren-e2e", "recovery"),
    ("warren-e2e", "isolation"),
    ("warren-e2e", "streams"),
];

/// Tests of limits, their effects, the freezer and counters: the differences between the versions
/// of cgroups.
const QUICK: [(&str, &[&str]); 3] = [
    (
        "real",
        &[
            "a_limit_on_the_pod_holds_for_all_its_containers",
            "pause_stops_the_processes_and_resume_lets_them_go_on",
            "a_fork_bomb_stays_inside_and_is_counted",
            "a_memory_bomb_is_killed_and_said_to_be",
            "a_killed_shim_takes_its_containers_along",
            "nothing_is_left_after_a_shutdown",
        ],
    ),
    ("recovery", &["a_memory_bomb_ends_inside_and_the_status_says_why"]),
    ("streams", &["what_pods_and_nodes_use_is_measured"]),
];

/// Tests that are skipped.
const SKIPPED: [(&str, &[&str]); 3] = [
    // The machine itself has an older kernel. And fifty concurrent starts, each with a polling
    // client, take minutes on an emulated processor.
    ("real", &["older_kernels", "fifty_pods_at_once"]),
    ("local_home", &["fifty_runs_at_once_all_succeed"]),
    // It gives the fork bomb two seconds, which is too short here. The tests of `real` wait for the
    // limit.
    ("recovery", &["a_fork_bomb_ends_inside_and_the_status_says_why"]),
];

/// Boots the machine, prints its output, and adds up the results.
fn boot(kernel: &Kernel, initramfs: &Path, disk: &Path, patience: Duration) -> Result<Counts> {
    let mut child = Command::new("qemu-system-x86_64")
        .args(["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3G"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"])
        .args(["-append", "console=ttyS0 loglevel=3 panic=-1"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initramfs)
        .arg("-drive")
        .arg(format!("id=disk,format=raw,if=none,cache=unsafe,file={}", disk.display()))
        .args(["-device", "virtio-blk-pci,drive=disk"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start qemu")?;
    let stdout = child.stdout.take().context("read the serial console")?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
        }
    });
    let begin = Instant::now();
    let mut counts = Counts::default();
    let mut has_ended = false;
    while let Ok(line) = lines.recv_timeout(patience.saturating_sub(begin.elapsed())) {
        println!("{line}");
        has_ended |= line == "vm: end";
        if line.starts_with("vm: ok ") {
            counts.passed += 1;
        } else if line.starts_with("vm: FAILED ") {
            counts.failed += 1;
        } else if let Some(found) = parse_result(&line) {
            counts.passed += found.passed;
            counts.failed += found.failed;
        }
    }
    if !has_ended {
        eprintln!("the machine did not come to its end within {} s", begin.elapsed().as_secs());
        counts.failed += 1;
    }
    let _ = child.kill();
    child.wait().context("wait for qemu")?;
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_says_what_it_needs() {
        let module = b"\x7fELF\0license=GPL\0depends=mbcache,jbd2,crc16\0name=ext4\0";
        assert_eq!(dependencies(module), ["mbcache", "jbd2", "crc16"]);
        assert_eq!(dependencies(b"license=GPL\0depends=\0"), Vec::<String>::new());
    }
}
