//! Tests that a full disk and a read-only disk cause errors, not corruption, and that freeing space
//! is enough to recover.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use rustix::process::Signal;
use serde_json::{Value, json};
use warren_e2e::conformance::target::{Target as _, UnixTarget};
use warren_e2e::disk::SmallDisk;
use warren_e2e::foreground::Foreground;
use warren_e2e::full_disk::{self, DetachedHome};
use warren_testkit::privileges::{OrdinaryUser, skip_without_root};

const PATH: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns a pod with one container that runs this command, or its image's own.
fn pod(name: &str, command: Option<&[&str]>) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "warren.dev/host", "command": command}],
        },
    })
}

struct Home {
    disk: SmallDisk,
    log: tempfile::NamedTempFile,
    daemon: Option<Foreground>,
}

impl Home {
    fn new(disk: SmallDisk) -> Home {
        Home { disk, log: tempfile::NamedTempFile::new().expect("make a file"), daemon: None }
    }

    fn spawn(&self) -> Foreground {
        Foreground::spawn(self.disk.path(), &self.disk.wrapper(), &[], self.log.path())
    }

    fn up(&mut self) {
        let mut daemon = self.spawn();
        daemon.expect_ready();
        self.daemon = Some(daemon);
    }

    fn kill(&mut self) {
        self.daemon.take().expect("a running daemon").kill();
    }

