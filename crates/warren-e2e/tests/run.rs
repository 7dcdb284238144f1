//! Tests `warren run` on a checkout, and the commands for existing sandboxes, with the real binary.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kube::api::{Api, ListParams, PostParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_e2e::local_home::{Ended, LocalHome};
use warren_e2e::terminal::OnTerminal;

fn git(directory: &Path, arguments: &[&str]) {
    let status = Command::new("git").arg("-C").arg(directory).args(arguments).stdout(Stdio::null()).status();
    assert!(status.expect("run git").success(), "{arguments:?}");
}

/// Returns a checkout with a tracked file, a script, a link, an ignored file and a directory.
fn checkout() -> TempDir {
    let directory = tempfile::tempdir().expect("make a directory");
    let path = directory.path();
    git(path, &["init", "--quiet"]);
    fs::create_dir(path.join("sub")).expect("make a directory");
    fs::write(path.join("sub/text"), "one\n").expect("write");
    fs::write(path.join("script"), "#!/bin/sh\necho script\n").expect("write");
    fs::set_permissions(path.join("script"), fs::Permissions::from_mode(0o755)).expect("make it executable");
    symlink("sub/text", path.join("link")).expect("link");
    fs::write(path.join(".gitignore"), "secret\n").expect("write");
    fs::write(path.join("secret"), "hidden").expect("write");
    git(path, &["add", "."]);
    directory
}

fn warren_in(home: &LocalHome, directory: &Path, arguments: &[&str]) -> Ended {
    home.command().current_dir(directory).args(arguments).output().expect("run warren").into()
}

fn ended(code: i32, stdout: &str, stderr: &str) -> Ended {
    Ended { code: Some(code), stdout: stdout.to_owned(), stderr: stderr.to_owned() }
}

#[test]
fn checkout_is_sent_without_ignored_files_and_the_command_runs_in_the_same_directory() {
    let Some(home) = LocalHome::new() else { return };
    let checkout = checkout();
    let script = "pwd; ls -A ..; cat text; ../script; readlink ../link";
    let seen = warren_in(&home, &checkout.path().join("sub"), &["run", script]);
    let expected = "/workspace/sub\n.gitignore\nlink\nscript\nsub\none\nscript\nsub/text\n";
    assert_eq!(seen, ended(0, expected, ""));

    let seen =
        warren_in(&home, checkout.path(), &["run", "--exclude", "/sub", "--workdir", "/srv/x", "pwd; ls"]);
    assert_eq!(seen, ended(0, "/srv/x\nlink\nscript\n", ""));
    let seen = warren_in(&home, checkout.path(), &["run", "--no-sync", "test ! -e /workspace/script"]);
    assert_eq!(seen, ended(0, "", ""));
    let seen = warren_in(&home, checkout.path(), &["run", "--workdir", "/usr", "true"]);
    assert_eq!(seen.code, Some(125), "{seen:?}");
    assert!(seen.stderr.contains("`/usr` cannot be the work directory"), "{seen:?}");
    home.assert_nothing_left();
}

#[test]
fn directory_that_is_no_checkout_is_sent_only_when_it_is_named() {
    let Some(home) = LocalHome::new() else { return };
    let directory = tempfile::tempdir().expect("make a directory");
    fs::write(directory.path().join("private"), "x").expect("write");
    assert_eq!(
        warren_in(&home, directory.path(), &["run", "ls -A; test ! -e /workspace/private"]).code,
        Some(0)
    );
    assert_eq!(
        warren_in(&home, directory.path(), &["run", "--sync", ".", "ls -A"]),
        ended(0, "private\n", "")
    );
    home.assert_nothing_left();
}

