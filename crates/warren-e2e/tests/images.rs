//! Tests images in the whole product: imported from archives and pulled from registries, run by
//! their configuration, refused when they are hostile.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use serde_json::{Value, json};
use warren_client::kube::Api;
use warren_client::kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use warren_client::kube::runtime::wait;
use warren_e2e::local_home::LocalHome;
use warren_e2e::streams::{DEADLINE, Pods, state};
use warren_testkit::images::{Layer, TestImage, digest};
use warren_testkit::registry::{Access, TestRegistry};

/// The content of our images: the machine's own shell and some programs, with their libraries.
const PROGRAMS: [&str; 4] = ["/bin/sh", "/bin/cat", "/bin/sleep", "/usr/bin/id"];

/// Returns a layer with programs. No packages need to be installed for it.
fn programs() -> Layer {
    let mut files = BTreeSet::new();
    for program in PROGRAMS {
        let output = Command::new("ldd").arg(program).output().expect("run ldd");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        files.extend(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
        files.insert(PathBuf::from(program));
    }
    let mut layer = Layer::new().directory("srv", 0o755, 33).directory("tmp", 0o1777, 0);
    for file in files {
        let content = std::fs::read(&file).expect("read a program or library");
        let path = file.strip_prefix("/").expect("absolute").display().to_string();
        layer = layer.file(&path, 0o755, 0, &content);
    }
    layer
}

const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\nweb:x:33:44:web:/srv:/bin/sh\n";

fn tool() -> TestImage {
    let run = json!({
        "User": "web", "WorkingDir": "/srv", "Env": ["PATH=/usr/bin:/bin", "GREETING=hello"],
        "Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo $GREETING; echo $HOME; pwd; id -u; id -g; cat note"],
    });
    let own = Layer::new().file("etc/passwd", 0o644, 0, PASSWD).file("srv/note", 0o600, 33, b"for web\n");
    TestImage::new(run, vec![programs(), own])
}

/// Writes the archive of an image into a file.
fn archive(image: &TestImage, name: Option<&str>) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("make a file");
    std::fs::write(file.path(), image.layout(name)).expect("write the archive");
    file
}

fn import(home: &LocalHome, image: &TestImage, name: &str) {
    let archive = archive(image, None);
    let path = archive.path().to_str().expect("a path in UTF-8");
    let ended = home.warren(&["image", "import", path, "--name", name]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
}

async fn create(pods: &Pods, name: &str, image: &str, more: Value) {
    let mut container = json!({"name": "main", "image": image});
    container.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let spec =
        json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]});
    create_pod(pods, name, spec).await;
}

async fn create_pod(pods: &Pods, name: &str, spec: Value) {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a pod");
    pods.api.create(&PostParams::default(), &pod).await.expect("create the pod");
}

/// Returns a pod's output, once it has succeeded.
async fn output(pods: &Pods, name: &str) -> String {
    pods.wait(name, "ended", |pod| state(pod).is_some_and(|state| state.terminated.is_some())).await;
    let log = pods.api.logs(name, &LogParams::default()).await.expect("read the log");
    let pod = pods.api.get(name).await.expect("read the pod");
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    assert_eq!(phase, Some("Succeeded"), "{log}\n{:?}", pod.status);
    log
}

/// Waits until a pod has this waiting reason, and returns its message.
async fn waits(pods: &Pods, name: &str, reason: &str) -> String {
    let waiting = |pod: &Pod| {
        let waiting = state(pod)?.waiting.clone()?;
        (waiting.reason.as_deref() == Some(reason)).then(|| waiting.message.unwrap_or_default())
    };
    let condition = |pod: Option<&Pod>| pod.is_some_and(|pod| waiting(pod).is_some());
    let waited = wait::await_condition(pods.api.clone(), name, condition);
    match tokio::time::timeout(DEADLINE, waited).await {
        // Use the observed state: a later one may differ.
        Ok(found) => waiting(&found.expect("watch the pod").expect("it was there")).expect("it waited"),
        Err(_) => panic!("{name} never waited for {reason}: {:?}", pods.api.get(name).await),
    }
}

