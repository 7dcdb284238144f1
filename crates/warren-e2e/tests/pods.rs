//! Tests a pod's features through the API alone: settings, volumes, claims, init containers,
//! sidecars, probes, hooks.

use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::core::v1::{
    ConfigMap, ContainerStatus, Event, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
};
use serde_json::{Value, json};
use warren_api::{SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_client::kube::Api;
use warren_client::kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use warren_client::kube::core::NamespaceResourceScope;
use warren_client::kube::runtime::wait;
use warren_e2e::local_home::LocalHome;
use warren_e2e::streams::{DEADLINE, Pods};

/// Returns a container that runs a script on the host image, with more fields.
fn container(name: &str, script: &str, more: Value) -> Value {
    let mut container = json!({"name": name, "image": "warren.dev/host", "command": ["sh", "-c", script]});
    container.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    container
}

/// Runs until it is asked to end. The first process of a container gets only signals that it
/// handles.
const UNTIL_ASKED: &str = "trap 'exit 0' TERM; while :; do sleep 0.05; done";

/// Creates a pod that is never restarted.
async fn create(pods: &Pods, name: &str, spec: Value) {
    let mut whole = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 0});
    whole.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
    let pod = json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": whole});
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    pods.api.create(&PostParams::default(), &pod).await.expect("create the pod");
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == container)
}

/// Returns a container's waiting reason and message.
fn waits(pod: &Pod, container: &str) -> Option<String> {
    let waiting = of(pod, container)?.state.as_ref()?.waiting.as_ref()?;
    Some(format!("{}: {}", waiting.reason.as_deref()?, waiting.message.as_deref().unwrap_or_default()))
}

fn is_ready(pod: &Pod, container: &str) -> bool {
    of(pod, container).is_some_and(|status| status.ready)
}

async fn log(pods: &Pods, pod: &str, container: &str) -> String {
    let parameters = LogParams { container: Some(container.to_owned()), ..LogParams::default() };
    pods.api.logs(pod, &parameters).await.expect("read the log")
}

/// Returns the log of a pod's only container, once it has succeeded.
async fn output(pods: &Pods, name: &str) -> String {
    pods.wait(name, "ended well", |pod| ["Succeeded", "Failed"].contains(&phase(pod))).await;
    let log = log(pods, name, "main").await;
    let pod = pods.api.get(name).await.expect("read the pod");
    assert_eq!(phase(&pod), "Succeeded", "{log}\n{:?}", pod.status);
    log
}

async fn delete(pods: &Pods, name: &str) {
    pods.api.delete(name, &DeleteParams::default()).await.expect("delete the pod");
    let gone = wait::await_condition(pods.api.clone(), name, |pod: Option<&Pod>| pod.is_none());
    tokio::time::timeout(DEADLINE, gone).await.expect("the pod goes").expect("watch the pod");
}

fn config_maps(pods: &Pods) -> Api<ConfigMap> {
    Api::default_namespaced(pods.api.clone().into_client())
}

async fn make_config_map(pods: &Pods, name: &str, data: Value) {
    let object = json!({"metadata": {"name": name}, "data": data});
    let object = serde_json::from_value(object).expect("a config map");
    config_maps(pods).create(&PostParams::default(), &object).await.expect("create the config map");
}

async fn make_secret(pods: &Pods, name: &str, data: Value) {
    let object = json!({"metadata": {"name": name}, "stringData": data});
    let object: Secret = serde_json::from_value(object).expect("a secret");
    let secrets: Api<Secret> = Api::default_namespaced(pods.api.clone().into_client());
    secrets.create(&PostParams::default(), &object).await.expect("create the secret");
}

