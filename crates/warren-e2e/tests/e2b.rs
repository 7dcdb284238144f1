//! Tests `warren e2b` with E2B's published, unmodified SDKs: every call, old and new versions, a
//! restart, and access without a key.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base64::Engine as _;
use warren_api::Sandbox;
use warren_client::kube::api::{Api, ListParams};
use warren_e2e::clients::{javascript_with, python_with};
use warren_e2e::local_home::{LocalHome, service_binary};
use warren_e2e::streams::DEADLINE;

/// Tests run at the same time; one of them makes an environment.
static ENVIRONMENTS: Mutex<()> = Mutex::new(());

/// Sets up a home, and a Python with a version of the SDK. `None`, with a printed reason, if there
/// is none.
fn set_up(version: &str) -> Option<(LocalHome, PathBuf)> {
    let home = LocalHome::new()?;
    let _one = ENVIRONMENTS.lock().expect("no test has panicked here");
    match python_with("e2b-requirements.txt", Some(&format!("e2b=={version}"))) {
        Ok(python) => Some((home, python)),
        Err(error) => {
            eprintln!("skipped: no e2b {version} on this machine: {error}");
            None
        }
    }
}

/// `warren e2b`, and the variables that it prints. Dropping it ends it.
struct Server {
    child: Child,
    variables: Vec<(String, String)>,
}

impl Server {
    fn start(home: &LocalHome) -> Server {
        // `warren e2b` looks for it in its own directory.
        service_binary();
        let mut child = home
            .command()
            .args(["e2b", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("start warren e2b");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines().take(3);
        let variables = lines.map(|line| {
            let line = line.expect("read");
            let variable = line.strip_prefix("export ").and_then(|line| line.split_once('='));
            let (name, value) = variable.unwrap_or_else(|| panic!("{line:?} is no variable"));
            (name.to_owned(), value.to_owned())
        });
        let variables: Vec<_> = variables.collect();
        assert_eq!(variables.len(), 3, "it serves");
        Server { child, variables }
    }

    fn value(&self, name: &str) -> &str {
        let found = self.variables.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).expect("the variable is printed")
    }

    fn run(&self, python: &Path, script: &str) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
        self.python(python, &[script.to_str().expect("a path")])
    }

