//! Tests of the survival of processes, and of cleanup.

use crate::support::{Home, Pod, eventually, skipped};
use warren_oci::cleanup;
use warren_oci::client::ShimClient;
use warren_oci::protocol::{Answer, Call, ContainerStatus};

fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
}

fn container_pid(pod: &Pod) -> i32 {
    match pod.state().containers["main"].status {
        ContainerStatus::Running { process, .. } => process.pid,
        ref other => panic!("it is {other:?}"),
    }
}

#[test]
fn a_pod_outlives_daemon_and_zygote_and_is_found_again() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("outlive");
    let (shim, container) = (pod.shim_pid, container_pid(&pod));
    home.kill_daemon();
    eventually("the zygote ends with its daemon", || (!alive(home.zygote_pid)).then_some(()));
    assert!(alive(shim) && alive(container));
    let directory = pod.directory.clone();
    drop(pod);

    let client = ShimClient::connect(&directory).unwrap();
    let found = Pod { client, directory, shim_pid: shim, first_id: 0 };
    assert!(found.state().shim.is_alive());
    assert_eq!(found.shell("echo again").stdout, "again\n");
    found.shutdown();
    eventually("the shim has ended", || (!alive(shim)).then_some(()));
}

#[test]
fn a_pod_outlives_its_zygote_alone() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("zygote");
    kill(home.zygote_pid);
    eventually("the zygote is gone", || (!alive(home.zygote_pid)).then_some(()));
    assert_eq!(pod.shell("echo here").stdout, "here\n");
    pod.shutdown();
}

#[test]
fn a_killed_shim_takes_its_containers_along_and_leaves_what_cleanup_removes() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("shim");
    let (_, streams) = pod.start(Pod::request(&["sleep", "1000"])).unwrap();
    let container = container_pid(&pod);
    kill(pod.shim_pid);
    eventually("the container is gone", || (!alive(container)).then_some(()));
    // A new daemon finds a recorded state whose shim is gone.
    let state = cleanup::read_state(&pod.directory).unwrap().unwrap();
    eventually("the shim is reaped", || (!state.shim.is_alive()).then_some(()));
    assert!(ShimClient::connect(&pod.directory).is_err());
    assert_eq!(cleanup::pods_with_cgroups(&home.id).unwrap(), ["shim"]);
    cleanup::kill_pod(&home.id, "shim").unwrap();
    cleanup::remove_pod_directory(&pod.directory).unwrap();
    cleanup::remove_home_cgroup(&home.id).unwrap();
    assert_eq!(home.cgroups(), Vec::<std::path::PathBuf>::new());
    drop(streams);
}

#[test]
fn several_clients_are_served_at_once() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("clients");
    let watcher = ShimClient::connect(&pod.directory).unwrap();
    let (Answer::State { state }, _) = watcher.call(Call::Subscribe, drop).unwrap() else {
        panic!("no state")
    };
    // A client that violates the protocol is disconnected, without effect on others.
    let nonsense = warren_sys::socket::Seqpacket::connect(&pod.directory.join("shim.sock")).unwrap();
    nonsense.send(b"\x00\xffnonsense", &[]).unwrap();
    assert!(nonsense.receive(64).unwrap().is_none());
    pod.client.call(Call::Pause, drop).unwrap();
    let Some(received) = watcher.receive().unwrap() else { panic!("the shim is gone") };
    let warren_oci::protocol::Message::Event(warren_oci::protocol::Event::State { state: changed }) =
        received.message
    else {
        panic!("unexpected {received:?}")
    };
    assert!(changed.revision > state.revision && changed.paused && !state.paused);
    pod.shutdown();
}

#[test]
fn nothing_is_left_after_a_shutdown() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    let pod = home.idle_pod("trace-less");
    let (shim, container) = (pod.shim_pid, container_pid(&pod));
    let (_, streams) =
        pod.start(Pod::request(&["sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & sleep 1000"])).unwrap();
    assert_eq!(mounts(), before, "a container's mounts show on the host");
    let directory = pod.directory.clone();
    let state = pod.shutdown();
    assert!(state.shut_down && matches!(state.containers["main"].status, ContainerStatus::Exited { .. }));
    drop(streams);
    eventually("the processes are gone", || (!alive(shim) && !alive(container)).then_some(()));
    assert!(!directory.exists());
    assert!(home.cgroups().iter().all(|path| !path.join("trace-less.main").exists()));
    cleanup::remove_home_cgroup(&home.id).unwrap();
    assert_eq!(home.cgroups(), Vec::<std::path::PathBuf>::new());
    assert_eq!(mounts(), before);
    let ours = home.data.clone();
    let leaked: Vec<_> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&ours)))
        .collect();
    assert!(leaked.is_empty(), "{leaked:?}");
}

#[test]
fn layers_are_attached_for_a_moment_and_only_in_the_shim() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("layers");
    let shim = format!("/proc/{}", pod.shim_pid);
    let namespace = |process: &str| std::fs::read_link(format!("{process}/ns/mnt")).unwrap();
    if std::env::var_os("WARREN_OCI_LAYERING").is_some() {
        assert_ne!(namespace(&shim), namespace("/proc/self"), "that was to be tried");
    }
    let data = home.data.to_str().unwrap();
    eventually("the shim has let go of the layers", || {
        (!std::fs::read_to_string(format!("{shim}/mountinfo")).unwrap().contains(data)).then_some(())
    });
    pod.shutdown();
}

/// Returns living processes in the pod's user namespace, wherever they are. Dead ones are reaped by
/// the machine's init, which may take a while.
fn processes_with_ids(home: &Home, first: u32) -> Vec<String> {
    let wanted = first.to_string();
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            std::fs::read_to_string(entry.path().join("uid_map"))
                .is_ok_and(|map| map.split_whitespace().nth(1) == Some(&wanted))
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|pid| pid.parse().is_ok_and(alive))
        // Another home on this machine may have chosen the same ids.
        .filter(|pid| {
            let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            !cgroups.contains("/warren-") || cgroups.contains(&format!("/warren-{}", home.id))
        })
        .collect()
}

#[test]
fn a_shim_killed_at_any_moment_of_a_start_leaves_nothing_that_cleanup_cannot_remove() {
    if skipped() {
        return;
    }
    let home = Home::new();
    for round in 0..60u32 {
        let uid = format!("round-{round}");
        let (shim, first_id) =
            home.spawn(&home.request(&uid, vec![home.container(&uid, "main", &["/.warren/init"])]));
        // Kill later in each round, up to beyond the end of a start.
        let moment = std::time::Instant::now() + std::time::Duration::from_micros(u64::from(round) * 200);
        while std::time::Instant::now() < moment {
            std::hint::spin_loop();
        }
        kill(shim);
        eventually("the shim is gone", || (!alive(shim)).then_some(()));
        cleanup::kill_pod(&home.id, &uid).unwrap();
        eventually("its processes are gone", || processes_with_ids(&home, first_id).is_empty().then_some(()));
        cleanup::remove_pod_directory(&home.directory(&uid)).unwrap();
    }
    assert_eq!(cleanup::pods_with_cgroups(&home.id).unwrap(), Vec::<String>::new());
    // Look only in our directory: other programs mount on this machine too.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    let data = home.data.to_str().expect("a plain path");
    assert_eq!(mounts.lines().filter(|line| line.contains(data)).collect::<Vec<_>>(), Vec::<&str>::new());
}