async fn wait_for_event(pods: &Pods, pod: &str, reason: &str, message: &str) {
    let events: Api<Event> = Api::default_namespaced(pods.api.clone().into_client());
    let waited = async {
        loop {
            let all = events.list(&ListParams::default()).await.expect("list events").items;
            let said = all.iter().any(|event| {
                event.involved_object.name.as_deref() == Some(pod)
                    && event.reason.as_deref() == Some(reason)
                    && event.message.as_deref().is_some_and(|text| text.contains(message))
            });
            if said {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(DEADLINE, waited).await;
    assert!(waited.is_ok(), "nobody said {reason} of {pod}: {message}");
}

#[tokio::test]
async fn settings_come_from_other_objects_and_are_waited_for() {
    let Some(pods) = Pods::up().await else { return };
    let env = json!([
        {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "BOTH", "value": "$(MODE)-$(P_mode)"},
    ]);
    let from = json!([{"prefix": "P_", "configMapRef": {"name": "settings"}}, {"secretRef": {"name": "no", "optional": true}}]);
    let script = "echo $MODE $TOKEN $MEMORY $BOTH; test -n \"$NODE\"";
    let limits = json!({"limits": {"memory": "64Mi"}});
    let main = container("main", script, json!({"env": env, "envFrom": from, "resources": limits}));
    create(&pods, "box", json!({"containers": [main]})).await;
    let missing = |what: &str| format!("CreateContainerConfigError: {what} not found");
    pods.wait("box", "waited for its settings", |pod| {
        waits(pod, "main") == Some(missing("configmap \"settings\""))
    })
    .await;
    make_config_map(&pods, "settings", json!({"mode": "fast"})).await;
    pods.wait("box", "waited for its secret", |pod| waits(pod, "main") == Some(missing("secret \"keys\"")))
        .await;
    make_secret(&pods, "keys", json!({"token": "hush"})).await;
    assert_eq!(output(&pods, "box").await, "fast hush 64 fast-fast\n");
    delete(&pods, "box").await;
    pods.home.assert_nothing_left();
}

#[tokio::test]
async fn volumes_show_other_objects_and_follow_them() {
    let Some(pods) = Pods::up().await else { return };
    make_config_map(&pods, "settings", json!({"one": "1", "two": "2"})).await;
    let volumes = json!([
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o400, "items": [{"key": "token", "path": "deep/token"}]}},
        {"name": "about", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "all", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
            {"configMap": {"name": "settings", "items": [{"key": "one", "path": "one"}]}},
        ]}},
    ]);
    let mounts = json!([
        {"name": "settings", "mountPath": "/settings"},
        {"name": "settings", "mountPath": "/only-one", "subPath": "one"},
        {"name": "keys", "mountPath": "/keys"},
        {"name": "about", "mountPath": "/about"},
        {"name": "all", "mountPath": "/all"},
    ]);
    let script = "cat /settings/one /only-one /keys/deep/token /about/labels /all/one; echo; \
                  stat -L -c '%a %u %g' /keys/deep/token; stat -f -c %T /keys; \
                  test \"$(tr -cd . < /all/token)\" = .. || echo no token; \
                  touch /settings/x 2>/dev/null && echo written; \
                  echo settled; \
                  until test \"$(cat /settings/one)\" = changed; do sleep 0.1; done; \
                  cat /only-one; test -e /settings/two || echo two is gone; cat /settings/three; echo";
    let security = json!({"runAsUser": 1000, "fsGroup": 2000});
    let main = container("main", script, json!({"volumeMounts": mounts}));
    create(&pods, "box", json!({"containers": [main], "volumes": volumes, "securityContext": security}))
        .await;
    wait_for_event(&pods, "box", "FailedMount", "volume \"keys\" : secret \"keys\" not found").await;
    assert_eq!(
        waits(&pods.api.get("box").await.expect("read"), "main").as_deref(),
        Some("ContainerCreating: ")
    );
    make_secret(&pods, "keys", json!({"token": "hush", "other": "x"})).await;
    pods.wait("box", "runs", |pod| is_ready(pod, "main")).await;
    pods.wait_for_log("box", "settled").await;
    // Owned by root, readable by the pod's group, in memory, and not writable.
    let seen = log(&pods, "box", "main").await;
    assert_eq!(seen, "11hushapp=\"box\"1\n440 0 2000\ntmpfs\nsettled\n");

    let change = json!({"data": {"one": "changed", "two": null, "three": "3"}});
    let patch = Patch::Merge(&change);
    config_maps(&pods).patch("settings", &PatchParams::default(), &patch).await.expect("change");
    let seen = output(&pods, "box").await;
    // A file mounted by its path inside a volume does not change.
    assert!(seen.ends_with("settled\n1two is gone\n3\n"), "{seen}");
    delete(&pods, "box").await;
    pods.home.assert_nothing_left();
}

