//! Tests the web page of `warren serve` in a real browser, on a real home: `ui/tests/run.mjs`
//! drives it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};

use k8s_openapi::api::core::v1::Event;
use serde_json::json;
use warren_client::kube::api::{Api, PostParams};
use warren_e2e::clients::Browser;
use warren_e2e::local_home::{LocalHome, service_binary};

/// `warren serve` with the link that it printed. Dropping it ends it.
struct Service {
    child: Child,
    link: String,
}

impl Service {
    /// Starts it at an address and waits until it listens.
    fn start(home: &LocalHome, address: &str) -> Self {
        let mut command = home.command();
        command.args(["serve", "--listen", address]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start `warren serve`");
        let mut link = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut link).expect("read the link");
        assert!(link.starts_with("http://127.0.0.1:"), "{link:?}");
        Self { child, link: link.trim().to_owned() }
    }

    fn address(&self) -> &str {
        let address = self.link.strip_prefix("http://").expect("checked when it started");
        address.split('/').next().expect("there is a first part")
    }

    /// Ends it, so that its address is free.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

/// Writes the event by which a node tells that its proxy refused a host.
fn refuse(home: &LocalHome, sandbox: &str, host: &str) {
    let event = json!({
        "metadata": {"generateName": "refused-"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": sandbox, "namespace": "default"},
        "type": "Warning", "reason": "EgressRefused", "count": 1,
        "message": format!("{host}:443: the host is not among the allowed ones"),
        "lastTimestamp": jiff::Timestamp::now(),
    });
    let event: Event = serde_json::from_value(event).expect("an event");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let events: Api<Event> = Api::namespaced(home.client().await, "default");
        events.create(&PostParams::default(), &event).await.expect("create the event");
    });
}

#[test]
fn page_is_used_in_a_browser_from_the_first_visit_to_the_end_of_a_sandbox() {
    let Some(home) = LocalHome::new() else { return };
    let browser = match Browser::find() {
        Ok(browser) => browser,
        Err(error) => {
            eprintln!("skipped: no browser to be had on this machine: {error}");
            return;
        }
    };
    // `warren serve` looks for it in its own directory.
    service_binary();
    home.up();
    let mut service = Service::start(&home, "127.0.0.1:0");
    let address = service.address().to_owned();
    let mut script = browser
        .command(&service.link)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start node");
    let mut input = script.stdin.take().expect("piped");
    let mut said = String::new();
    for line in BufReader::new(script.stdout.take().expect("piped")).lines() {
        let line = line.expect("text");
        if line == "restart" {
            service.end();
            service = Service::start(&home, &address);
            writeln!(input, "restarted").expect("the script waits");
        } else if let Some((sandbox, host)) =
            line.strip_prefix("refuse ").and_then(|rest| rest.split_once(' '))
        {
            refuse(&home, sandbox, host);
            writeln!(input, "refused").expect("the script waits");
        } else {
            println!("{line}");
            said.push_str(&line);
            said.push('\n');
        }
    }
    let status = script.wait().expect("wait for node");
    assert!(status.success(), "{said}");
    drop(service);
}