#[test]
fn changed_files_come_back_and_those_changed_on_both_sides_do_not() {
    let Some(home) = LocalHome::new() else { return };
    let checkout = checkout();
    let read = |name: &str| fs::read_to_string(checkout.path().join(name)).expect("read");
    let change =
        "echo two > sub/text; mkdir -p new; echo n > new/file; chmod +x new/file; echo s > secret; exit 3";
    let seen = warren_in(&home, checkout.path(), &["run", "--sync-back", change]);
    assert_eq!(seen, ended(3, "", ""));
    assert_eq!([read("sub/text"), read("new/file"), read("secret")], ["two\n", "n\n", "hidden"]);

    let seen = warren_in(
        &home,
        checkout.path(),
        &["run", "--sync-back=out/**", "mkdir out; echo o > out/f; echo x > y"],
    );
    assert_eq!(seen, ended(0, "", ""));
    assert_eq!(read("out/f"), "o\n");
    assert!(!checkout.path().join("y").exists());

    // Changed here while the command runs.
    let words = ["run", "--sync-back", "echo sandbox > sub/text; echo other > other; echo ready; cat"];
    let conflict = |extra: &[&str]| {
        let arguments = [&words[..2], extra, &words[2..]].concat();
        let mut command = home.command();
        command.current_dir(checkout.path()).args(arguments);
        let mut child = piped(command);
        wait_for_line(&mut child, "ready");
        fs::write(checkout.path().join("sub/text"), "mine\n").expect("write");
        // The command waits for the end of its input.
        drop(child.stdin.take());
        Ended::from(child.wait_with_output().expect("wait"))
    };
    let seen = conflict(&[]);
    assert_eq!(seen.code, Some(125), "{seen:?}");
    assert!(
        seen.stderr.contains("changed here and in the sandbox: `sub/text`; nothing was written"),
        "{seen:?}"
    );
    assert!(seen.stderr.contains("hint: ") && seen.stderr.contains("`--overwrite`"), "{seen:?}");
    assert_eq!(read("sub/text"), "mine\n");
    assert!(!checkout.path().join("other").exists());
    fs::write(checkout.path().join("sub/text"), "three\n").expect("write");
    assert_eq!(conflict(&["--overwrite"]).code, Some(0));
    assert_eq!([read("sub/text"), read("other")], ["sandbox\n", "other\n"]);
    home.assert_nothing_left();
}

#[test]
fn hostile_files_from_a_sandbox_are_refused_and_nothing_is_written() {
    let Some(home) = LocalHome::new() else { return };
    let checkout = checkout();
    let before = fs::read_dir(checkout.path()).expect("list").count();
    let seen =
        warren_in(&home, checkout.path(), &["run", "--sync-back", "echo x > a; ln -s /etc/passwd evil"]);
    assert_eq!(seen.code, Some(125), "{seen:?}");
    assert!(seen.stderr.contains("`./evil`, which is a link that leads out of the directory"), "{seen:?}");

    // Files that git executes are not even requested. The output of a replaced `tar` in the sandbox
    // is not trusted.
    let hooks = "mkdir -p .git/hooks; echo evil > .git/hooks/post-commit";
    assert_eq!(warren_in(&home, checkout.path(), &["run", "--sync-back", hooks]).code, Some(0));
    assert!(!checkout.path().join(".git/hooks/post-commit").exists());
    let forged = "cat > /usr/local/bin/tar <<'END'\n#!/usr/bin/perl\n\
        my $n = '../evil'; my $h = pack('a100a8a8a8a12a12a8a1a100a6a2x247', $n, '0000644', '0000000', '0000000', \
        '00000000001', '00000000000', '        ', '0', '', 'ustar', '00');\n\
        my $sum = unpack('%32C*', $h); substr($h, 148, 8) = sprintf(\"%06o\\0 \", $sum); print $h, 'x', \"\\0\" x 511, \"\\0\" x 1024;\n\
        END\nchmod +x /usr/local/bin/tar";
    let seen = warren_in(&home, checkout.path(), &["run", "--sync-back", forged]);
    assert_eq!(seen.code, Some(125), "{seen:?}");
    assert!(seen.stderr.contains("`../evil`, which leads out of the directory by `..`"), "{seen:?}");
    assert!(!checkout.path().parent().expect("a parent").join("evil").exists());
    assert_eq!(fs::read_dir(checkout.path()).expect("list").count(), before);
    home.assert_nothing_left();
}

