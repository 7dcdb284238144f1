//! Tests of the conversion.

use expect_test::{Expect, expect};
use serde_json::Value;

use super::{ConversionError, convert, missing_companions};

/// Converts a manifest and compares the result, the notes and the companions.
fn check(manifest: &str, expected: Expect) {
    let manifest: Value = serde_saphyr::from_str(manifest).expect("a YAML document");
    let shown = match convert(manifest) {
        Err(error) => format!("error: {error}\n"),
        Ok(converted) => {
            let mut shown = serde_saphyr::to_string(&converted.object).unwrap();
            for note in &converted.notes {
                shown.push_str(&format!("# {note}\n"));
            }
            for companion in missing_companions([&converted]) {
                shown.push_str(&format!("---\n{}", serde_saphyr::to_string(companion).unwrap()));
            }
            if !converted.changed {
                shown.push_str("(unchanged)\n");
            }
            shown
        }
    };
    expected.assert_eq(&shown);
}

#[test]
fn a_suspended_sandbox() {
    check(
        r#"
apiVersion: agents.x-k8s.io/v1alpha1
kind: Sandbox
metadata: {name: s}
spec:
  replicas: 0
  podTemplate: {spec: {containers: [{name: c, image: i}]}}
  lifecycle: {shutdownTime: "2026-01-31T00:00:00Z", shutdownPolicy: Delete, ttlSecondsAfterFinished: 5}
status: {replicas: 1, selector: a=b}
"#,
        expect![[r#"
            apiVersion: agents.x-k8s.io/v1beta1
            kind: Sandbox
            metadata:
              name: s
            spec:
              podTemplate:
                spec:
                  containers:
                  - name: c
                    image: i
              operatingMode: Suspended
              shutdownTime: "2026-01-31T00:00:00Z"
              shutdownPolicy: Delete
            status:
              selector: a=b
            # spec.lifecycle.ttlSecondsAfterFinished: only a SandboxClaim ends by itself after its sandbox has finished; claim the sandbox, or set `spec.shutdownTime`
        "#]],
    );
}

#[test]
fn a_running_sandbox_needs_no_mode() {
    check(
        r#"
apiVersion: agents.x-k8s.io/v1alpha1
kind: Sandbox
metadata: {name: s}
spec:
  replicas: 1
  podTemplate: {spec: {containers: [{name: c, image: i}]}}
"#,
        expect![[r#"
            apiVersion: agents.x-k8s.io/v1beta1
            kind: Sandbox
            metadata:
              name: s
            spec:
              podTemplate:
                spec:
                  containers:
                  - name: c
                    image: i
        "#]],
    );
}

#[test]
fn more_replicas_than_a_sandbox_has() {
    check(
        r#"
apiVersion: agents.x-k8s.io/v1alpha1
kind: Sandbox
metadata: {name: s}
spec: {replicas: 3, podTemplate: {spec: {containers: [{name: c}]}}}
"#,
        expect![[r#"
            apiVersion: agents.x-k8s.io/v1beta1
            kind: Sandbox
            metadata:
              name: s
            spec:
              podTemplate:
                spec:
                  containers:
                  - name: c
            # spec.replicas: 3 replicas: a Sandbox has one pod or, when suspended, none; make a SandboxWarmPool for several sandboxes of a kind
        "#]],
    );
}

#[test]
fn a_claim_of_a_template() {
    check(
        r#"
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxClaim
metadata: {name: c, namespace: team}
spec: {sandboxTemplateRef: {name: python}, shutdownTime: "2026-01-31T00:00:00Z"}
"#,
        expect![[r#"
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxClaim
            metadata:
              name: c
              namespace: team
            spec:
              warmPoolRef:
                name: shadow-pool-python
              lifecycle:
                shutdownTime: "2026-01-31T00:00:00Z"
            # spec.sandboxTemplateRef: `warmpool: default` took a waiting sandbox of template `python` from any pool; a claim now names one pool, and this one has none waiting; name a pool of that template in `spec.warmPoolRef` to be served at once
            ---
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxWarmPool
            metadata:
              name: shadow-pool-python
              namespace: team
              annotations:
                agents.x-k8s.io/migration-shadow: "true"
                agents.x-k8s.io/migration-source-template: python
            spec:
              replicas: 0
              sandboxTemplateRef:
                name: python
        "#]],
    );
}

#[test]
fn a_claim_of_a_template_that_wants_no_pool() {
    check(
        r#"
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxClaim
metadata: {name: c}
spec: {templateName: python, warmpool: none}
"#,
        expect![[r#"
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxClaim
            metadata:
              name: c
            spec:
              warmPoolRef:
                name: shadow-pool-python
            # spec.sandboxTemplateRef: served by new sandboxes of template `python`, as before
            ---
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxWarmPool
            metadata:
              name: shadow-pool-python
              annotations:
                agents.x-k8s.io/migration-shadow: "true"
                agents.x-k8s.io/migration-source-template: python
            spec:
              replicas: 0
              sandboxTemplateRef:
                name: python
        "#]],
    );
}

#[test]
fn a_claim_of_a_pool_under_a_v1beta1_header() {
    check(
        r#"
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxClaim
metadata: {name: c}
spec: {sandboxTemplateRef: {name: python}, warmpool: fast}
"#,
        expect![[r#"
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxClaim
            metadata:
              name: c
            spec:
              warmPoolRef:
                name: fast
        "#]],
    );
}

#[test]
fn a_bound_claim_keeps_its_pool() {
    check(
        r#"
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxClaim
metadata: {name: c, labels: {agents.x-k8s.io/sandbox-name: fast-pool-x7k2p}}
spec: {templateRef: {name: python}}
"#,
        expect![[r#"
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxClaim
            metadata:
              name: c
              annotations:
                agents.x-k8s.io/sandbox-name: fast-pool-x7k2p
            spec:
              warmPoolRef:
                name: fast-pool
        "#]],
    );
}

#[test]
fn a_claim_of_nothing() {
    check(
        r#"
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxClaim
metadata: {name: c}
spec: {}
"#,
        expect![[r#"
            error: `spec.warmPoolRef`: the claim names neither a pool nor a template
        "#]],
    );
}

#[test]
fn a_template_with_the_helper_annotation() {
    check(
        r#"
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxTemplate
metadata: {name: t, annotations: {api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy: Allowed}}
spec: {podTemplate: {spec: {containers: [{name: c, image: i}]}}}
"#,
        expect![[r#"
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxTemplate
            metadata:
              name: t
            spec:
              podTemplate:
                spec:
                  containers:
                  - name: c
                    image: i
              volumeClaimTemplatesPolicy: Allowed
        "#]],
    );
    check(
        r#"
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxTemplate
metadata: {name: t, annotations: {api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy: Sometimes}}
spec: {podTemplate: {spec: {containers: [{name: c, image: i}]}}}
"#,
        expect![[r#"
            error: `metadata.annotations[api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy]`: neither `Disallowed`, `Allowed` nor `Overrides`
        "#]],
    );
}

#[test]
fn pools_of_three_dialects() {
    check(
        r#"
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxWarmPool
metadata: {name: p}
spec: {replicas: 2, sandboxTemplateRef: {name: python}, updateStrategy: {type: Recreate}}
"#,
        expect![[r#"
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxWarmPool
            metadata:
              name: p
            spec:
              replicas: 2
              sandboxTemplateRef:
                name: python
              updateStrategy:
                type: Recreate
        "#]],
    );
    check(
        r#"
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxWarmPool
metadata: {name: p}
spec: {templateName: python, minReady: 3, maxReady: 10}
"#,
        expect![[r#"
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxWarmPool
            metadata:
              name: p
            spec:
              replicas: 3
              sandboxTemplateRef:
                name: python
            # spec.maxReady: a pool has one size; let a HorizontalPodAutoscaler set it: SandboxWarmPool has the scale subresource
        "#]],
    );
    check(
        r#"
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxWarmPool
metadata: {name: p, namespace: team}
spec: {size: 2, template: {spec: {image: i, runtimeClassName: gvisor, resources: {limits: {memory: 1Gi}}}}}
"#,
        expect![[r#"
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxWarmPool
            metadata:
              name: p
              namespace: team
            spec:
              replicas: 2
              sandboxTemplateRef:
                name: p
            # spec.podTemplate.spec.image: written as the one container `sandbox` of `spec.podTemplate`; rename it if something refers to it
            # spec.template: a pool does not describe its sandboxes; this is now a SandboxTemplate
            ---
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxTemplate
            metadata:
              name: p
              namespace: team
            spec:
              podTemplate:
                spec:
                  containers:
                  - name: sandbox
                    image: i
                    resources:
                      limits:
                        memory: 1Gi
                  runtimeClassName: gvisor
        "#]],
    );
}

#[test]
fn fields_that_no_version_has() {
    check(
        r#"
apiVersion: agents.x-k8s.io/v1alpha1
kind: Sandbox
metadata: {name: s}
spec: {podTemplate: {spec: {containers: [{name: c, imagee: i}]}}, ttlSecondsAfterIdle: 60, colour: red}
"#,
        expect![[r#"
            apiVersion: agents.x-k8s.io/v1beta1
            kind: Sandbox
            metadata:
              name: s
            spec:
              podTemplate:
                spec:
                  containers:
                  - name: c
            # spec.ttlSecondsAfterIdle: a Sandbox does not watch for idleness; its end is an absolute time; set `spec.shutdownTime`, or `spec.operatingMode: Suspended` when it is not needed
            # spec.podTemplate.spec.containers[0].imagee: Sandbox has no such field in v1beta1; the server drops it; remove it or look up its successor
            # spec.colour: Sandbox has no such field in v1beta1; the server drops it; remove it or look up its successor
        "#]],
    );
    check(
        r#"
apiVersion: agents.x-k8s.io/v1alpha1
kind: Sandbox
metadata: {name: s}
spec: {podTemplate: {spec: {containers: [{image: i}]}}}
"#,
        expect![[r#"
            error: `spec.podTemplate.spec.containers[0].name`: required, and missing
        "#]],
    );
}

#[test]
fn what_is_current_or_not_ours_comes_back_as_it_was() {
    check(
        r#"
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: s}
spec: {colour: red, operatingMode: Asleep, podTemplate: {spec: {containers: [{name: c, image: i}]}}}
"#,
        expect![[r#"
            apiVersion: agents.x-k8s.io/v1beta1
            kind: Sandbox
            metadata:
              name: s
            spec:
              colour: red
              operatingMode: Asleep
              podTemplate:
                spec:
                  containers:
                  - name: c
                    image: i
            # spec.colour: Sandbox has no such field in v1beta1; the server drops it; remove it or look up its successor
            # spec.operatingMode: the server will refuse this: not one of "Running", "Suspended"
            (unchanged)
        "#]],
    );
    check(
        r#"
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: h}
spec: {scaleTargetRef: {apiVersion: extensions.agents.x-k8s.io/v1alpha1, kind: SandboxWarmPool, name: p}}
"#,
        expect![[r#"
            apiVersion: autoscaling/v2
            kind: HorizontalPodAutoscaler
            metadata:
              name: h
            spec:
              scaleTargetRef:
                apiVersion: extensions.agents.x-k8s.io/v1alpha1
                kind: SandboxWarmPool
                name: p
            # spec.scaleTargetRef.apiVersion: `extensions.agents.x-k8s.io/v1alpha1` is not served any more; write `extensions.agents.x-k8s.io/v1beta1`
            (unchanged)
        "#]],
    );
}

#[test]
fn lists_as_kubectl_prints_them() {
    check(
        r#"
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: m}}
- {apiVersion: extensions.agents.x-k8s.io/v1alpha1, kind: SandboxWarmPool, metadata: {name: p}, spec: {templateName: t, maxReady: 2}}
"#,
        expect![[r#"
            apiVersion: v1
            kind: List
            items:
            - apiVersion: v1
              kind: ConfigMap
              metadata:
                name: m
            - apiVersion: extensions.agents.x-k8s.io/v1beta1
              kind: SandboxWarmPool
              metadata:
                name: p
              spec:
                sandboxTemplateRef:
                  name: t
            # items[1].spec.maxReady: a pool has one size; let a HorizontalPodAutoscaler set it: SandboxWarmPool has the scale subresource
        "#]],
    );
    check(
        r#"
apiVersion: agents.x-k8s.io/v1alpha1
kind: SandboxList
items:
- {apiVersion: agents.x-k8s.io/v1alpha1, kind: Sandbox, metadata: {name: s}, spec: {replicas: many}}
"#,
        expect![[r#"
            error: `items[0].spec.replicas`: not a count
        "#]],
    );
}

#[test]
fn what_is_no_manifest() {
    let of = |text: &str| convert(serde_saphyr::from_str(text).unwrap()).unwrap_err();
    assert_eq!(of("spec: {}"), ConversionError::NotAManifest { path: "apiVersion" });
    assert_eq!(
        of("{apiVersion: agents.x-k8s.io/v1alpha1, kind: Sandbox}"),
        ConversionError::NotAManifest { path: "spec" }
    );
    assert_eq!(
        of("{apiVersion: agents.x-k8s.io/v2, kind: Sandbox, spec: {}}").to_string(),
        "`agents.x-k8s.io/v2` has no kind `Sandbox`"
    );
}

#[test]
fn a_companion_that_is_given_is_not_missing() {
    let documents = [
        "{apiVersion: extensions.agents.x-k8s.io/v1alpha1, kind: SandboxClaim, metadata: {name: a}, spec: {templateName: t}}",
        "{apiVersion: extensions.agents.x-k8s.io/v1alpha1, kind: SandboxClaim, metadata: {name: b}, spec: {templateName: t}}",
    ];
    let mut converted: Vec<_> =
        documents.iter().map(|text| convert(serde_saphyr::from_str(text).unwrap()).unwrap()).collect();
    assert_eq!(missing_companions(&converted).len(), 1);
    let pool = converted[0].companions[0].clone();
    converted.push(convert(pool).unwrap());
    assert_eq!(missing_companions(&converted).len(), 0);
}
