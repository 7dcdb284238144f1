//! Tests `warren oci`: containers from bundles, by the real binary.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Returns true if the test is to be skipped. Real containers need root. A run without it must not
/// look like a pass, so it fails unless a variable asks to skip.
fn skipped() -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    assert!(
        std::env::var_os("WARREN_SKIP_ROOT_TESTS").is_some(),
        "these tests make real containers and need root; set WARREN_SKIP_ROOT_TESTS to leave them out"
    );
    eprintln!("skipped: not root, and WARREN_SKIP_ROOT_TESTS is set");
    true
}

/// A bundle whose root is the host's `/usr`, and a directory for the runtime's state.
struct Bench {
    directory: tempfile::TempDir,
    id: String,
}

impl Bench {
    fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("bundle/rootfs");
        for name in ["usr", "proc", "dev", "sys", "tmp"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            if Path::new("/").join(name).is_symlink() {
                std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name)).unwrap();
            }
        }
        Self { directory, id: format!("{name}-{}", std::process::id()) }
    }

    fn bundle(&self) -> PathBuf {
        self.directory.path().join("bundle")
    }

    fn write(&self, config: &Value) {
        std::fs::write(self.bundle().join("config.json"), config.to_string()).unwrap();
    }

    fn config(&self, script: &str) -> Value {
        let namespaces =
            ["pid", "mount", "network", "ipc", "uts", "cgroup"].map(|kind| json!({ "type": kind }));
        let mut mounts = vec![
            json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
            json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] }),
        ];
        for name in ["usr", "bin", "sbin", "lib", "lib64"] {
            let path = Path::new("/").join(name);
            if path.is_dir() && !path.is_symlink() {
                let options = ["rbind", "ro", "nosuid"];
                mounts
                    .push(json!({ "destination": path, "type": "bind", "source": path, "options": options }));
            }
        }
        json!({
            "ociVersion": "1.2.0",
            "root": { "path": "rootfs" },
            "hostname": "bundle",
            "process": {
                "args": ["sh", "-c", script], "cwd": "/", "env": ["PATH=/usr/bin:/bin", "FROM=config"],
                "noNewPrivileges": true,
            },
            "mounts": mounts,
            "linux": { "namespaces": namespaces, "resources": { "pids": { "limit": 64 } } },
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warren"));
        command.arg("oci").arg("--root").arg(self.directory.path().join("root")).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    fn oci(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn run(&self) -> Output {
        self.oci(&["run", "--bundle", self.bundle().to_str().unwrap(), &self.id])
    }

    /// Runs `create` with standard streams that are not waited for: the container keeps them.
    fn create(&self) -> bool {
        let mut command = self.command(&["create", "--bundle", self.bundle().to_str().unwrap(), &self.id]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }

    fn status(&self) -> String {
        let output = self.oci(&["state", &self.id]);
        assert!(output.status.success(), "{output:?}");
        let state: Value = serde_json::from_slice(&output.stdout).unwrap();
        state["status"].as_str().unwrap().to_owned()
    }

    fn assert_nothing_left(&self) {
        let root = self.directory.path().join("root");
        let left: Vec<_> = std::fs::read_dir(root).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            let cgroup = hierarchy.path().join("warren-oci").join(&self.id);
            assert!(!cgroup.exists(), "{} is left", cgroup.display());
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.oci(&["delete", "--force", &self.id]);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_bundle_is_run_to_its_end() {
    if skipped() {
        return;
    }
    let bench = Bench::new("run");
    bench.write(&bench.config(
        "echo $FROM $$; hostname; grep CapEff /proc/self/status; ls /proc | grep -c '^[0-9]'; exit 7",
    ));
    let output = bench.run();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(&lines[..3], ["config 1", "bundle", "CapEff:\t0000000000000000"], "{output:?}");
    assert!(lines[3].parse::<usize>().unwrap() <= 4, "{output:?}");
    bench.assert_nothing_left();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "nobody wakes those who wait for another's container")]
fn a_container_goes_through_its_life_and_refuses_what_does_not_fit() {
    if skipped() {
        return;
    }
    let bench = Bench::new("life");
    let mut config = bench.config("exec sleep 100000");
    let (hook, log) = (bench.directory.path().join("hook"), bench.directory.path().join("log"));
    std::fs::write(&hook, format!("#!/bin/sh\n(echo \"$1\"; cat; echo) >> {}\n", log.display())).unwrap();
    std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for moment in ["createRuntime", "poststart", "poststop"] {
        config["hooks"][moment] = json!([{ "path": hook, "args": ["hook", moment], "timeout": 60 }]);
    }
    bench.write(&config);
    assert!(!bench.oci(&["start", &bench.id]).status.success());
    assert!(bench.create());
    assert_eq!(bench.status(), "created");
    assert!(!bench.create(), "the name is taken");
    assert!(!bench.oci(&["delete", &bench.id]).status.success(), "it has not stopped");
    assert!(!bench.oci(&["exec", &bench.id, "true"]).status.success(), "it does not run");

    let output = bench.oci(&["start", &bench.id]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(bench.status(), "running");
    assert!(!bench.oci(&["start", &bench.id]).status.success());
    let output = bench.oci(&[
        "exec",
        "--env",
        "MORE=1",
        "--cwd",
        "/tmp",
        &bench.id,
        "sh",
        "-c",
        "echo $FROM $MORE $PWD; cat /proc/1/comm; exit 3",
    ]);
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(3), "config 1 /tmp\nsleep\n"),
        "{output:?}"
    );
    let output = bench.oci(&["exec", &bench.id, "no-such-program"]);
    assert!(text(&output.stderr).contains("not found"), "{output:?}");
    let listed: Value = serde_json::from_slice(&bench.oci(&["list"]).stdout).unwrap();
    assert_eq!((listed.as_array().map(Vec::len), &listed[0]["id"]), (Some(1), &json!(bench.id)));

    assert!(bench.oci(&["kill", &bench.id, "KILL"]).status.success());
    let deadline = Instant::now() + Duration::from_secs(60);
    while bench.status() != "stopped" {
        assert!(Instant::now() < deadline, "it never stops");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!bench.oci(&["kill", &bench.id, "KILL"]).status.success());
    assert!(bench.oci(&["delete", &bench.id]).status.success());
    assert!(!bench.oci(&["state", &bench.id]).status.success());
    bench.assert_nothing_left();

    let log = std::fs::read_to_string(log).unwrap();
    let told: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
    let status = |line: &str| serde_json::from_str::<Value>(line).unwrap()["status"].clone();
    assert_eq!(
        told.iter().step_by(2).copied().collect::<Vec<_>>(),
        ["createRuntime", "poststart", "poststop"]
    );
    assert_eq!([status(told[1]), status(told[3]), status(told[5])], ["creating", "running", "stopped"]);
}

#[test]
fn what_a_bundle_asks_for_is_done() {
    if skipped() {
        return;
    }
    let bench = Bench::new("asks");
    let script = "echo x > /read-only; touch /proc/sys/kernel/x; cat /proc/kcore | wc -c; mkdir /tmp/d; ulimit -n; id -u; \
                  grep ' / ' /proc/mounts | cut -d' ' -f4 | cut -c1-2; stat -c %t:%T:%a /dev/own";
    let mut config = bench.config(script);
    config["root"]["readonly"] = json!(true);
    config["process"]["user"] = json!({ "uid": 7, "gid": 8 });
    config["process"]["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "soft": 100, "hard": 200 }]);
    config["linux"]["maskedPaths"] = json!(["/proc/kcore", "/not/there"]);
    config["linux"]["readonlyPaths"] = json!(["/proc/sys"]);
    config["linux"]["devices"] =
        json!([{ "type": "c", "path": "/dev/own", "major": 1, "minor": 3, "fileMode": 0o640 }]);
    config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95 }],
    });
    bench.write(&config);
    let output = bench.run();
    assert_eq!(text(&output.stdout), "0\n100\n7\nro\n1:3:640\n", "{output:?}");
    let errors = text(&output.stderr);
    assert!(errors.contains("Operation not supported"), "the filter's own error: {errors}");
    bench.assert_nothing_left();
}

