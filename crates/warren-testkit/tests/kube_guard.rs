//! Checks that the control plane is real, and that nothing is left of it, however the process that
//! wanted it ends.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use warren_testkit::kube::{ControlPlane, ProcessIdentity, Record, end_and_wait};

/// Far longer than anything here takes. Only a failing test waits for it.
const DEADLINE: Duration = Duration::from_secs(60);

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "not reached: {what}");
        park_timeout(Duration::from_millis(20));
    }
}

/// A process that holds a control plane, with the processes of the control plane.
struct Holder {
    process: Child,
    directory: PathBuf,
    processes: Vec<ProcessIdentity>,
}

fn hold(ending: &str) -> Holder {
    let mut process = Command::new(env!("CARGO_BIN_EXE_hold-control-plane"))
        .arg(ending)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("cargo built it for this test");
    let mut line = String::new();
    let stdout = process.stdout.take().expect("it is piped");
    BufReader::new(stdout).read_line(&mut line).expect("the holder prints text");
    let directory = PathBuf::from(line.trim_end());
    assert!(directory.is_absolute(), "the holder printed `{line}`");
    // A holder that returns at once may have cleaned up already. Then there is nothing to compare.
    let processes = Record::load(&directory).map(|record| record.processes()).unwrap_or_default();
    Holder { process, directory, processes }
}

fn assert_nothing_is_left(holder: &Holder) {
    until("no process is left", || holder.processes.iter().all(|process| !process.is_running()));
    until("no directory is left", || !holder.directory.exists());
}

#[test]
fn kill_minus_nine_of_the_test_process_leaves_nothing() {
    let mut holder = hold("wait");
    assert_eq!(holder.processes.len(), 5, "a supervisor and four components: {:?}", holder.processes);
    assert!(holder.processes.iter().all(ProcessIdentity::is_running));
    holder.process.kill().unwrap();
    holder.process.wait().unwrap();
    assert_nothing_is_left(&holder);
}

#[test]
fn a_panic_or_a_plain_end_of_the_test_process_leaves_nothing() {
    for ending in ["panic", "return"] {
        let mut holder = hold(ending);
        let status = holder.process.wait().unwrap();
        assert_eq!(status.success(), ending == "return");
        assert_nothing_is_left(&holder);
    }
}

#[test]
fn kill_minus_nine_of_the_supervisor_leaves_no_process() {
    let mut holder = hold("wait");
    let (supervisor, components) = holder.processes.split_first().unwrap();
    end_and_wait(std::slice::from_ref(supervisor), DEADLINE).unwrap();
    until("no component is left", || components.iter().all(|process| !process.is_running()));
    holder.process.kill().unwrap();
    holder.process.wait().unwrap();

    // The directory has no owner any more, so the next start removes it.
    let next = ControlPlane::launch(&[]).unwrap();
    assert!(next.record().processes().iter().all(ProcessIdentity::is_running));
    assert!(!holder.directory.exists());
}

#[test]
fn dropping_a_launched_one_ends_it() {
    let control_plane = ControlPlane::launch(&["--fsync"]).unwrap();
    let (directory, processes) = (control_plane.directory().to_owned(), control_plane.record().processes());
    assert!(control_plane.record().fsync);
    drop(control_plane);
    assert!(!directory.exists());
    assert!(processes.iter().all(|process| !process.is_running()));
}

#[test]
fn one_control_plane_per_process() {
    let control_plane = ControlPlane::start();
    assert_eq!(control_plane.kubeconfig(), ControlPlane::start().kubeconfig());
    let version = control_plane.kubectl(&["version", "--output", "json"]).unwrap();
    let version: serde_json::Value = serde_json::from_str(&version).unwrap();
    for side in ["clientVersion", "serverVersion"] {
        assert_eq!(version[side]["gitVersion"], control_plane.record().version);
        assert_eq!((&version[side]["major"], &version[side]["minor"]), (&"1".into(), &"36".into()));
    }
    let error = control_plane.kubectl(&["get", "namespace", "no-such"]).unwrap_err();
    assert!(error.to_string().contains("namespaces \"no-such\" not found"), "{error}");
}

#[test]
fn namespaces_are_emptied_and_removed() {
    let control_plane = ControlPlane::start();
    control_plane.kubectl(&["create", "namespace", "emptied"]).unwrap();
    control_plane.kubectl(&["create", "configmap", "inside", "--namespace", "emptied"]).unwrap();
    control_plane.kubectl(&["delete", "namespace", "emptied", "--timeout", "60s"]).unwrap();
    assert!(control_plane.kubectl(&["get", "namespace", "emptied"]).is_err());
}

#[test]
fn what_an_owner_owned_is_collected() {
    let control_plane = ControlPlane::start();
    control_plane.kubectl(&["create", "namespace", "collected"]).unwrap();
    let inside =
        |arguments: &[&str]| control_plane.kubectl(&[arguments, &["--namespace", "collected"]].concat());
    inside(&["create", "configmap", "owner"]).unwrap();
    let uid = inside(&["get", "configmap", "owner", "--output", "jsonpath={.metadata.uid}"]).unwrap();
    let owned = format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: owned, namespace: collected, ownerReferences: \
         [{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}]}}}}"
    );
    control_plane.kubectl_with_input(&["apply", "--filename", "-"], &owned).unwrap();
    inside(&["delete", "configmap", "owner"]).unwrap();
    inside(&["wait", "--for", "delete", "configmap/owned", "--timeout", "60s"]).unwrap();
}

#[test]
fn a_pod_is_given_to_a_node_by_the_scheduler() {
    let control_plane = ControlPlane::start();
    control_plane.kubectl(&["create", "namespace", "scheduled"]).unwrap();
    let node = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "somewhere"}}"#;
    control_plane.kubectl_with_input(&["apply", "--filename", "-"], node).unwrap();
    // A new node has taints until it reports itself ready. Here it never does, so the pod tolerates
    // everything.
    let status = r#"{"status": {"allocatable": {"pods": "10", "cpu": "1", "memory": "1Gi"}}}"#;
    control_plane
        .kubectl(&[
            "patch",
            "node",
            "somewhere",
            "--subresource",
            "status",
            "--type",
            "merge",
            "--patch",
            status,
        ])
        .unwrap();
    let pod = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": "scheduled"},
        "spec": {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": "none"}]}}"#;
    until("the namespace has its service account", || {
        control_plane.kubectl(&["get", "serviceaccount", "default", "--namespace", "scheduled"]).is_ok()
    });
    control_plane.kubectl_with_input(&["apply", "--filename", "-"], pod).unwrap();
    control_plane
        .kubectl(&[
            "wait",
            "--for",
            "condition=PodScheduled",
            "pod/pod",
            "--namespace",
            "scheduled",
            "--timeout",
            "60s",
        ])
        .unwrap();
}

#[test]
fn a_list_can_be_streamed() {
    // With an etcd that is too old the server refuses this; see `etcd_is_recent`.
    let control_plane = ControlPlane::start();
    let path = "/api/v1/namespaces?watch=true&sendInitialEvents=true&allowWatchBookmarks=true\
                &resourceVersionMatch=NotOlderThan&timeoutSeconds=1";
    let events = control_plane.kubectl(&["get", "--raw", path]).unwrap();
    assert!(events.contains("k8s.io/initial-events-end"), "{events}");
}
