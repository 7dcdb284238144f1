//! Tests of real containers: effects, output, exit.

use std::io::{Read, Write};

use crate::support::{Home, Pod, eventually, skipped};
use warren_oci::protocol::{Answer, Call, ContainerStatus, PodNetwork, RefusalReason, Target, TerminalSize};
use warren_oci::spec::{Limits, Mount, MountKind, User};

#[test]
fn a_container_logs_both_streams_and_its_exit_code_is_kept() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.pod(
        "echo",
        vec![home.container("echo", "main", &["sh", "-c", "echo out; echo err >&2; printf end; exit 7"])],
    );
    let state = pod.wait("main", |container| matches!(container.status, ContainerStatus::Exited { .. }));
    let ContainerStatus::Exited { exit, started_at, finished_at } = state.status else { unreachable!() };
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (7, None, false));
    assert!(started_at <= finished_at);
    let log = std::fs::read_to_string(home.directory("echo").join("logs/main/0.log")).unwrap();
    let mut lines: Vec<&str> = log.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["stderr F err", "stdout F end", "stdout F out"]);
    let time = log.split(' ').next().unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok() && time.len() == 30, "{time}");
    // The disk has the same state, for a daemon that comes after the shim is gone.
    let recorded = warren_oci::cleanup::read_state(&pod.directory).unwrap().unwrap();
    assert!(
        matches!(recorded.containers["main"].status, ContainerStatus::Exited { exit, .. } if exit.code == 7)
    );
    assert!(pod.shutdown().shut_down);
}

#[test]
fn a_signal_is_told_from_an_exit_code() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("signal");
    pod.client
        .call(Call::Signal { target: Target::Container("main".to_owned()), signal: libc::SIGKILL }, drop)
        .unwrap();
    let state = pod.wait("main", |container| matches!(container.status, ContainerStatus::Exited { .. }));
    let ContainerStatus::Exited { exit, .. } = state.status else { unreachable!() };
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    pod.shutdown();
}

#[test]
fn init_ends_on_a_polite_request() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("init");
    // Init must reap an orphan: it must not stay as a zombie.
    pod.shell("(sleep 0.05 &)");
    eventually("the orphan is reaped", || {
        pod.shell("cat /proc/[0-9]*/stat | grep -c ' Z ' || true").stdout.starts_with('0').then_some(())
    });
    pod.client
        .call(Call::Signal { target: Target::Container("main".to_owned()), signal: libc::SIGTERM }, drop)
        .unwrap();
    let state = pod.wait("main", |container| matches!(container.status, ContainerStatus::Exited { .. }));
    assert!(matches!(state.status, ContainerStatus::Exited { exit, .. } if exit.code == 0), "{state:?}");
    pod.shutdown();
}

/// The kernel discards a signal that the first process of a pid namespace does not handle, and a
/// program that has just started handles none.
#[test]
fn a_request_to_end_reaches_a_first_process_that_handles_it_only_later() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let script =
        "until [ -e /tmp/go ]; do sleep 0.01; done; trap 'exit 7' TERM; while :; do sleep 0.01; done";
    let pod = home.pod("early", vec![home.container("early", "main", &["sh", "-c", script])]);
    pod.wait("main", |container| matches!(container.status, ContainerStatus::Running { .. }));
    let signal = Call::Signal { target: Target::Container("main".to_owned()), signal: libc::SIGTERM };
    pod.client.call(signal, drop).unwrap();
    assert_eq!(pod.shell("touch /tmp/go").stderr, "");
    let state = pod.wait("main", |container| matches!(container.status, ContainerStatus::Exited { .. }));
    assert!(matches!(state.status, ContainerStatus::Exited { exit, .. } if exit.code == 7), "{state:?}");
    pod.shutdown();
}

