//! The cgroup of a bundle: its path in each hierarchy, and its limits in the format of the kernel's
//! files. Bundles may use any controller of the machine. Pods (`warren_sys::cgroup`) use only those
//! that every machine has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::config::{BlockIo, Config, Cpu, DeviceRule, Memory, Resources};
use super::{Error, Step as _};

/// The time limit for killed processes to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Devices that every container may use, whatever its rules say: `null`, `zero`, `full`, `tty`,
/// `random`, `urandom`, `ptmx` and terminals. Making any device node is allowed, because the rules
/// are enforced when a device is opened.
const ALWAYS_ALLOWED: &[&str] = &[
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
];

/// The directories that make up one cgroup.
#[derive(Debug)]
pub(super) struct Cgroups {
    is_version_2: bool,
    /// For each hierarchy: its controllers, the name of its mount, and the cgroup's directory.
    directories: Vec<(Vec<String>, String, PathBuf)>,
}

impl Cgroups {
    /// Returns the cgroup `path` below the root of each hierarchy, whether it exists or not.
    pub(super) fn named(path: &str) -> Result<Self, Error> {
        let step = || "read the mount table".to_owned();
        let table = fs::read_to_string("/proc/self/mountinfo").step(step)?;
        let below = Path::new(path.trim_start_matches('/'));
        if below.components().any(|part| part.as_os_str() == "..") {
            return Err(Error::Config(format!("the cgroup `{path}` leads upwards")));
        }
        let mut first: Vec<(Vec<String>, String, PathBuf)> = Vec::new();
        let mut second = None;
        for line in table.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(point) = left.split(' ').nth(4).map(PathBuf::from) else { continue };
            let mut right = right.split(' ');
            match (right.next(), right.nth(1)) {
                (Some("cgroup2"), _) => second = Some(point),
                (Some("cgroup"), Some(options)) => {
                    let controllers: Vec<String> =
                        options.split(',').filter(|option| *option != "rw").map(str::to_owned).collect();
                    let name = point.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    if !first.iter().any(|(known, ..)| *known == controllers) {
                        first.push((controllers, name, point.join(below)));
                    }
                }
                _ => {}
            }
        }
        match (first.is_empty(), second) {
            (false, _) => Ok(Self { is_version_2: false, directories: first }),
            (true, Some(root)) => {
                let directories = vec![(Vec::new(), String::new(), root.join(below))];
                Ok(Self { is_version_2: true, directories })
            }
            (true, None) => Err(io::Error::from(io::ErrorKind::Unsupported))
                .step(|| "find a cgroup file system".to_owned()),
        }
    }

    /// Creates the cgroup with the limits of a bundle.
    pub(super) fn create(&self, config: &Config) -> Result<(), Error> {
        for (controllers, _, directory) in &self.directories {
            let step = || format!("make the cgroup {}", directory.display());
            if controllers.iter().any(|controller| controller == "cpuset") {
                make_cpuset(directory).step(step)?;
            } else if self.is_version_2 {
                make_version_2(directory).step(step)?;
            } else {
                fs::create_dir_all(directory).step(step)?;
            }
        }
        let resources = &config.linux.resources;
        match self.is_version_2 {
            true => self.limit_version_2(config),
            false => self.limit(resources),
        }
    }

    pub(super) fn add(&self, pid: i32) -> Result<(), Error> {
        self.directories.iter().try_for_each(|(.., directory)| {
            write(&directory.join("cgroup.procs"), &pid.to_string()).step(|| "enter the cgroup".to_owned())
        })
    }

    /// Returns the directories with the names of their mounts, for the container's view.
    pub(super) fn views(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.directories.iter().map(|(_, name, directory)| (name.as_str(), directory.as_path()))
    }

    /// Kills all processes in the cgroup and removes it.
    #[expect(clippy::disallowed_methods, reason = "nobody is told when a version 1 cgroup has become empty")]
    pub(super) fn remove(&self) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut busy = None;
            for (.., directory) in &self.directories {
                match fs::remove_dir(directory) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => busy = Some((directory, error)),
                    Ok(()) => {}
                }
            }
            let Some((directory, error)) = busy else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(error).step(|| format!("remove the cgroup {}", directory.display()));
            }
            self.signal_all(libc::SIGKILL);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(super) fn signal_all(&self, signal: i32) {
        for (.., directory) in &self.directories {
            for pid in fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default().lines() {
                let Ok(pid) = pid.parse() else { continue };
                if let Ok(pidfd) = warren_sys::process::open_pidfd(pid) {
                    use std::os::fd::AsFd as _;
                    let _ = warren_sys::process::send_signal(pidfd.as_fd(), signal);
                }
            }
        }
    }

    fn set(&self, controller: &str, file: &str, text: &str) -> Result<(), Error> {
        let found = self.directories.iter().find(|(names, ..)| names.iter().any(|name| name == controller));
        let Some((.., directory)) = found else {
            return Err(Error::Config(format!("the machine has no cgroup controller `{controller}`")));
        };
        write(&directory.join(file), text).step(|| format!("set {file} of the cgroup to {text}"))
    }

    fn limit(&self, resources: &Resources) -> Result<(), Error> {
        if let Some(memory) = &resources.memory {
            self.limit_memory(memory)?;
        }
        if let Some(cpu) = &resources.cpu {
            self.limit_cpu(cpu)?;
        }
        if let Some(pids) = &resources.pids {
            let limit = if pids.limit > 0 { pids.limit.to_string() } else { "max".to_owned() };
            self.set("pids", "pids.max", &limit)?;
        }
        if let Some(block_io) = &resources.block_io {
            self.limit_block_io(block_io)?;
        }
        for page in &resources.hugepage_limits {
            self.set(
                "hugetlb",
                &format!("hugetlb.{}.limit_in_bytes", page.page_size),
                &page.limit.to_string(),
            )?;
        }
        if let Some(network) = &resources.network {
            if let Some(class) = network.class_id {
                self.set("net_cls", "net_cls.classid", &class.to_string())?;
            }
            for one in &network.priorities {
                self.set("net_prio", "net_prio.ifpriomap", &format!("{} {}", one.name, one.priority))?;
            }
        }
        if !resources.devices.is_empty() {
            for rule in &resources.devices {
                let file = if rule.allow { "devices.allow" } else { "devices.deny" };
                self.set("devices", file, &device_rule(rule))?;
            }
            for rule in ALWAYS_ALLOWED {
                self.set("devices", "devices.allow", rule)?;
            }
        }
        Ok(())
    }

    fn limit_memory(&self, memory: &Memory) -> Result<(), Error> {
        let number = |value: Option<i64>| value.map(|value| value.to_string());
        if let Some(limit) = number(memory.limit) {
            self.set("memory", "memory.limit_in_bytes", &limit)?;
        }
        if let Some(swap) = number(memory.swap) {
            self.set("memory", "memory.memsw.limit_in_bytes", &swap)?;
        }
        if let Some(reservation) = number(memory.reservation) {
            self.set("memory", "memory.soft_limit_in_bytes", &reservation)?;
        }
        if let Some(kernel_tcp) = number(memory.kernel_tcp) {
            self.set("memory", "memory.kmem.tcp.limit_in_bytes", &kernel_tcp)?;
        }
        if let Some(swappiness) = memory.swappiness {
            self.set("memory", "memory.swappiness", &swappiness.to_string())?;
        }
        if memory.disable_oom_killer == Some(true) {
            self.set("memory", "memory.oom_control", "1")?;
        }
        Ok(())
    }

    fn limit_cpu(&self, cpu: &Cpu) -> Result<(), Error> {
        // Write a period before its quota: the kernel checks each pair.
        for (file, value) in [
            ("cpu.shares", cpu.shares.map(|value| value.to_string())),
            ("cpu.cfs_period_us", cpu.period.map(|value| value.to_string())),
            ("cpu.cfs_quota_us", cpu.quota.map(|value| value.to_string())),
            ("cpu.rt_period_us", cpu.realtime_period.map(|value| value.to_string())),
            ("cpu.rt_runtime_us", cpu.realtime_runtime.map(|value| value.to_string())),
        ] {
            if let Some(value) = value.filter(|value| value != "0") {
                self.set("cpu", file, &value)?;
            }
        }
        for (file, value) in [("cpuset.cpus", &cpu.cpus), ("cpuset.mems", &cpu.mems)] {
            if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
                self.set("cpuset", file, value)?;
            }
        }
        Ok(())
    }

    fn limit_block_io(&self, block_io: &BlockIo) -> Result<(), Error> {
        if let Some(weight) = block_io.weight {
            self.set("blkio", "blkio.weight", &weight.to_string())?;
        }
        if let Some(weight) = block_io.leaf_weight {
            self.set("blkio", "blkio.leaf_weight", &weight.to_string())?;
        }
        for device in &block_io.weight_device {
            for (file, weight) in
                [("blkio.weight_device", device.weight), ("blkio.leaf_weight_device", device.leaf_weight)]
            {
                if let Some(weight) = weight {
                    self.set("blkio", file, &format!("{}:{} {weight}", device.major, device.minor))?;
                }
            }
        }
        for (file, devices) in [
            ("blkio.throttle.read_bps_device", &block_io.throttle_read_bps_device),
            ("blkio.throttle.write_bps_device", &block_io.throttle_write_bps_device),
            ("blkio.throttle.read_iops_device", &block_io.throttle_read_iops_device),
            ("blkio.throttle.write_iops_device", &block_io.throttle_write_iops_device),
        ] {
            for device in devices {
                self.set("blkio", file, &format!("{}:{} {}", device.major, device.minor, device.rate))?;
            }
        }
        Ok(())
    }

    fn limit_version_2(&self, config: &Config) -> Result<(), Error> {
        let resources = &config.linux.resources;
        let bounding = config.process.iter().flat_map(|process| &process.capabilities.bounding);
        if !resources.devices.is_empty() && bounding.into_iter().any(|name| name == "CAP_MKNOD") {
            return Err(Error::Config(
                "rules about devices are kept by not making nodes, so CAP_MKNOD cannot be given with them"
                    .to_owned(),
            ));
        }
        if resources.block_io.is_some()
            || resources.network.is_some()
            || !resources.hugepage_limits.is_empty()
        {
            return Err(Error::Config(
                "limits of block I/O, huge pages and network classes need `unified`".to_owned(),
            ));
        }
        let mut lines: Vec<(&str, String)> = Vec::new();
        let amount = |value: i64| if value < 0 { "max".to_owned() } else { value.to_string() };
        if let Some(memory) = &resources.memory {
            lines.extend(memory.limit.map(|limit| ("memory.max", amount(limit))));
            lines.extend(memory.reservation.map(|reservation| ("memory.low", amount(reservation))));
            if let (Some(limit), Some(swap)) = (memory.limit, memory.swap) {
                lines.push((
                    "memory.swap.max",
                    if swap < 0 { "max".to_owned() } else { (swap - limit).max(0).to_string() },
                ));
            }
        }
        if let Some(cpu) = &resources.cpu {
            // The kubelet's formula maps 2–262144 to 1–10000.
            let weight = |shares: u64| 1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142;
            lines.extend(
                cpu.shares
                    .filter(|shares| *shares > 0)
                    .map(|shares| ("cpu.weight", weight(shares).to_string())),
            );
            if cpu.quota.is_some() || cpu.period.is_some() {
                let quota =
                    cpu.quota.filter(|quota| *quota > 0).map_or("max".to_owned(), |quota| quota.to_string());
                lines.push(("cpu.max", format!("{quota} {}", cpu.period.unwrap_or(100_000))));
            }
            lines.extend(cpu.cpus.clone().filter(|text| !text.is_empty()).map(|text| ("cpuset.cpus", text)));
            lines.extend(cpu.mems.clone().filter(|text| !text.is_empty()).map(|text| ("cpuset.mems", text)));
        }
        if let Some(pids) = &resources.pids {
            lines.push(("pids.max", if pids.limit > 0 { pids.limit.to_string() } else { "max".to_owned() }));
        }
        lines.extend(resources.unified.iter().map(|(file, text)| (file.as_str(), text.clone())));
        for (file, text) in lines {
            if file.contains('/') {
                return Err(Error::Config(format!("`{file}` is not a file of a cgroup")));
            }
            for (.., directory) in &self.directories {
                write(&directory.join(file), &text).step(|| format!("set {file} of the cgroup to {text}"))?;
            }
        }
        Ok(())
    }
}