#[tokio::test]
async fn containers_share_volumes_and_no_path_leads_out_of_one() {
    let Some(pods) = Pods::up().await else { return };
    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]);
    let both = json!({"volumeMounts": [
        {"name": "disk", "mountPath": "/disk"},
        {"name": "memory", "mountPath": "/memory"},
    ]});
    let first = "echo disk > /disk/a; echo memory > /memory/a; mkdir -p /disk/sub; echo sub > /disk/sub/a; \
                 ln -s /etc /disk/absolute; ln -s ../../.. /disk/up; chmod 777 /disk/sub";
    let second = json!({"volumeMounts": [
        {"name": "disk", "mountPath": "/disk", "readOnly": true},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "disk", "mountPath": "/inside", "subPathExpr": "$(PLACE)"},
        {"name": "disk", "mountPath": "/new", "subPath": "made/on/the/way"},
    ], "env": [{"name": "PLACE", "value": "sub"}], "securityContext": {"runAsUser": 1234}});
    let script = "cat /disk/a /memory/a /inside/a; touch /disk/b 2>/dev/null && echo written; \
                  head -c 2000000 /dev/zero > /memory/big 2>/dev/null || echo full; \
                  touch /inside/b /new/c && echo fine; stat -f -c %T /memory";
    let spec = json!({
        "volumes": volumes,
        "initContainers": [container("first", first, both)],
        "containers": [container("main", script, second)],
    });
    create(&pods, "box", spec).await;
    assert_eq!(output(&pods, "box").await, "disk\nmemory\nsub\nfull\nfine\ntmpfs\n");

    for (name, place) in [("absolute", "absolute"), ("up", "up/etc")] {
        let mounts = json!({"volumeMounts": [{"name": "disk", "mountPath": "/inside", "subPath": place}]});
        let spec = json!({
            "volumes": [{"name": "disk", "emptyDir": {}}],
            "initContainers": [container("first", first, json!({"volumeMounts": [
                {"name": "disk", "mountPath": "/disk"}, {"name": "disk", "mountPath": "/memory"}]}))],
            "containers": [container("main", "cat /inside/passwd", mounts)],
        });
        create(&pods, name, spec).await;
        pods.wait(name, "failed", |pod| phase(pod) == "Failed").await;
        let pod = pods.api.get(name).await.expect("read");
        let ended = of(&pod, "main").and_then(|status| status.state.clone()?.terminated).expect("an end");
        assert_eq!(ended.reason.as_deref(), Some("StartError"));
        assert!(
            ended.message.as_deref().is_some_and(|text| text.contains("leads out of the volume")),
            "{ended:?}"
        );
    }
    for name in ["box", "absolute", "up"] {
        delete(&pods, name).await;
    }
    pods.home.assert_nothing_left();
}

#[tokio::test]
async fn a_claim_keeps_its_data_from_pod_to_pod_and_takes_it_along() {
    let Some(pods) = Pods::up().await else { return };
    let client = pods.api.clone().into_client();
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client);
    let claim = json!({"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = serde_json::from_value(claim).expect("a claim");
    claims.create(&PostParams::default(), &claim).await.expect("create the claim");
    let with = |script: &str, more: Value| {
        let mut main =
            container("main", script, json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}));
        main.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!({
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "containers": [main],
            "terminationGracePeriodSeconds": 60,
        })
    };
    // The hook before the end takes its time, and writes a file that outlives the pod.
    let hook = json!({
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo bye >> /data/said"]}}},
        // Without it, the container is ready before its program has printed anything.
        "readinessProbe": {"exec": {"command": ["test", "-s", "/data/said"]}, "periodSeconds": 1},
    });
    create(&pods, "first", with(&format!("echo hello > /data/said; {UNTIL_ASKED}"), hook)).await;
    pods.wait("first", "runs", |pod| is_ready(pod, "main")).await;
    delete(&pods, "first").await;
    // Another pod has other ids on the host, and finds the same inside.
    let script = "cat /data/said; stat -c '%u %g' /data/said";
    create(&pods, "second", with(script, json!({}))).await;
    assert_eq!(output(&pods, "second").await, "hello\nbye\n0 0\n");
    // A user who is not root has access by the pod's group.
    let mut third = with("cat /data/said; touch /data/by-group && stat -c %g /data/by-group", json!({}));
    third["securityContext"] = json!({"runAsUser": 1000, "fsGroup": 3000});
    create(&pods, "third", third).await;
    assert_eq!(output(&pods, "third").await, "hello\nbye\n3000\n");

    let bound = claims.get("data").await.expect("read the claim");
    let volume = bound.spec.as_ref().and_then(|spec| spec.volume_name.clone()).expect("a volume");
    assert_eq!(bound.status.as_ref().and_then(|status| status.phase.as_deref()), Some("Bound"));
    let directory = pods.home.path().join("volumes").join(&volume);
    assert!(directory.is_dir(), "{}", directory.display());
    claims.delete("data", &DeleteParams::default()).await.expect("delete the claim");
    for name in ["second", "third"] {
        delete(&pods, name).await;
    }
    let gone = wait::await_condition(volumes, &volume, |volume: Option<&PersistentVolume>| volume.is_none());
    tokio::time::timeout(DEADLINE, gone).await.expect("the volume goes").expect("watch the volume");
    assert!(!directory.exists(), "{} is still there", directory.display());
    pods.home.assert_nothing_left();
}

/// A pod is deleted the moment its program has begun, before the program can have a signal handler.
#[tokio::test]
async fn a_pod_that_is_deleted_at_once_does_not_take_its_grace_period() {
    const GRACE: std::time::Duration = std::time::Duration::from_secs(600);
    let Some(pods) = Pods::up().await else { return };
    for round in 0..20 {
        let name = format!("short-{round}");
        let grace = GRACE.as_secs();
        let containers = match round % 2 {
            0 => json!([{"name": "main", "image": "warren.dev/host"}]),
            _ => json!([container("main", UNTIL_ASKED, json!({}))]),
        };
        let spec = json!({"terminationGracePeriodSeconds": grace, "containers": containers});
        create(&pods, &name, spec).await;
        // Fails after `DEADLINE`, which is much shorter.
        delete(&pods, &name).await;
    }
    pods.home.assert_nothing_left();
}

