//! Tests `kubectl` on a sandbox with gVisor's kernel: it works as with any pod.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};

use warren_e2e::gvisor;
use warren_e2e::local_home::{Ended, LocalHome};
use warren_e2e::terminal::OnTerminal;

/// Echoes its input on a port of its address and on standard input.
const PROGRAM: &str = r#"
use IO::Socket::INET;
$| = 1;
my $server = IO::Socket::INET->new(LocalAddr => '0.0.0.0', LocalPort => 8080, Listen => 8, ReuseAddr => 1) or die $!;
print "listening\n";
if (fork == 0) {
    while (my $client = $server->accept) {
        while (sysread $client, my $data, 65536) { syswrite $client, $data }
        close $client;
    }
}
while (my $line = <STDIN>) { print "got $line" }
sleep 100000;
"#;

fn manifest() -> String {
    serde_json::json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "box"},
        "spec": {"podTemplate": {"spec": {
            "runtimeClassName": gvisor::CLASS,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": "warren.dev/host", "command": ["perl", "-e", PROGRAM], "stdin": true,
                "resources": {"limits": {"memory": "512Mi", "cpu": "1"}},
            }],
        }}},
    })
    .to_string()
}

fn kubectl(home: &LocalHome, arguments: &[&str]) -> Ended {
    home.kubectl().args(arguments).stdin(Stdio::null()).output().expect("run kubectl").into()
}

/// Returns the output of a command that must succeed.
fn said(home: &LocalHome, arguments: &[&str]) -> String {
    let ended = kubectl(home, arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended.stdout
}

fn spawn(home: &LocalHome, arguments: &[&str]) -> Child {
    let mut command = home.kubectl();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("run kubectl")
}

fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout).lines().map(|line| line.expect("read"))
}

fn end(mut child: Child) {
    // Some end by themselves.
    let _ = child.kill();
    child.wait().expect("wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kubectl_does_it_does_on_gvisor() {
    if !Path::new("/usr/bin/perl").exists() {
        eprintln!("skipped: no Perl on this machine");
        return;
    }
    let Some(runsc) = gvisor::built_runsc() else { return };
    let Some(home) = LocalHome::new() else { return };
    let up = home.command().args(["up", "--detach", "--runtime"]).arg(gvisor::named(&runsc)).output();
    let up: Ended = up.expect("run warren").into();
    assert_eq!(up.code, Some(0), "{up:?}");
    gvisor::class_is_there(&home.client().await).await.expect("the class is there");

    let mut apply = spawn(&home, &["apply", "-f", "-"]);
    apply.stdin.take().expect("piped").write_all(manifest().as_bytes()).expect("write");
    assert!(apply.wait().expect("wait").success());
    said(&home, &["wait", "--for=condition=Ready", "--timeout=120s", "sandbox/box"]);

    let mut follower = spawn(&home, &["logs", "-f", "box"]);
    let mut log = lines(&mut follower);
    assert_eq!(log.next().as_deref(), Some("listening"));

    let mut attached = spawn(&home, &["attach", "-i", "box"]);
    let mut input = attached.stdin.take().expect("piped");
    input.write_all(b"a word\n").expect("write");
    assert_eq!(log.next().as_deref(), Some("got a word"));
    assert!(lines(&mut attached).any(|line| line == "got a word"), "attached");
    drop(input);
    end(attached);
    end(follower);

    assert!(said(&home, &["exec", "box", "--", "dmesg"]).contains("gVisor"));
    assert_eq!(kubectl(&home, &["exec", "box", "--", "sh", "-c", "exit 3"]).code, Some(3));
    terminal(&home);
    files(&home);
    port(&home);

    let top = said(&home, &["top", "pod", "box", "--no-headers"]);
    assert!(top.starts_with("box ") && top.trim_end().ends_with("Mi"), "{top}");
    let described = said(&home, &["describe", "pod", "box"]);
    assert!(described.contains("Runtime Class Name:  gvisor"), "{described}");
    let why = "jsonpath={.status.conditions[?(@.type=='warren.dev/isolation')].reason}";
    assert_eq!(said(&home, &["get", "pod", "box", "-o", why]), "UserSpaceKernel");
    assert!(said(&home, &["describe", "sandbox", "box"]).contains("DependenciesReady"));

    said(&home, &["delete", "sandbox", "box"]);
    said(&home, &["wait", "--for=delete", "--timeout=120s", "pod/box"]);
    home.assert_nothing_left();
}

fn terminal(home: &LocalHome) {
    let mut command = home.kubectl();
    command.args(["exec", "-it", "box", "--", "sh"]);
    let mut session = OnTerminal::start(command, 33, 101);
    for (rows, columns) in [(33, 101), (44, 120)] {
        session.resize(rows, columns);
        let typed = "until [ \"$(stty size)\" = 'ROWS COLUMNS' ]; do sleep 0.1; done; test -t 0 && echo is-$((6*7))-ROWS\r";
        let typed = typed.replace("ROWS", &rows.to_string()).replace("COLUMNS", &columns.to_string());
        session.type_in(&typed);
        session.read_until(&format!("is-42-{rows}"));
    }
    session.type_in("exit 5\r");
    assert_eq!(session.end(), Some(5));
}

fn files(home: &LocalHome) {
    let directory = tempfile::tempdir().expect("make a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let data: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 249) as u8).collect();
    std::fs::write(path("large"), &data).expect("write");
    said(home, &["cp", &path("large"), "box:/workspace/large"]);
    said(home, &["cp", "box:/workspace/large", &path("back")]);
    assert!(std::fs::read(path("back")).expect("read") == data, "the same comes back");
}

fn port(home: &LocalHome) {
    let mut forwarder = spawn(home, &["port-forward", "--address=127.0.0.1", "pod/box", ":8080"]);
    let mut told = lines(&mut forwarder);
    let line = told.next().expect("a line");
    let address = line.strip_prefix("Forwarding from ").and_then(|line| line.split_once(" -> "));
    let mut stream = TcpStream::connect(address.expect(&line).0).expect("connect");
    std::thread::spawn(move || told.for_each(drop));
    stream.write_all(b"over the wire").expect("write");
    stream.shutdown(Shutdown::Write).expect("end");
    let mut back = String::new();
    stream.read_to_string(&mut back).expect("read");
    assert_eq!(back, "over the wire");
    end(forwarder);
}
