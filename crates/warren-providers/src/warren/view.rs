//! The view of a sandbox's objects that clients are shown.

use jiff::Timestamp;
use serde_json::Value;
use warren_api::conditions::{self, ConditionType};
use warren_api::sandbox::OperatingMode;
use warren_api::{Sandbox, annotations, labels};
use warren_client::launch::Launched;
use warren_client::sandbox::Progress;

use crate::limits::Network;
use crate::provider::{Info, Metrics, Status};

/// Returns what a claim or sandbox is, with the sandbox that runs its commands.
pub(super) fn info(launched: &Launched, behind: Option<&Sandbox>) -> Info {
    let (status, message) = status(launched, behind);
    let template = behind.map(|sandbox| &sandbox.spec.blueprint.pod_template);
    let containers = template.map(|template| template.spec.containers.as_slice()).unwrap_or_default();
    let ports = containers.iter().flat_map(|container| container.ports.iter().flatten());
    let key = launched.key();
    Info {
        id: key.name.clone(),
        name: key.name,
        namespace: key.namespace,
        project_id: launched.labels().get(labels::PROJECT).cloned(),
        status,
        message,
        image: containers.first().and_then(|container| container.image.clone()),
        created_at: launched.created(),
        last_activity_at: launched.created(),
        ports: ports.filter_map(|port| u16::try_from(port.container_port).ok()).collect(),
        labels: launched.labels().clone(),
        network: template
            .and_then(|template| template.metadata.annotations.get(annotations::NETWORK))
            .map_or(Network::Restricted, |mode| match mode.as_str() {
                "none" => Network::None,
                "full" => Network::Full,
                _ => Network::Restricted,
            }),
    }
}

fn status(launched: &Launched, behind: Option<&Sandbox>) -> (Status, Option<String>) {
    let deleted = match launched {
        Launched::Sandbox(sandbox) => sandbox.metadata.deletion_timestamp.is_some(),
        Launched::Claim(claim) => claim.metadata.deletion_timestamp.is_some(),
    };
    if deleted {
        return (Status::Stopping, None);
    }
    let conditions = behind
        .and_then(|sandbox| sandbox.status.as_ref())
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    if behind.is_some_and(|sandbox| sandbox.spec.operating_mode == OperatingMode::Suspended) {
        let suspended = conditions::is_true(conditions, ConditionType::Suspended);
        return (if suspended { Status::Stopped } else { Status::Stopping }, None);
    }
    // A sandbox that was just resumed still has the condition of before.
    let resumed = conditions::is_true(conditions, ConditionType::Suspended);
    match launched.progress() {
        Progress::Ready => (Status::Running, None),
        Progress::Waiting(standing) => {
            let waiting = conditions::find(conditions, ConditionType::PodWaiting);
            let message = match waiting {
                Some(waiting) => format!("{}: {}", waiting.reason, waiting.message),
                None => standing.to_string(),
            };
            (Status::Creating, Some(message))
        }
        Progress::Ended(standing) if resumed && standing.reason == "SandboxSuspended" => {
            (Status::Creating, None)
        }
        Progress::Ended(standing) => match standing.reason.as_str() {
            "SandboxSuspended" | "PodSucceeded" | "SandboxExpired" | "ClaimExpired" => {
                (Status::Stopped, Some(standing.to_string()))
            }
            _ => (Status::Error, Some(standing.to_string())),
        },
    }
}

/// Reads a `PodMetrics` object.
pub(super) fn metrics(used: &Value, created: Option<Timestamp>, now: Timestamp) -> Metrics {
    let sum = |what: &str| -> Option<f64> {
        let containers = used["containers"].as_array()?.iter();
        Some(containers.filter_map(|container| quantity(container["usage"][what].as_str()?)).sum())
    };
    let uptime = created.map_or(0, |created| now.duration_since(created).as_millis());
    Metrics {
        cpu_usage_percent: sum("cpu").map(|cores| cores * 100.0),
        memory_usage_mb: sum("memory").map(|bytes| bytes / f64::from(1 << 20)),
        uptime: u64::try_from(uptime).unwrap_or(0),
    }
}

/// Reads a quantity of Kubernetes.
fn quantity(text: &str) -> Option<f64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let factor = match &text[end..] {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        _ => return None,
    };
    Some(number * factor)
}

/// Tells whether a full name of an image is meant by a short one: `docker.io/library/busybox:latest` by `busybox`.
pub(super) fn is_name_of(full: &str, short: &str) -> bool {
    let last = short.rsplit('/').next().unwrap_or(short);
    let tagged = match last.contains([':', '@']) {
        true => short.to_owned(),
        false => format!("{short}:latest"),
    };
    full == tagged || full == format!("docker.io/{tagged}") || full == format!("docker.io/library/{tagged}")
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn shown(mode: &str, conditions: &[(&str, &str, &str)]) -> &'static str {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status, reason)| {
                json!({ "type": type_, "status": status, "reason": reason, "message": "m",
                        "lastTransitionTime": "2026-01-01T00:00:00Z" })
            })
            .collect();
        let sandbox: Sandbox = from_value(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": { "name": "s", "namespace": "n" },
            "spec": { "podTemplate": { "spec": { "containers": [] } }, "operatingMode": mode },
            "status": { "conditions": conditions },
        }))
        .expect("a sandbox");
        info(&Launched::Sandbox(Box::new(sandbox.clone())), Some(&sandbox)).status.name()
    }

    #[test]
    fn conditions_are_one_of_five_states() {
        for (mode, conditions, expected) in [
            ("Running", &[][..], "creating"),
            ("Running", &[("Ready", "False", "DependenciesNotReady")], "creating"),
            ("Running", &[("Ready", "True", "DependenciesReady")], "running"),
            ("Running", &[("Ready", "False", "PodFailed")], "error"),
            ("Running", &[("Ready", "False", "PodSucceeded")], "stopped"),
            ("Running", &[("Ready", "False", "SandboxExpired")], "stopped"),
            ("Suspended", &[("Ready", "True", "DependenciesReady")], "stopping"),
            ("Suspended", &[("Suspended", "True", "x"), ("Ready", "False", "SandboxSuspended")], "stopped"),
            ("Running", &[("Suspended", "True", "x"), ("Ready", "False", "SandboxSuspended")], "creating"),
        ] {
            assert_eq!(shown(mode, conditions), expected, "{mode} {conditions:?}");
        }
    }

    #[test]
    fn usage_is_summed_over_containers() {
        let used = json!({ "containers": [
            { "usage": { "cpu": "250m", "memory": "1Mi" } },
            { "usage": { "cpu": "500000000n", "memory": "1024Ki" } },
        ] });
        let now = Timestamp::from_second(10).expect("a time");
        let metrics = metrics(&used, Some(Timestamp::UNIX_EPOCH), now);
        assert_eq!(metrics.cpu_usage_percent.map(f64::round), Some(75.0), "{metrics:?}");
        assert_eq!(metrics.memory_usage_mb.map(f64::round), Some(2.0), "{metrics:?}");
        assert_eq!(metrics.uptime, 10_000);
        assert_eq!(quantity("3x"), None);
    }

    #[test]
    fn short_names_of_images_are_those_of_docker() {
        assert!(is_name_of("docker.io/library/busybox:latest", "busybox"));
        assert!(is_name_of("docker.io/owner/tool:1", "owner/tool:1"));
        assert!(is_name_of("localhost:5000/a:latest", "localhost:5000/a"));
        assert!(!is_name_of("docker.io/library/busybox:1", "busybox"));
    }
}