    fn words(&self) -> String {
        std::fs::read_to_string(self.log.path()).expect("read the log")
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let target = UnixTarget::new(&self.disk.from_outside().join("api.sock"));
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder().method(method).uri(path).body(body).expect("a request");
        let response =
            target.call(request).await.unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.words()));
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn create(&self, name: &str, size: usize) -> (StatusCode, Value) {
        let object = json!({"metadata": {"name": name, "labels": {"test": "disk"}}, "data": {"padding": "x".repeat(size)}});
        self.send(Method::POST, PATH, &object).await
    }

    async fn names(&self) -> BTreeSet<String> {
        let (status, list) =
            self.send(Method::GET, &format!("{PATH}?labelSelector=test%3Ddisk"), &Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{list}");
        let items = list["items"].as_array().expect("items");
        items.iter().map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    }

    async fn version(&self) -> u64 {
        let (_, list) = self.send(Method::GET, PATH, &Value::Null).await;
        list["metadata"]["resourceVersion"].as_str().expect("a version").parse().expect("a number")
    }

    /// Returns the status of a pod once it is in this phase, or gone.
    async fn until(&self, name: &str, phase: &str) -> Value {
        let begun = std::time::Instant::now();
        loop {
            let (_, pod) = self.send(Method::GET, &format!("{PODS}/{name}"), &Value::Null).await;
            if pod["status"]["phase"] == phase || pod["code"] == 404 {
                return pod["status"].clone();
            }
            assert!(begun.elapsed() < DEADLINE, "{name} is not {phase}: {}\n{}", pod["status"], self.words());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Removes a pod, and waits until it is gone.
    async fn remove(&self, name: &str) {
        let (status, answer) = self.send(Method::DELETE, &format!("{PODS}/{name}"), &Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        self.until(name, "gone").await;
    }

    /// Creates objects until one is refused; returns the acknowledged names and the refusal.
    async fn create_until_refused(
        &self,
        prefix: &str,
        size: usize,
    ) -> (BTreeSet<String>, (StatusCode, Value)) {
        let mut created = BTreeSet::new();
        for number in 0..1000 {
            let name = format!("{prefix}-{number}");
            let (status, answer) = self.create(&name, size).await;
            if status != StatusCode::CREATED {
                return (created, (status, answer));
            }
            created.insert(name);
        }
        panic!("a full disk takes everything");
    }
}

#[tokio::test]
async fn sandboxes_run_on_a_disk_that_has_no_programs_to_be_run() {
    if skip_without_root() {
        return;
    }
    let mut home = Home::new(SmallDisk::without_programs(64).expect("make a disk"));
    home.up();
    assert_eq!(home.send(Method::POST, PODS, &pod("idle", None)).await.0, StatusCode::CREATED);
    assert_eq!(home.until("idle", "Running").await["phase"], "Running");
    home.remove("idle").await;
}

#[tokio::test]
async fn a_full_disk_refuses_writes_loses_nothing_and_goes_on_when_there_is_room() {
    if skip_without_root() {
        return;
    }
    let mut home = Home::new(SmallDisk::in_memory(64).expect("make a disk"));
    home.up();
    let mut acknowledged = BTreeSet::new();
    for number in 0..20 {
        assert_eq!(home.create(&format!("before-{number}"), 10_000).await.0, StatusCode::CREATED);
        acknowledged.insert(format!("before-{number}"));
    }
    home.disk.fill().expect("fill the disk");
    let (created, (status, refusal)) = home.create_until_refused("full", 100_000).await;
    acknowledged.extend(created);
    assert_eq!(status, StatusCode::INSUFFICIENT_STORAGE, "{refusal}");
    assert_eq!((&refusal["kind"], &refusal["status"]), (&json!("Status"), &json!("Failure")));
    let message = refusal["message"].as_str().expect("a message");
    assert!(message.contains("the disk of the store is full, nothing was written"), "{message}");

    assert_eq!(home.send(Method::GET, "/readyz", &Value::Null).await.0, StatusCode::OK);
    assert_eq!(home.names().await, acknowledged);
    let version = home.version().await;

    // Killed while the disk is full, and while several writes are refused at once.
    let refused = futures::future::join_all((0..16).map(|number| {
        let home = &home;
        async move { home.create(&format!("at-once-{number}"), 100_000).await }
    }));
    for (number, (status, answer)) in refused.await.into_iter().enumerate() {
        match status {
            StatusCode::CREATED => _ = acknowledged.insert(format!("at-once-{number}")),
            status => assert_eq!(status, StatusCode::INSUFFICIENT_STORAGE, "{answer}"),
        }
    }
    home.kill();
    home.disk.make_room().expect("make room");
    home.up();
    assert_eq!(home.names().await, acknowledged);
    assert!(home.version().await >= version);
    let (status, after) = home.create("after", 100_000).await;
    assert_eq!(status, StatusCode::CREATED, "{after}");
    acknowledged.insert("after".to_owned());

    // Full again; this time space is freed while it runs.
    home.disk.fill().expect("fill the disk");
    let (created, (status, _)) = home.create_until_refused("again", 100_000).await;
    acknowledged.extend(created);
    assert_eq!(status, StatusCode::INSUFFICIENT_STORAGE);
    home.disk.make_room().expect("make room");
    let (status, answer) = home.create("room-again", 100_000).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    acknowledged.insert("room-again".to_owned());
    assert_eq!(home.names().await, acknowledged);

    // The audit log may lack lines. Its only broken lines are those that were cut off.
    home.daemon.as_ref().expect("a daemon").signal(Signal::TERM);
    assert!(home.daemon.as_mut().expect("a daemon").wait(DEADLINE).is_some_and(|status| status.success()));
    let audit =
        std::fs::read_to_string(home.disk.from_outside().join("audit.log")).expect("read the audit log");
    let last = audit.lines().last().expect("a line");
    let last: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!((&last["verb"], &last["responseStatus"]["code"]), (&json!("create"), &json!(201)), "{last}");
}

#[tokio::test]
async fn a_full_disk_does_not_keep_it_from_starting() {
    if skip_without_root() {
        return;
    }
    let mut home = Home::new(SmallDisk::in_memory(64).expect("make a disk"));
    home.up();
    assert_eq!(home.create("before", 1000).await.0, StatusCode::CREATED);
    home.disk.fill().expect("fill the disk");
    home.kill();
    home.up();
    assert_eq!(home.names().await, BTreeSet::from(["before".to_owned()]));
    home.disk.make_room().expect("make room");
    assert_eq!(home.create("after", 1000).await.0, StatusCode::CREATED);
}

/// Starts a detached home on a small disk. `None`, with a printed reason, where there are no loop
/// devices.
fn detached(user: Option<OrdinaryUser>, rounds: u32) -> Option<DetachedHome> {
    match DetachedHome::new(user, rounds) {
        Ok(home) => Some(home),
        Err(error) => {
            eprintln!("skipped: no loop device with ext4 on this machine: {error}");
            None
        }
    }
}

/// The number of rounds on one disk. The store's file keeps its size, and each round has to use up
/// its free pages first.
const ROUNDS_ON_A_DISK: u32 = 10;

/// `WARREN_FULL_DISK_ROUNDS=50` makes it longer.
async fn fill_and_free(user: Option<OrdinaryUser>) {
    let wanted = std::env::var("WARREN_FULL_DISK_ROUNDS").ok().and_then(|text| text.parse().ok());
    let mut left: u32 = wanted.unwrap_or(3);
    while left > 0 {
        let rounds = left.min(ROUNDS_ON_A_DISK);
        let Some(home) = detached(user, rounds) else { return };
        let outcome = full_disk::run(&home, rounds).await.unwrap_or_else(|error| panic!("{error}"));
        println!("{outcome:?}");
        assert_eq!(outcome.rounds, rounds);
        left -= rounds;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_filled_and_freed_loses_nothing_and_needs_no_restart() {
    if skip_without_root() {
        return;
    }
    fill_and_free(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_users_disk_that_is_filled_and_freed_loses_nothing_and_needs_no_restart() {
    if skip_without_root() {
        return;
    }
    let Some(user) = OrdinaryUser::find() else { return };
    fill_and_free(Some(user)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_home_starts_on_a_full_disk_whose_log_takes_nothing() {
    if skip_without_root() {
        return;
    }
    let Some(home) = detached(None, 1) else { return };
    home.up().expect("start");
    assert!(home.warren(&["down"]).status.success());
    home.disk().fill().expect("fill the disk");
    // Not even the log's last block has free space.
    let fill =
        "dd if=/dev/zero of=\"$PLACE/home/daemon.log\" bs=1 oflag=append conv=notrunc 2>/dev/null; true";
    home.disk().shell(fill).expect("fill the log");
    home.up().unwrap_or_else(|error| panic!("{error}\n{}", home.log()));
    home.disk().make_room().expect("make room");
    let object = json!({"metadata": {"name": "after"}});
    let answer = home.client().expect("a client").send(Method::POST, PATH, &object).await;
    assert_eq!(answer.expect("an answer").0, StatusCode::CREATED);
}

/// The controllers run ahead of the disk, and their writes may be lost there. Then they repeat
/// them.
#[tokio::test]
async fn what_the_controllers_lose_on_a_full_disk_they_do_again() {
    if skip_without_root() {
        return;
    }
    // The time until the disk is full depends on the machine.
    for seconds in [8, 20, 45] {
        if loses_an_expiry_after(seconds).await {
            return;
        }
    }
    panic!("the disk was never full in time");
}

/// Returns false if the sandbox expired before the disk was full.
async fn loses_an_expiry_after(seconds: i64) -> bool {
    const SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
    let mut home = Home::new(SmallDisk::in_memory(64).expect("make a disk"));
    home.up();
    let until = async |what: &str, is_so: &dyn Fn(&Value) -> bool| {
        let begun = std::time::Instant::now();
        loop {
            let (_, sandbox) = home.send(Method::GET, &format!("{SANDBOXES}/expires"), &Value::Null).await;
            if is_so(&sandbox) {
                return;
            }
            assert!(begun.elapsed() < DEADLINE, "not {what}: {}\n{}", sandbox["status"], home.words());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let ready = |sandbox: &Value| {
        let conditions = sandbox["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == "Ready").unwrap_or_default()
    };
    // The time is set while there is space, and comes when there is none. There is no pod to delete
    // first, which would wait for the disk, and this write is larger than the refused ones.
    let shutdown = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    let sandbox = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {"name": "expires", "annotations": {"note": "x".repeat(50_000)}},
        "spec": {
            "shutdownTime": format!("{shutdown:.0}"), "shutdownPolicy": "Retain", "operatingMode": "Suspended",
            "podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}},
        },
    });
    let (status, answer) = home.send(Method::POST, SANDBOXES, &sandbox).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let is_expired = |sandbox: &Value| ready(sandbox)["reason"] == "SandboxExpired";
    until("suspended", &|sandbox| ready(sandbox)["reason"] == "SandboxSuspended" || is_expired(sandbox))
        .await;
    home.disk.fill().expect("fill the disk");
    home.create_until_refused("large", 100_000).await;
    home.create_until_refused("small", 1).await;
    let (_, sandbox) = home.send(Method::GET, &format!("{SANDBOXES}/expires"), &Value::Null).await;
    if is_expired(&sandbox) {
        return false;
    }
    until("refused what the controllers wrote", &|_| home.words().contains("they begin again")).await;
    let (_, sandbox) = home.send(Method::GET, &format!("{SANDBOXES}/expires"), &Value::Null).await;
    assert_eq!(ready(&sandbox)["reason"], "SandboxSuspended", "nobody sees what the disk does not have");
    home.disk.make_room().expect("make room");
    until("expired", &is_expired).await;
    true
}

/// The pod's own limit is high, so the disk is full first. The pod is evicted, although its status
/// cannot be written at first.
#[tokio::test]
async fn a_pod_that_fills_the_disk_is_evicted_and_the_home_goes_on() {
    if skip_without_root() {
        return;
    }
    let disk = match SmallDisk::on_loop_device(256) {
        Ok(disk) => disk,
        Err(error) => {
            eprintln!("skipped: no loop device with ext4 on this machine: {error}");
            return;
        }
    };
    let mut home = Home::new(disk);
    home.up();
    let fill = "head -c 5000 /dev/zero > /dev/termination-log; head -c 1073741824 /dev/zero > /var/fill; exec sleep 100000";
    for pod in [pod("small", Some(&["sleep", "100000"])), pod("large", Some(&["sh", "-c", fill]))] {
        assert_eq!(home.send(Method::POST, PODS, &pod).await.0, StatusCode::CREATED);
    }
    let evicted = home.until("large", "Failed").await;
    assert_eq!(evicted["reason"], "Evicted", "{evicted}");
    let message = evicted["message"].as_str().expect("a message");
    assert!(message.starts_with("The node was low on resource: ephemeral-storage. "), "{message}");
    assert!(message.contains("Container main was using "), "{message}");
    // Only its logs are left, although it had left a termination message.
    let (_, pod) = home.send(Method::GET, &format!("{PODS}/large"), &Value::Null).await;
    let directory =
        home.disk.from_outside().join("pods").join(pod["metadata"]["uid"].as_str().expect("a uid"));
    for name in ["containers", "volumes", "termination"] {
        assert!(!directory.join(name).exists(), "{name} of the evicted pod is left");
    }
    assert_eq!(home.until("small", "Running").await["phase"], "Running");
    assert_eq!(home.create("after", 100_000).await.0, StatusCode::CREATED);
    for name in ["small", "large"] {
        home.remove(name).await;
    }
    home.daemon.as_ref().expect("a daemon").signal(Signal::TERM);
    assert!(home.daemon.as_mut().expect("a daemon").wait(DEADLINE).is_some_and(|status| status.success()));
}

/// Empty files take no bytes, but an inode each.
#[tokio::test]
async fn a_pod_that_takes_all_inodes_is_evicted_and_others_start_again() {
    if skip_without_root() {
        return;
    }
    let disk = match SmallDisk::with_inodes(256, 4000) {
        Ok(disk) => disk,
        Err(error) => {
            eprintln!("skipped: no loop device with ext4 on this machine: {error}");
            return;
        }
    };
    let mut home = Home::new(disk);
    home.up();
    let many = "(i=0; while : > /var/tmp/$i; do i=$((i+1)); done); exec sleep 100000";
    for pod in [pod("few", Some(&["sleep", "100000"])), pod("many", Some(&["sh", "-c", many]))] {
        assert_eq!(home.send(Method::POST, PODS, &pod).await.0, StatusCode::CREATED);
    }
    let evicted = home.until("many", "Failed").await;
    assert_eq!(evicted["reason"], "Evicted", "{evicted}");
    let message = evicted["message"].as_str().expect("a message");
    assert!(message.starts_with("The node was low on resource: inodes. Threshold quantity: "), "{message}");
    assert!(message.contains("Container main was using "), "{message}");
    assert_eq!(home.until("few", "Running").await["phase"], "Running");
    assert_eq!(home.send(Method::POST, PODS, &pod("after", None)).await.0, StatusCode::CREATED);
    assert_eq!(home.until("after", "Running").await["phase"], "Running");
    for name in ["few", "many", "after"] {
        home.remove(name).await;
    }
    home.daemon.as_ref().expect("a daemon").signal(Signal::TERM);
    assert!(home.daemon.as_mut().expect("a daemon").wait(DEADLINE).is_some_and(|status| status.success()));
}

#[tokio::test]
async fn a_read_only_disk_is_said_to_be_so_at_the_start() {
    if skip_without_root() {
        return;
    }
    let mut home = Home::new(SmallDisk::in_memory(64).expect("make a disk"));
    home.up();
    assert_eq!(home.create("before", 1000).await.0, StatusCode::CREATED);
    home.kill();
    home.disk.shell("mount -o remount,ro \"$PLACE\"").expect("remount");
    let mut daemon = home.spawn();
    let status = daemon.wait(DEADLINE).expect("it ends");
    assert!(!status.success());
    assert!(home.words().contains("Read-only file system"), "{}", home.words());
    home.disk.shell("mount -o remount,rw \"$PLACE\"").expect("remount");
    home.up();
    assert_eq!(home.names().await, BTreeSet::from(["before".to_owned()]));
}

#[tokio::test]
async fn a_disk_that_turns_read_only_refuses_writes_and_keeps_what_it_has() {
    if skip_without_root() {
        return;
    }
    let disk = match SmallDisk::on_loop_device(64) {
        Ok(disk) => disk,
        Err(error) => {
            eprintln!("skipped: no loop device with ext4 on this machine: {error}");
            return;
        }
    };
    let mut home = Home::new(disk);
    home.up();
    let mut acknowledged = BTreeSet::new();
    for number in 0..20 {
        assert_eq!(home.create(&format!("before-{number}"), 10_000).await.0, StatusCode::CREATED);
        acknowledged.insert(format!("before-{number}"));
    }
    // The kernel's reaction to an error: the file system is read-only at once, with files open for
    // writing.
    home.disk.shell("mount -o remount,abort \"$PLACE\"").expect("abort the file system");
    let (created, (status, refusal)) = home.create_until_refused("broken", 100_000).await;
    assert_eq!(created, BTreeSet::new());
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{refusal}");
    let message = refusal["message"].as_str().expect("a message");
    assert!(message.contains("nothing was written"), "{message}");
    assert_eq!(home.names().await, acknowledged);
    home.kill();

    // As after a repair: mounted again, it has all acknowledged writes.
    home.disk
        .shell("umount \"$PLACE\" && mount -o loop,errors=remount-ro \"$PLACE/image\" \"$PLACE\"")
        .expect("mount it again");
    home.up();
    assert_eq!(home.names().await, acknowledged);
    assert_eq!(home.create("after", 1000).await.0, StatusCode::CREATED);
}
