//! Tests `kubectl exec -it`, `attach -it`, `cp`, `port-forward`, `logs -f`, `top` and `describe` on
//! the local home.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Stdio;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use warren_e2e::local_home::Ended;
use warren_e2e::streams::{Pods, exit_code};
use warren_e2e::terminal::OnTerminal;

fn kubectl(pods: &Pods, arguments: &[&str]) -> Ended {
    pods.home.kubectl().args(arguments).stdin(Stdio::null()).output().expect("run kubectl").into()
}

#[tokio::test(flavor = "multi_thread")]
async fn terminals_work_and_follow_their_size() {
    let Some(pods) = Pods::up().await else { return };
    let container =
        json!({"command": ["sh"], "stdin": true, "tty": true, "env": [{"name": "PS1", "value": "> "}]});
    pods.start("shell", "Never", container).await;
    for (arguments, code) in
        [(&["exec", "-it", "shell", "--", "sh"][..], 3), (&["attach", "-it", "shell"][..], 0)]
    {
        let mut command = pods.home.kubectl();
        command.args(arguments);
        let mut session = OnTerminal::start(command, 33, 101);
        let typed = |rows: u16, columns: u16| {
            format!("until [ \"$(stty size)\" = '{rows} {columns}' ]; do :; done; echo is-$((6*7)); tty\r")
        };
        session.type_in(&typed(33, 101));
        assert!(session.read_until("/dev/pts/").contains("is-42"));
        session.resize(44, 120);
        session.type_in(&typed(44, 120));
        assert!(session.read_until("/dev/pts/").contains("is-42"));
        session.type_in("exit 3\r");
        assert_eq!(session.end(), Some(code), "{arguments:?}");
    }
    pods.wait("shell", "ended", |pod: &Pod| exit_code(pod) == Some(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_copied_both_ways_and_links_lead_nowhere() {
    let Some(pods) = Pods::up().await else { return };
    pods.start("files", "Never", json!({"command": ["sleep", "1000"]})).await;
    let directory = tempfile::tempdir().expect("make a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let data: Vec<u8> = (0..5_000_000_u32).map(|number| (number % 249) as u8).collect();
    std::fs::write(path("large"), &data).expect("write");
    let there = kubectl(&pods, &["cp", &path("large"), "files:/tmp/large"]);
    assert_eq!(there.code, Some(0), "{there:?}");
    let back = kubectl(&pods, &["cp", "files:/tmp/large", &path("back")]);
    assert_eq!(back.code, Some(0), "{back:?}");
    assert!(std::fs::read(path("back")).expect("read") == data, "the same comes back");

    // A container's files to copy are hostile: a link out, and a file behind it.
    let script = "mkdir -p /tmp/evil && cd /tmp/evil && ln -s ../../../../../../tmp out && ln -s /etc/passwd secret && \
                  echo fine > ok";
    let made = kubectl(&pods, &["exec", "files", "--", "sh", "-c", script]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let copied = kubectl(&pods, &["cp", "files:/tmp/evil", &path("evil")]);
    assert_eq!(copied.code, Some(0), "{copied:?}");
    let names: Vec<_> = std::fs::read_dir(path("evil"))
        .expect("read the directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("plain text"))
        .collect();
    assert_eq!(names, ["ok"], "{copied:?}");
    // A link inside must not lead a copy elsewhere on the host.
    let inside = kubectl(&pods, &["exec", "files", "--", "ln", "-s", "/etc/warren-was-here", "/tmp/link"]);
    assert_eq!(inside.code, Some(0), "{inside:?}");
    kubectl(&pods, &["cp", &path("evil/ok"), "files:/tmp/link"]);
    assert!(!Path::new("/etc/warren-was-here").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_over_one_connection() {
    let Some(pods) = Pods::up().await else { return };
    if !pods.start_echo("echo", 8080).await {
        return;
    }
    let mut child = pods
        .home
        .kubectl()
        .args(["port-forward", "--address=127.0.0.1", "pod/echo", ":8080", ":9"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run kubectl");
    let mut said = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut address = || {
        let line = said.next().expect("a line").expect("read");
        let (address, _) =
            line.strip_prefix("Forwarding from ").and_then(|line| line.split_once(" -> ")).expect(&line);
        address.to_owned()
    };
    let (echo, closed) = (address(), address());
    // kubectl writes a line for each connection.
    std::thread::spawn(move || said.for_each(drop));
    std::thread::scope(|scope| {
        for number in 0..8_u8 {
            let echo = &echo;
            scope.spawn(move || {
                let mut stream = TcpStream::connect(echo).expect("connect");
                let data = vec![number; 500_000];
                let mut reader = stream.try_clone().expect("duplicate");
                let read = std::thread::spawn(move || {
                    let mut back = Vec::new();
                    reader.read_to_end(&mut back).expect("read");
                    back
                });
                stream.write_all(&data).expect("write");
                // The end of our input reaches the pod, which then ends as well.
                stream.shutdown(Shutdown::Write).expect("end");
                assert!(read.join().expect("read") == data, "the same comes back");
            });
        }
    });
    let mut stream = TcpStream::connect(&closed).expect("connect");
    // The pod's refusal shows as the end of the connection, and kubectl prints the reason.
    let _ = stream.read(&mut [0]);
    let mut problem = String::new();
    let mut errors = BufReader::new(child.stderr.take().expect("piped"));
    while !problem.contains("error forwarding port 9 to pod default/echo") {
        assert!(errors.read_line(&mut problem).expect("read") > 0, "ended: {problem}");
    }
    // It may have ended by itself already, as kubectl does after a failure.
    let _ = child.kill();
    child.wait().expect("wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_log_goes_on_until_its_container_ends() {
    let Some(pods) = Pods::up().await else { return };
    let script = "echo one; while ! test -e /tmp/go; do sleep 0.05; done; echo two";
    pods.start("log", "Never", json!({"command": ["sh", "-c", script]})).await;
    let mut follower = pods.home.kubectl();
    let mut follower =
        follower.args(["logs", "-f", "log"]).stdout(Stdio::piped()).spawn().expect("run kubectl");
    let mut lines = BufReader::new(follower.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "one");
    let went = kubectl(&pods, &["exec", "log", "--", "touch", "/tmp/go"]);
    // The container may end while `touch` still runs, and then kills it.
    assert!(matches!(went.code, Some(0 | 137)), "{went:?}");
    let rest: Vec<String> = lines.map(|line| line.expect("read")).collect();
    assert_eq!(rest, ["two"]);
    assert_eq!(follower.wait().expect("wait").code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn top_and_describe_tell_of_pods_and_nodes() {
    let Some(pods) = Pods::up().await else { return };
    pods.start("sleeper", "Never", json!({"command": ["sleep", "1000"]})).await;
    let top = kubectl(&pods, &["top", "pods", "--containers"]);
    assert_eq!(top.code, Some(0), "{top:?}");
    let words: Vec<Vec<&str>> = top.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["POD", "NAME", "CPU(cores)", "MEMORY(bytes)"]);
    assert_eq!(words[1][..2], ["sleeper", "main"]);
    assert!(words[1][2].ends_with('m') && words[1][3].ends_with("Mi"), "{top:?}");
    let nodes = kubectl(&pods, &["top", "nodes"]);
    assert!(nodes.code == Some(0) && nodes.stdout.lines().count() == 2, "{nodes:?}");
    let described = kubectl(&pods, &["describe", "pod", "sleeper"]);
    assert!(
        described.code == Some(0) && described.stdout.contains("Status:           Running"),
        "{described:?}"
    );
}