async fn delete(pods: &Pods, name: &str) {
    pods.api.delete(name, &DeleteParams::default()).await.expect("delete the pod");
    let gone = wait::await_condition(pods.api.clone(), name, |pod: Option<&Pod>| pod.is_none());
    tokio::time::timeout(DEADLINE, gone).await.expect("the pod goes").expect("watch the pod");
}

/// Waits for an event with this reason about a pod. Events are written in the background.
async fn event(pods: &Pods, pod: &str, reason: &str) -> String {
    let events: Api<Event> = Api::default_namespaced(pods.api.clone().into_client());
    let selector = ListParams::default().fields(&format!("involvedObject.name={pod}"));
    let found = async {
        loop {
            let list = events.list(&selector).await.expect("list events");
            let found = list.items.into_iter().find(|event| event.reason.as_deref() == Some(reason));
            match found {
                Some(event) => return event.message.unwrap_or_default(),
                None => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(DEADLINE, found).await.expect("the event is recorded")
}

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

/// Counts the files in the node's store: layers, documents, and unfinished ones.
fn stored(home: &LocalHome) -> [usize; 3] {
    ["layers", "documents", "unfinished"].map(|kind| entries(&home.path().join("images").join(kind)))
}

#[tokio::test]
async fn a_pod_on_an_imported_image_runs_as_the_image_says_unless_it_says_otherwise() {
    let Some(pods) = Pods::up().await else { return };
    let (name, image) = ("example.test/tool:1", tool());
    import(&pods.home, &image, name);
    create(&pods, "plain", name, json!({})).await;
    create(
        &pods,
        "args",
        name,
        json!({"args": ["echo $GREETING $OWN"], "env": [{"name": "OWN", "value": "too"}]}),
    )
    .await;
    let other = json!({
        "command": ["/usr/bin/id", "-u"], "workingDir": "/", "securityContext": {"runAsUser": 1234},
    });
    create(&pods, "other", name, other).await;
    assert_eq!(output(&pods, "plain").await, "hello\n/srv\n/srv\n33\n44\nfor web\n");
    assert_eq!(output(&pods, "args").await, "hello too\n");
    assert_eq!(output(&pods, "other").await, "1234\n");

    let pod = pods.api.get("plain").await.expect("read the pod");
    let statuses = pod.status.and_then(|status| status.container_statuses).expect("statuses");
    assert_eq!(statuses[0].image_id, format!("example.test/tool@{}", image.digest()));
    let message = event(&pods, "plain", "Pulled").await;
    assert_eq!(message, "Container image \"example.test/tool:1\" already present on machine");
}

#[tokio::test]
async fn layers_are_shared_and_nothing_that_a_pod_writes_reaches_them() {
    let Some(pods) = Pods::up().await else { return };
    let name = "example.test/tool:1";
    import(&pods.home, &tool(), name);
    let script = "cat /srv/note 2>/dev/null; echo $0 > /srv/note; echo new > /tmp/new; cat /srv/note";
    for pod in ["one", "two"] {
        let container =
            json!({"command": ["/bin/sh", "-c", script, pod], "securityContext": {"runAsUser": 33}});
        create(&pods, pod, name, container).await;
    }
    for pod in ["one", "two"] {
        assert_eq!(output(&pods, pod).await, format!("for web\n{pod}\n"));
    }
    assert_eq!(stored(&pods.home), [2, 2, 0]);
    for layer in std::fs::read_dir(pods.home.path().join("images/layers")).expect("layers").flatten() {
        assert!(!layer.path().join("tmp/new").exists());
        if let Ok(note) = std::fs::read_to_string(layer.path().join("srv/note")) {
            assert_eq!(note, "for web\n");
        }
    }
    // A running pod keeps its layers, even when its image is removed.
    create(&pods, "three", name, json!({"args": ["cat note; sleep 1000"]})).await;
    pods.wait("three", "runs", |pod| state(pod).is_some_and(|state| state.running.is_some())).await;
    pods.wait_for_log("three", "for web").await;
    assert_eq!(pods.home.warren(&["image", "remove", name]).code, Some(0));
    assert_eq!(stored(&pods.home), [2, 0, 0]);
    create(&pods, "four", name, json!({"imagePullPolicy": "Never"})).await;
    waits(&pods, "four", "ErrImageNeverPull").await;
    for pod in ["one", "two", "three", "four"] {
        delete(&pods, pod).await;
    }
    pods.home.assert_nothing_left();
    // Unused files are removed at the next start.
    assert_eq!(pods.home.warren(&["down"]).code, Some(0));
    pods.home.up();
    assert_eq!(stored(&pods.home), [0, 0, 0]);
}

#[tokio::test]
async fn run_takes_any_image_and_waits_for_it() {
    let Some(home) = LocalHome::new() else { return };
    let registry = TestRegistry::start().expect("start a registry");
    registry.put("own/tool", "1", &tool());
    let name = registry.image("own/tool", "1");
    let run = |image: &str, script: &str| home.warren(&["run", "--image", image, "--", "sh", "-c", script]);
    // Nothing runs yet: the home is started and the image pulled first.
    let ended = run(&name, "echo $GREETING; pwd; id -u; cat note; exit 3");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), "hello\n/srv\n33\nfor web\n"), "{ended:?}");
    assert_eq!(ended.stderr, "");
    let pulls = registry.requests().len();
    assert_eq!(run(&name, "true").code, Some(0));
    assert_eq!(registry.requests().len(), pulls, "it is here already");

    let ended = run(&registry.image("own/other", "1"), "true");
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.stderr.contains("404") && ended.stderr.contains("own/other"), "{ended:?}");
    home.assert_nothing_left();
}

