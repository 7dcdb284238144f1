//! Plays the kubectl session: the commands of everyday use, in one namespace.

use std::path::Path;

use super::{Side, Transcript};

const NAMESPACE: &str = "clients";

fn files() -> Vec<(&'static str, String)> {
    let objects = |word: &str, port: u16| {
        format!(
            "apiVersion: v1
kind: ConfigMap
metadata:
  name: config
  labels: {{app: web}}
data:
  key: {word}
  other: stays
---
apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  selector: {{app: web}}
  ports:
  - name: http
    port: {port}
---
# A scheduler that does not exist: the pod stays as it is, with nodes and without.
apiVersion: v1
kind: Pod
metadata:
  name: pod
  labels: {{app: web}}
spec:
  schedulerName: nobody
  automountServiceAccountToken: false
  containers:
  - name: main
    image: busybox:1.36
    args: [sleep, '1000']
    env:
    - name: WORD
      value: {word}
    ports:
    - containerPort: 80
    resources:
      limits: {{memory: 64Mi, cpu: 100m}}
"
        )
    };
    let small = |name: &str, value: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  key: {value}\n")
    };
    let definition = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.kubectl.example
spec:
  group: kubectl.example
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size, description: How large it is}
    - {name: Mode, type: string, jsonPath: .spec.mode, priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        description: A widget is an example.
        properties:
          spec:
            type: object
            description: What is wanted.
            required: [size]
            properties:
              size: {type: integer, minimum: 1, maximum: 10, description: How large it is.}
              replicas: {type: integer, default: 1}
              mode: {type: string, enum: [a, b], default: a}
          status:
            type: object
            properties:
              replicas: {type: integer}
";
    let widget = |size: &str| {
        format!(
            "apiVersion: kubectl.example/v1\nkind: Widget\nmetadata:\n  name: widget\nspec:\n  size: {size}\n"
        )
    };
    vec![
        ("objects.yaml", objects("before", 80)),
        ("changed.yaml", objects("changed", 8080).replace("value: changed", "value: before")),
        ("applied.yaml", small("applied", "one")),
        ("conflicting.yaml", small("applied", "two")),
        ("replaced.yaml", small("config", "replaced")),
        ("bad.yaml", small("Not_A_Name", "x")),
        ("unknown-field.yaml", small("unknown", "x") + "dta: {}\n"),
        (
            "unknown-kind.yaml",
            "apiVersion: nothing.example/v1\nkind: Nothing\nmetadata:\n  name: x\n".to_owned(),
        ),
        ("definition.yaml", definition.to_owned()),
        ("widget.yaml", widget("3")),
        ("large-widget.yaml", widget("30")),
        ("patch.yaml", "data:\n  patched: from-file\n".to_owned()),
    ]
}

/// Plays the session on a side and returns the transcript. `directory` must be the same for both
/// sides.
pub fn play(side: &Side, directory: &Path) -> String {
    for (name, text) in files() {
        std::fs::write(directory.join(name), text).expect("write a manifest");
    }
    let mut session = Transcript::new(side, directory);
    let plain = &mut session;
    plain.run(&["create", "namespace", NAMESPACE]);
    plain.run(&["wait", "--for=jsonpath={.status.phase}=Active", "namespace/clients", "--timeout=60s"]);
    // On a real cluster a controller makes it, a moment after the namespace.
    let account = ["wait", "--for=create", "serviceaccount/default", "--timeout=60s"];
    in_namespace(plain, &account);
    writing(plain);
    reading(plain);
    changing(plain);
    owning(plain);
    definitions(plain);
    access(plain);
    plain.run(&["delete", "namespace", NAMESPACE, "--timeout=120s"]);
    plain.run(&["get", "namespace", NAMESPACE]);
    session.text()
}

fn in_namespace(session: &mut Transcript<'_>, arguments: &[&str]) -> String {
    session.run(&[&["--namespace", NAMESPACE], arguments].concat())
}

fn all(session: &mut Transcript<'_>, commands: &[&[&str]]) {
    for command in commands {
        in_namespace(session, command);
    }
}

fn writing(session: &mut Transcript<'_>) {
    all(
        session,
        &[
            &["apply", "-f", "objects.yaml"],
            &["apply", "-f", "objects.yaml"],
            &["diff", "-f", "objects.yaml"],
            &["diff", "-f", "changed.yaml"],
            &["apply", "-f", "changed.yaml"],
            &["apply", "--server-side", "-f", "applied.yaml"],
            &["apply", "--server-side", "--field-manager=other", "-f", "conflicting.yaml"],
            &[
                "apply",
                "--server-side",
                "--field-manager=other",
                "--force-conflicts",
                "-f",
                "conflicting.yaml",
            ],
            &["diff", "--server-side", "--field-manager=other", "-f", "applied.yaml"],
            &["create", "-f", "applied.yaml"],
            &["create", "-f", "bad.yaml"],
            &["create", "-f", "unknown-field.yaml"],
            &["create", "-f", "unknown-kind.yaml"],
            &["create", "configmap", "literal", "--from-literal=a=1", "--from-literal=b=2"],
            &["create", "configmap", "dry", "--from-literal=a=1", "--dry-run=server", "-o", "name"],
            &["create", "secret", "generic", "password", "--from-literal=password=hunter2"],
            &["create", "serviceaccount", "robot"],
            &[
                "run",
                "runner",
                "--image=busybox:1.36",
                "--restart=Never",
                r#"--overrides={"spec":{"schedulerName":"nobody","automountServiceAccountToken":false}}"#,
            ],
            &["expose", "pod", "pod", "--port=9090", "--name=exposed"],
        ],
    );
}