#[test]
fn a_message_takes_one_page_of_memory_and_its_beginning_is_kept() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let container = |name: &str, script: &str| {
        let mut container = home.container("message", name, &["sh", "-c", script]);
        container.spec.mounts.push(Mount {
            destination: "/dev/termination-log".into(),
            kind: MountKind::Message,
            source: Some(home.directory("message").join("messages").join(name)),
            options: vec!["nosuid".to_owned(), "nodev".to_owned(), "noexec".to_owned()],
        });
        container
    };
    let pod = home.pod(
        "message",
        vec![
            container("short", "echo first > /dev/termination-log; echo second > /dev/termination-log"),
            container(
                "long",
                "yes 2>&- | head -c 1000000 2>&- > /dev/termination-log; stat -c %b /dev/termination-log",
            ),
            container("none", "test -w /dev/termination-log"),
        ],
    );
    for name in ["short", "long", "none"] {
        pod.wait(name, |container| matches!(container.status, ContainerStatus::Exited { .. }));
    }
    let kept = |name: &str| std::fs::read(home.directory("message").join("messages").join(name));
    assert_eq!(kept("short").unwrap(), b"second\n");
    let long = kept("long").unwrap();
    assert!(long.len() == 4096 && long.starts_with(b"y\ny\n"), "{} bytes", long.len());
    assert_eq!(kept("none").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    let log = std::fs::read_to_string(home.directory("message").join("logs/long/0.log")).unwrap();
    let blocks: u64 = log.lines().last().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(blocks * 512 <= 64 << 10, "no more than the largest page: {log}");
    pod.shutdown();
}

#[test]
fn exec_keeps_streams_apart_and_passes_input_and_exit_code() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("exec");
    let output = pod.shell("echo out; echo err >&2; exit 3");
    assert_eq!((output.stdout.as_str(), output.stderr.as_str(), output.exit.code), ("out\n", "err\n", 3));
    let output = pod.run(Pod::request(&["cat"]), b"data");
    assert_eq!((output.stdout.as_str(), output.exit.code), ("data", 0));
    let output = pod.shell("kill -TERM $$");
    assert_eq!(output.exit.signal, Some(15));

    let mut request =
        Pod::request(&["sh", "-c", "echo $A $HOME; pwd; id -u; id -g; id -G; grep ^Cap /proc/self/status"]);
    request.env = vec!["A=b".to_owned()];
    request.cwd = Some("/var/tmp/made".into());
    request.user = Some(User { uid: 1000, gid: 1000, additional_gids: vec![7] });
    let output = pod.run(request, b"");
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert_eq!(lines[..5], ["b /root", "/var/tmp/made", "1000", "1000", "1000 7"], "{output:?}");
    assert!(output.stdout.contains("CapEff:\t0000000000000000"), "{output:?}");

    assert_eq!(pod.shell("echo again > /dev/stdout").stdout, "again\n");
    pod.shutdown();
}

#[test]
fn what_cannot_be_run_is_refused_with_the_reason() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("refuse");
    let refusal = pod.start(Pod::request(&["no-such-program"])).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::StartFailed);
    assert!(
        refusal.message.contains("no-such-program") && refusal.message.contains("not found"),
        "{refusal}"
    );
    let refusal = pod.start(Pod::request(&["/etc/passwd"])).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::NotExecutable);
    assert!(refusal.message.contains("ermission denied"), "{refusal}");
    let mut request = Pod::request(&["true"]);
    request.container = "other".to_owned();
    assert_eq!(pod.start(request).unwrap_err().reason, RefusalReason::Invalid);
    pod.shutdown();

    let mut container = home.container("refuse2", "main", &["true"]);
    container.spec.mounts.push(Mount {
        destination: "/data".into(),
        kind: MountKind::Bind,
        source: Some("/no/such/directory".into()),
        options: Vec::new(),
    });
    let pod = home.pod("refuse2", vec![container]);
    let state = pod.wait("main", |container| matches!(container.status, ContainerStatus::Failed { .. }));
    let ContainerStatus::Failed { refusal, .. } = state.status else { unreachable!() };
    assert_eq!(refusal.reason, RefusalReason::CreateFailed);
    assert!(refusal.message.contains("/data"), "{refusal}");
    pod.shutdown();
}

