//! Pods whose streams, ports and usage tests examine, through the API alone.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use warren_client::kube::api::{Api, LogParams, PostParams};
use warren_client::kube::runtime::wait;
use warren_client::kube::{Client, ResourceExt as _};

use crate::local_home::LocalHome;

/// The deadline of every wait, long enough for a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Echoes its input on each connection to a port of its loopback. In Perl, which every Debian has.
pub const ECHO: &str = r#"
use IO::Socket::INET;
$| = 1;
$SIG{CHLD} = 'IGNORE';
my $server = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 64, ReuseAddr => 1) or die $!;
print "listening\n";
while (my $client = $server->accept) {
    if (fork) { close $client; next }
    close $server;
    while (sysread $client, my $data, 65536) {
        my $written = 0;
        $written += syswrite $client, $data, length($data) - $written, $written while $written < length $data;
    }
    exit;
}
"#;

/// A home and its pods.
#[derive(Debug)]
pub struct Pods {
    /// The home.
    pub home: LocalHome,
    /// The pods of its default namespace.
    pub api: Api<Pod>,
}

impl Pods {
    /// Starts a home. `None` if such tests are skipped.
    pub async fn up() -> Option<Pods> {
        let home = LocalHome::new()?;
        home.up();
        let client: Client = home.client().await;
        Some(Pods { home, api: Api::default_namespaced(client) })
    }

    /// Starts a pod with one container on the host image, and waits until it runs.
    pub async fn start(&self, name: &str, restart_policy: &str, mut container: Value) {
        container["name"] = "main".into();
        container["image"] = "warren.dev/host".into();
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"restartPolicy": restart_policy, "terminationGracePeriodSeconds": 0, "containers": [container]},
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        self.api.create(&PostParams::default(), &pod).await.expect("create the pod");
        self.wait(name, "runs", |pod| state(pod).is_some_and(|state| state.running.is_some())).await;
    }

    /// Starts a pod that echoes its input on this port of its loopback. Returns false where there
    /// is no Perl.
    pub async fn start_echo(&self, name: &str, port: u16) -> bool {
        if !std::path::Path::new("/usr/bin/perl").exists() {
            eprintln!("skipped: no Perl on this machine");
            return false;
        }
        let command = json!({"command": ["perl", "-e", ECHO, port.to_string()]});
        self.start(name, "Always", command).await;
        self.wait_for_log(name, "listening").await;
        true
    }

    /// Waits until a pod meets a condition.
    pub async fn wait(&self, name: &str, what: &str, condition: impl Fn(&Pod) -> bool) {
        let condition = |pod: Option<&Pod>| pod.is_some_and(&condition);
        let waited = wait::await_condition(self.api.clone(), name, condition);
        match tokio::time::timeout(DEADLINE, waited).await {
            Ok(found) => drop(found.expect("watch the pod")),
            Err(_) => {
                let pod = self.api.get(name).await.expect("read the pod");
                panic!("{} never {what}: {:?}", pod.name_any(), pod.status);
            }
        }
    }

    /// Waits until a pod's log contains this.
    pub async fn wait_for_log(&self, name: &str, wanted: &str) {
        let waited = async {
            loop {
                let log = self.api.logs(name, &LogParams::default()).await.expect("read the log");
                if log.contains(wanted) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, waited).await.expect("the log holds what it should");
    }
}

/// Returns the state of a pod's only container.
pub fn state(pod: &Pod) -> Option<&k8s_openapi::api::core::v1::ContainerState> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.as_ref()
}

/// Returns the exit code of a pod's only container.
pub fn exit_code(pod: &Pod) -> Option<i32> {
    Some(state(pod)?.terminated.as_ref()?.exit_code)
}