fn reading(session: &mut Transcript<'_>) {
    let not_the_root = "--field-selector=metadata.name!=kube-root-ca.crt";
    all(
        session,
        &[
            &["get", "configmaps", not_the_root],
            &["get", "configmaps", not_the_root, "-o", "name"],
            &["get", "configmap", "config", "-o", "yaml"],
            &["get", "configmap", "config", "-o", "json"],
            &["get", "configmap", "applied", "-o", "yaml", "--show-managed-fields"],
            &["get", "configmap", "config", "-o", "jsonpath={.data.key}{\"\\n\"}"],
            &["get", "configmaps,services", "-l", "app=web", "-o", "wide"],
            &["get", "services", "-o", "wide"],
            &["get", "pods", "-o", "wide"],
            &["get", "pods", "--show-labels"],
            &["get", "pod", "pod", "-o", "yaml"],
            &["get", "service", "web", "-o", "yaml"],
            &["get", "pods", "-o", "custom-columns=NAME:.metadata.name,IMAGE:.spec.containers[0].image"],
            &["get", "pods", "--field-selector=status.phase=Pending", "-o", "name"],
            &["get", "pods", "-l", "app in (web),!other", "-o", "name"],
            &["get", "pods", "-l", "app in"],
            &["get", "pods", "--field-selector=spec.nothing=x"],
            &["get", "secret", "password", "-o", "jsonpath={.data.password}"],
            &["get", "configmap", "nothing"],
            &["get", "nothings"],
            &["describe", "configmap", "config"],
            &["describe", "pod", "pod"],
            &["describe", "service", "web"],
            &["describe", "secret", "password"],
            &["logs", "nothing"],
        ],
    );
    for field in ["configmap", "pod.spec.containers.ports", "service.spec"] {
        session.explain_fields(field);
    }
    session.run(&["describe", "namespace", NAMESPACE]);
    session.run(&["get", "--raw", "/readyz"]);
    let watched = [
        "--namespace",
        NAMESPACE,
        "get",
        "configmap",
        "config",
        "--watch",
        "--output-watch-events",
        "-o",
        "name",
    ];
    session.follow(&watched, 1, 3, |session| {
        all(
            session,
            &[&["label", "configmap", "config", "seen=yes"], &["label", "configmap", "config", "seen-"]],
        );
    });
}

