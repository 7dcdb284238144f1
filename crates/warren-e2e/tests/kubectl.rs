//! Tests the published `kubectl` with the local home's kubeconfig.

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

#[test]
fn the_controllers_are_a_deployment_that_has_rolled_out() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let system = |arguments: &[&str]| {
        let mut command = home.kubectl();
        command.args(["--namespace", "agent-sandbox-system"]);
        run(command, arguments)
    };
    let name = "deployment/agent-sandbox-controller";
    let rolled_out = "deployment \"agent-sandbox-controller\" successfully rolled out\n";
    let wait_until_there = || {
        let ended = system(&["wait", "--for=create", name, "--timeout=60s"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let ended = system(&["rollout", "status", name, "--timeout=60s"]);
        assert!(ended.code == Some(0) && ended.stdout.ends_with(rolled_out), "{ended:?}");
    };
    wait_until_there();
    let table = system(&["get", "deployments", "--selector", "app=agent-sandbox-controller"]).stdout;
    let cells: Vec<&str> = table.lines().last().unwrap_or_default().split_whitespace().take(4).collect();
    assert_eq!(cells, ["agent-sandbox-controller", "1/1", "1", "1"], "{table}");

    assert_eq!(system(&["rollout", "restart", name]).code, Some(0));
    wait_until_there();

    assert_eq!(system(&["delete", name]).code, Some(0));
    assert_eq!(home.warren(&["down"]).code, Some(0));
    home.up();
    wait_until_there();
}

#[test]
fn a_rollout_that_nothing_carries_out_is_not_waited_for() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let kubectl = |arguments: &[&str]| run(home.kubectl(), arguments);
    assert_eq!(kubectl(&["create", "deployment", "web", "--image=nginx", "--replicas=2"]).code, Some(0));
    let ended = kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.stderr, "error: deployment \"web\" exceeded its progress deadline\n");
    assert_eq!(kubectl(&["scale", "deployment/web", "--replicas=3"]).code, Some(0));
    let table = kubectl(&["get", "deploy", "web", "--output=wide"]).stdout;
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let head = ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"];
    assert_eq!(lines.next().unwrap_or_default(), head, "{table}");
    let row = lines.next().unwrap_or_default();
    assert_eq!((&row[..4], &row[5..]), (&["web", "0/3", "0", "0"][..], &["nginx", "nginx", "app=web"][..]));
    let described = kubectl(&["describe", "deployment", "web"]).stdout;
    assert!(described.contains("NoController"), "{described}");
    let ended = kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    assert_eq!(ended.code, Some(1), "the scaled one is not waited for either: {ended:?}");
}