#[tokio::test]
async fn the_number_of_processes_is_that_of_the_annotation() {
    let Some(pods) = Pods::up().await else { return };
    let with = |name: &str, limit: &str| -> Pod {
        let script = "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; \
                      for i in $(seq 40); do sleep 100000 & done; echo forked";
        let pod = json!({
            "metadata": {"name": name, "annotations": {"warren.dev/pids-limit": limit}},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                     "containers": [container("main", script, json!({}))]},
        });
        serde_json::from_value(pod).expect("a pod")
    };
    for (name, limit) in [("few", "20"), ("enough", "60"), ("odd", "many")] {
        pods.api.create(&PostParams::default(), &with(name, limit)).await.expect("create the pod");
    }
    pods.wait("few", "fails at its limit", |pod| phase(pod) == "Failed").await;
    pods.wait("enough", "ends well", |pod| phase(pod) == "Succeeded").await;
    pods.wait("odd", "is refused", |pod| phase(pod) == "Failed").await;
    let odd = pods.api.get("odd").await.expect("read the pod").status.expect("a status");
    let message = odd.message.unwrap_or_default();
    assert!(message.contains("annotation warren.dev/pids-limit: `many` is not a whole number"), "{message}");
    for name in ["few", "enough", "odd"] {
        delete(&pods, name).await;
    }
    pods.home.assert_nothing_left();
}

