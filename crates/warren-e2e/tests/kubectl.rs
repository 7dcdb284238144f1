//! The published command line against the local home's kubeconfig.

use std::process::Command;

use warren_e2e::local_home::{Ended, LocalHome};

fn run(mut command: Command, arguments: &[&str]) -> Ended {
    command.args(arguments).output().expect("run kubectl").into()
}

#[test]
fn kubectl_gets_describes_executes_and_reads_logs() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let kubectl = |arguments: &[&str]| {
        let ended = run(home.kubectl(), arguments);
        assert_eq!(ended.code, Some(0), "kubectl {arguments:?}: {ended:?}");
        ended.stdout
    };
    let manifest = home.path().join("sandbox.yaml");
    std::fs::write(
        &manifest,
        r#"
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata:
  name: box
spec:
  podTemplate:
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: warren.dev/host
        command: ["sh", "-c", "echo from the log; exec sleep 1000"]
"#,
    )
    .expect("write");
    kubectl(&["apply", "-f", &manifest.to_string_lossy()]);
    kubectl(&["wait", "--for=condition=Ready", "sandbox/box", "--timeout=60s"]);

    let table = kubectl(&["get", "sandboxes,pods"]);
    assert!(
        table.contains("READY") && table.contains("DependenciesReady") && table.contains("Running"),
        "{table}"
    );
    let described = kubectl(&["describe", "sandbox", "box"]);
    assert!(described.contains("Pod is Ready"), "{described}");
    let described = kubectl(&["describe", "pod", "box"]);
    assert!(described.contains("warren.dev/host") && described.contains("Running"), "{described}");
    assert_eq!(kubectl(&["logs", "box"]), "from the log\n");
    assert_eq!(kubectl(&["exec", "box", "--", "echo", "from exec"]), "from exec\n");
    let failed = run(home.kubectl(), &["exec", "box", "--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.code, Some(7), "{failed:?}");
    kubectl(&["delete", "sandbox", "box"]);
    home.assert_nothing_left();
}