fn changing(session: &mut Transcript<'_>) {
    all(
        session,
        &[
            &["label", "configmap", "config", "tier=one"],
            &["label", "configmap", "config", "tier=two"],
            &["label", "configmap", "config", "tier=two", "--overwrite"],
            &["label", "configmap", "config", "tier-"],
            &["label", "configmap", "config", "bad=no/slash"],
            &["annotate", "configmap", "config", "note=hello"],
            &["annotate", "configmap", "config", "note-"],
            &[
                "patch",
                "configmap",
                "config",
                "--type=merge",
                "-p",
                r#"{"data":{"merged":"yes","other":null}}"#,
            ],
            &[
                "patch",
                "configmap",
                "config",
                "--type=json",
                "-p",
                r#"[{"op":"replace","path":"/data/key","value":"json"}]"#,
            ],
            &[
                "patch",
                "configmap",
                "config",
                "--type=json",
                "-p",
                r#"[{"op":"remove","path":"/data/nothing"}]"#,
            ],
            &["patch", "configmap", "config", "--type=merge", "-p", r#"{"data":7}"#],
            &["patch", "configmap", "config", "--patch-file=patch.yaml"],
            &[
                "patch",
                "service",
                "web",
                "-p",
                r#"{"spec":{"ports":[{"port":8080,"name":"http","targetPort":9}]}}"#,
            ],
            &[
                "patch",
                "pod",
                "pod",
                "-p",
                r#"{"spec":{"containers":[{"name":"main","image":"busybox:1.37"}]}}"#,
            ],
            &["patch", "pod", "pod", "-p", r#"{"spec":{"restartPolicy":"Never"}}"#],
            &["get", "configmap", "config", "-o", "jsonpath={.data}"],
            &["get", "service", "web", "-o", "jsonpath={.spec.ports}"],
            &["replace", "-f", "replaced.yaml"],
            &["get", "configmap", "config", "-o", "jsonpath={.data}"],
            &["patch", "configmap", "applied", "--type=merge", "-p", r#"{"data":{"key":"before"}}"#],
            &["edit", "configmap", "applied"],
            &["get", "configmap", "applied", "-o", "jsonpath={.data.key}"],
            &["edit", "configmap", "applied"],
            &["set", "env", "pod/pod", "--list"],
            &["wait", "--for=jsonpath={.data.key}=after", "configmap/applied", "--timeout=30s"],
            &["wait", "--for=condition=Ready", "pod/pod", "--timeout=1s"],
            &["delete", "configmap", "literal"],
            &["delete", "configmap", "literal"],
            &["delete", "configmap", "literal", "--ignore-not-found"],
            &["delete", "pod", "runner", "--grace-period=0", "--force"],
            &["delete", "-f", "objects.yaml", "--wait=true", "--timeout=60s"],
        ],
    );
}

/// Deletes owners with dependents, by each policy.
fn owning(session: &mut Transcript<'_>) {
    for policy in ["background", "foreground", "orphan"] {
        let (owner, owned) = (format!("owner-{policy}"), format!("owned-{policy}"));
        in_namespace(session, &["create", "configmap", &owner]);
        let resource = format!("configmap/{owner}");
        let uid = in_namespace(session, &["get", &resource, "-o", "jsonpath={.metadata.uid}"]);
        let manifest = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {owned}\n  ownerReferences:\n  - {{apiVersion: v1, kind: ConfigMap, name: {owner}, uid: {}, blockOwnerDeletion: true}}\n",
            uid.trim()
        );
        session.run_with(&["--namespace", NAMESPACE, "create", "-f", "-"], &manifest);
        let cascade = format!("--cascade={policy}");
        in_namespace(session, &["delete", &resource, &cascade, "--timeout=60s"]);
        let owned = format!("configmap/{owned}");
        if policy == "orphan" {
            in_namespace(session, &["get", &owned, "-o", "jsonpath={.metadata.ownerReferences}"]);
            in_namespace(session, &["delete", &owned]);
        } else {
            in_namespace(session, &["wait", "--for=delete", &owned, "--timeout=60s"]);
        }
    }
}

fn definitions(session: &mut Transcript<'_>) {
    session.run(&["apply", "-f", "definition.yaml"]);
    session.run(&["wait", "--for=condition=Established", "crd/widgets.kubectl.example", "--timeout=60s"]);
    // A real server serves and describes a new CRD a moment after it is established.
    wait_until_served(session);
    session.run(&["api-resources", "--api-group=kubectl.example"]);
    session.run(&["api-resources", "--api-group=kubectl.example", "-o", "wide"]);
    all(
        session,
        &[
            &["apply", "-f", "widget.yaml"],
            &["apply", "-f", "large-widget.yaml"],
            &["get", "widgets"],
            &["get", "wd", "-o", "wide"],
            &["get", "widget", "widget", "-o", "yaml"],
            &["scale", "widget", "widget", "--replicas=4"],
            &["get", "widget", "widget", "-o", "jsonpath={.spec}"],
            &["patch", "widget", "widget", "--type=merge", "-p", r#"{"spec":{"mode":"c"}}"#],
            &[
                "patch",
                "widget",
                "widget",
                "--type=merge",
                "--subresource=status",
                "-p",
                r#"{"status":{"replicas":4}}"#,
            ],
            &["patch", "widget", "widget", "-p", r#"{"spec":{"mode":"b"}}"#],
            &["explain", "widget.spec"],
            &["describe", "widget", "widget"],
            &["delete", "widget", "widget"],
        ],
    );
    session.run(&["delete", "crd", "widgets.kubectl.example", "--timeout=60s"]);
}

/// Repeats a list and the description, without recording them, until they work.
fn wait_until_served(session: &Transcript<'_>) {
    for arguments in [["get", "widgets.kubectl.example"], ["explain", "widgets.spec.size"]] {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !session.command(&arguments).status().is_ok_and(|status| status.success()) {
            assert!(std::time::Instant::now() < deadline, "kubectl {arguments:?} never worked");
            // The cached discovery would otherwise be used for ten minutes.
            let _ = std::fs::remove_dir_all(session.directory.join(session.side.name));
        }
    }
}

fn access(session: &mut Transcript<'_>) {
    let robot = "--as=system:serviceaccount:clients:robot";
    all(
        session,
        &[
            &["auth", "whoami", "-o", "jsonpath={.status.userInfo.groups}"],
            &["auth", "can-i", "create", "pods"],
            &["auth", "can-i", "create", "pods", robot],
            &["get", "pods", robot],
            &["create", "role", "reader", "--verb=get,list,watch", "--resource=pods"],
            &["create", "rolebinding", "reader", "--role=reader", "--serviceaccount=clients:robot"],
            &["auth", "can-i", "list", "pods", robot],
            &["auth", "can-i", "delete", "pods", robot],
            &["get", "pods", robot],
            &["delete", "pod", "pod", robot],
            &["get", "roles,rolebindings"],
            &["describe", "role", "reader"],
            &["describe", "rolebinding", "reader"],
            &["create", "token", "robot"],
            &["create", "token", "nobody"],
        ],
    );
}

/// Returns the rows of `kubectl api-resources`, without the widths of the columns.
pub fn served_resources(side: &Side, directory: &Path) -> Vec<String> {
    let mut session = Transcript::new(side, directory);
    let table = session.run(&["api-resources", "--no-headers", "-o", "wide"]);
    table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}