#[tokio::test]
async fn init_containers_come_first_and_sidecars_stay_to_the_end() {
    let Some(pods) = Pods::up().await else { return };
    let mounts = json!({"volumeMounts": [{"name": "work", "mountPath": "/shared"}]});
    let with = |more: Value| {
        let mut both = mounts.clone();
        both.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        both
    };
    let wait_for_go = "until test -e /shared/go; do sleep 0.05; done; echo first >> /shared/order";
    let serve =
        "echo sidecar >> /shared/order; trap 'echo sidecar ends; exit 0' TERM; while :; do sleep 0.05; done";
    let go = "until test -e /shared/up; do sleep 0.05; done; touch /shared/go";
    let started = json!({"startupProbe": {"exec": {"command": ["grep", "-q", "sidecar", "/shared/order"]},
        "periodSeconds": 1, "failureThreshold": 60}, "restartPolicy": "Always"});
    let spec = json!({
        "terminationGracePeriodSeconds": 60,
        "volumes": [{"name": "work", "emptyDir": {}}],
        "initContainers": [
            container("helper", &format!("touch /shared/up; {UNTIL_ASKED}"), with(json!({"restartPolicy": "Always"}))),
            container("first", &format!("({go}) & {wait_for_go}"), mounts.clone()),
            container("proxy", serve, with(started)),
            container("last", "echo last >> /shared/order", mounts.clone()),
        ],
        "containers": [
            container("main", "echo main >> /shared/order; cat /shared/order", mounts.clone()),
            container("other", "true", json!({})),
        ],
    });
    create(&pods, "box", spec).await;
    pods.wait("box", "succeeded", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(log(&pods, "box", "main").await, "first\nsidecar\nlast\nmain\n");
    assert_eq!(log(&pods, "box", "proxy").await, "sidecar ends\n");
    let pod = pods.api.get("box").await.expect("read");
    let names =
        pod.status.as_ref().and_then(|status| status.init_container_statuses.clone()).expect("statuses");
    let names: Vec<String> = names.into_iter().map(|status| status.name).collect();
    assert_eq!(names, ["helper", "first", "proxy", "last"]);
    delete(&pods, "box").await;

    // While one is running, and when one fails for good.
    let slow = container("slow", "sleep 1000", json!({}));
    create(
        &pods,
        "slow",
        json!({"initContainers": [slow], "containers": [container("main", "true", json!({}))]}),
    )
    .await;
    pods.wait("slow", "initializing", |pod| {
        let begun = of(pod, "slow").and_then(|status| status.state.as_ref()?.running.clone()).is_some();
        begun && phase(pod) == "Pending" && waits(pod, "main").as_deref() == Some("PodInitializing: ")
    })
    .await;
    delete(&pods, "slow").await;
    let bad = container("bad", "echo no > /dev/termination-log; exit 3", json!({}));
    create(
        &pods,
        "bad",
        json!({"initContainers": [bad], "containers": [container("main", "true", json!({}))]}),
    )
    .await;
    pods.wait("bad", "failed", |pod| phase(pod) == "Failed").await;
    let pod = pods.api.get("bad").await.expect("read");
    let ended = of(&pod, "bad").and_then(|status| status.state.clone()?.terminated).expect("an end");
    assert_eq!((ended.exit_code, ended.message.as_deref()), (3, Some("no\n")));
    delete(&pods, "bad").await;
    pods.home.assert_nothing_left();
}

#[tokio::test]
async fn probes_decide_who_is_ready_and_who_has_to_start_again() {
    let Some(pods) = Pods::up().await else { return };
    let probe = |file: &str| json!({"exec": {"command": ["sh", "-c", format!("cat {file}")]}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30});
    // Ready only when its probe succeeds, and restarted when its liveness probe fails.
    let script = "touch /tmp/alive; until test -e /tmp/go; do sleep 0.05; done; exec sleep 1000";
    let main = container(
        "main",
        script,
        json!({
            "readinessProbe": probe("/tmp/ready"),
            "livenessProbe": probe("/tmp/alive"),
            "startupProbe": {"exec": {"command": ["test", "-e", "/tmp/alive"]}, "periodSeconds": 1, "failureThreshold": 60},
        }),
    );
    create(&pods, "box", json!({"restartPolicy": "Always", "containers": [main]})).await;
    wait_for_event(&pods, "box", "Unhealthy", "Readiness probe failed: cat: /tmp/ready").await;
    assert!(!is_ready(&pods.api.get("box").await.expect("read"), "main"));
    run(&pods, "box", "touch /tmp/ready /tmp/go").await;
    pods.wait("box", "ready", |pod| is_ready(pod, "main")).await;
    run(&pods, "box", "rm /tmp/ready").await;
    pods.wait("box", "not ready", |pod| !is_ready(pod, "main")).await;
    run(&pods, "box", "rm /tmp/alive").await;
    wait_for_event(&pods, "box", "Killing", "Container main failed liveness probe, will be restarted").await;
    pods.wait("box", "restarted", |pod| of(pod, "main").is_some_and(|status| status.restart_count >= 1))
        .await;
    delete(&pods, "box").await;

    if !std::path::Path::new("/usr/bin/perl").exists() {
        eprintln!("skipped: probes by HTTP need Perl on this machine");
        return;
    }
    let main = json!({
        "name": "main", "image": "warren.dev/host", "command": ["perl", "-e", SERVER, "8080"],
        "ports": [{"name": "web", "containerPort": 8080}],
        "startupProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 60, "timeoutSeconds": 30},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "web"}, "periodSeconds": 1, "timeoutSeconds": 30},
        "lifecycle": {"preStop": {"httpGet": {"path": "/bye", "port": "web"}}},
    });
    create(&pods, "web", json!({"terminationGracePeriodSeconds": 60, "containers": [main]})).await;
    wait_for_event(
        &pods,
        "web",
        "Unhealthy",
        "Readiness probe failed: HTTP probe failed with statuscode: 503",
    )
    .await;
    run(&pods, "web", "touch /tmp/ready").await;
    pods.wait("web", "ready", |pod| is_ready(pod, "main")).await;
    delete(&pods, "web").await;
    pods.home.assert_nothing_left();
}

/// Answers `/ready` by the existence of a file, and ends when it is asked to.
const SERVER: &str = r#"
use IO::Socket::INET;
$SIG{PIPE} = 'IGNORE';
my $server = IO::Socket::INET->new(LocalAddr => '0.0.0.0', LocalPort => $ARGV[0], Listen => 16, ReuseAddr => 1) or die $!;
while (my $client = $server->accept) {
    my $line = <$client> // '';
    my $code = $line =~ m{^GET /ready } && !-e '/tmp/ready' ? '503 Not Yet' : '200 OK';
    print $client "HTTP/1.1 $code\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    close $client;
    exit if $line =~ m{^GET /bye };
}
"#;

/// Runs a script in a pod's container to its end.
async fn run(pods: &Pods, pod: &str, script: &str) {
    use tokio::io::AsyncReadExt as _;
    use warren_client::kube::api::AttachParams;
    let mut process =
        pods.api.exec(pod, ["sh", "-c", script], &AttachParams::default().stderr(true)).await.expect("exec");
    let mut said = String::new();
    let mut stderr = process.stderr().expect("stderr");
    tokio::time::timeout(DEADLINE, stderr.read_to_string(&mut said)).await.expect("ends").expect("read");
    let status = process.take_status().expect("a status").await.expect("its status");
    assert_eq!(status.status.as_deref(), Some("Success"), "{script}: {said}");
}

#[tokio::test]
async fn hooks_and_last_words() {
    let Some(pods) = Pods::up().await else { return };
    let hook =
        |script: &str| json!({"lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", script]}}}});
    let script = "until test -e /tmp/greeted; do sleep 0.05; done; echo greeted";
    create(&pods, "box", json!({"containers": [container("main", script, hook("touch /tmp/greeted"))]}))
        .await;
    assert_eq!(output(&pods, "box").await, "greeted\n");
    create(&pods, "rude", json!({"containers": [container("main", "sleep 1000", hook("echo no; exit 1"))]}))
        .await;
    wait_for_event(&pods, "rude", "FailedPostStartHook", "no").await;
    pods.wait("rude", "failed", |pod| phase(pod) == "Failed").await;

    let last_words = |name: &'static str, script: &'static str, policy: &'static str| {
        let pods = &pods;
        async move {
            let main = container("main", script, json!({"terminationMessagePolicy": policy}));
            create(pods, name, json!({"containers": [main]})).await;
            pods.wait(name, "failed", |pod| phase(pod) == "Failed").await;
            let pod = pods.api.get(name).await.expect("read");
            of(&pod, "main").and_then(|status| status.state.clone()?.terminated?.message)
        }
    };
    let file = last_words("file", "echo why > /dev/termination-log; exit 1", "File").await;
    assert_eq!(file.as_deref(), Some("why\n"));
    let log = last_words("log", "echo so; echo that is why >&2; exit 1", "FallbackToLogsOnError").await;
    assert_eq!(log.as_deref(), Some("so\nthat is why\n"));
    for name in ["box", "rude", "file", "log"] {
        delete(&pods, name).await;
    }
    pods.home.assert_nothing_left();
}

