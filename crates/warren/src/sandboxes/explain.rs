//! Runs `warren explain`: says why a sandbox is not Ready, in plain words, with the next step.

use k8s_openapi::api::core::v1::{Event, Pod};
use warren_api::conditions::{self, ConditionType};
use warren_api::{Sandbox, SandboxClaim};
use warren_client::kube::ResourceExt as _;
use warren_client::kube::api::Api;
use warren_client::sandbox::{self, Progress, Standing};

use super::Found;
use crate::cli;

/// Prints an explanation. The exit code is 0 for a Ready sandbox, 1 otherwise.
pub async fn explain(arguments: &cli::Explain) -> anyhow::Result<i32> {
    let reached = super::reach(&arguments.place).await?;
    let (client, namespace) = (&reached.client, &reached.namespace);
    let found = super::find(&reached, &arguments.sandbox).await?;
    let pod = match &found.sandbox {
        Some(sandbox) => {
            let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
            pods.get_opt(&sandbox::pod_name(sandbox)).await.ok().flatten()
        }
        None => None,
    };
    let events = super::events_of(client, namespace, &found).await?;
    let explanation = explanation(&found, pod.as_ref(), &events);
    print!("{}", explanation.text);
    Ok(if explanation.ready { 0 } else { 1 })
}

struct Explanation {
    ready: bool,
    text: String,
}

fn explanation(found: &Found, pod: Option<&Pod>, events: &[Event]) -> Explanation {
    let (ready, mut lines) = match (&found.sandbox, &found.claim) {
        (Some(sandbox), _) => of_sandbox(sandbox, pod),
        (None, Some(claim)) => (false, of_claim(claim)),
        (None, None) => (false, vec!["There is no sandbox.".to_owned()]),
    };
    let warnings: Vec<&Event> =
        events.iter().filter(|event| event.type_.as_deref() == Some("Warning")).collect();
    for event in warnings.iter().rev().take(3) {
        let text = format!(
            "Event {}: {}",
            event.reason.as_deref().unwrap_or_default(),
            event.message.as_deref().unwrap_or_default()
        );
        lines.push(text);
    }
    let text = lines.into_iter().map(|line| format!("{}\n", line.replace(char::is_control, " "))).collect();
    Explanation { ready, text }
}

fn of_sandbox(sandbox: &Sandbox, pod: Option<&Pod>) -> (bool, Vec<String>) {
    let name = sandbox.name_any();
    let (ended, standing) = match sandbox::progress(sandbox) {
        Progress::Ready => {
            return (
                true,
                vec![format!("Sandbox `{name}` is Ready: `warren shell {name}` opens a shell in it.")],
            );
        }
        Progress::Waiting(standing) => (false, standing),
        Progress::Ended(standing) => (true, standing),
    };
    let state = if ended { "will not become Ready by itself" } else { "is not Ready yet" };
    let mut lines = vec![format!("Sandbox `{name}` {state}: {standing}.")];
    if let Some(text) = pod.and_then(sandbox::describe_pod) {
        lines.push(format!("Its pod says: {text}."));
    }
    lines.push(format!("Next: {}", next_step(&standing, pod, &name)));
    (false, lines)
}

fn of_claim(claim: &SandboxClaim) -> Vec<String> {
    let name = claim.name_any();
    let pool = &claim.spec.warm_pool_ref.name;
    let status = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let (reason, message) = match conditions::find(status, ConditionType::Ready) {
        Some(ready) => (ready.reason.as_str(), ready.message.as_str()),
        None => ("Pending", "no controller has looked at it yet"),
    };
    let next = match reason {
        "WarmPoolNotFound" => format!("create a SandboxWarmPool named `{pool}`, or name another one."),
        "TemplateNotFound" => format!("create the SandboxTemplate that pool `{pool}` names."),
        "Pending" => {
            "check that the controllers run: `warren up` in the local home, `warren controller` on a cluster."
                .to_owned()
        }
        "ClaimExpired" => format!("delete it with `warren delete {name}`, and make a new one."),
        _ => format!("`warren events {name}` shows what happened."),
    };
    vec![format!("Claim `{name}` has no sandbox: {reason}: {message}."), format!("Next: {next}")]
}

/// Returns the user's next step.
fn next_step(standing: &Standing, pod: Option<&Pod>, name: &str) -> String {
    let pod_text = pod.and_then(sandbox::describe_pod).unwrap_or_default();
    let says =
        |words: &[&str]| words.iter().any(|word| pod_text.contains(word) || standing.message.contains(word));
    if says(&["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"]) {
        return "check the image's name with `warren image pull IMAGE`, or bring it with `warren image import`.".to_owned();
    }
    if says(&["OOMKilled"]) {
        return "give it more memory (`--memory`, or `resources.limits.memory` in its template).".to_owned();
    }
    if says(&["Evicted"]) {
        return "give it more room on the disk (`--disk`, or `limits.ephemeral-storage`), or write less."
            .to_owned();
    }
    match standing.reason.as_str() {
        "SandboxSuspended" => "set `spec.operatingMode` to `Running` to wake it.".to_owned(),
        "SandboxExpired" => format!("its time is over: delete it with `warren delete {name}`."),
        "PodSucceeded" | "PodFailed" => format!("`warren logs {name}` shows what it wrote before it ended."),
        "Pending" => {
            "check that the controllers run: `warren up` in the local home, `warren controller` on a cluster."
                .to_owned()
        }
        _ if pod.is_none() => format!("`warren events {name}` shows why it has no pod."),
        _ => format!("wait; `warren events {name}` shows what happens."),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn explained(ready: Value, container: Value) -> String {
        let sandbox = from_value(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": { "name": "s", "namespace": "n" },
            "spec": { "podTemplate": { "spec": { "containers": [] } } },
            "status": { "conditions": [ready] },
        }));
        let pod = from_value(json!({
            "metadata": { "name": "s" },
            "status": { "containerStatuses": [
                { "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": container },
            ] },
        }));
        let event: Event = from_value(json!({
            "metadata": {}, "involvedObject": {}, "type": "Warning", "reason": "Failed", "message": "esc\u{1b}[2J",
        }))
        .expect("an event");
        let found = Found { sandbox: Some(sandbox.expect("a sandbox")), claim: None };
        explanation(&found, Some(&pod.expect("a pod")), &[event]).text
    }

    fn condition(status: &str, reason: &str) -> Value {
        json!({ "type": "Ready", "status": status, "reason": reason, "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z" })
    }

    #[test]
    fn reasons_come_with_the_next_step_and_without_control_characters() {
        let waiting = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } });
        assert_eq!(
            explained(condition("False", "DependenciesNotReady"), waiting),
            "Sandbox `s` is not Ready yet: DependenciesNotReady: m.\n\
             Its pod says: container `c`: ImagePullBackOff: no such image.\n\
             Next: check the image's name with `warren image pull IMAGE`, or bring it with `warren image import`.\n\
             Event Failed: esc [2J\n"
        );
        let killed = json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
        let text = explained(condition("False", "PodFailed"), killed);
        assert!(text.contains("will not become Ready by itself") && text.contains("--memory"), "{text}");
        let text = explained(condition("True", "DependenciesReady"), json!({}));
        assert!(text.starts_with("Sandbox `s` is Ready"), "{text}");
    }
}
