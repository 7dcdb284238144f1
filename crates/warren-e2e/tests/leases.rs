//! Tests leases with the real binary on a real local home: `warmup`, `run --id`, `status`, `stop`
//! and `cleanup`, and that objects of others are never touched. One home serves all tests, since
//! its start is the slow part.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_e2e::faulty_proxy::{Fault, FaultyProxy};
use warren_e2e::local_home::{Ended, LocalHome};

/// A home with a warm pool `warm`, and an empty one `bad` whose sandboxes never become Ready.
struct World {
    home: LocalHome,
    client: Client,
    proxy: FaultyProxy,
    kubeconfig: PathBuf,
}

impl World {
    async fn new() -> Option<Self> {
        let home = LocalHome::new()?;
        home.up();
        let client = home.client().await;
        let proxy = FaultyProxy::start(home.path().join("api.sock"));
        let kubeconfig = home.path().join("proxy-kubeconfig");
        proxy.write_kubeconfig(&kubeconfig);
        let world = Self { home, client, proxy, kubeconfig };
        world.pool("warm", "warren.dev/host", 1).await;
        world.pool("bad", "warren.dev/no-such-image", 0).await;
        Some(world)
    }

    async fn pool(&self, name: &str, image: &str, replicas: i32) {
        let template = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate", "metadata": { "name": name },
            "spec": { "podTemplate": { "spec": { "containers": [{ "name": "main", "image": image }] } } },
        });
        let templates: Api<SandboxTemplate> = Api::namespaced(self.client.clone(), "default");
        let template = serde_json::from_value(template).expect("a template");
        templates.create(&PostParams::default(), &template).await.expect("create the template");
        let pool = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "metadata": { "name": name },
            "spec": { "replicas": replicas, "sandboxTemplateRef": { "name": name } },
        });
        let pools: Api<SandboxWarmPool> = Api::namespaced(self.client.clone(), "default");
        let pool = serde_json::from_value(pool).expect("a pool");
        pools.create(&PostParams::default(), &pool).await.expect("create the pool");
    }

    fn claims(&self) -> Api<SandboxClaim> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn sandboxes(&self) -> Api<Sandbox> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Makes a lease on the warm pool, and returns the name of its claim.
    fn warmup(&self, slug: &str, more: &[&str]) -> String {
        let words = [&["warmup", "--pool", "warm", "--id", slug, "--output", "json"], more].concat();
        let seen = self.home.warren(&words);
        assert_eq!(seen.code, Some(0), "{seen:?}");
        let report: Value = serde_json::from_str(&seen.stdout).expect("JSON");
        assert_eq!(report["lease"], slug);
        report["object"].as_str().expect("a name").to_owned()
    }

    fn state(&self, slug: &str) -> Value {
        let seen = self.home.warren(&["status", slug, "--output", "json"]);
        serde_json::from_str(&seen.stdout).unwrap_or_else(|_| panic!("{seen:?}"))
    }

    fn through_proxy(&self, arguments: &[&str]) -> Ended {
        let kubeconfig = self.kubeconfig.to_str().expect("UTF-8");
        let target = ["--kubeconfig", kubeconfig, "--context", "test"];
        self.home.warren(&[&arguments[..1], &target, &arguments[1..]].concat())
    }

    fn records(&self) -> usize {
        let directory = std::fs::read_dir(self.home.path().join("client/leases")).expect("list");
        let paths = directory.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "json")).count()
    }
}

/// Waits for a condition with a generous deadline.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    for _ in 0..600 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{what}: not within a minute");
}

fn assert_refused(seen: &Ended, code: i32, words: &str) {
    assert_eq!(seen.code, Some(code), "{seen:?}");
    assert!(seen.stderr.contains(words), "{words}: {seen:?}");
}

fn said(code: i32, stdout: &str) -> Ended {
    Ended { code: Some(code), stdout: stdout.to_owned(), stderr: String::new() }
}