#[tokio::test]
async fn a_security_context_is_kept_to() {
    let Some(pods) = Pods::up().await else { return };
    let script = "id -u; id -g; id -G; grep -E 'CapBnd|NoNewPrivs' /proc/self/status | tr -d '\\t'; \
                  touch /x 2>/dev/null && echo written; true";
    let strict = json!({"securityContext": {
        "runAsUser": 1000, "runAsNonRoot": true, "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"], "add": ["NET_RAW"]},
    }});
    let of_pod = json!({"runAsUser": 5, "runAsGroup": 6, "supplementalGroups": [7], "fsGroup": 8});
    create(
        &pods,
        "strict",
        json!({"containers": [container("main", script, strict)], "securityContext": of_pod}),
    )
    .await;
    let wanted = "1000\n6\n6 7 8\nCapBnd:0000000000002000\nNoNewPrivs:1\n";
    assert_eq!(output(&pods, "strict").await, wanted);

    let script = "grep NoNewPrivs /proc/self/status | tr -d '\\t'";
    let loose = json!({"securityContext": {"allowPrivilegeEscalation": true}});
    create(&pods, "loose", json!({"containers": [container("main", script, loose)]})).await;
    assert_eq!(output(&pods, "loose").await, "NoNewPrivs:0\n");

    for (name, security) in [
        ("privileged", json!({"privileged": true})),
        ("capable", json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
    ] {
        let main = container("main", "true", json!({"securityContext": security}));
        create(&pods, name, json!({"containers": [main]})).await;
        pods.wait(name, "refused", |pod| {
            phase(pod) == "Failed"
                && pod.status.as_ref().and_then(|status| status.reason.as_deref()) == Some("IsolationRefused")
        })
        .await;
    }
    let root = container("main", "true", json!({"securityContext": {"runAsNonRoot": true}}));
    create(&pods, "root", json!({"containers": [root]})).await;
    let said = "CreateContainerConfigError: container has runAsNonRoot and image will run as root";
    pods.wait("root", "kept from being root", |pod| waits(pod, "main").as_deref() == Some(said)).await;
    let host = json!({"containers": [container("main", "true", json!({}))],
        "volumes": [{"name": "host", "hostPath": {"path": "/etc"}}]});
    create(&pods, "host", host).await;
    pods.wait("host", "refused", |pod| phase(pod) == "Failed").await;
    for name in ["strict", "loose", "privileged", "capable", "root", "host"] {
        delete(&pods, name).await;
    }
    pods.home.assert_nothing_left();
}

/// As on a cluster whose accounts do not mount tokens by default: sandboxes have no use for the
/// API.
#[tokio::test]
async fn a_pod_that_asks_for_it_has_a_token_of_its_account() {
    let Some(pods) = Pods::up().await else { return };
    let script = "cd /var/run/secrets/kubernetes.io/serviceaccount 2>/dev/null || exit 0; cat namespace; echo; grep -c BEGIN ca.crt; cat token";
    let main = || container("main", script, json!({}));
    create(&pods, "asks", json!({"automountServiceAccountToken": true, "containers": [main()]})).await;
    create(&pods, "silent", json!({"containers": [main()]})).await;
    assert_eq!(output(&pods, "silent").await, "");
    let said = output(&pods, "asks").await;
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["default", "1"], "{said}");
    let review = json!({"metadata": {}, "spec": {"token": lines[2]}});
    let review: TokenReview = serde_json::from_value(review).expect("a review");
    let reviews: Api<TokenReview> = Api::all(pods.api.clone().into_client());
    let status =
        reviews.create(&PostParams::default(), &review).await.expect("review").status.expect("an answer");
    let user = status.user.expect("a user");
    assert_eq!(
        (status.authenticated, user.username.as_deref()),
        (Some(true), Some("system:serviceaccount:default:default"))
    );
    let of_pod = user.extra.expect("more").remove("authentication.kubernetes.io/pod-name");
    assert_eq!(of_pod, Some(vec!["asks".to_owned()]));
}