    fn python(&self, python: &Path, arguments: &[&str]) -> String {
        let mut command = Command::new(python);
        command.args(arguments).envs(self.variables.clone()).stdin(Stdio::null());
        let ran = command.output().expect("run Python");
        let stdout = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success(), "{stdout}{}", String::from_utf8_lossy(&ran.stderr));
        stdout
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn every_call_works(version: &str) {
    let Some((home, python)) = set_up(version) else { return };
    let server = Server::start(&home);
    for script in ["e2b_sync.py", "e2b_async.py"] {
        let printed = server.run(&python, script);
        assert_eq!(printed.lines().last(), Some("done"), "{version} {script}: {printed}");
    }
}

#[test]
fn newest_sdk_makes_every_call() {
    every_call_works("2.63.0");
}

#[test]
fn sdk_that_creates_and_pauses_in_the_old_ways_makes_every_call() {
    every_call_works("2.50.0");
}

#[test]
fn sdk_with_the_older_transport_makes_every_call() {
    every_call_works("2.25.1");
}

#[test]
fn javascript_sdk_makes_its_calls() {
    let Some(home) = LocalHome::new() else { return };
    let directory = match javascript_with("e2b", "2.51.0") {
        Ok(directory) => directory,
        Err(error) => {
            eprintln!("skipped: no e2b for JavaScript on this machine: {error}");
            return;
        }
    };
    let server = Server::start(&home);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/e2b.mjs");
    let mut node = Command::new("node");
    node.arg(script).current_dir(directory).envs(server.variables.clone()).stdin(Stdio::null());
    let ran = node.output().expect("run node");
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && stdout.ends_with("done\n"), "{stdout}{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_server_knows_its_sandboxes_and_their_processes_and_timeouts_hold_without_it() {
    let Some((home, python)) = set_up("2.63.0") else { return };
    let server = Server::start(&home);
    let made = server.python(
        &python,
        &[
            "-c",
            "from e2b import Sandbox\n\
             s = Sandbox.create(timeout=600, metadata={'a': 'b'})\n\
             p = s.commands.run('read line; echo got $line', background=True, stdin=True, timeout=0)\n\
             short = Sandbox.create(timeout=20)\n\
             print(s.sandbox_id, p.pid, short.sandbox_id)",
        ],
    );
    let words: Vec<String> = made.split_whitespace().map(str::to_owned).collect();
    let [id, pid, short] = words.as_slice() else { panic!("{made}") };
    drop(server);

    let sandboxes: Api<Sandbox> = Api::default_namespaced(home.client().await);
    let started = Instant::now();
    while sandboxes.get_opt(short).await.expect("ask for the sandbox").is_some() {
        assert!(started.elapsed() < DEADLINE, "the timeout did not end it");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let left = sandboxes.list(&ListParams::default()).await.expect("list sandboxes").items;
    assert_eq!(left.len(), 1, "{left:?}");

    let server = Server::start(&home);
    let script = format!(
        "from e2b import Sandbox\n\
         s = Sandbox.connect('{id}')\n\
         assert s.get_info().metadata == {{'a': 'b'}}\n\
         p = s.commands.connect({pid}, timeout=0)\n\
         s.commands.send_stdin({pid}, 'word\\n')\n\
         print(p.wait().stdout)\n\
         s.kill()"
    );
    assert_eq!(server.python(&python, &["-c", &script]), "got word\n\n");
}

#[test]
fn strangers_and_malformed_frames_are_refused() {
    let Some((home, python)) = set_up("2.63.0") else { return };
    let server = Server::start(&home);
    let made = server.python(
        &python,
        &[
            "-c",
            "from e2b import Sandbox\n\
             one, other = Sandbox.create(timeout=600), Sandbox.create(timeout=600)\n\
             print(one.sandbox_id, one._envd_access_token, other._envd_access_token)",
        ],
    );
    let words: Vec<&str> = made.split_whitespace().collect();
    let [id, token, other] = words[..] else { panic!("{made}") };
    let url = server.value("E2B_SANDBOX_URL");
    let asked = |path: &str, token: &str, kind: &str, body: &[u8]| {
        let script = "import sys, base64, httpx\n\
             url, id, token, kind, body = sys.argv[1:]\n\
             headers = {'E2b-Sandbox-Id': id, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': token, 'Content-Type': kind}\n\
             r = httpx.post(url, headers=headers, content=base64.b64decode(body), timeout=60)\n\
             print(r.status_code, r.text)";
        let body = base64::engine::general_purpose::STANDARD.encode(body);
        server.python(&python, &["-c", script, &format!("{url}{path}"), id, token, kind, &body])
    };
    let json = "application/json";
    assert!(asked("/process.Process/List", token, json, b"{}").starts_with("200"));
    for wrong in [other, "", "x"] {
        assert!(asked("/process.Process/List", wrong, json, b"{}").starts_with("401"), "{wrong}");
    }
    let stream = "application/connect+json";
    for (frame, code) in [
        (&b"\0\xff\xff\xff\xff{}"[..], "resource_exhausted"),
        (b"\0\0\0\0\x09{}", "invalid_argument"),
        (b"\x01\0\0\0\x02{}", "unimplemented"),
        (b"\0\0\0\0\x02{]", "invalid_argument"),
        (b"\0", "invalid_argument"),
        (b"", "invalid_argument"),
        (b"\0\0\0\0\x02{}\0\0\0\0\x02{}", "invalid_argument"),
    ] {
        let answer = asked("/process.Process/Start", token, stream, frame);
        assert!(answer.starts_with("200") && answer.contains(code), "{frame:?}: {answer}");
    }
    assert!(asked("/process.Process/None", token, json, b"{}").contains("unimplemented"));
    assert!(asked("/filesystem.Filesystem/Stat", token, json, b"{\"path\": 1}").contains("invalid_argument"));
    assert!(asked("/files?path=/etc", token, "application/octet-stream", b"x").starts_with("400"));
    assert!(asked("/process.Process/List", token, json, b"{}").starts_with("200"));
    let key = home.path().join("e2b-api-key");
    let key = std::fs::read_to_string(key).expect("the key is in the data directory");
    assert_eq!(key.trim(), server.value("E2B_API_KEY"));
}