#[test]
fn a_missing_working_directory_is_made_inside_the_container() {
    if skipped() {
        return;
    }
    let bench = Bench::new("cwd");
    std::os::unix::fs::symlink("/tmp", bench.bundle().join("rootfs/link")).unwrap();
    for (cwd, seen) in
        [("/work/deep/er", "/work/deep/er"), ("/link/../made", "/made"), ("/link/new", "/tmp/new")]
    {
        let mut config = bench.config("pwd -P");
        config["process"]["cwd"] = json!(cwd);
        config["root"]["readonly"] = json!(true);
        bench.write(&config);
        let output = bench.run();
        assert_eq!(
            (text(&output.stdout), text(&output.stderr)),
            (format!("{seen}\n"), String::new()),
            "{cwd}"
        );
    }
    // A path through a descriptor leads nowhere.
    let mut config = bench.config("pwd");
    config["process"]["cwd"] = json!("/proc/self/fd/5/new");
    bench.write(&config);
    assert!(!bench.run().status.success());
    bench.assert_nothing_left();
}

#[test]
fn what_cannot_be_done_is_refused_and_leaves_nothing() {
    if skipped() {
        return;
    }
    let bench = Bench::new("refused");
    let good = bench.config("true");
    let with = |change: fn(&mut Value)| {
        let mut config = good.clone();
        change(&mut config);
        config
    };
    for (config, expected) in [
        (json!({ "ociVersion": "1.0.0" }), "root"),
        (with(|config| config["ociVersion"] = json!("7")), "version 7"),
        (with(|config| config["linux"]["namespaces"] = json!([])), "mount namespace"),
        (with(|config| config["process"]["apparmorProfile"] = json!("x")), "apparmorProfile"),
        (with(|config| config["process"]["capabilities"] = json!({ "bounding": ["CAP_FLY"] })), "CAP_FLY"),
        (with(|config| config["process"]["args"] = json!(["/no/such/program"])), "/no/such/program"),
        (with(|config| config["mounts"][0]["type"] = json!("nonsense")), "mount /proc"),
        (with(|config| config["linux"]["cgroupsPath"] = json!("/../x")), "upwards"),
        (
            with(|config| config["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_NOTIFY" })),
            "SCMP_ACT_NOTIFY",
        ),
        (with(|config| config["hooks"]["createRuntime"] = json!([{ "path": "/usr/bin/false" }])), "hook"),
        (with(|config| config["process"]["terminal"] = json!(true)), "console-socket"),
    ] {
        bench.write(&config);
        let output = bench.run();
        assert!(
            !output.status.success() && text(&output.stderr).contains(expected),
            "{expected}: {output:?}"
        );
        bench.assert_nothing_left();
    }
}