#[tokio::test]
async fn directories_of_the_host_are_shown_where_they_are_allowed_and_nothing_beside_them() {
    let Some(home) = LocalHome::new() else { return };
    let host = tempfile::tempdir().expect("make a directory");
    let (open, closed, secret) =
        (host.path().join("open"), host.path().join("closed"), host.path().join("secret"));
    for directory in [&open, &closed, &secret] {
        std::fs::create_dir(directory).expect("make a directory");
    }
    std::fs::write(closed.join("file"), "for reading\n").expect("write");
    std::fs::write(secret.join("file"), "for nobody\n").expect("write");
    std::os::unix::fs::symlink(&secret, open.join("link")).expect("make a link");
    let allow = [format!("{}:rw", open.display()), closed.display().to_string()];
    let up = home
        .command()
        .args(["up", "--detach", "--allow-host-path", &allow[0], "--allow-host-path", &allow[1]])
        .output()
        .expect("run warren");
    assert!(up.status.success(), "{up:?}");
    let pods = Pods { api: Api::default_namespaced(home.client().await), home };
    let pod = |path: &std::path::Path, read_only: bool, script: &str| {
        let mount = json!({"volumeMounts": [{"name": "host", "mountPath": "/host", "readOnly": read_only}]});
        let volume = json!({"name": "host", "hostPath": {"path": path}});
        json!({"containers": [container("main", script, mount)], "volumes": [volume]})
    };
    create(&pods, "reader", pod(&closed, true, "cat /host/file; touch /host/new 2>/dev/null || echo kept"))
        .await;
    assert_eq!(output(&pods, "reader").await, "for reading\nkept\n");
    create(&pods, "one", pod(&closed.join("file"), true, "cat /host")).await;
    assert_eq!(output(&pods, "one").await, "for reading\n");
    create(&pods, "writer", pod(&open, false, "echo hello > /host/new; stat -c %u /host/new")).await;
    assert_eq!(output(&pods, "writer").await, "0\n");
    assert_eq!(std::fs::read_to_string(open.join("new")).expect("read"), "hello\n");
    let refused = async |name: &str, path: &std::path::Path, why: &str| {
        create(&pods, name, pod(path, false, "true")).await;
        let message =
            |pod: &Pod| pod.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default();
        pods.wait(name, why, |pod| phase(pod) == "Failed" && message(pod).contains(why)).await;
    };
    refused("closed", &closed, "allowed by this node for reading only").await;
    refused("secret", &secret, "which this node does not allow").await;
    refused("above", host.path(), "which this node does not allow").await;
    // A link inside is not followed, and a missing directory is not made.
    for (name, path) in [("link", open.join("link")), ("missing", open.join("missing"))] {
        create(&pods, name, pod(&path, false, "ls /host")).await;
        pods.wait(name, "waits", |pod| {
            waits(pod, "main").is_some_and(|why| why.starts_with("CreateContainerError"))
        })
        .await;
        delete(&pods, name).await;
    }
    assert!(!open.join("missing").exists());
}

#[tokio::test]
async fn kernel_parameters_aliases_and_mount_options_are_set() {
    let Some(pods) = Pods::up().await else { return };
    let script = "cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/net/ipv4/tcp_keepalive_time; \
                  hostname; grep alias.example /etc/hosts; \
                  grep ' /data ' /proc/self/mounts | grep -c noexec; grep ' /more ' /proc/self/mounts | grep -c noexec";
    let mounts = json!([
        {"name": "data", "mountPath": "/data", "bindMountOptions": ["noexec"]},
        {"name": "data", "mountPath": "more"},
    ]);
    let main = container("main", &format!("{script}; true"), json!({"volumeMounts": mounts}));
    let spec = json!({
        "hostnameOverride": "other",
        "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["alias.example", "b"]}],
        "securityContext": {"sysctls": [
            {"name": "net.ipv4.ip_local_port_range", "value": "2000 3000"},
            {"name": "net/ipv4/tcp_keepalive_time", "value": "77"},
        ]},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [main],
    });
    create(&pods, "box", spec).await;
    assert_eq!(output(&pods, "box").await, "2000\t3000\n77\nother\n192.0.2.1\talias.example\tb\n1\n0\n");

    let sysctls = json!([{"name": "kernel.msgmax", "value": "1"}]);
    let plain = container("main", "true", json!({}));
    let spec = json!({"securityContext": {"sysctls": sysctls}, "containers": [plain]});
    create(&pods, "forbidden", spec).await;
    pods.wait("forbidden", "been refused", |pod| phase(pod) == "Failed").await;
    let refused = pods.api.get("forbidden").await.expect("read the pod");
    let status = refused.status.expect("a status");
    assert_eq!(status.reason.as_deref(), Some("SysctlForbidden"));
    assert!(status.message.expect("a message").contains("spec.securityContext.sysctls"));
}

