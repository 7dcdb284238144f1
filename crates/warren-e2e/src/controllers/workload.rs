//! Objects that scenarios begin with, the same for both homes.
//!
//! The image is the one that needs no pull. A pod that is to end by itself says so twice: by its
//! command for a real node, and by an annotation for a simulated one.

use serde_json::{Value, json};
use warren_testkit::nodes::{FATE, Fate, SCHEDULER};

const CORE: &str = "agents.x-k8s.io/v1beta1";
const EXTENSIONS: &str = "extensions.agents.x-k8s.io/v1beta1";

/// Returns a value merged with another, at any depth. Lists are replaced.
pub fn with(mut base: Value, over: Value) -> Value {
    match (&mut base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                let below = base.get_mut(&key).map(Value::take).unwrap_or_default();
                base.insert(key, with(below, value));
            }
        }
        (base, over) => *base = over,
    }
    base
}

/// Returns a pod template whose pod becomes ready: a real container in the local home.
pub fn running() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}})
}

/// Returns a pod template whose pod ends by itself with this code, and is not restarted.
pub fn ending(code: u8) -> Value {
    let fate = if code == 0 { Fate::Succeeded } else { Fate::Failed };
    with(
        running(),
        json!({
            "metadata": {"annotations": {FATE: fate.as_str()}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "warren.dev/host",
                    "command": ["sh", "-c", format!("exit {code}")]}],
            },
        }),
    )
}

/// Returns a pod template for simulated nodes, in either home.
pub fn simulated(fate: Fate) -> Value {
    with(
        running(),
        json!({"metadata": {"annotations": {FATE: fate.as_str()}}, "spec": {"schedulerName": SCHEDULER}}),
    )
}

/// Returns a volume claim template.
pub fn volume(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
}

/// Returns a Sandbox; `spec` is merged over that of one with a [`running`] pod.
pub fn sandbox(name: &str, spec: Value) -> Value {
    let spec = with(json!({"podTemplate": running()}), spec);
    json!({"apiVersion": CORE, "kind": "Sandbox", "metadata": {"name": name}, "spec": spec})
}

/// Returns a SandboxTemplate; `spec` is merged over that of one with a [`running`] pod.
pub fn template(name: &str, spec: Value) -> Value {
    let spec = with(json!({"podTemplate": running()}), spec);
    json!({"apiVersion": EXTENSIONS, "kind": "SandboxTemplate", "metadata": {"name": name}, "spec": spec})
}

/// Returns a SandboxWarmPool over the template of that name.
pub fn pool(name: &str, template: &str, replicas: i32) -> Value {
    json!({"apiVersion": EXTENSIONS, "kind": "SandboxWarmPool", "metadata": {"name": name},
        "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": template}}})
}

/// Returns a SandboxClaim on a pool, with more fields in its spec.
pub fn claim(name: &str, pool: &str, spec: Value) -> Value {
    let spec = with(json!({"warmPoolRef": {"name": pool}}), spec);
    json!({"apiVersion": EXTENSIONS, "kind": "SandboxClaim", "metadata": {"name": name}, "spec": spec})
}

/// Returns a Pod without an owner.
pub fn stranger(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}})
}