#[tokio::test]
async fn images_are_listed_and_removed_and_may_come_as_a_directory() {
    let Some(home) = LocalHome::new() else { return };
    let image = TestImage::new(json!({"Cmd": ["/x"]}), vec![Layer::new().file("x", 0o755, 0, b"")]);
    let directory = tempfile::tempdir().expect("make a directory");
    let packed = archive(&image, Some("example.test/small:1"));
    let unpacked = Command::new("tar").arg("xf").arg(packed.path()).arg("-C").arg(directory.path()).status();
    assert!(unpacked.expect("run tar").success());
    let path = directory.path().to_str().expect("a path in UTF-8");
    let ended = home.warren(&["image", "import", path]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "example.test/small:1\n"), "{ended:?}");
    let text = std::fs::read(packed.path()).expect("read the archive");
    let piped = home.warren_with_input(&["image", "import", "-", "--name", "other"], &text);
    assert!(piped.status.success(), "{}", String::from_utf8_lossy(&piped.stderr));

    let list = || -> Value {
        let ended = home.warren(&["image", "list", "--output", "json"]);
        serde_json::from_str(&ended.stdout).expect("JSON")
    };
    let size: usize = image.layers.iter().map(Vec::len).sum();
    let row = |name: &str| json!({"name": name, "digest": image.digest(), "size": size, "layers": 1});
    assert_eq!(
        list(),
        json!({"images": [row("docker.io/library/other:latest"), row("example.test/small:1")]})
    );
    assert_eq!(home.warren(&["image", "remove", "other"]).code, Some(0));
    assert_eq!(list(), json!({"images": [row("example.test/small:1")]}));
    let again = home.warren(&["image", "remove", "other"]);
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("there is no image `docker.io/library/other:latest`"), "{again:?}");
    assert_eq!(home.warren(&["image", "remove", "example.test/small:1"]).code, Some(0));
    assert_eq!(stored(&home), [0, 0, 0]);
}

