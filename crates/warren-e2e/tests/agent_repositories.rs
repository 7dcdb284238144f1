//! Tests runs of agents on a git repository of this machine: its files go into the sandbox, the
//! result is a commit on a branch, and nothing of a hostile repository is executed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use warren_e2e::local_home::LocalHome;
use warren_e2e::served::Served;
use warren_e2e::streams::DEADLINE;

/// Runs git as this test's user has to: without any configuration of the machine.
fn git(repository: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(repository)
        .args(["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "core.hooksPath=/dev/null"])
        .args(["-c", "core.fsmonitor=", "-c", "protocol.allow=never"])
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .expect("run git");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// A repository that wants to execute something wherever git lets it: then there is a file
/// `executed`.
struct Hostile {
    directory: tempfile::TempDir,
}

impl Hostile {
    fn make() -> Option<Self> {
        if Command::new("git").arg("--version").output().is_err() {
            eprintln!("skipped: there is no git");
            return None;
        }
        let made = Self { directory: tempfile::tempdir().expect("make a directory") };
        let repository = made.path();
        std::fs::create_dir(&repository).expect("make a directory");
        git(&repository, &["init", "--quiet", "--initial-branch=main"]);
        let write = |path: &str, text: &str| {
            let path = repository.join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("make a directory");
            std::fs::write(path, text).expect("write");
        };
        write("a.txt", "one\n");
        write("gone.txt", "x\n");
        write("deep/script.sh", "#!/bin/sh\necho script\n");
        write(
            ".gitattributes",
            "* filter=evil diff=evil merge=evil text eol=crlf ident\nsecret export-ignore\n",
        );
        write("secret", "$Id$\n");
        write(".gitmodules", "[submodule \"sub\"]\n\tpath = sub\n\turl = ext::sh -c touch% executed\n");
        let script = repository.join("deep/script.sh");
        std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        std::os::unix::fs::symlink("../../outside", repository.join("link")).expect("link");
        git(&repository, &["add", "."]);
        let submodule = format!("160000,{},sub", "1".repeat(40));
        git(&repository, &["update-index", "--add", "--cacheinfo", &submodule]);
        git(&repository, &["commit", "--quiet", "--message", "first"]);
        git(&repository, &["tag", "--annotate", "v1", "--message", "v1"]);
        let evil = made.directory.path().join("evil.sh");
        let mark = made.mark();
        std::fs::write(&evil, format!("#!/bin/sh\necho \"$0 $*\" >> '{}'\ncat\n", mark.display()))
            .expect("write");
        std::fs::set_permissions(&evil, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        let hooks = repository.join(".git/evil-hooks");
        std::fs::create_dir(&hooks).expect("make a directory");
        for hook in
            ["post-checkout", "reference-transaction", "post-commit", "pre-commit", "post-index-change"]
        {
            for directory in [&hooks, &repository.join(".git/hooks")] {
                std::fs::create_dir_all(directory).expect("make a directory");
                std::fs::copy(&evil, directory.join(hook)).expect("copy");
            }
        }
        let evil = evil.display();
        let config = format!(
            "[core]\n\trepositoryformatversion = 1\n\thooksPath = {hooks}\n\tfsmonitor = {evil}\n\tpager = {evil}\n\
             \tsshCommand = {evil}\n\teditor = {evil}\n\tgitProxy = {evil}\n\taskPass = {evil}\n\
             [filter \"evil\"]\n\tsmudge = {evil}\n\tclean = {evil}\n\tprocess = {evil}\n\trequired = true\n\
             [diff]\n\texternal = {evil}\n[diff \"evil\"]\n\tcommand = {evil}\n\ttextconv = {evil}\n\
             [merge \"evil\"]\n\tdriver = {evil}\n[gpg]\n\tprogram = {evil}\n[commit]\n\tgpgSign = true\n\
             [log]\n\tshowSignature = true\n[alias]\n\trev-parse = !{evil}\n[tar \"tar\"]\n\tcommand = {evil}\n\
             [remote \"origin\"]\n\turl = ext::{evil}\n\tpromisor = true\n\tuploadpack = {evil}\n\
             [extensions]\n\tpartialClone = origin\n[submodule \"sub\"]\n\tactive = true\n\turl = ext::{evil}\n\
             \tupdate = !{evil}\n[credential]\n\thelper = {evil}\n[uploadpack]\n\tpackObjectsHook = {evil}\n",
            hooks = hooks.display(),
        );
        std::fs::write(repository.join(".git/config"), config).expect("write");
        Some(made)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("repository")
    }

    fn mark(&self) -> PathBuf {
        self.directory.path().join("executed")
    }

    fn assert_nothing_executed(&self) {
        let executed = std::fs::read_to_string(self.mark());
        assert!(executed.is_err(), "{executed:?}");
        let left = self.path().join("executed");
        assert!(!left.exists());
    }
}

struct Client {
    served: Served,
    key: String,
}

impl Client {
    fn start(home: &LocalHome) -> Self {
        let served = Served::start(home, &[]);
        let key = served.key.clone().expect("the first start shows a key");
        Self { served, key }
    }

    async fn post(&self, body: &Value) -> warren_e2e::served::Answered {
        self.served.call(&self.key, Method::POST, "/api/agent-runs", body.to_string()).await
    }

    /// Carries out a run of a shell script to its end.
    async fn run(&self, task: &str, repository: Value, script: &str) -> Value {
        let body = json!({
            "agentId": "coder", "taskId": task, "repository": repository, "cmd": "sh", "args": ["-c", script],
        });
        let begun = self.post(&body).await.data();
        let path = format!("/api/agent-runs/{}", begun["id"].as_str().expect("an id"));
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let now = self.served.call(&self.key, Method::GET, &path, "").await.data();
            if now["cleanedUp"] == true {
                return now;
            }
            assert!(tokio::time::Instant::now() < deadline, "{now}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn allow(&self, directory: &Path) {
        let body = json!({ "value": [directory] }).to_string();
        self.served.call(&self.key, Method::PUT, "/api/settings/agent.repositories", body).await.data();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn result_is_a_commit_and_a_hostile_repository_executes_nothing() {
    let Some(home) = LocalHome::new() else { return };
    let Some(hostile) = Hostile::make() else { return };
    let client = Client::start(&home);
    let repository = hostile.path();
    let named = json!({ "path": repository });
    let body = json!({ "agentId": "coder", "taskId": "t", "repository": named });
    let refused = client.post(&body).await;
    assert_eq!(refused.failure(), (400, "VALIDATION_ERROR".to_owned()), "no directory is allowed");
    client.allow(hostile.directory.path()).await;
    let script = r#"
        [ "$(pwd)" = /workspace ] && [ "$(cat secret)" = '$Id$' ] || { ls -la; exit 9; }
        [ "$(cat a.txt)" = one ] && [ -x deep/script.sh ] && [ "$(readlink link)" = ../../outside ] || exit 8
        echo two >> a.txt; rm gone.txt; printf 'new\r\n' > 'né "w"'; mkdir -p more/.git/hooks .git/hooks
        echo evil > .git/hooks/post-commit; echo evil > more/.git/config; ln -s /etc/passwd more/passwd
        ln a.txt more/second; mkfifo more/pipe; chmod +x a.txt; exit 3
    "#;
    let main = git(&repository, &["rev-parse", "main"]);
    let run = client.run("t-1", named.clone(), script).await;
    assert_eq!((&run["state"], &run["exitCode"]), (&json!("failed"), &json!(3)), "{run}");
    let result = &run["repository"];
    assert_eq!((&result["base"], &result["branch"]), (&json!(main), &json!("agent/coder/t-1")), "{run}");
    hostile.assert_nothing_executed();
    let commit = result["commit"].as_str().expect("a commit");
    assert_eq!(git(&repository, &["rev-parse", "agent/coder/t-1"]), commit);
    assert_eq!(git(&repository, &["rev-parse", "agent/coder/t-1^"]), main);
    let listed = git(&repository, &["-c", "core.quotePath=false", "ls-tree", "-r", "agent/coder/t-1"]);
    let files: Vec<(&str, &str)> = listed
        .lines()
        .filter_map(|line| Some((line.split_whitespace().next()?, line.split_once('\t')?.1)))
        .collect();
    assert_eq!(
        files,
        [
            ("100644", ".gitattributes"),
            ("100644", ".gitmodules"),
            ("100755", "a.txt"),
            ("100755", "deep/script.sh"),
            ("120000", "link"),
            ("120000", "more/passwd"),
            ("100755", "more/second"),
            ("100644", "\"né \\\"w\\\"\""),
            ("100644", "secret"),
            ("160000", "sub"),
        ]
    );
    assert_eq!(git(&repository, &["cat-file", "blob", "agent/coder/t-1:a.txt"]), "one\ntwo");
    // With its carriage return.
    assert_eq!(git(&repository, &["cat-file", "-s", "agent/coder/t-1:né \"w\""]), "5");
    let message = git(&repository, &["cat-file", "commit", "agent/coder/t-1"]);
    assert!(message.contains(&format!("Agent-Run: {}", run["id"].as_str().expect("an id"))), "{message}");
    // Nothing of the checkout or of other branches has changed.
    assert_eq!(git(&repository, &["rev-parse", "main"]), main);
    assert_eq!(std::fs::read_to_string(repository.join("a.txt")).expect("read"), "one\n");
    let path = format!("/api/agent-runs/{}/patch", run["id"].as_str().expect("an id"));
    let patch = client.served.call(&client.key, Method::GET, &path, "").await;
    assert_eq!(patch.headers["content-type"], "text/x-diff");
    let patch = String::from_utf8_lossy(&patch.body).into_owned();
    assert!(patch.contains("\n+two\n") && patch.contains("new mode 100755"), "{patch}");
    git(&repository, &["fsck", "--no-dangling", "--connectivity-only", "agent/coder/t-1"]);

    // The branch is there already.
    let again = json!({ "agentId": "coder", "taskId": "t-1", "repository": named });
    assert_eq!(client.post(&again).await.failure(), (409, "AGENT_RUN_BRANCH_EXISTS".to_owned()));
    // From a tag, into another directory; nothing is changed.
    let other = json!({ "path": repository, "ref": "v1", "directory": "/tmp/deep/work" });
    let run = client.run("t-2", other, "[ \"$(pwd)\" = /tmp/deep/work ] && touch a.txt").await;
    assert_eq!((&run["state"], &run["repository"]["commit"]), (&json!("succeeded"), &Value::Null), "{run}");
    assert_eq!(run["repository"]["base"], json!(main));
    // The files are gone: there is no result, and the run says so.
    let run = client.run("t-3", named.clone(), "cd /; rm -rf /workspace").await;
    let code = &run["error"]["code"];
    assert_eq!(run["state"], "failed", "{run}");
    assert!(["AGENT_RUN_REPOSITORY_FAILED", "SANDBOX_EXEC_FAILED"].iter().any(|one| code == one), "{run}");
    assert_eq!(git(&repository, &["branch", "--list", "--format=%(refname:short)"]), "agent/coder/t-1\nmain");

    // The command line.
    let place = repository.to_str().expect("a path");
    let arguments = ["agent", "run", "--repository", place, "--agent", "coder", "--task", "t-4", "--"];
    let ended = home.warren(&[&arguments[..], &["sh", "-c", "echo three >> a.txt"]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("the result is on branch `agent/coder/t-4`"), "{ended:?}");
    assert_eq!(git(&repository, &["cat-file", "blob", "agent/coder/t-4:a.txt"]), "one\nthree");
    hostile.assert_nothing_executed();
    let scratch = std::fs::read_dir(home.path().join("service/repositories")).expect("listed").count();
    assert_eq!(scratch, 0, "no copy is left");
    // The traps are real: git as everybody runs it falls into one.
    let ordinary = Command::new("git").current_dir(&repository).arg("status").output();
    ordinary.expect("run git");
    assert!(hostile.mark().exists());
    client.served.kill();
    home.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn repositories_that_lead_elsewhere_are_refused() {
    let Some(home) = LocalHome::new() else { return };
    let Some(hostile) = Hostile::make() else { return };
    let client = Client::start(&home);
    let (allowed, outside) = (hostile.directory.path().join("allowed"), hostile.path());
    std::fs::create_dir(&allowed).expect("make a directory");
    client.allow(&allowed).await;
    let make = |name: &str| {
        let path = allowed.join(name);
        std::fs::create_dir(&path).expect("make a directory");
        git(&path, &["init", "--quiet", "--initial-branch=main"]);
        git(&path, &["commit", "--quiet", "--allow-empty", "--message", "first"]);
        path
    };
    let good = make("good");
    let linked = allowed.join("linked");
    std::os::unix::fs::symlink(&outside, &linked).expect("link");
    let file = allowed.join("file");
    std::fs::create_dir(&file).expect("make a directory");
    std::fs::write(file.join(".git"), format!("gitdir: {}\n", outside.join(".git").display()))
        .expect("write");
    let objects = make("objects");
    std::fs::rename(objects.join(".git/objects"), objects.join("moved")).expect("move");
    std::os::unix::fs::symlink(outside.join(".git/objects"), objects.join(".git/objects")).expect("link");
    let borrowing = make("borrowing");
    let alternates = format!("{}\n", outside.join(".git/objects").display());
    std::fs::write(borrowing.join(".git/objects/info/alternates"), alternates).expect("write");
    let with = |change: Value| {
        let mut body = json!({ "agentId": "a", "taskId": "t", "repository": { "path": good } });
        for (name, value) in change.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body
    };
    for (change, words) in [
        (json!({ "repository": { "path": outside } }), "`agent.repositories`"),
        (json!({ "repository": { "path": linked } }), "`agent.repositories`"),
        (json!({ "repository": { "path": allowed.join("none") } }), "`agent.repositories`"),
        (json!({ "repository": { "path": allowed.join("../repository") } }), "`agent.repositories`"),
        (json!({ "repository": { "path": allowed } }), "is not a git repository"),
        (json!({ "repository": { "path": file } }), "leads elsewhere"),
        (json!({ "repository": { "path": objects } }), "lead elsewhere"),
        (json!({ "repository": { "path": borrowing } }), "borrows"),
        (json!({ "repository": { "path": good, "ref": "--upload-pack=x" } }), "`repository.ref`"),
        (json!({ "repository": { "path": good, "ref": "none" } }), "names no commit"),
        (json!({ "repository": { "path": good, "ref": "1".repeat(40) } }), "names no commit"),
        (json!({ "repository": { "path": good, "directory": "/" } }), "`repository.directory`"),
        (json!({ "repository": { "path": good, "directory": "/a/../b" } }), "`repository.directory`"),
        (json!({ "taskId": null }), "`taskId` is needed"),
        (json!({ "agentId": "a..b" }), "`agentId` has `..`"),
        (json!({ "taskId": "a.lock" }), "`taskId`"),
    ] {
        let refused = client.post(&with(change.clone())).await;
        assert_eq!(refused.failure(), (400, "VALIDATION_ERROR".to_owned()), "{change}");
        let message = refused.json()["error"]["message"].as_str().expect("text").to_owned();
        assert!(message.contains(words), "{change}: {message}");
    }
    let runs = client.served.call(&client.key, Method::GET, "/api/agent-runs", "").await.data();
    assert_eq!(runs, json!([]));
    hostile.assert_nothing_executed();
}