#[test]
fn a_first_process_that_fails_while_its_shim_waits_for_its_network_says_why() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let mut request = home.request("long", vec![home.container("long", "main", &["true"])]);
    request.hostname = "x".repeat(65);
    let (device, address, gateway) = ("wrn-never".to_owned(), [127, 9, 9, 2].into(), [127, 9, 9, 1].into());
    request.network = Some(PodNetwork { device, address, gateway, routes: Vec::new() });
    let pod = home.pod_of(&request);
    let state = pod.wait("main", |container| matches!(container.status, ContainerStatus::Failed { .. }));
    let ContainerStatus::Failed { refusal, .. } = state.status else { unreachable!() };
    assert!(refusal.message.starts_with("set the host name: "), "{refusal}");
    pod.shutdown();
}

#[test]
fn a_terminal_is_one_and_can_be_resized() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("tty");
    let script = "test -t 0 && test -t 1 && tty; stty size; read line; stty size; echo got $line; exit 4";
    let (number, mut master) = pod.terminal(script, 100, 40);
    let mut text = String::new();
    let mut read_until = |wanted: &str, master: &mut std::fs::File| {
        let mut buffer = [0u8; 1024];
        while !text.contains(wanted) {
            let length = master.read(&mut buffer).unwrap();
            text.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    };
    read_until("/dev/pts/0\r\n40 100\r\n", &mut master);
    pod.client
        .call(Call::Resize { exec: number, size: TerminalSize { columns: 55, rows: 22 } }, drop)
        .unwrap();
    master.write_all(b"hello\n").unwrap();
    read_until("22 55\r\ngot hello\r\n", &mut master);
    assert_eq!(pod.wait_exit(number).code, 4);

    // Closing the terminal hangs up.
    let (number, master) = pod.terminal("sleep 1000", 80, 24);
    drop(master);
    assert_eq!(pod.wait_exit(number).signal, Some(libc::SIGHUP));
    pod.shutdown();
}

#[test]
fn containers_of_a_pod_share_what_pods_share_and_no_more() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("pair");
    pod.shell("mkdir /dev/shm/x; touch /var/tmp/only-main");
    let second = home.container("pair", "second", &["sleep", "1000"]);
    pod.client.call(Call::Start { container: Box::new(second.clone()) }, drop).unwrap();
    let look = "for kind in net user uts ipc pid mnt; do readlink /proc/self/ns/$kind; done; \
                ls /var/tmp; hostname; ip -o link 2>/dev/null | wc -l";
    let main = pod.shell(look).stdout;
    let mut request = Pod::request(&["sh", "-c", look]);
    request.container = "second".to_owned();
    let second_output = pod.run(request, b"");
    let (main, other): (Vec<&str>, Vec<&str>) =
        (main.lines().collect(), second_output.stdout.lines().collect());
    assert_eq!(main[..4], other[..4], "{second_output:?}");
    assert!(main[4] != other[4] && main[5] != other[5]);
    assert!(main.contains(&"only-main") && !other.contains(&"only-main"));
    assert!(other.contains(&"pair"));

    // A name is taken until its container has ended, and then needs a higher attempt.
    assert!(pod.client.call(Call::Start { container: Box::new(second.clone()) }, drop).is_err());
    pod.client
        .call(Call::Signal { target: Target::Container("second".to_owned()), signal: libc::SIGKILL }, drop)
        .unwrap();
    pod.wait("second", |container| matches!(container.status, ContainerStatus::Exited { .. }));
    assert!(pod.client.call(Call::Start { container: Box::new(second.clone()) }, drop).is_err());
    let mut again = second;
    again.attempt = 1;
    pod.client.call(Call::Start { container: Box::new(again) }, drop).unwrap();
    assert!(matches!(pod.state().containers["second"].status, ContainerStatus::Running { .. }));
    pod.shutdown();
}