#[test]
fn forwarded_values_reach_the_command_and_nothing_else() {
    let Some(home) = LocalHome::new() else { return };
    let value = "correct-horse'battery $staple";
    let script = "printf %s \"$TOKEN\"; tr '\\0' ' ' < /proc/1/environ | grep -c horse; ls -A /dev/shm /tmp | grep -c warren";
    let mut command = home.command();
    command.env("TOKEN", value).args(["run", "--env", "TOKEN", "--env", "A=b", script]);
    let seen = Ended::from(command.output().expect("run warren"));
    assert_eq!(seen.stdout, format!("{value}0\n0\n"), "{seen:?}");
    for log in ["daemon.log", "audit.log"] {
        let log = fs::read_to_string(home.path().join(log)).expect("read the log");
        assert!(!log.contains("horse"), "{log}");
    }
    let seen = home.warren(&["run", "--env", "DATABASE_URL=x", "true"]);
    assert_eq!(seen.code, Some(125), "{seen:?}");
    assert!(seen.stderr.contains("`--env DATABASE_URL`"), "{seen:?}");
    home.assert_nothing_left();
}

#[test]
fn exit_codes_and_errors_are_those_of_a_shell() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    assert_eq!(home.warren(&["run", "--", "no-such-command"]).code, Some(127));
    assert_eq!(home.warren(&["run", "--", "/etc/passwd"]).code, Some(126));
    assert_eq!(home.warren(&["run", "kill -KILL $$"]).code, Some(137));
    let seen = home.warren(&["run", "--timeout", "1s", "--", "sleep", "1000"]);
    assert_eq!(seen.code, Some(124), "{seen:?}");
    assert!(seen.stderr.contains("took longer than 1s"), "{seen:?}");
    let seen = home.warren(&["run", "--bogus", "--", "true"]);
    assert_eq!(seen.code, Some(125), "{seen:?}");
    assert!(seen.stderr.contains("unexpected argument '--bogus'"), "{seen:?}");
    let seen = home.warren(&["run", "--namespace", "nowhere", "true"]);
    assert_eq!(seen, ended(125, "", &seen.stderr));
    assert!(seen.stderr.contains("namespaces \"nowhere\" not found"), "{seen:?}");
    assert!(!seen.stderr.contains("Status {") && !seen.stderr.contains("ErrorResponse"), "{seen:?}");
    home.assert_nothing_left();
}

#[test]
fn signals_reach_the_command() {
    let Some(home) = LocalHome::new() else { return };
    let script =
        "trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    let mut child = home.spawn(&["run", "--", "sh", "-c", script]);
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::USR1).expect("send the signal");
    assert_eq!(lines.next().as_deref(), Some("usr1"));
    kill_process(pid, Signal::TERM).expect("send the signal");
    assert_eq!(lines.next().as_deref(), Some("term"));
    assert_eq!(child.wait().expect("wait").code(), Some(9));
    home.assert_nothing_left();

    // A command that ignores the first signal is ended by the second.
    let mut child =
        home.spawn(&["run", "--", "sh", "-c", "trap 'echo no' INT; echo ready; while :; do sleep 0.1; done"]);
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("send the signal");
    assert_eq!(lines.next().as_deref(), Some("no"));
    kill_process(pid, Signal::INT).expect("send the signal");
    assert_eq!(child.wait().expect("wait").code(), Some(130));
    home.assert_nothing_left();
}

#[test]
fn ctrl_c_on_a_terminal_reaches_the_command() {
    let Some(home) = LocalHome::new() else { return };
    let mut command = home.command();
    let script = "trap 'echo caught; exit 5' INT; echo $TERM ready; while :; do sleep 0.1; done";
    command.env("TERM", "vt100").args(["run", "--", "sh", "-c", script]);
    let mut terminal = OnTerminal::start(command, 24, 80);
    let seen = terminal.read_until("vt100 ready");
    assert!(seen.contains("No files are sent: the current directory is in no git checkout"), "{seen}");
    terminal.type_in("\u{3}");
    terminal.read_until("caught");
    assert_eq!(terminal.end(), Some(5));
    home.assert_nothing_left();
}