/// Returns all events about a pod so far, as `reason: message`.
async fn events_about(pods: &Pods, pod: &str) -> Vec<String> {
    let events: Api<Event> = Api::default_namespaced(pods.api.clone().into_client());
    let all = events.list(&ListParams::default()).await.expect("list events").items;
    all.into_iter()
        .filter(|event| event.involved_object.name.as_deref() == Some(pod))
        .map(|event| format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default()))
        .collect()
}

#[tokio::test]
async fn a_healthy_pod_has_kubelets_events_and_one_that_keeps_ending_backs_off() {
    let Some(pods) = Pods::up().await else { return };
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Mi"}}}});
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).expect("a claim");
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(pods.api.clone().into_client());
    // The pod comes first, and so has to wait for the claim.
    let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let main = container("main", UNTIL_ASKED, mounts);
    // Without a grace period the object would be gone before its containers are stopped.
    let spec = json!({"containers": [main], "volumes": volumes, "terminationGracePeriodSeconds": 30});
    create(&pods, "well", spec).await;
    claims.create(&PostParams::default(), &claim).await.expect("create the claim");
    let ends = container("main", "exit 3", json!({}));
    create(&pods, "ends", json!({"containers": [ends], "restartPolicy": "Always"})).await;

    let scheduled = "Successfully assigned default/well to ";
    for (reason, message) in [
        ("Scheduled", scheduled),
        ("Pulled", "Container image \"warren.dev/host\" already present on machine"),
        ("Created", "Created container: main"),
        ("Started", "Started container main"),
    ] {
        wait_for_event(&pods, "well", reason, message).await;
    }
    wait_for_event(
        &pods,
        "ends",
        "BackOff",
        "Back-off restarting failed container main in pod ends_default(",
    )
    .await;
    delete(&pods, "well").await;
    wait_for_event(&pods, "well", "Killing", "Stopping container main").await;
    let said = events_about(&pods, "well").await;
    assert!(!said.iter().any(|said| said.starts_with("FailedMount")), "{said:?}");
    assert_eq!(said.len(), 5, "{said:?}");
    delete(&pods, "ends").await;
    pods.home.assert_nothing_left();
}

#[tokio::test]
async fn a_sandbox_and_its_claim_say_why_their_pod_was_refused() {
    let Some(pods) = Pods::up().await else { return };
    let client = pods.api.clone().into_client();
    let spec = json!({
        "securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]},
        "containers": [container("main", "true", json!({}))],
    });
    let template = json!({"metadata": {"name": "refused"}, "spec": {"podTemplate": {"spec": spec}}});
    let pool = json!({"metadata": {"name": "refused"},
        "spec": {"replicas": 0, "sandboxTemplateRef": {"name": "refused"}}});
    let claim = json!({"metadata": {"name": "refused"}, "spec": {"warmPoolRef": {"name": "refused"}}});
    apply::<SandboxTemplate>(&client, template).await;
    apply::<SandboxWarmPool>(&client, pool).await;
    apply::<SandboxClaim>(&client, claim).await;

    let claims: Api<SandboxClaim> = Api::default_namespaced(client.clone());
    let said = |claim: Option<&SandboxClaim>| {
        let status = claim.and_then(|claim| claim.status.as_ref());
        let ready = status.and_then(|status| status.conditions.iter().find(|it| it.type_ == "Ready"));
        ready.is_some_and(|ready| {
            ready.reason == "PodFailed"
                && ready.message.contains("SysctlForbidden")
                && ready.message.contains("spec.securityContext.sysctls")
        })
    };
    let reached = wait::await_condition(claims.clone(), "refused", said);
    if tokio::time::timeout(DEADLINE, reached).await.is_err() {
        panic!("the claim does not say why: {:?}", claims.get("refused").await.expect("read it").status);
    }
    claims.delete("refused", &DeleteParams::default()).await.expect("delete the claim");
    let gone = wait::await_condition(pods.api.clone(), "refused", |pod: Option<&Pod>| pod.is_none());
    tokio::time::timeout(DEADLINE, gone).await.expect("the pod goes").expect("watch the pod");
    pods.home.assert_nothing_left();
}

/// Creates an object of one of our kinds.
async fn apply<K>(client: &kube::Client, object: Value)
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object).expect("an object of this kind");
    Api::default_namespaced(client.clone()).create(&PostParams::default(), &object).await.expect("create it");
}