#[test]
fn volumes_are_there_and_keep_their_rules() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let source = home.data.join("volume");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), "content").unwrap();
    let mut container = home.container("volumes", "main", &["/.warren/init"]);
    let bind = |destination: &str, options: &[&str]| Mount {
        destination: destination.into(),
        kind: MountKind::Bind,
        source: Some(source.clone()),
        options: options.iter().map(|&option| option.to_owned()).collect(),
    };
    container.spec.mounts = vec![
        bind("/data/deep/writable", &["idmap"]),
        bind("/data/readonly", &["ro", "idmap"]),
        Mount {
            destination: "/scratch".into(),
            kind: MountKind::Tmpfs,
            source: None,
            options: vec!["size=1m".to_owned()],
        },
    ];
    container.spec.root.readonly = true;
    let pod = home.pod("volumes", vec![container]);
    pod.wait("main", |container| matches!(container.status, ContainerStatus::Running { .. }));
    let output = pod.shell(
        "cat /data/readonly/file; echo; stat -c %u /data/readonly/file; echo new > /data/deep/writable/new; \
         echo x > /data/readonly/y; echo x > /scratch/x && echo scratch; head -c 2000000 /dev/zero > /scratch/big; touch /root/z",
    );
    assert_eq!(output.stdout, "content\n0\nscratch\n", "{output:?}");
    assert!(output.stderr.contains("/data/readonly/y: Read-only"), "{output:?}");
    assert!(output.stderr.contains("No space left"), "{output:?}");
    assert!(output.stderr.contains("/root/z': Read-only"), "{output:?}");
    // Files that the container wrote through a mapped volume belong to the host's root, like the
    // files beside them.
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::metadata(source.join("new")).unwrap().uid(), 0);
    pod.shutdown();
}

#[test]
fn pause_stops_the_processes_and_resume_lets_them_go_on() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("pause");
    let (_, streams) = pod.start(Pod::request(&["sh", "-c", "while :; do :; done"])).unwrap();
    let used = || match pod.client.call(Call::Stats, drop).unwrap() {
        (Answer::Stats { containers }, _) => containers["main"],
        other => panic!("unexpected {other:?}"),
    };
    let before = used().cpu_nanoseconds;
    eventually("it runs", || (used().cpu_nanoseconds > before).then_some(()));
    pod.client.call(Call::Pause, drop).unwrap();
    assert!(pod.state().paused);
    // A process would freeze before its start is complete, so it is refused.
    assert!(pod.start(Pod::request(&["true"])).unwrap_err().message.contains("paused"));
    // Freezing may take a moment to reach a running process. From then on it uses no processor
    // time.
    let (mut last, mut times) = (0, 0);
    eventually("it stands still", || {
        let now = used().cpu_nanoseconds;
        times = if now == last { times + 1 } else { 0 };
        last = now;
        (times == 25).then_some(())
    });
    let stats = used();
    assert!(
        stats.pids >= 2 && stats.memory_bytes > 0 && stats.memory_working_set_bytes <= stats.memory_bytes,
        "{stats:?}"
    );
    let frozen = used().cpu_nanoseconds;
    pod.client.call(Call::Resume, drop).unwrap();
    eventually("it goes on", || (used().cpu_nanoseconds > frozen).then_some(()));
    pod.client.call(Call::Pause, drop).unwrap();
    drop(streams);
    pod.shutdown();
}

#[test]
fn output_without_end_is_bounded_on_disk() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let mut container =
        home.container("flood", "main", &["sh", "-c", "yes flood | head -c 3000000; echo last"]);
    container.log.max_bytes = 100_000;
    container.log.max_files = 3;
    let pod = home.pod("flood", vec![container]);
    pod.wait("main", |container| matches!(container.status, ContainerStatus::Exited { .. }));
    let directory = home.directory("flood").join("logs/main");
    let total: u64 =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(total <= 400_000, "{total}");
    let log = std::fs::read_to_string(directory.join("0.log")).unwrap();
    assert!(log.ends_with("stdout F last\n"), "{}", &log[log.len().saturating_sub(200)..]);
    pod.shutdown();
}

