//! Tests of the view of kubectl's users: the generated files can be applied unchanged, and names,
//! columns and explanations are those of agent-sandbox.

use std::time::{Duration, Instant};

use expect_test::expect;
use warren_testkit::kube::ControlPlane;

const OBJECTS: &str = r#"
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: s}
spec: {podTemplate: {spec: {containers: [{name: main, image: warren.dev/host}]}}}
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: t}
spec: {podTemplate: {spec: {containers: [{name: main, image: warren.dev/host}]}}}
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {name: p}
spec: {replicas: 2, sandboxTemplateRef: {name: t}}
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxClaim
metadata: {name: c}
spec: {warmPoolRef: {name: p}}
"#;

#[test]
fn what_kubectl_shows() {
    let control_plane = ControlPlane::start();
    let kubectl = |arguments: &[&str]| {
        let shown = control_plane.kubectl(arguments).unwrap();
        shown.lines().map(|line| format!("{}\n", line.trim_end())).collect::<String>()
    };
    let folder = format!("{}/../../deploy/crds/", env!("CARGO_MANIFEST_DIR"));
    kubectl(&["apply", "--server-side", "--filename", &folder]);
    kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]);
    control_plane.kubectl_with_input(&["apply", "--server-side", "--filename", "-"], OBJECTS).unwrap();
    let ready = |sandbox: &str| {
        format!(
            r#"{{"status": {{{sandbox} "conditions": [{{"type": "Ready", "status": "True", "reason": "DependenciesReady",
                "message": "Pod is Ready", "lastTransitionTime": "2030-01-01T00:00:00Z"}}]}}}}"#
        )
    };
    let patch = |object: &str, patch: &str| {
        kubectl(&["patch", object, "--subresource=status", "--type=merge", "--patch", patch]);
    };
    patch("sandbox/s", &ready(""));
    patch("sandboxclaim/c", &ready(r#""sandbox": {"name": "p-x7k2p"},"#));
    patch("swp/p", r#"{"status": {"replicas": 2, "readyReplicas": 1}}"#);

    // The schemas of new definitions are published a moment after they are served.
    for kind in ["sandbox", "sandboxtemplate"] {
        let started = Instant::now();
        while let Err(error) = control_plane.kubectl(&["explain", kind]) {
            assert!(started.elapsed() < Duration::from_secs(60), "{error}");
            #[expect(clippy::disallowed_methods, reason = "a condition is polled, with a deadline")]
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    let mut shown = String::new();
    for kind in ["sandbox", "sandboxclaim", "sandboxtemplate", "swp"] {
        for line in kubectl(&["get", kind]).lines() {
            // The last column is the age, which changes.
            let columns: Vec<&str> = line.split_whitespace().collect();
            shown.push_str(&format!("{}\n", columns[..columns.len() - 1].join(" ")));
        }
    }
    shown.push_str(&kubectl(&["scale", "swp/p", "--replicas=5"]));
    shown.push_str(&kubectl(&["get", "swp/p", "--output=jsonpath={.spec.replicas}"]));
    expect![[r#"
        NAME READY REASON
        s True DependenciesReady
        NAME READY SANDBOX REASON
        c True p-x7k2p DependenciesReady
        NAME
        t
        NAME READY DESIRED
        p 1 2
        sandboxwarmpool.extensions.agents.x-k8s.io/p scaled
        5
    "#]]
    .assert_eq(&shown);

    expect![[r#"
        GROUP:      agents.x-k8s.io
        KIND:       Sandbox
        VERSION:    v1beta1

        FIELD: spec <Object>


        DESCRIPTION:
            What a Sandbox should be.
    
        FIELDS:
          operatingMode	<string>
          enum: Running, Suspended
            operatingMode is the desired state: a suspended sandbox keeps its identity
            and its volumes, but has no pod.

          podTemplate	<Object> -required-
            podTemplate describes the pod that backs the sandbox.

          service	<boolean>
            service decides about the headless service of the sandbox: true creates and
            maintains it, false removes it, and when the field is absent none is
            created, but one that the sandbox owns is kept in order.

          shutdownPolicy	<string>
          enum: Delete, Retain
            shutdownPolicy says what becomes of the Sandbox object when it has expired.
            Its pod and service are removed in either case.

          shutdownTime	<string>
            shutdownTime is when the sandbox expires, as an absolute time. It never
            expires when the field is absent.

          volumeClaimTemplates	<[]Object>
            volumeClaimTemplates is a list of claims that the sandbox's pod is allowed
            to reference. One PersistentVolumeClaim is made for each, named `<template
            name>-<sandbox name>`.


    "#]]
    .assert_eq(&kubectl(&["explain", "sandbox.spec", "--api-version=agents.x-k8s.io/v1beta1"]));
    expect![[r#"
        GROUP:      extensions.agents.x-k8s.io
        KIND:       SandboxTemplate
        VERSION:    v1beta1

        FIELD: ports <[]Object>


        DESCRIPTION:
            List of ports to expose from the container. Not specifying a port here DOES
            NOT prevent that port from being exposed. Any port which is listening on the
            default "0.0.0.0" address inside a container will be accessible from the
            network. Modifying this array with strategic merge patch may corrupt the
            data. For more information See
            https://github.com/kubernetes/kubernetes/issues/108255. Cannot be updated.
            ContainerPort represents a network port in a single container.
    
        FIELDS:
          containerPort	<integer> -required-
            Number of port to expose on the pod's IP address. This must be a valid port
            number, 0 < x < 65536.

          hostIP	<string>
            What host IP to bind the external port to.

          hostPort	<integer>
            Number of port to expose on the host. If specified, this must be a valid
            port number, 0 < x < 65536. If HostNetwork is specified, this must match
            ContainerPort. Most containers do not need this.

          name	<string>
            If specified, this must be an IANA_SVC_NAME and unique within the pod. Each
            named port in a pod must have a unique name. Name for the port that can be
            referred to by services.

          protocol	<string>
            Protocol for port. Must be UDP, TCP, or SCTP. Defaults to "TCP".


    "#]]
    .assert_eq(&kubectl(&[
        "explain",
        "sandboxtemplate.spec.podTemplate.spec.containers.ports",
        "--api-version=extensions.agents.x-k8s.io/v1beta1",
    ]));
}