#[tokio::test]
async fn leases_are_used_and_ended_only_as_their_records_say() {
    let Some(world) = World::new().await else { return };
    lease_serves_many_commands_and_ends_when_it_is_stopped(&world).await;
    stop_waits_for_the_command_that_runs(&world).await;
    claim_of_the_same_name_with_another_uid_is_left_alone(&world).await;
    claim_that_was_given_another_sandbox_is_refused(&world).await;
    expired_lease_is_told_and_removed(&world).await;
    missing_claim_is_forgotten_only_on_request(&world).await;
    claim_whose_answer_was_lost_is_adopted(&world).await;
    claim_whose_maker_was_killed_is_adopted(&world).await;
    lease_that_cannot_be_deleted_stays_for_stop(&world).await;
    clean_up_says_what_it_does_with_each_lease(&world).await;
    contexts_are_named_and_repositories_choose_none(&world);
    assert_eq!(world.records(), 0, "no record is left");
}

async fn lease_serves_many_commands_and_ends_when_it_is_stopped(world: &World) {
    let home = &world.home;
    let claim = world.warmup("mine", &[]);
    let live = world.claims().get(&claim).await.expect("the claim");
    assert_eq!(live.labels()["warren.dev/provider"], "agent-sandbox");
    assert_eq!(live.annotations()["warren.dev/provider-scope"].len(), 64);
    assert!(!serde_json::to_string(&live).expect("JSON").contains(home.path().to_str().expect("UTF-8")));

    let directory = tempfile::tempdir().expect("make a directory");
    std::fs::write(directory.path().join("file"), "sent\n").expect("write");
    let mut sync = home.command();
    let words = ["run", "--id", "mine", "--sync", ".", "--env", "A=b", "cat file; echo $A > kept; exit 3"];
    let seen = Ended::from(sync.current_dir(directory.path()).args(words).output().expect("run"));
    assert_eq!(seen, said(3, "sent\n"));
    assert_eq!(
        home.warren(&["run", "--id", "mine", "--no-sync", "pwd; cat kept"]),
        said(0, "/workspace\nb\n")
    );
    assert_eq!(home.warren(&["exec", "mine", "--", "cat", "/workspace/kept"]), said(0, "b\n"));
    let mut sync = home.command();
    let words = ["run", "--id", "mine", "--sync", ".", "--sync-delete", "ls -A"];
    let seen = Ended::from(sync.current_dir(directory.path()).args(words).output().expect("run"));
    assert_eq!(seen, said(0, "file\n"), "what was not sent is gone");

    assert_eq!(home.warren(&["status", "mine", "--wait"]).code, Some(0));
    let listed = home.warren(&["list", "--output", "json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    let row = listed["sandboxes"].as_array().expect("rows").iter().find(|row| row["lease"] == "mine");
    assert_eq!(row.expect("the lease's sandbox")["claim"], claim);
    assert_refused(&home.warren(&["warmup", "--id", "mine"]), 1, "there is a lease `mine` already");
    assert_refused(&home.warren(&["warmup", "--id", "Not_One"]), 1, "cannot name a lease");
    assert_refused(&home.warren(&["delete", "mine"]), 1, "`warren stop mine` ends it");

    assert_eq!(home.warren(&["stop", "mine"]), said(0, "mine\n"));
    until("the claim is gone", async || world.claims().get_opt(&claim).await.expect("read").is_none()).await;
    assert_refused(&home.warren(&["status", "mine"]), 1, "there is no lease `mine`");
    assert_refused(&home.warren(&["run", "--id", "mine", "true"]), 125, "there is no lease `mine`");

    // A lease without a pool is a sandbox.
    let seen = home.warren(&["warmup", "--id", "plain"]);
    assert_eq!((seen.code, seen.stdout.as_str()), (Some(0), "plain\n"), "{seen:?}");
    assert_eq!(home.warren(&["run", "--id", "plain", "--no-sync", "pwd"]), said(0, "/workspace\n"));
    assert_eq!(home.warren(&["stop", "plain"]), said(0, "plain\n"));
    // A lease of a template has an empty pool of its own, which is deleted with it.
    let seen = home.warren(&["warmup", "--id", "form", "--template", "warm"]);
    assert_eq!(seen.code, Some(0), "{seen:?}");
    assert_eq!(home.warren(&["stop", "form"]), said(0, "form\n"));
    let pools: Api<SandboxWarmPool> = Api::namespaced(world.client.clone(), "default");
    until("the lease's pool is gone", async || {
        pools.list(&Default::default()).await.expect("list").items.len() == 2
    })
    .await;
}

async fn stop_waits_for_the_command_that_runs(world: &World) {
    world.warmup("busy", &[]);
    let mut run = world.home.spawn(&["run", "--id", "busy", "--no-sync", "echo ready; cat; exit 4"]);
    let mut line = [0; 6];
    run.stdout.as_mut().expect("piped").read_exact(&mut line).expect("a line");
    assert_eq!(&line, b"ready\n");
    let mut stop = world.home.spawn(&["stop", "busy"]);
    let mut stop_says = String::new();
    let mut lines = BufReader::new(stop.stderr.take().expect("piped"));
    lines.read_line(&mut stop_says).expect("a line");
    assert_eq!(stop_says, "Waiting for the command that uses lease `busy`\n");
    assert_eq!(world.state("busy")["state"], "ready", "nothing was deleted yet");
    run.stdin.take().expect("piped").write_all(b"more\n").expect("write");
    let run = Ended::from(run.wait_with_output().expect("wait"));
    assert_eq!(run, said(4, "more\n"));
    assert_eq!(stop.wait().expect("wait").code(), Some(0));
    assert_refused(&world.home.warren(&["status", "busy"]), 1, "there is no lease `busy`");
}

async fn claim_of_the_same_name_with_another_uid_is_left_alone(world: &World) {
    let name = world.warmup("twin", &[]);
    let claims = world.claims();
    let mut twin = claims.get(&name).await.expect("the claim");
    claims.delete(&name, &DeleteParams::default()).await.expect("delete");
    until("the claim is gone", async || claims.get_opt(&name).await.expect("read").is_none()).await;
    let metadata = std::mem::take(&mut twin.metadata);
    twin.metadata.name = metadata.name;
    twin.metadata.labels = metadata.labels;
    twin.metadata.annotations = metadata.annotations;
    twin.status = None;
    let twin = claims.create(&PostParams::default(), &twin).await.expect("create its twin");

    let is_not = "is not the one of this lease: its metadata.uid is";
    assert_refused(&world.home.warren(&["run", "--id", "twin", "--no-sync", "true"]), 125, is_not);
    assert_refused(&world.home.warren(&["exec", "twin", "true"]), 125, is_not);
    assert_refused(&world.home.warren(&["stop", "twin"]), 1, is_not);
    assert_eq!(world.state("twin")["state"], "foreign");
    let seen = world.home.warren(&["cleanup", "--idle-timeout", "0", "--dry-run"]);
    assert!(seen.stdout.contains("skipped") && seen.stdout.contains(is_not), "{seen:?}");
    assert_eq!(claims.get(&name).await.expect("it lives").uid(), twin.uid());

    assert_eq!(world.home.warren(&["stop", "twin", "--forget-missing"]).code, Some(0));
    assert_eq!(claims.get(&name).await.expect("it lives").uid(), twin.uid());
    claims.delete(&name, &DeleteParams::default()).await.expect("delete");
}

async fn claim_that_was_given_another_sandbox_is_refused(world: &World) {
    let name = world.warmup("moved", &[]);
    let sandbox = world.state("moved")["sandbox"].as_str().expect("a sandbox").to_owned();
    let before = world.sandboxes().get(&sandbox).await.expect("the sandbox").uid();
    world.sandboxes().delete(&sandbox, &DeleteParams::default()).await.expect("delete");
    until("the claim has another sandbox", async || {
        let claim = world.claims().get(&name).await.expect("the claim");
        let Some(given) = claim.status.and_then(|status| status.sandbox?.name) else { return false };
        let now = world.sandboxes().get_opt(&given).await.expect("read");
        now.is_some_and(|now| now.uid() != before && now.metadata.deletion_timestamp.is_none())
            && world.state("moved")["state"] != "waiting"
    })
    .await;
    assert_eq!(world.state("moved")["state"], "foreign");
    let seen = world.home.warren(&["run", "--id", "moved", "--no-sync", "--env", "A=secret", "true"]);
    assert_refused(&seen, 125, "Sandbox `");
    assert!(seen.stderr.contains("is not the one of this lease"), "{seen:?}");
    // The claim itself is still ours to delete.
    assert_eq!(world.home.warren(&["stop", "moved"]), said(0, "moved\n"));
}

async fn expired_lease_is_told_and_removed(world: &World) {
    let name = world.warmup("short", &["--ttl", "6s"]);
    until("the lease has expired", async || world.state("short")["state"] == "expired").await;
    until("the controller has expired the claim", async || {
        let claim = world.claims().get(&name).await.expect("the claim is retained");
        let conditions = claim.status.map(|status| status.conditions).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.reason == "ClaimExpired")
    })
    .await;
    let seen = world.home.warren(&["status", "short", "--wait"]);
    assert_eq!(seen.code, Some(1), "{seen:?}");
    assert!(seen.stdout.contains("expired"), "{seen:?}");
    assert_refused(&world.home.warren(&["run", "--id", "short", "--no-sync", "true"]), 125, "and is removed");
    until("the claim is gone", async || world.claims().get_opt(&name).await.expect("read").is_none()).await;
}

async fn missing_claim_is_forgotten_only_on_request(world: &World) {
    let name = world.warmup("lost", &[]);
    world.claims().delete(&name, &DeleteParams::default()).await.expect("delete");
    until("the claim is gone", async || world.claims().get_opt(&name).await.expect("read").is_none()).await;
    assert_refused(&world.home.warren(&["stop", "lost"]), 1, "is not there");
    assert_refused(&world.home.warren(&["run", "--id", "lost", "--no-sync", "true"]), 125, "is not there");
    let seen = world.home.warren(&["status", "lost", "--wait"]);
    assert!(seen.code == Some(1) && seen.stdout.contains("missing"), "{seen:?}");
    let seen = world.home.warren(&["cleanup", "--idle-timeout", "0"]);
    assert!(seen.code == Some(0) && seen.stdout.contains("skipped"), "{seen:?}");
    assert_eq!(world.records(), 1);
    let seen = world.home.warren(&["stop", "lost", "--forget-missing"]);
    assert!(seen.code == Some(0) && seen.stderr.contains("Forgot lease `lost`"), "{seen:?}");
}

async fn claim_whose_answer_was_lost_is_adopted(world: &World) {
    world.proxy.set(Fault::LoseAnswerToPost("/sandboxclaims"));
    let seen = world.through_proxy(&["warmup", "--pool", "warm", "--id", "again"]);
    assert_eq!((seen.code, seen.stdout.as_str()), (Some(0), "again\n"), "{seen:?}");
    assert!(world.proxy.has_lost_an_answer());
    let made = world.claims().list(&Default::default()).await.expect("list");
    let ours = made
        .items
        .iter()
        .filter(|claim| claim.labels().get("warren.dev/slug").is_some_and(|slug| slug == "again"));
    assert_eq!(ours.count(), 1, "it was made once");
    assert_eq!(world.through_proxy(&["run", "--id", "again", "--no-sync", "echo in"]), said(0, "in\n"));
    // The lease belongs to the context, not to the local home, although both lead to the same
    // server.
    assert_refused(&world.home.warren(&["stop", "again"]), 1, "there is no lease `again`");
    assert_eq!(world.through_proxy(&["stop", "again"]), said(0, "again\n"));
}

async fn claim_whose_maker_was_killed_is_adopted(world: &World) {
    for slug in ["orphan", "stopped"] {
        world.proxy.set(Fault::HoldAnswerToPost("/sandboxclaims"));
        let kubeconfig = world.kubeconfig.to_str().expect("UTF-8");
        let words =
            ["warmup", "--kubeconfig", kubeconfig, "--context", "test", "--pool", "warm", "--id", slug];
        let mut warmup = world.home.spawn(&words);
        until("the claim was made", async || world.proxy.has_lost_an_answer()).await;
        warmup.kill().expect("kill");
        warmup.wait().expect("wait");
        world.proxy.set(Fault::None);
        // The record was written first, and leads to the claim; the lock has ended with its holder.
        assert_refused(&world.through_proxy(&words_of(slug)), 1, "there is a lease");
        if slug == "orphan" {
            let seen = world.through_proxy(&["run", "--id", slug, "--no-sync", "echo in"]);
            assert_eq!(seen, said(0, "in\n"));
        }
        assert_eq!(world.through_proxy(&["stop", slug]), said(0, &format!("{slug}\n")));
    }
    until("the claims are gone", async || {
        let left = world.claims().list(&Default::default()).await.expect("list").items;
        !left.iter().any(|claim| {
            claim.labels().get("warren.dev/slug").is_some_and(|slug| slug == "orphan" || slug == "stopped")
        })
    })
    .await;
}

fn words_of(slug: &str) -> [&str; 5] {
    ["warmup", "--pool", "warm", "--id", slug]
}

async fn lease_that_cannot_be_deleted_stays_for_stop(world: &World) {
    world.proxy.set(Fault::RefuseDelete);
    let words = ["warmup", "--pool", "bad", "--id", "stuck", "--ready-timeout", "1s"];
    let seen = world.through_proxy(&words);
    assert_refused(&seen, 1, "was not Ready within 1 s");
    assert!(seen.stderr.contains("end it with `warren stop --context test stuck`"), "{seen:?}");
    world.proxy.set(Fault::None);
    let claims = world.claims().list(&Default::default()).await.expect("list").items;
    let of_lease =
        claims.iter().find(|claim| claim.labels().get("warren.dev/slug").is_some_and(|slug| slug == "stuck"));
    let name = of_lease.expect("the claim is there").name_any();
    assert_eq!(world.through_proxy(&["stop", "stuck"]), said(0, "stuck\n"));
    until("the claim is gone", async || world.claims().get_opt(&name).await.expect("read").is_none()).await;
    // Without the fault everything is removed at once.
    assert_refused(&world.through_proxy(&words), 1, "was not Ready within 1 s");
    assert_eq!(world.records(), 0);
    let words = ["warmup", "--pool", "none", "--id", "stuck"];
    assert_refused(&world.through_proxy(&words), 1, "there is no SandboxWarmPool `none`");
}

async fn clean_up_says_what_it_does_with_each_lease(world: &World) {
    let name = world.warmup("idle", &[]);
    let cleanup = |more: &[&str]| {
        let seen = world.home.warren(&[&["cleanup", "--output", "json"], more].concat());
        assert_eq!(seen.code, Some(0), "{seen:?}");
        let report: Value = serde_json::from_str(&seen.stdout).expect("JSON");
        report["leases"][0]["action"].clone()
    };
    assert_eq!(cleanup(&[]), "skipped");
    assert_eq!(cleanup(&["--idle-timeout", "0", "--dry-run"]), "would remove");
    world.claims().get(&name).await.expect("a preview deletes nothing");
    assert_eq!(cleanup(&["--idle-timeout", "0"]), "removed");
    until("the claim is gone", async || world.claims().get_opt(&name).await.expect("read").is_none()).await;
    assert_eq!(world.home.warren(&["cleanup"]), said(0, "There are no leases.\n"));
}

fn contexts_are_named_and_repositories_choose_none(world: &World) {
    let kubeconfig = world.kubeconfig.to_str().expect("UTF-8");
    assert_refused(&world.home.warren(&["list", "--kubeconfig", kubeconfig]), 1, "no context in it");
    let list = world.through_proxy(&["list", "--output", "json"]);
    assert_eq!(list.code, Some(0), "{list:?}");
    assert_refused(
        &world.home.warren(&["list", "--kubeconfig", "relative", "--context", "test"]),
        1,
        "name it by an absolute path",
    );
    assert_refused(&world.through_proxy(&["run", "true"]), 125, "on a cluster, say what to run in");

    let project = tempfile::tempdir().expect("make a directory");
    let in_project = |text: &str, arguments: &[&str]| {
        std::fs::write(project.path().join("warren.toml"), text).expect("write");
        let output = world.home.command().current_dir(project.path()).args(arguments).output();
        Ended::from(output.expect("run"))
    };
    let seen = in_project("context = 'theirs'", &["run", "true"]);
    assert_refused(&seen, 125, "may not set `context`");
    let user = world.home.path().join("config.toml");
    std::fs::write(&user, "ttl = '2h'\nidle-timeout = '1m'\n").expect("write");
    let seen = in_project("ttl = '3h'", &["config", "show", "--output", "json", "--namespace", "n"]);
    std::fs::remove_file(&user).expect("remove");
    let shown: Value = serde_json::from_str(&seen.stdout).expect("JSON");
    let shown = |key: &str| {
        let settings = shown["settings"].as_array().expect("settings");
        let row = settings.iter().find(|row| row["key"] == key).expect("the setting").clone();
        let origin = row["origin"].as_str().expect("text").rsplit('/').next().unwrap_or_default().to_owned();
        (row["value"].as_str().expect("text").to_owned(), origin)
    };
    let pair = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
    assert_eq!(shown("ttl"), pair("3h", "warren.toml"));
    assert_eq!(shown("idle-timeout"), pair("1m", "config.toml"));
    assert_eq!(shown("namespace"), pair("n", "--namespace"));
    assert_eq!(shown("exec-timeout"), pair("600s", "default"));
}