#[test]
fn fifty_pods_at_once() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pods: Vec<Pod> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..50)
            .map(|number| {
                let home = &home;
                scope.spawn(move || home.idle_pod(&format!("pod-{number}")))
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    for (number, pod) in pods.iter().enumerate() {
        assert_eq!(pod.shell("hostname").stdout, format!("pod-{number}\n"));
    }
    let mut ranges: Vec<u32> = pods.iter().map(|pod| pod.first_id).collect();
    ranges.sort_unstable();
    ranges.dedup();
    assert_eq!(ranges.len(), 50);
    std::thread::scope(|scope| {
        for pod in pods {
            scope.spawn(move || pod.shutdown());
        }
    });
    assert_eq!(warren_oci::cleanup::pods_with_cgroups(&home.id).unwrap(), Vec::<String>::new());
}

#[test]
fn limits_on_processors_are_those_of_the_cgroup() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let mut container = home.container("cpu", "main", &["/.warren/init"]);
    container.spec.linux.resources = Limits {
        cpu: Some(warren_oci::spec::CpuQuota::from_millis(500)),
        cpu_shares: Some(512),
        ..container.spec.linux.resources
    };
    let pod = home.pod("cpu", vec![container]);
    pod.wait("main", |container| matches!(container.status, ContainerStatus::Running { .. }));
    let directory = home.cgroups().into_iter().find(|path| path.join("cpu.cfs_quota_us").exists());
    // On version 2 the file has another name; the limit itself is the same.
    if let Some(directory) = directory {
        let read = |name: &str| std::fs::read_to_string(directory.join("cpu.main").join(name)).unwrap();
        assert_eq!(read("cpu.cfs_quota_us"), "50000\n");
        assert_eq!(read("cpu.shares"), "512\n");
    }
    pod.shutdown();
}

#[test]
fn a_container_after_one_that_could_not_be_made_is_as_shut_in_as_any() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let mut broken = home.container("second", "broken", &["true"]);
    broken.spec.mounts.push(Mount {
        destination: "/x".into(),
        kind: MountKind::Bind,
        source: Some("/no/such/file".into()),
        options: Vec::new(),
    });
    let failing = home.container("second", "failing", &["/no/such/program"]);
    let pod = home.pod("second", vec![broken, failing, home.container("second", "main", &["/.warren/init"])]);
    pod.wait("broken", |container| matches!(container.status, ContainerStatus::Failed { .. }));
    pod.wait("failing", |container| matches!(container.status, ContainerStatus::Failed { .. }));
    pod.wait("main", |container| matches!(container.status, ContainerStatus::Running { .. }));
    let inside = pod
        .shell("for kind in user net ipc uts pid mnt cgroup; do readlink /proc/self/ns/$kind; done")
        .stdout;
    assert_eq!(inside.lines().count(), 7, "{inside}");
    for (kind, namespace) in ["user", "net", "ipc", "uts", "pid", "mnt", "cgroup"].iter().zip(inside.lines())
    {
        let host = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        assert_ne!(host.to_str(), Some(namespace), "the container has the host's {kind} namespace");
    }
    assert_eq!(
        pod.shell("hostname; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").stdout,
        "second\nlo\n"
    );
    pod.shutdown();
}

#[test]
fn deep_directories_and_long_environments_are_no_obstacle() {
    if skipped() {
        return;
    }
    // The path is longer than a socket address and a mount option may be.
    let home = Home::below(&format!("{}/{}", "d".repeat(200), "e".repeat(200)));
    let mut container = home.container("deep", "main", &["/.warren/init"]);
    container.spec.process.env.extend((0..20).map(|number| format!("LONG{number}={}", "x".repeat(10_000))));
    let pod = home.pod("deep", vec![container]);
    pod.wait("main", |container| matches!(container.status, ContainerStatus::Running { .. }));
    assert_eq!(pod.shell("echo ${#LONG19}").stdout, "10000\n");
    pod.shutdown();
}

#[test]
fn a_container_that_spoils_its_own_files_does_not_spoil_an_exec() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("spoil");
    // Opening a pipe in the place of a device would block for ever.
    let output = pod.shell(
        "rm -f /dev/ptmx /dev/fd; mkfifo /dev/ptmx; rm -rf /tmp; ln -s / /tmp; chmod 000 /root; echo done",
    );
    assert_eq!(output.stdout, "done\n", "{output:?}");
    // The process waits to be read: when the session's leader ends, the kernel drops unread output
    // of a terminal.
    let (number, mut master) = pod.terminal("echo here; read line", 80, 24);
    let mut said = [0u8; 6];
    master.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"here\r\n");
    master.write_all(b"\n").unwrap();
    assert_eq!(pod.wait_exit(number).code, 0);
    pod.shutdown();
}
