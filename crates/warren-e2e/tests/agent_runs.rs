//! Tests runs of agents with real sandboxes and a runner that is a shell script: success, failure,
//! timeout, cancelling, a service that is killed in the middle, and hostile output.

use std::io::Read as _;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use warren_api::Sandbox;
use warren_client::kube::api::{Api, ListParams};
use warren_e2e::local_home::{Ended, LocalHome, service_binary};
use warren_e2e::served::{Served, Viewer, shown};
use warren_e2e::streams::DEADLINE;

/// Calls the API until an answer is as it should be, and returns its data.
async fn until(served: &Served, key: &str, path: &str, done: impl Fn(&Value) -> bool) -> Value {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let now = served.call(key, Method::GET, path, "").await.data();
        if done(&now) {
            return now;
        }
        assert!(tokio::time::Instant::now() < deadline, "{path}: {now}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn cleaned(served: &Served, key: &str, id: &str) -> Value {
    until(served, key, &format!("/api/agent-runs/{id}"), |run| run["cleanedUp"] == true).await
}

/// Begins a run of a shell script.
async fn begin(served: &Served, key: &str, script: &str, with: Value) -> String {
    let mut body = json!({ "cmd": "sh", "args": ["-c", script] });
    for (name, value) in with.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let begun = served.call(key, Method::POST, "/api/agent-runs", body.to_string()).await;
    assert_eq!(begun.status.as_u16(), 201, "{:?}", begun.json());
    let run = begun.data();
    assert_eq!((&run["sessionId"], &run["error"]), (&run["id"], &Value::Null));
    run["id"].as_str().expect("an id").to_owned()
}

/// Returns the events of a session that has ended.
async fn events(served: &Served, key: &str, session: &str) -> Vec<Value> {
    let mut viewer = Viewer::follow(served, key, session, 0).await;
    viewer.until_ended().await;
    let offsets: Vec<u64> = viewer.events.iter().filter_map(|event| event["offset"].as_u64()).collect();
    assert_eq!(offsets, (0..offsets.len() as u64).collect::<Vec<_>>());
    viewer.events
}

fn kinds(events: &[Value]) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    events.iter().map(|event| (text(&event["kind"]), text(&event["source"]), text(&event["data"]))).collect()
}

fn json_of(event: &Value) -> Value {
    serde_json::from_str(event["data"].as_str().expect("text")).expect("JSON")
}

/// Tells whether a file below a directory has these bytes.
fn is_stored(directory: &Path, bytes: &str) -> bool {
    let entries = std::fs::read_dir(directory).expect("listed").flatten();
    entries.into_iter().any(|entry| {
        let kind = entry.file_type().expect("a kind");
        match (kind.is_dir(), kind.is_file()) {
            (true, _) => is_stored(&entry.path(), bytes),
            (_, true) => std::fs::read(entry.path())
                .is_ok_and(|content| content.windows(bytes.len()).any(|part| part == bytes.as_bytes())),
            _ => false,
        }
    })
}

