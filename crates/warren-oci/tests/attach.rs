//! Tests of clients of a running container: output, input, terminal, network.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};

use warren_oci::client::ShimClient;
use warren_oci::protocol::{Answer, Call, ContainerStatus};
use warren_oci::spec::StandardInput;

use crate::support::{Home, Pod, eventually, skipped};

/// Starts a pod whose container `main` runs a shell script with this input, and optionally a
/// terminal.
fn pod(home: &Home, uid: &str, script: &str, stdin: StandardInput, terminal: bool) -> Pod {
    let mut container = home.container(uid, "main", &["sh", "-c", script]);
    container.spec.process.stdin = stdin;
    container.spec.process.terminal = terminal;
    let pod = home.pod(uid, vec![container]);
    pod.wait("main", |container| !matches!(container.status, ContainerStatus::Starting));
    pod
}

/// Attaches over a new connection. Returns it with the descriptors of the answer.
fn attach(pod: &Pod, stdin: bool) -> (ShimClient, Vec<File>) {
    let client = ShimClient::connect(&pod.directory).expect("connect to the shim");
    let (answer, descriptors) =
        client.call(Call::Attach { container: "main".to_owned(), stdin }, drop).expect("attach");
    assert!(matches!(answer, Answer::Attached { .. }), "{answer:?}");
    (client, descriptors.into_iter().map(File::from).collect())
}

fn read_until(file: &mut File, wanted: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        let mut buffer = [0; 4096];
        let length = file.read(&mut buffer).expect("read");
        assert!(length > 0, "ended before {wanted:?}: {seen:?}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    seen
}

fn exit_code(pod: &Pod) -> i32 {
    let ended = pod.wait("main", |container| matches!(container.status, ContainerStatus::Exited { .. }));
    match ended.status {
        ContainerStatus::Exited { exit, .. } => exit.code,
        other => panic!("unexpected {other:?}"),
    }
}

fn log(pod: &Pod) -> String {
    std::fs::read_to_string(pod.directory.join("logs/main/0.log")).expect("read the log")
}

#[test]
fn what_a_client_writes_is_read_and_what_is_written_is_seen_and_logged() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let script = "while read line; do echo \"out $line\"; echo \"err $line\" >&2; done; echo over; exit 7";
    let pod = pod(&home, "attach", script, StandardInput::Once, false);
    let (client, files) = attach(&pod, true);
    let [mut stdin, mut stdout, mut stderr] = files.try_into().unwrap();
    stdin.write_all(b"one\n").unwrap();
    assert_eq!(read_until(&mut stdout, "one\n"), "out one\n");
    assert_eq!(read_until(&mut stderr, "one\n"), "err one\n");
    // A second client sees the same and is independent of the first.
    let (second, mut files) = attach(&pod, false);
    assert_eq!(files.len(), 2);
    stdin.write_all(b"two\n").unwrap();
    assert_eq!(read_until(&mut files[0], "two\n"), "out two\n");
    drop((second, files));
    drop(stdin);
    client.call(Call::EndInput { container: "main".to_owned() }, drop).unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "out two\nover\n");
    assert_eq!(exit_code(&pod), 7);
    assert!(log(&pod).contains(" stdout F out two\n") && log(&pod).contains(" stderr F err one\n"));
    pod.shutdown();
}

#[test]
fn input_for_one_client_ends_with_it_and_input_for_all_does_not() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let once = pod(&home, "once", "cat; exit 3", StandardInput::Once, false);
    drop(attach(&once, true));
    assert_eq!(exit_code(&once), 3);
    once.shutdown();

    let open = pod(&home, "open", "read a; read b; echo $a $b", StandardInput::Open, false);
    for word in ["first", "second"] {
        let (_client, mut files) = attach(&open, true);
        writeln!(files[0], "{word}").unwrap();
    }
    assert_eq!(exit_code(&open), 0);
    assert!(log(&open).ends_with(" stdout F first second\n"), "{}", log(&open));
    open.shutdown();
}

#[test]
fn a_container_can_have_a_terminal() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let script =
        "test -t 0 && test -t 1 && test -t 2 && tty; read line; stty size; echo \"got $line\"; exit 4";
    let pod = pod(&home, "terminal", script, StandardInput::Open, true);
    let (_client, files) = attach(&pod, true);
    let [mut terminal, mut output] = files.try_into().unwrap();
    rustix::termios::tcsetwinsize(
        &terminal,
        rustix::termios::Winsize { ws_col: 91, ws_row: 17, ws_xpixel: 0, ws_ypixel: 0 },
    )
    .unwrap();
    terminal.write_all(b"word\r").unwrap();
    let seen = read_until(&mut output, "got word\r\n");
    assert!(seen.contains("17 91\r\n"), "{seen:?}");
    assert_eq!(exit_code(&pod), 4);
    assert!(log(&pod).contains("/dev/pts/0"), "{}", log(&pod));
    pod.shutdown();
}

#[test]
fn a_client_that_does_not_read_holds_up_its_container_until_it_goes() {
    if skipped() {
        return;
    }
    let home = Home::new();
    // Four megabytes are far more than all pipes on the way can hold.
    let script = "read go; head -c 4194304 /dev/zero | tr '\\0' x; echo; exit 5";
    let pod = pod(&home, "stalled", script, StandardInput::Open, false);
    let (client, mut files) = attach(&pod, true);
    files[0].write_all(b"go\n").unwrap();
    // Output has arrived, no client reads it, and the shim still answers.
    eventually("output arrives", || (rustix::io::ioctl_fionread(&files[1]).unwrap() > 0).then_some(()));
    assert!(matches!(pod.state().containers["main"].status, ContainerStatus::Running { .. }));
    drop((client, files));
    assert_eq!(exit_code(&pod), 5);
    assert!(log(&pod).len() > 4 << 20);
    pod.shutdown();
}

#[test]
fn a_socket_in_the_pods_network_reaches_its_loopback() {
    if skipped() {
        return;
    }
    let home = Home::new();
    let pod = home.idle_pod("socket");
    let listen = "use IO::Socket::INET; my $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 8080, \
                  Listen => 1) or die $!; $| = 1; print \"listening\\n\"; my $c = $s->accept; print $c \"hello\\n\"";
    let (_number, descriptors) = pod.start(Pod::request(&["perl", "-e", listen])).unwrap();
    let mut files = descriptors.into_iter().map(File::from);
    read_until(&mut files.next().unwrap(), "listening\n");
    let (_, sockets) = pod.client.call(Call::Socket { version_6: false }, drop).unwrap();
    let [socket] = sockets.try_into().unwrap();
    rustix::io::ioctl_fionbio(&socket, false).unwrap();
    rustix::net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080)).unwrap();
    let mut greeting = String::new();
    File::from(socket).read_to_string(&mut greeting).unwrap();
    assert_eq!(greeting, "hello\n");
    pod.shutdown();
}