fn device_rule(rule: &DeviceRule) -> String {
    let kind = rule.kind.as_deref().filter(|kind| !kind.is_empty()).unwrap_or("a");
    let number = |value: Option<i64>| {
        value.filter(|value| *value >= 0).map_or("*".to_owned(), |value| value.to_string())
    };
    let access = rule.access.as_deref().filter(|access| !access.is_empty()).unwrap_or("rwm");
    format!("{kind} {}:{} {access}", number(rule.major), number(rule.minor))
}

/// Creates a cpuset with the processors of its parent. A new cpuset has none, and no process could
/// enter it.
fn make_cpuset(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().ok_or(io::ErrorKind::NotFound)?;
    make_cpuset(parent)?;
    fs::create_dir(directory)?;
    for file in ["cpuset.cpus", "cpuset.mems"] {
        write(&directory.join(file), fs::read_to_string(parent.join(file))?.trim())?;
    }
    Ok(())
}

/// Creates a version 2 cgroup. A controller reaches it only if every ancestor enables it.
fn make_version_2(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().ok_or(io::ErrorKind::NotFound)?;
    make_version_2(parent)?;
    for controller in fs::read_to_string(parent.join("cgroup.controllers"))?.split_whitespace() {
        // A controller that cannot be enabled matters only to bundles with limits for it.
        let _ = write(&parent.join("cgroup.subtree_control"), &format!("+{controller}"));
    }
    fs::create_dir(directory)
}

/// Writes to an existing file. If it does not exist, the controller is missing.
fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write as _;
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}