async fn sandboxes(home: &LocalHome) -> usize {
    let sandboxes: Api<Sandbox> = Api::default_namespaced(home.client().await);
    sandboxes.list(&ListParams::default()).await.expect("list").items.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn run_has_a_session_with_its_steps_and_leaves_no_sandbox() {
    let Some(home) = LocalHome::new() else { return };
    let served = Served::start(&home, &[]);
    let key = served.key.clone().expect("the first start shows a key");
    let script = r#"
        echo '{"type":"tool:start","tool":"Bash","input":{"command":"ls"}}'
        echo "in $(pwd), a prompt of ${#AGENT_PROMPT} bytes, a token of ${#TOKEN}"
        case "$(cat /proc/[0-9]*/cmdline | tr '\0' ' ')" in *"$AGENT_PROMPT"*|*"$TOKEN"*) echo leaked;; esac
        echo '{"type":"tool:result","tool":"Bash","output":"x"}'
        echo problem >&2
        sleep 0.2
        printf '{"type":"state","state":"thinking"}'
    "#;
    let (prompt, token) = ("Say \"hello\" to $USER's\nPROMPT-4711", "TOKEN-4711");
    let with = json!({
        "projectId": "web", "taskId": "t-1", "agentId": "coder", "prompt": prompt, "cwd": "/tmp",
        "env": { "TOKEN": token }, "sandbox": { "memoryMb": 1024 },
    });
    let id = begin(&served, &key, script, with).await;
    let mut viewer = Viewer::follow(&served, &key, &id, 0).await;
    let session = served.call(&key, Method::GET, &format!("/api/sessions/{id}"), "").await.data();
    assert_eq!((&session["title"], &session["agentRunId"]), (&json!("Agent run: t-1"), &json!(id)));
    viewer.until_ended().await;
    let run = cleaned(&served, &key, &id).await;
    assert_eq!((&run["state"], &run["exitCode"]), (&json!("succeeded"), &json!(0)), "{run}");
    for duration in ["sandboxMs", "runnerMs", "totalMs"] {
        assert!(run["durations"][duration].is_u64(), "{run}");
    }
    let events = events(&served, &key, &id).await;
    assert_eq!(viewer.events, events, "the second viewer sees the same");
    let all = kinds(&events);
    let of = |kind: &str| -> Vec<(&str, &str)> {
        let found = all.iter().filter(|(found, ..)| found == kind);
        found.map(|(_, source, data)| (source.as_str(), data.as_str())).collect()
    };
    assert_eq!(
        of("tool:invoke"),
        [("agent", r#"{"type":"tool:start","tool":"Bash","input":{"command":"ls"}}"#)]
    );
    assert_eq!(of("tool:result"), [("agent", r#"{"type":"tool:result","tool":"Bash","output":"x"}"#)]);
    assert_eq!(of("terminal:error"), [("agent", "problem\n")]);
    assert_eq!(of("terminal:input").len(), 1, "the echo of the command");
    let length = prompt.len();
    let output = shown(&events);
    let expected = format!("in /tmp, a prompt of {length} bytes, a token of {}\n", token.len());
    assert!(output.starts_with(&expected) && !output.contains("leaked"), "{output}");
    assert!(output.contains("[Process exited with code 0 in "), "{output}");
    let states: Vec<(&str, Value)> = of("state")
        .into_iter()
        .map(|(source, data)| (source, serde_json::from_str::<Value>(data).expect("JSON")["state"].clone()))
        .collect();
    let expected =
        [("system", "creating"), ("system", "running"), ("agent", "thinking"), ("system", "ended")];
    assert_eq!(states, expected.map(|(source, state)| (source, json!(state))));
    let session = served.call(&key, Method::GET, &format!("/api/sessions/{id}"), "").await.data();
    assert_eq!((&session["state"], &session["exitCode"]), (&json!("ended"), &json!(0)));
    assert_eq!((&session["taskId"], &session["agentId"]), (&json!("t-1"), &json!("coder")));
    assert_eq!(sandboxes(&home).await, 0);
    for secret in ["PROMPT-4711", token] {
        assert!(!is_stored(home.path(), secret), "{secret} is stored");
    }

    // Runs are listed, and forgotten with their sessions.
    let listed = served.call(&key, Method::GET, "/api/agent-runs", "").await.data();
    assert_eq!(listed, json!([run]));
    let late = served.call(&key, Method::POST, &format!("/api/agent-runs/{id}/cancel"), "").await;
    assert_eq!(late.failure(), (409, "AGENT_RUN_ENDED".to_owned()));
    served.call(&key, Method::DELETE, &format!("/api/agent-runs/{id}"), "").await.data();
    for (path, code) in [
        (format!("/api/agent-runs/{id}"), "AGENT_RUN_NOT_FOUND"),
        (format!("/api/sessions/{id}"), "SESSION_NOT_FOUND"),
    ] {
        assert_eq!(served.call(&key, Method::GET, &path, "").await.failure(), (404, code.to_owned()));
    }
    served.kill();
    home.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_do_not_succeed_say_why_and_leave_nothing() {
    let Some(home) = LocalHome::new() else { return };
    let served = Served::start(&home, &[]);
    let key = served.key.clone().expect("the first start shows a key");
    let end = async |id: &str| {
        let run = cleaned(&served, &key, id).await;
        let last = json_of(events(&served, &key, id).await.last().expect("an event"));
        assert_eq!(
            (&last["state"], &last["agentRun"], &last["exitCode"]),
            (&json!("ended"), &run["state"], &run["exitCode"])
        );
        (run["state"].clone(), run["exitCode"].clone(), run["error"]["code"].clone())
    };
    let failing = begin(&served, &key, "echo no; exit 3", json!({})).await;
    assert_eq!(end(&failing).await, (json!("failed"), json!(3), json!("AGENT_RUNNER_FAILED")));
    let missing = begin(&served, &key, "", json!({ "cmd": "/no/such/runner", "args": [] })).await;
    let missing = end(&missing).await;
    assert_eq!((&missing.0, &missing.1), (&json!("failed"), &json!(127)), "{missing:?}");
    let slow = begin(&served, &key, "echo begun; sleep 1000", json!({ "timeoutMs": 1500 })).await;
    assert_eq!(end(&slow).await, (json!("failed"), Value::Null, json!("AGENT_RUN_TIMEOUT")));
    let cancelled = begin(&served, &key, "echo begun; sleep 1000", json!({})).await;
    let mut viewer = Viewer::follow(&served, &key, &cancelled, 0).await;
    viewer.until_shown("begun\n").await;
    for (method, path, code) in [
        (Method::DELETE, format!("/api/sessions/{cancelled}"), "AGENT_RUN_UNDER_WAY"),
        (Method::POST, format!("/api/sessions/{cancelled}/input"), "SESSION_NOT_INTERACTIVE"),
    ] {
        let refused = served.call(&key, method, &path, r#"{"data":"eA=="}"#).await;
        assert_eq!(refused.failure(), (409, code.to_owned()));
    }
    let answer = served.call(&key, Method::POST, &format!("/api/agent-runs/{cancelled}/cancel"), "").await;
    assert_eq!(answer.data()["state"], "cancelled");
    viewer.until_ended().await;
    assert_eq!(end(&cancelled).await, (json!("cancelled"), Value::Null, Value::Null));
    // Cancelled before its sandbox runs.
    let early = begin(&served, &key, "sleep 1000", json!({})).await;
    let answer = served.call(&key, Method::POST, &format!("/api/agent-runs/{early}/cancel"), "").await;
    assert_eq!(answer.data()["state"], "cancelled");
    assert_eq!(end(&early).await.0, json!("cancelled"));
    // One that is deleted while it runs.
    let deleted = begin(&served, &key, "sleep 1000", json!({})).await;
    served.call(&key, Method::DELETE, &format!("/api/agent-runs/{deleted}"), "").await.data();
    // A sandbox that cannot be made: the request fails, and there is no run.
    let before = served.call(&key, Method::GET, "/api/agent-runs", "").await.data();
    let refused =
        served.call(&key, Method::POST, "/api/agent-runs", r#"{"sandbox":{"template":"none"}}"#).await;
    assert_eq!(refused.failure(), (400, "VALIDATION_ERROR".to_owned()));
    let refused = served.call(&key, Method::POST, "/api/agent-runs", r#"{"sandboxId":"none"}"#).await;
    assert_eq!(refused.failure(), (404, "SANDBOX_NOT_FOUND".to_owned()));
    assert_eq!(served.call(&key, Method::GET, "/api/agent-runs", "").await.data(), before);
    let sessions = served.call(&key, Method::GET, "/api/sessions", "").await.data();
    assert_eq!(sessions.as_array().map(Vec::len), before.as_array().map(Vec::len));
    until(&served, &key, "/api/sandboxes", |all| *all == json!([])).await;
    assert_eq!(sandboxes(&home).await, 0);

    // A sandbox that was named stays, without the runner.
    let made = served.call(&key, Method::POST, "/api/sandboxes", r#"{"projectId":"web"}"#).await.data();
    let sandbox = made["id"].as_str().expect("an id").to_owned();
    let with = json!({ "sandboxId": sandbox, "projectId": "web" });
    let kept = begin(&served, &key, "echo $$ > /tmp/pid; echo begun; while :; do sleep 1; done", with).await;
    Viewer::follow(&served, &key, &kept, 0).await.until_shown("begun\n").await;
    served.call(&key, Method::POST, &format!("/api/agent-runs/{kept}/cancel"), "").await.data();
    assert_eq!(end(&kept).await.0, json!("cancelled"));
    let alive = json!({ "cmd": "sh", "args": ["-c", "kill -0 $(cat /tmp/pid)"] }).to_string();
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let path = format!("/api/sandboxes/{sandbox}/exec");
        let ran = served.call(&key, Method::POST, &path, alive.clone()).await.data();
        if ran["exitCode"] == 1 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the runner still runs: {ran}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    served.call(&key, Method::DELETE, &format!("/api/sandboxes/{sandbox}"), "").await.data();
    until(&served, &key, "/api/sandboxes", |all| *all == json!([])).await;
    served.kill();
    home.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn run_whose_service_was_killed_is_lost_and_its_session_stays() {
    let Some(home) = LocalHome::new() else { return };
    let served = Served::start(&home, &[]);
    let key = served.key.clone().expect("the first start shows a key");
    let script = "n=0; while :; do n=$((n+1)); echo \"line-$n-\"; done";
    let id = begin(&served, &key, script, json!({ "projectId": "web" })).await;
    let mut viewer = Viewer::follow(&served, &key, &id, 0).await;
    viewer.until_shown("line-500-").await;
    // Another one, of which the sandbox has just been asked for.
    let other = begin(&served, &key, "sleep 1000", json!({})).await;
    served.kill();
    let served = Served::start(&home, &[]);
    for id in [&id, &other] {
        let run = cleaned(&served, &key, id).await;
        assert_eq!(
            (&run["state"], &run["exitCode"], &run["error"]["code"]),
            (&json!("lost"), &Value::Null, &json!("AGENT_RUN_LOST")),
            "{run}"
        );
        let reason = run["error"]["message"].as_str().expect("a reason");
        assert!(reason.contains("the service ended"), "{reason}");
    }
    // The viewer goes on where it was.
    let mut again = Viewer::follow(&served, &key, &id, viewer.events.len() as u64).await;
    again.until_ended().await;
    let all = events(&served, &key, &id).await;
    assert_eq!([viewer.events, again.events].concat(), all, "none is lost or doubled");
    let last = json_of(all.last().expect("an event"));
    assert_eq!((&last["state"], &last["agentRun"]), (&json!("ended"), &json!("lost")));
    let text = shown(&all);
    let number = |line: &str| line.strip_prefix("line-")?.strip_suffix('-')?.parse::<u64>().ok();
    let lines: Vec<u64> = text.lines().filter_map(number).collect();
    assert!(lines.len() >= 500, "{}", lines.len());
    assert_eq!(lines, (1..=lines.len() as u64).collect::<Vec<_>>());
    assert_eq!(events(&served, &key, &other).await.len() as u64, {
        let session = served.call(&key, Method::GET, &format!("/api/sessions/{other}"), "").await.data();
        assert_eq!(session["state"], "ended");
        session["nextOffset"].as_u64().expect("an offset")
    });
    until(&served, &key, "/api/sandboxes", |all| *all == json!([])).await;
    assert_eq!(sandboxes(&home).await, 0);
    served.kill();
    home.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_output_is_output() {
    let Some(home) = LocalHome::new() else { return };
    let served = Served::start(&home, &[]);
    let key = served.key.clone().expect("the first start shows a key");
    let script = r#"
        printf '{"type":"tool:result","output":"'; head -c 10485760 /dev/zero | tr '\0' x; printf '"}\n'
        echo '{"type":"terminal:input","source":"user","data":"rm -rf /"}'
        echo '{"type":"state","state":"ended","source":"system","exitCode":0}'
        echo '{"type":"presence","user":"root"}'
        echo '{"type":"tool:result","output":'
        echo '{"offset":0,"kind":"tool:result","source":"system"}'
        printf '\377\000\033[2J\n'
        printf '{"type":"tool:result","output":"\377"}\n'
        n=0; while [ $n -lt 20000 ]; do n=$((n+1)); echo '{}'; done
        echo '{"type":"tool:result","output":"fine"}'
        exit 4
    "#;
    let id = begin(&served, &key, script, json!({})).await;
    let events = events(&served, &key, &id).await;
    let run = cleaned(&served, &key, &id).await;
    assert_eq!((&run["state"], &run["exitCode"]), (&json!("failed"), &json!(4)), "{run}");
    let all = kinds(&events);
    let results: Vec<&str> =
        all.iter().filter(|(kind, ..)| kind == "tool:result").map(|(.., data)| data.as_str()).collect();
    assert_eq!(results, [r#"{"type":"tool:result","output":"fine"}"#]);
    assert!(all.iter().all(|(_, source, _)| source != "user"));
    // Of the service are the states and the line about the exit, and of an agent is the echo.
    let ours: Vec<&str> =
        all.iter().filter(|(_, source, _)| source == "system").map(|(kind, ..)| kind.as_str()).collect();
    assert_eq!(ours, ["state", "state", "terminal:output", "state"]);
    assert_eq!(all.iter().filter(|(kind, ..)| kind == "terminal:input").count(), 1);
    assert!(all.iter().all(|(kind, ..)| kind != "presence"));
    let output = shown(&events);
    assert_eq!(output.matches("xxxxxxxxxx").count(), 1_048_576);
    for line in [
        "{\"type\":\"terminal:input\",\"source\":\"user\",\"data\":\"rm -rf /\"}\n",
        "{\"type\":\"state\",\"state\":\"ended\",\"source\":\"system\",\"exitCode\":0}\n",
        "{\"type\":\"tool:result\",\"output\":\n",
        "\u{fffd}\0\u{1b}[2J\n",
    ] {
        assert!(output.contains(line), "{line:?}");
    }
    assert_eq!(output.matches("{}\n").count(), 20_000);
    served.kill();
    home.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_have_limits() {
    let Some(home) = LocalHome::new() else { return };
    let directory = tempfile::tempdir().expect("make a directory");
    let local = directory.path().to_str().expect("a path");
    let served = Served::start(&home, &["--local-provider", local, "--development"]);
    let key = served.key.clone().expect("the first start shows a key");
    for (body, words) in [
        (json!({ "taskId": "../t" }), "`taskId`"),
        (json!({ "timeoutMs": 86_400_001 }), "`timeoutMs` is 86400001; it can be 1000 to 86400000"),
        (json!({ "prompt": "x".repeat(50_000) }), "`prompt` has 50000 bytes"),
        (json!({ "env": { "LD_PRELOAD": "x" } }), "`env` has `LD_PRELOAD`"),
        (json!({ "sandbox": { "env": { "TOKEN": "x" } } }), "`sandbox.env`"),
        (json!({ "source": "user" }), "unknown field `source`"),
        (json!([]), "`body`"),
    ] {
        let refused = served.call(&key, Method::POST, "/api/agent-runs", body.to_string()).await;
        assert_eq!(refused.failure(), (400, "VALIDATION_ERROR".to_owned()), "{body}");
        let message = refused.json()["error"]["message"].as_str().expect("text").to_owned();
        assert!(message.contains(words), "{message}");
    }
    let huge = json!({ "prompt": "x".repeat(300 << 10) }).to_string();
    let refused = served.call(&key, Method::POST, "/api/agent-runs", huge).await;
    assert_eq!(refused.failure(), (413, "BODY_TOO_LARGE".to_owned()));
    let mut begun = Vec::new();
    for _ in 0..16 {
        begun.push(begin(&served, &key, "echo $AGENT_RUN_ID; sleep 1000", json!({ "taskId": "same" })).await);
    }
    let refused = served.call(&key, Method::POST, "/api/agent-runs", r#"{"cmd":"true"}"#).await;
    assert_eq!(refused.failure(), (429, "SANDBOX_RESOURCE_LIMIT_EXCEEDED".to_owned()));
    assert_eq!(refused.json()["error"]["details"]["limit"], 16);
    Viewer::follow(&served, &key, &begun[3], 0).await.until_shown(&begun[3]).await;
    for id in &begun {
        let path = format!("/api/agent-runs/{id}/cancel");
        assert_eq!(served.call(&key, Method::POST, &path, "").await.data()["state"], "cancelled");
    }
    // There is room again. The runner comes from the settings.
    let setting = r#"{"value":{"cmd":"sh","args":["-c","echo of the settings"]}}"#;
    served.call(&key, Method::PUT, "/api/settings/agent.runner", setting).await.data();
    let after = served.call(&key, Method::POST, "/api/agent-runs", r#"{"prompt":"x"}"#).await.data();
    let id = after["id"].as_str().expect("an id");
    assert_eq!(cleaned(&served, &key, id).await["state"], "succeeded");
    assert!(shown(&events(&served, &key, id).await).starts_with("of the settings\n"));
    assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0, "nothing is left");
}

/// Starts `warren agent run` with a script that goes on, and waits for its first output.
fn begin_command(home: &LocalHome, script: &str) -> Child {
    let mut child = home.spawn(&["agent", "run", "--", "sh", "-c", script]);
    let mut begun = [0; 6];
    child.stdout.as_mut().expect("piped").read_exact(&mut begun).expect("the first output");
    assert_eq!(&begun, b"begun\n");
    child
}

fn runs_left(home: &LocalHome) -> usize {
    std::fs::read_dir(home.path().join("agent-runs")).expect("listed").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_prints_events_and_has_the_exit_code_of_the_runner() {
    let Some(home) = LocalHome::new() else { return };
    // `warren agent` looks for it in its own directory.
    service_binary();
    let prompt = home.path().join("prompt");
    std::fs::write(&prompt, "PROMPT-4711").expect("write");
    let script = r#"echo "$TOKEN, ${#AGENT_PROMPT}"; echo '{"type":"tool:start","tool":"Bash"}'
        printf '{"type":"tool:result","output":"\302\233"}\n'; echo no >&2; exit 7"#;
    let mut command = home.command();
    command.args(["agent", "run", "--task", "t-1", "--env", "TOKEN", "--timeout", "2m", "--prompt-file"]);
    command.arg(&prompt).args(["--", "sh", "-c", script]).env("TOKEN", "TOKEN-4711");
    let ended: Ended = command.output().expect("run").into();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(7), "TOKEN-4711, 11\n"), "{ended:?}");
    for line in [
        "[tool:invoke] {\"type\":\"tool:start\",\"tool\":\"Bash\"}\n",
        // A character that controls terminals.
        "[tool:result] {\"type\":\"tool:result\",\"output\":\"\u{fffd}\"}\n",
        "no\n",
    ] {
        assert!(ended.stderr.contains(line), "{line:?} in {ended:?}");
    }
    for (arguments, code, words) in [
        (&["--timeout", "1s", "--", "sleep", "1000"][..], 124, "the runner was ended after 1000 ms"),
        (&["--timeout", "25h", "--", "true"], 125, "`timeoutMs`"),
        (&["--env", "NO_SUCH_VARIABLE", "--", "true"], 125, "NO_SUCH_VARIABLE"),
        (&["--template", "none", "--", "true"], 125, "`template`"),
        (&["--prompt-file", "/no/such/file", "--", "true"], 125, "/no/such/file"),
    ] {
        let ended = home.warren(&[&["agent", "run"], arguments].concat());
        assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(words), "{arguments:?}: {ended:?}");
    }
    assert_eq!((sandboxes(&home).await, runs_left(&home)), (0, 0));

    // Interrupted: it cleans up itself.
    let mut child = begin_command(&home, "echo begun; sleep 1000");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("interrupt");
    assert_eq!(child.wait().expect("wait").code(), Some(130));
    assert_eq!((sandboxes(&home).await, runs_left(&home)), (0, 0));

    // Killed: the next one cleans up, and leaves one that still runs alone.
    let mut killed = begin_command(&home, "echo begun; sleep 1000");
    let mut other = begin_command(&home, "echo begun; sleep 1000");
    killed.kill().expect("kill -9");
    killed.wait().expect("wait");
    assert_eq!((sandboxes(&home).await, runs_left(&home)), (2, 2));
    assert_eq!(home.warren(&["agent", "run", "--", "true"]).code, Some(0));
    assert_eq!((sandboxes(&home).await, runs_left(&home)), (1, 1));
    other.kill().expect("kill -9");
    other.wait().expect("wait");
    assert_eq!(home.warren(&["agent", "run", "--", "false"]).code, Some(1));
    assert_eq!((sandboxes(&home).await, runs_left(&home)), (0, 0));
    home.assert_nothing_left();
}