#[tokio::test]
async fn sandbox_of_a_killed_run_ends_within_a_minute() {
    let Some(home) = LocalHome::new() else { return };
    let mut child = home.spawn(&["run", "--name", "lonely", "--", "sh", "-c", "echo ready; sleep 1000"]);
    wait_for_line(&mut child, "ready");
    child.kill().expect("kill");
    child.wait().expect("wait");
    let sandboxes: Api<Sandbox> = Api::namespaced(home.client().await, "default");
    let sandbox = sandboxes.get("lonely").await.expect("it is still there");
    let end = sandbox.spec.shutdown_time.expect("it has an end").0;
    let created = sandbox.metadata.creation_timestamp.expect("a time").0;
    let lease = end.duration_since(created).as_secs();
    assert!((30..=90).contains(&lease), "{lease} s");
}

#[tokio::test]
async fn pool_and_template_serve_a_run_and_nothing_is_left() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let client = home.client().await;
    let create = PostParams::default();
    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), "default");
    let template = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate", "metadata": { "name": "host" },
        "spec": { "podTemplate": { "spec": { "containers": [
            { "name": "main", "image": "warren.dev/host", "env": [{ "name": "FROM", "value": "template" }] },
        ] } } },
    });
    let template = serde_json::from_value(template).expect("a template");
    templates.create(&create, &template).await.expect("create the template");
    let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), "default");
    let pool = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "metadata": { "name": "warm" },
        "spec": { "replicas": 1, "sandboxTemplateRef": { "name": "host" } },
    });
    pools.create(&create, &serde_json::from_value(pool).expect("a pool")).await.expect("create the pool");

    let checkout = checkout();
    for choice in [["--pool", "warm"], ["--template", "host"]] {
        let arguments =
            [&["run"][..], &choice, &["--env", "A=b", "echo $FROM $A; pwd; cat sub/text; exit 5"]].concat();
        let seen = warren_in(&home, checkout.path(), &arguments);
        assert_eq!(seen, ended(5, "template b\n/workspace\none\n", ""), "{choice:?}");
    }
    let seen = home.warren(&["run", "--pool", "none", "true"]);
    assert_eq!(seen.code, Some(125), "{seen:?}");
    assert!(seen.stderr.contains("there is no SandboxWarmPool `none`"), "{seen:?}");
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), "default");
    for _ in 0..600 {
        let claims = claims.list(&ListParams::default()).await.expect("list").items.len();
        let pools = pools.list(&ListParams::default()).await.expect("list").items.len();
        if (claims, pools) == (0, 1) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("claims or pools are left");
}

