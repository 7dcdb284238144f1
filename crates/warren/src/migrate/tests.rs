//! Tests the conversion of manifests.

use expect_test::{Expect, expect};

use super::migrate_texts;

/// Migrates texts as files `1.yaml`, `2.yaml`, …, and compares the output, or the error with its
/// causes.
fn check(texts: &[&str], expected: Expect) {
    let inputs: Vec<_> =
        texts.iter().zip(1..).map(|(text, number)| (format!("{number}.yaml"), (*text).to_owned())).collect();
    let shown = match migrate_texts(&inputs) {
        Ok(shown) => shown,
        Err(error) => format!("{:#}\n", anyhow::Error::new(error)),
    };
    expected.assert_eq(&shown);
}

#[test]
fn several_documents() {
    check(
        &[
            r#"# A head that says something.
---
# The template stays as it is.
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: python}
spec: {podTemplate: {spec: {containers: [{name: main}]}}}
---
apiVersion: v1
kind: ConfigMap   # none of ours
metadata:
  name: settings
data:
  mode: "no"
"#,
            r#"apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxClaim
metadata:
  name: "yes"
spec:
  sandboxTemplateRef: {name: python}
  lifecycle: {shutdownPolicy: Delete}
"#,
        ],
        expect![[r##"
            # A head that says something.
            ---
            # The template stays as it is.
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxTemplate
            metadata: {name: python}
            spec: {podTemplate: {spec: {containers: [{name: main}]}}}
            ---
            apiVersion: v1
            kind: ConfigMap   # none of ours
            metadata:
              name: settings
            data:
              mode: "no"
            ---
            # spec.sandboxTemplateRef: `warmpool: default` took a waiting sandbox of template `python` from any pool; a claim now names one pool, and this one has none waiting; name a pool of that template in `spec.warmPoolRef` to be served at once
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxClaim
            metadata:
              name: "yes"
            spec:
              lifecycle:
                shutdownPolicy: Delete
              warmPoolRef:
                name: shadow-pool-python
            ---
            # Added by `warren migrate`: a SandboxWarmPool that a document above refers to.
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
        "##]],
    );
}

#[test]
fn a_pool_that_is_given_is_not_added() {
    check(
        &[r#"
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxClaim
metadata: {name: c}
spec: {templateName: python, warmpool: none}
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {name: shadow-pool-python}
spec: {replicas: 2, sandboxTemplateRef: {name: python}}
"#],
        expect![[r#"
            # spec.sandboxTemplateRef: served by new sandboxes of template `python`, as before
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxClaim
            metadata:
              name: c
            spec:
              warmPoolRef:
                name: shadow-pool-python
            ---
            apiVersion: extensions.agents.x-k8s.io/v1beta1
            kind: SandboxWarmPool
            metadata: {name: shadow-pool-python}
            spec: {replicas: 2, sandboxTemplateRef: {name: python}}
        "#]],
    );
}

#[test]
fn octal_modes_and_words_keep_their_meaning() {
    check(
        &[r#"
apiVersion: agents.x-k8s.io/v1alpha1
kind: Sandbox
metadata: {name: s, labels: {a: "on", b: "0644", c: "1e3", d: "", e: "~", f: "12:30:00", g: "0x1f", h: "1_000", i: "y"}}
spec:
  replicas: 0
  podTemplate:
    spec:
      containers:
      - name: main
        tty: yes
        args: ["a: b", "&c", "- d", "multi\nline\n", "tab\there", " lead"]
      volumes: [{name: v, secret: {defaultMode: 0644}}]
"#],
        expect![[r#"
            apiVersion: agents.x-k8s.io/v1beta1
            kind: Sandbox
            metadata:
              name: s
              labels:
                a: "on"
                b: "0644"
                c: "1e3"
                d: ""
                e: "~"
                f: "12:30:00"
                g: "0x1f"
                h: "1_000"
                i: "y"
            spec:
              podTemplate:
                spec:
                  containers:
                  - name: main
                    tty: true
                    args:
                    - "a: b"
                    - "&c"
                    - "- d"
                    - |
                      multi
                      line
                    - "tab\there"
                    - " lead"
                  volumes:
                  - name: v
                    secret:
                      defaultMode: 420
              operatingMode: Suspended
        "#]],
    );
}

#[test]
fn faults_name_file_document_and_field() {
    let good = "apiVersion: v1\nkind: ConfigMap\n";
    check(
        &[good, &format!("{good}---\nspec: {{}}\n")],
        expect![[r#"
        2.yaml, document 2: `apiVersion` is missing: this is not a complete manifest
    "#]],
    );
    check(
        &[&format!("{good}---\n{good}{good}")],
        expect![[r#"
        1.yaml, document 2: not YAML: duplicate mapping key: apiVersion; is a `---` missing between two documents?
    "#]],
    );
    check(
        &["a: [1"],
        expect![[r#"
        1.yaml, document 1: not YAML: unclosed bracket '[' at line 1, column 4
    "#]],
    );
    check(
        &[
            "{apiVersion: extensions.agents.x-k8s.io/v1alpha1, kind: SandboxWarmPool, metadata: {name: p}, spec: {minReady: -1}}",
        ],
        expect![[r#"
            1.yaml, document 1: `spec.minReady`: not a count
        "#]],
    );
}

#[test]
fn nothing_to_do() {
    check(&[""], expect![[r#""#]]);
    check(
        &["# only a comment\n"],
        expect![[r#"
        # only a comment
    "#]],
    );
}
