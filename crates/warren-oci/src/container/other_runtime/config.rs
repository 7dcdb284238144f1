//! The `config.json` of a container's bundle: converts our description of a container into the OCI
//! runtime specification. Properties that our own containers have implicitly are written out.

use rustix::process::Resource;
use serde_json::{Value, json};
use warren_sys::seccomp::{Action, Check};

use super::super::child::given;
use super::super::exec::environment;
use super::super::streams::FIRST_SIZE;
use super::files::{Files, Shown};
use crate::bundle::system_call_name;
use crate::cgroup_names;
use crate::defaults;
use crate::protocol::{ContainerRequest, PodRequest, RuntimeKind};
use crate::seccomp_profile;
use crate::spec::Process;

/// The version of the specification that is written.
const VERSION: &str = "1.0.2";

/// Paths of the pod's namespaces.
#[derive(Debug)]
pub(super) struct NamespacePaths {
    pub(super) user: String,
    pub(super) ipc: String,
    pub(super) uts: String,
    pub(super) network: String,
}

/// Builds the whole configuration.
pub(super) fn config(
    kind: RuntimeKind,
    pod: &PodRequest,
    request: &ContainerRequest,
    files: &Files,
    namespaces: &NamespacePaths,
) -> Value {
    let spec = &request.spec;
    let size = spec.process.terminal.then_some(FIRST_SIZE);
    let lines = environment(&spec.process, &[], size);
    let map = json!([{"containerID": 0, "hostID": pod.ids.first, "size": pod.ids.length}]);
    let mut config = json!({
        "ociVersion": VERSION,
        "process": process(&spec.process, &lines, spec.process.terminal),
        "root": {"path": files.root, "readonly": spec.root.readonly},
        "mounts": mounts(&files.mounts),
        "annotations": spec.annotations,
        "linux": {
            "uidMappings": map,
            "gidMappings": map,
            "cgroupsPath": format!("/{}", cgroup_names::container(&pod.cgroup, &request.name)),
            "maskedPaths": given(&spec.linux.masked_paths, defaults::MASKED_PATHS),
            "readonlyPaths": given(&spec.linux.readonly_paths, defaults::READONLY_PATHS),
        },
    });
    match kind {
        RuntimeKind::Gvisor => {
            config["hostname"] = json!(pod.hostname);
            // It is a kernel of its own, with a system call filter of its own towards the host. It
            // cannot join a user namespace, so it gets a new one with the pod's id map.
            config["linux"]["namespaces"] = json!([
                {"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "user"},
                {"type": "network", "path": namespaces.network},
            ]);
        }
        RuntimeKind::Plain => {
            config["linux"]["seccomp"] = seccomp();
            config["linux"]["namespaces"] = json!([
                {"type": "pid"}, {"type": "mount"}, {"type": "cgroup"},
                {"type": "user", "path": namespaces.user},
                {"type": "ipc", "path": namespaces.ipc},
                {"type": "uts", "path": namespaces.uts},
                {"type": "network", "path": namespaces.network},
            ]);
        }
    }
    config
}

/// Builds a process: a container's first one or a later one.
pub(super) fn process(process: &Process, environment: &[String], terminal: bool) -> Value {
    let bounding: Vec<String> = match &process.capabilities {
        Some(capabilities) => capabilities.bounding.clone(),
        None => defaults::CAPABILITIES.iter().map(|name| (*name).to_owned()).collect(),
    };
    let effective = if process.user.uid == 0 { bounding.clone() } else { Vec::new() };
    let mut limits: Vec<Value> = process
        .rlimits
        .iter()
        .map(|limit| json!({"type": limit.kind, "soft": limit.soft, "hard": limit.hard}))
        .collect();
    // A runtime that may not raise its own limit may not raise the container's either.
    let allowed = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    for (kind, value) in [("RLIMIT_CORE", 0), ("RLIMIT_NOFILE", defaults::OPEN_FILES.min(allowed))] {
        if !process.rlimits.iter().any(|limit| limit.kind == kind) {
            limits.push(json!({"type": kind, "soft": value, "hard": value}));
        }
    }
    json!({
        "terminal": terminal,
        "user": {
            "uid": process.user.uid,
            "gid": process.user.gid,
            "additionalGids": process.user.additional_gids,
        },
        "args": process.args,
        "env": environment,
        "cwd": process.cwd,
        "capabilities": {
            "bounding": bounding, "effective": effective, "permitted": effective, "inheritable": [], "ambient": [],
        },
        "rlimits": limits,
        "noNewPrivileges": process.no_new_privileges,
        "oomScoreAdj": process.oom_score_adj.unwrap_or(defaults::OOM_SCORE_ADJUSTMENT).clamp(0, 1000),
    })
}

/// Builds the standard mounts and those of this container.
fn mounts(shown: &[Shown]) -> Vec<Value> {
    let standard = |destination: &str, kind: &str, options: &[&str]| json!({"destination": destination, "type": kind, "source": kind, "options": options});
    let mut mounts = vec![
        standard("/proc", "proc", &["nosuid", "nodev", "noexec"]),
        standard("/sys", "sysfs", &["nosuid", "nodev", "noexec", "ro"]),
        standard("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        standard(
            "/dev/pts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        standard("/dev/shm", "tmpfs", &["nosuid", "nodev", "noexec", "mode=1777", "size=65536k"]),
        standard("/dev/mqueue", "mqueue", &["nosuid", "nodev", "noexec"]),
    ];
    mounts.extend(shown.iter().map(|file| {
        let mut options = vec!["rbind", "nosuid", "nodev", if file.read_only { "ro" } else { "rw" }];
        if file.no_exec {
            options.push("noexec");
        }
        json!({"destination": file.destination, "type": "bind", "source": file.source, "options": options})
    }));
    mounts
}

/// Converts our list of system calls. A call without a name here is refused, like one that is not
/// on the list.
fn seccomp() -> Value {
    let mut rules = Vec::new();
    let mut plain = Vec::new();
    for (number, action) in seccomp_profile::rules() {
        let Some(name) = system_call_name(number) else { continue };
        let mut allow_if = |argument: u8, value: u32, operation: &str| {
            rules.push(json!({
                "names": [name], "action": "SCMP_ACT_ALLOW",
                "args": [{"index": argument, "value": value, "valueTwo": 0, "op": operation}],
            }));
        };
        match action {
            Action::Allow => plain.push(name),
            Action::Fail(error) => {
                rules.push(json!({"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": error}));
            }
            Action::Check(Check::NoneOf { argument, bits }) => {
                allow_if(argument, bits, "SCMP_CMP_MASKED_EQ");
            }
            Action::Check(Check::Only { argument, values }) => {
                values.into_iter().for_each(|value| allow_if(argument, value, "SCMP_CMP_EQ"));
            }
            // Rules are joined by "or", so allow the ranges between the forbidden values.
            Action::Check(Check::Not { argument, values }) => {
                let (Some(&least), Some(&most)) = (values.iter().min(), values.iter().max()) else {
                    continue;
                };
                allow_if(argument, least, "SCMP_CMP_LT");
                allow_if(argument, most, "SCMP_CMP_GT");
                let between = (least..most).filter(|value| !values.contains(value));
                between.for_each(|value| allow_if(argument, value, "SCMP_CMP_EQ"));
            }
        }
    }
    rules.push(json!({"names": plain, "action": "SCMP_ACT_ALLOW"}));
    json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": libc::EPERM, "syscalls": rules})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{LogFile, Rootfs};
    use crate::spec::Spec;

    fn written(kind: RuntimeKind) -> Value {
        let pod: PodRequest = serde_json::from_value(json!({
            "uid": "u", "directory": "/pods/u", "cgroup": "warren-0/u", "hostname": "box", "ids": {"first": 1879048192},
        }))
        .unwrap();
        let mut spec = Spec::new(Process::new(["sh"]));
        spec.process.user.uid = 5;
        let request = ContainerRequest {
            name: "main".to_owned(),
            attempt: 0,
            spec,
            rootfs: Rootfs::default(),
            log: LogFile::new("/log"),
        };
        let shown = Shown { source: "/s".into(), destination: "/d".into(), read_only: true, no_exec: false };
        let files = Files { root: "/r".into(), mounts: vec![shown], messages: Vec::new() };
        let path = |name: &str| format!("/proc/1/fd/{name}");
        let paths = NamespacePaths { user: path("3"), ipc: path("4"), uts: path("5"), network: path("6") };
        config(kind, &pod, &request, &files, &paths)
    }

    #[test]
    fn what_our_own_containers_have_is_said_to_others() {
        let config = written(RuntimeKind::Plain);
        assert_eq!(config["process"]["noNewPrivileges"], json!(true));
        assert_eq!(config["process"]["capabilities"]["effective"], json!([]));
        assert_eq!(config["process"]["capabilities"]["bounding"][0], json!("CAP_CHOWN"));
        assert_eq!(config["linux"]["uidMappings"][0]["hostID"], json!(1_879_048_192_u32));
        assert_eq!(config["linux"]["cgroupsPath"], json!("/warren-0/u.main"));
        assert_eq!(config["mounts"][6]["options"], json!(["rbind", "nosuid", "nodev", "ro"]));
        let names = |value: &Value| value["syscalls"].to_string();
        let calls = names(&config["linux"]["seccomp"]);
        assert!(calls.contains("\"openat\"") && !calls.contains("\"mount\""), "{calls}");
    }

    #[test]
    fn a_user_space_kernel_has_only_the_network_of_the_pod() {
        let config = written(RuntimeKind::Gvisor);
        let namespaces = config["linux"]["namespaces"].as_array().unwrap();
        let with_path: Vec<&Value> = namespaces.iter().filter(|one| one.get("path").is_some()).collect();
        assert_eq!(with_path, [&json!({"type": "network", "path": "/proc/1/fd/6"})]);
        assert_eq!(config["hostname"], json!("box"));
        assert!(config["linux"].get("seccomp").is_none());
    }
}