#[test]
fn kept_sandbox_is_listed_entered_copied_explained_and_deleted() {
    let Some(home) = LocalHome::new() else { return };
    let seen = home.warren(&["run", "--name", "mine", "--keep-on-failure", "echo kept > /srv/f; exit 4"]);
    assert_eq!(seen.code, Some(4), "{seen:?}");
    assert!(seen.stderr.contains("Kept sandbox `mine`"), "{seen:?}");
    let listed = home.warren(&["list", "--output", "json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!(
        (&listed["sandboxes"][0]["name"], &listed["sandboxes"][0]["status"]),
        (&json!("mine"), &json!("Ready"))
    );
    assert_eq!(listed["sandboxes"][0]["ends"], Value::Null, "it has no lease any more");
    assert!(home.warren(&["list"]).stdout.contains("mine  Ready"));

    let seen =
        home.warren(&["exec", "-w", "/srv", "-e", "A=b", "mine", "--", "sh", "-c", "cat f; echo $A; exit 6"]);
    assert_eq!(seen, ended(6, "kept\nb\n", ""));
    let output = home.warren_with_input(&["shell", "mine"], b"cat /srv/f; exit 8\n");
    assert_eq!(Ended::from(output), ended(8, "kept\n", ""));

    let directory = tempfile::tempdir().expect("make a directory");
    fs::create_dir(directory.path().join("d")).expect("make a directory");
    fs::write(directory.path().join("d/in"), "in").expect("write");
    let copy = |words: &[&str]| {
        let seen = warren_in(&home, directory.path(), &[&["cp"], words].concat());
        assert_eq!(seen, ended(0, "", ""), "{words:?}");
    };
    copy(&["d", "mine:/srv"]);
    copy(&["d/in", "mine:/srv/renamed"]);
    copy(&["mine:/srv/d", "back"]);
    copy(&["mine:/srv/renamed", "."]);
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).expect("read");
    assert_eq!([read("back/in"), read("renamed")], ["in", "in"]);

    assert_eq!(home.warren(&["logs", "mine"]), ended(0, "", ""));
    assert!(home.warren(&["completion", "bash"]).stdout.contains("--sync-back"));
    let events = home.warren(&["events", "mine", "--output", "json"]);
    let events: Value = serde_json::from_str(&events.stdout).expect("JSON");
    assert!(events["events"].is_array(), "{events}");
    let seen = home.warren(&["explain", "mine"]);
    assert_eq!(seen, ended(0, "Sandbox `mine` is Ready: `warren shell mine` opens a shell in it.\n", ""));
    assert_eq!(home.warren(&["delete", "mine"]), ended(0, "mine\n", ""));
    let seen = home.warren(&["exec", "mine", "true"]);
    assert_eq!(seen.code, Some(125), "{seen:?}");
    assert!(seen.stderr.contains("`warren list` shows all"), "{seen:?}");
    home.assert_nothing_left();
}

#[test]
fn published_port_reaches_the_command() {
    let Some(home) = LocalHome::new() else { return };
    let server = "use IO::Socket::INET; my $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 8080, \
                  Listen => 5, ReuseAddr => 1) or die; $| = 1; print \"ready\\n\"; \
                  while (my $c = $s->accept) { my $l = <$c>; print $c \"got $l\"; close $c }";
    let mut child = home.spawn(&["run", "--publish", "0:8080", "--", "perl", "-e", server]);
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().expect("piped")).read_line(&mut said).expect("read");
    let address = said.trim().strip_prefix("Port 8080 of the sandbox is on ").expect("an address").to_owned();
    wait_for_line(&mut child, "ready");
    let mut connection = std::net::TcpStream::connect(address).expect("connect");
    connection.write_all(b"hello\n").expect("write");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("read");
    assert_eq!(answer, "got hello\n");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("send the signal");
    assert_eq!(child.wait().expect("wait").code(), Some(143));
    home.assert_nothing_left();
}

#[test]
fn refused_hosts_are_named_after_a_command_that_failed() {
    let Some(home) = LocalHome::new() else { return };
    if !Path::new("/bin/bash").exists() {
        eprintln!("skipped: no `bash` on this machine");
        return;
    }
    let ask = "[ -n \"$HTTP_PROXY\" ] || exit 99; proxy=${HTTP_PROXY#http://}; \
               exec 3<>/dev/tcp/${proxy%:*}/${proxy#*:}; \
               printf 'CONNECT refused.example:443 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&3; head -n 1 <&3; exit 1";
    let seen = home.warren(&["run", "--", "bash", "-c", ask]);
    if seen.code == Some(99) {
        eprintln!("skipped: pods have no network on this machine");
        return;
    }
    assert!(seen.stdout.starts_with("HTTP/1.1 403"), "{seen:?}");
    assert!(seen.stderr.contains("refused `refused.example`"), "{seen:?}");
    assert!(seen.stderr.contains("`--allow-host refused.example`"), "{seen:?}");
    home.assert_nothing_left();
}

fn piped(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start warren")
}

/// Reads standard output up to the end of a line, byte by byte, so that nothing after it is lost.
fn wait_for_line(child: &mut Child, wanted: &str) {
    let mut line = Vec::new();
    let stdout = child.stdout.as_mut().expect("piped");
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stdout.read_exact(&mut byte).expect("a line");
        line.push(byte[0]);
    }
    assert_eq!(String::from_utf8_lossy(&line).trim_end(), wanted);
}