#[tokio::test]
async fn hostile_archives_are_refused_by_name_and_leave_nothing() {
    let Some(home) = LocalHome::new() else { return };
    let image = |layer: Layer| TestImage::new(json!({"Cmd": ["/x"]}), vec![layer]);
    for (hostile, named) in [
        (image(Layer::new().raw_file(b"../../../escaped", b"x")), "../../../escaped"),
        (image(Layer::new().raw_file(b"/../escaped", b"x")), "/../escaped"),
        (image(Layer::new().link("out", "/").raw_file(b"out/escaped", b"x")), "out/escaped"),
    ] {
        let file = archive(&hostile, Some("example.test/hostile:1"));
        let ended = home.warren(&["image", "import", file.path().to_str().expect("a path in UTF-8")]);
        assert_eq!(ended.code, Some(1), "{named}: {ended:?}");
        assert!(ended.stderr.contains(named), "{named}: {ended:?}");
        assert!(!Path::new("/escaped").exists());
        assert_eq!(stored(&home), [0, 0, 0], "{named}");
    }
    // Content under a wrong name.
    let good = tool();
    let mut wrong = good.clone();
    wrong.config = good.config.iter().map(|byte| if *byte == b'3' { b'4' } else { *byte }).collect();
    let file = archive(&wrong, Some("example.test/wrong:1"));
    let ended = home.warren(&["image", "import", file.path().to_str().expect("a path in UTF-8")]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains(&digest(&good.config)[7..]), "{ended:?}");
    let ended = home.warren(&["image", "import", "/etc/passwd"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("no archive") && !ended.stderr.contains("root:"), "{ended:?}");
    assert_eq!(stored(&home)[2], 0);
}

#[tokio::test]
async fn a_pod_pulls_its_image_with_its_own_secret() {
    let Some(pods) = Pods::up().await else { return };
    let registry = TestRegistry::start().expect("start a registry");
    registry.put("own/tool", "1", &tool());
    registry.set_access(Access::Token(Some(("me".to_owned(), "secret".to_owned()))));
    let image = registry.image("own/tool", "1");
    create(&pods, "stranger", &image, json!({})).await;
    let message = waits(&pods, "stranger", "ErrImagePull").await;
    assert!(message.contains("401") && message.contains(&image), "{message}");
    assert!(event(&pods, "stranger", "Failed").await.contains("Failed to pull image"));

    let auths = json!({"auths": {registry.name(): {"username": "me", "password": "secret"}}});
    let secret = json!({
        "metadata": {"name": "mine"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": auths.to_string()},
    });
    let secret: Secret = serde_json::from_value(secret).expect("a secret");
    let secrets: Api<Secret> = Api::default_namespaced(pods.api.clone().into_client());
    secrets.create(&PostParams::default(), &secret).await.expect("create the secret");
    let spec = json!({
        "restartPolicy": "Never", "imagePullSecrets": [{"name": "mine"}],
        "containers": [{"name": "main", "image": image, "imagePullPolicy": "Always"}],
    });
    create_pod(&pods, "known", spec).await;
    assert_eq!(output(&pods, "known").await, "hello\n/srv\n/srv\n33\n44\nfor web\n");
    assert!(event(&pods, "known", "Pulled").await.starts_with("Successfully pulled image"));
    // It is present now, and the waiting pod starts at once.
    output(&pods, "stranger").await;
}

#[tokio::test]
async fn what_cannot_be_pulled_says_why_and_heals() {
    let Some(pods) = Pods::up().await else { return };
    let registry = TestRegistry::start().expect("start a registry");
    let image = tool();
    let wrong = digest(b"something else");
    registry.put_manifest("tool", &wrong, &image.manifest);
    let unknown = registry.image("tool", "later");
    for (pod, image, reason, says) in [
        ("unknown", unknown.clone(), "ErrImagePull", "404"),
        ("digest", registry.image("tool", &wrong), "ErrImagePull", "not what it was asked for"),
        // The port of a service that no machine offers any more.
        ("unreachable", "127.0.0.1:7/tool:1".to_owned(), "ErrImagePull", "cannot be reached"),
        ("invalid", "Not/An/Image".to_owned(), "InvalidImageName", "couldn't parse image name"),
        ("built-in", "warren.dev/nothing".to_owned(), "ErrImagePull", "there is no built-in image"),
    ] {
        create(&pods, pod, &image, json!({})).await;
        let message = waits(&pods, pod, reason).await;
        assert!(message.contains(says) && message.contains(&image), "{pod}: {message}");
    }
    create(&pods, "never", &unknown, json!({"imagePullPolicy": "Never"})).await;
    let message = waits(&pods, "never", "ErrImageNeverPull").await;
    assert_eq!(message, format!("Container image \"{unknown}\" is not present with pull policy of Never"));
    let message = waits(&pods, "unknown", "ImagePullBackOff").await;
    assert!(
        message.starts_with(&format!("Back-off pulling image \"{unknown}\": ErrImagePull: ")),
        "{message}"
    );
    event(&pods, "unknown", "BackOff").await;
    assert_eq!(stored(&pods.home), [0, 0, 0]);

    // Once the registry has it, the next try finds it.
    registry.put("tool", "later", &image);
    output(&pods, "unknown").await;
    // Once it is imported, it is found at once, even by the pod that never pulls.
    output(&pods, "never").await;
    import(&pods.home, &image, "127.0.0.1:7/tool:1");
    output(&pods, "unreachable").await;
    for pod in ["unknown", "digest", "unreachable", "invalid", "built-in", "never"] {
        delete(&pods, pod).await;
    }
    pods.home.assert_nothing_left();
    assert_eq!(stored(&pods.home)[2], 0);
}

/// Debian's registry, where it is installed: an independent implementation of the protocol.
#[tokio::test]
async fn a_pod_pulls_from_a_registry_that_is_not_ours() {
    let Some(pods) = Pods::up().await else { return };
    let Some(registry) = DebianRegistry::start().await else {
        eprintln!("skipped: no `docker-registry` on this machine");
        return;
    };
    let image = tool();
    registry.push("own/tool", "1", &image);
    let name = format!("127.0.0.1:{}/own/tool:1", registry.port);
    create(&pods, "main", &name, json!({})).await;
    assert_eq!(output(&pods, "main").await, "hello\n/srv\n/srv\n33\n44\nfor web\n");
    let by_digest = format!("127.0.0.1:{}/own/tool@{}", registry.port, image.digest());
    let pulled = pods.home.warren(&["image", "pull", &by_digest]);
    assert_eq!((pulled.code, pulled.stdout), (Some(0), format!("{by_digest}\n")), "{}", pulled.stderr);
}

struct DebianRegistry {
    port: u16,
    process: Child,
    _directory: tempfile::TempDir,
}

impl DebianRegistry {
    async fn start() -> Option<Self> {
        let directory = tempfile::tempdir().expect("make a directory");
        // It was free a moment ago. If another process takes it in between, the registry ends, and
        // the test fails by that.
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let config = directory.path().join("config.yml");
        let data = directory.path().join("data");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: '{}'}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n",
            data.display()
        );
        std::fs::write(&config, text).expect("write its configuration");
        let started = Command::new("docker-registry").arg("serve").arg(&config).stdout(Stdio::null()).spawn();
        let mut process = match started {
            Ok(process) => process,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => panic!("start docker-registry: {error}"),
        };
        let deadline = Instant::now() + DEADLINE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "docker-registry does not listen");
            assert_eq!(process.try_wait().expect("look at it"), None, "docker-registry has ended");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        Some(Self { port, process, _directory: directory })
    }

    fn push(&self, repository: &str, tag: &str, image: &TestImage) {
        for blob in image.blobs() {
            let (status, place) = self.send("POST", &format!("/v2/{repository}/blobs/uploads/"), "", b"");
            assert_eq!(status, 202);
            let place = place.expect("a place to send to");
            let path = &place[place.find("/v2/").expect("a path of the API")..];
            let path = format!("{path}&digest={}", digest(blob));
            assert_eq!(self.send("PUT", &path, "application/octet-stream", blob).0, 201);
        }
        let path = format!("/v2/{repository}/manifests/{tag}");
        let kind = "application/vnd.oci.image.manifest.v1+json";
        assert_eq!(self.send("PUT", &path, kind, &image.manifest).0, 201);
    }

    /// Returns the status of an answer, and its location.
    fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, Option<String>) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connect");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).expect("send");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("read the answer");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let place = answer.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
        });
        (status, place)
    }
}

impl Drop for DebianRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
