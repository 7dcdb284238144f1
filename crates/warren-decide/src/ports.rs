//! Derives the ports of a sandbox's service from the ports of its containers.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Derives the service ports: containers first, then init containers that keep running beside them.
/// A port is known by number and protocol; the first explicit name for it wins, unless an earlier
/// port already has that name.
#[must_use]
pub fn derive(spec: &PodSpec) -> Vec<ServicePort> {
    let mut names: BTreeMap<(i32, String), Option<String>> = BTreeMap::new();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for container in serving_containers(spec) {
        for port in container.ports.iter().flatten().filter(|port| port.container_port != 0) {
            let protocol =
                port.protocol.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| "TCP".to_owned());
            let name = names.entry((port.container_port, protocol)).or_default();
            if name.is_none()
                && let Some(explicit) = port.name.as_deref().filter(|text| !text.is_empty())
                && taken.insert(explicit.to_owned())
            {
                *name = Some(explicit.to_owned());
            }
        }
    }
    names
        .into_iter()
        .map(|((port, protocol), name)| ServicePort {
            name: Some(name.unwrap_or_else(|| generated_name(port, &protocol, &mut taken))),
            port,
            protocol: Some(protocol),
            target_port: Some(IntOrString::Int(port)),
            ..ServicePort::default()
        })
        .collect()
}

/// Returns true if a service's ports are the wanted ones. Only fields that we set are compared, so
/// that the server's defaults survive.
#[must_use]
pub fn matches(present: &[ServicePort], wanted: &[ServicePort]) -> bool {
    present.len() == wanted.len()
        && present.iter().zip(wanted).all(|(present, wanted)| {
            present.name == wanted.name
                && present.protocol == wanted.protocol
                && present.port == wanted.port
                && present.target_port == wanted.target_port
        })
}

fn serving_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let sidecars = spec.init_containers.iter().flatten();
    spec.containers
        .iter()
        .chain(sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always")))
}

fn generated_name(port: i32, protocol: &str, taken: &mut BTreeSet<String>) -> String {
    let base = format!("p-{port}-{}", protocol.to_lowercase());
    let mut name = base.clone();
    let mut suffix = 2;
    while !taken.insert(name.clone()) {
        name = format!("{base}-{suffix}");
        suffix += 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use k8s_openapi::api::core::v1::PodSpec;

    use super::derive;

    fn check(spec: serde_json::Value, expect: Expect) {
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let text: Vec<String> = derive(&spec)
            .into_iter()
            .map(|port| format!("{} {}/{}", port.name.unwrap(), port.port, port.protocol.unwrap()))
            .collect();
        expect.assert_eq(&text.join("\n"));
    }

    /// Row 8.
    #[test]
    fn service_ports() {
        check(serde_json::json!({"containers": [{"name": "a"}]}), expect![[""]]);
        check(
            serde_json::json!({"containers": [
                {"name": "a", "ports": [{"containerPort": 9000}, {"containerPort": 80, "name": "web"}, {"containerPort": 0}]},
                {"name": "b", "ports": [{"containerPort": 80, "name": "other"}, {"containerPort": 53, "protocol": "UDP"}]}],
              "initContainers": [
                {"name": "once", "ports": [{"containerPort": 1}]},
                {"name": "side", "restartPolicy": "Always", "ports": [{"containerPort": 70, "name": "web"}]}]}),
            expect![[r#"
                p-53-udp 53/UDP
                p-70-tcp 70/TCP
                web 80/TCP
                p-9000-tcp 9000/TCP"#]],
        );
        check(
            serde_json::json!({"containers": [
                {"name": "a", "ports": [{"containerPort": 80}, {"containerPort": 81, "name": "p-80-tcp"}]}]}),
            expect![[r#"
                p-80-tcp-2 80/TCP
                p-80-tcp 81/TCP"#]],
        );
    }
}
