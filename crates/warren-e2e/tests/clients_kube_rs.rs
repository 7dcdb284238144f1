//! Tests kube-rs's watcher and controller runtime on a real control plane and on the local home:
//! the same events, actions and results.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use serde_json::{Value, json};
use warren_client::kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use warren_client::kube::config::{KubeConfigOptions, Kubeconfig};
use warren_client::kube::runtime::controller::{Action, Controller};
use warren_client::kube::runtime::finalizer::{self, Event as Finalizing, finalizer};
use warren_client::kube::runtime::watcher::{self, Event, watcher};
use warren_client::kube::runtime::{WatchStreamExt as _, wait};
use warren_client::kube::{self, Client, Resource as _, ResourceExt as _};
use warren_e2e::local_home::LocalHome;
use warren_testkit::kube::ControlPlane;

const NAMESPACE: &str = "kube-rs";
const DEADLINE: Duration = Duration::from_secs(60);

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("read the kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let client = Client::try_from(config.expect("a config")).expect("a client");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace: Namespace = from(json!({"metadata": {"name": NAMESPACE}}));
    namespaces.create(&PostParams::default(), &namespace).await.expect("create the namespace");
    client
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

fn map(name: &str, value: &str) -> ConfigMap {
    from(json!({"metadata": {"name": name, "labels": {"test": "kube-rs"}}, "data": {"value": value}}))
}

/// Returns a watcher's events for three writes, in one of its two ways of starting.
async fn watched(client: &Client, config: watcher::Config, prefix: &str) -> Vec<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let there = format!("{prefix}-there");
    maps.create(&PostParams::default(), &map(&there, "0")).await.expect("create");
    // A watcher starts from the server's cache, which on a real server is slightly behind its
    // store.
    let cached = ListParams::default().match_any();
    let is_cached = async {
        while !maps.list(&cached).await.expect("list").iter().any(|map| map.name_any() == there) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, is_cached).await.expect("the cache catches up");
    let selected = config.labels("test=kube-rs");
    let mut events = Box::pin(watcher(maps.clone(), selected));
    let mut seen = Vec::new();
    let mut wrote = false;
    let watching = async {
        while let Some(event) = events.next().await {
            let word = match event.expect("no error") {
                Event::Init => "init".to_owned(),
                Event::InitApply(object) => format!("there {}", object.name_any()),
                Event::InitDone => "ready".to_owned(),
                Event::Apply(object) => format!("applied {} {:?}", object.name_any(), object.data),
                Event::Delete(object) => format!("deleted {}", object.name_any()),
            };
            let last = word.starts_with("deleted");
            seen.push(word.replace(prefix, "x"));
            if last {
                break;
            }
            if seen.last().is_some_and(|word| word == "ready") && !wrote {
                wrote = true;
                let name = format!("{prefix}-new");
                maps.create(&PostParams::default(), &map(&name, "1")).await.expect("create");
                let patch = Patch::Merge(json!({"data": {"value": "2"}}));
                maps.patch(&name, &PatchParams::default(), &patch).await.expect("patch");
                maps.delete(&name, &DeleteParams::default()).await.expect("delete");
            }
        }
    };
    tokio::time::timeout(DEADLINE, watching).await.expect("all events");
    maps.delete(&there, &DeleteParams::default()).await.expect("delete");
    seen
}

/// Uses a reflector, and waits for a condition.
async fn waited(client: &Client) -> Vec<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let waiting = wait::await_condition(maps.clone(), "waited", |object: Option<&ConfigMap>| {
        object.and_then(|object| object.data.as_ref()).is_some_and(|data| data["value"] == "2")
    });
    let writing = async {
        maps.create(&PostParams::default(), &map("waited", "1")).await.expect("create");
        let apply = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"value": "2"}}));
        maps.patch("waited", &PatchParams::apply("test").force(), &apply).await.expect("apply");
    };
    let (found, ()) = tokio::join!(tokio::time::timeout(DEADLINE, waiting), writing);
    let found = found.expect("in time").expect("no error").expect("an object");
    let managers =
        found.managed_fields().iter().filter_map(|entry| entry.manager.clone()).collect::<Vec<_>>();
    maps.delete("waited", &DeleteParams::default()).await.expect("delete");
    let mut stream =
        Box::pin(watcher(maps, watcher::Config::default().labels("test=kube-rs")).applied_objects());
    // Nothing is left, so no event comes.
    let nothing = tokio::time::timeout(Duration::from_millis(300), stream.next()).await.is_err();
    vec![format!("{:?} {} {nothing}", found.data, managers.len())]
}

struct Context {
    client: Client,
    log: Mutex<BTreeSet<String>>,
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Failed(#[from] kube::Error);

/// Keeps a secret beside each map, and cleans up before the map is deleted.
async fn reconcile(map: Arc<ConfigMap>, context: Arc<Context>) -> Result<Action, finalizer::Error<Failed>> {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), NAMESPACE);
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), NAMESPACE);
    finalizer(&maps, "test.example/clean", map, |event| async {
        match event {
            Finalizing::Apply(map) => {
                let owner = map.controller_owner_ref(&());
                let value = map.data.as_ref().and_then(|data| data.get("value")).cloned();
                let secret = json!({"apiVersion": "v1", "kind": "Secret",
                    "metadata": {"name": map.name_any(), "ownerReferences": [owner]}, "stringData": {"value": value}});
                let apply = PatchParams::apply("test-controller");
                secrets.patch(&map.name_any(), &apply, &Patch::Apply(secret)).await?;
                let mut log = context.log.lock().expect("nobody panics with it");
                log.insert(format!("made {} {value:?}", map.name_any()));
            }
            Finalizing::Cleanup(map) => {
                let mut log = context.log.lock().expect("nobody panics with it");
                log.insert(format!("cleaned {}", map.name_any()));
            }
        }
        Ok(Action::await_change())
    })
    .await
}

/// Runs a controller of maps that owns secrets: one map is changed, one is deleted, one of the
/// secrets is deleted.
async fn controlled(client: &Client) -> Vec<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let context = Arc::new(Context { client: client.clone(), log: Mutex::default() });
    let config = watcher::Config::default().labels("test=kube-rs");
    let running = Controller::new(maps.clone(), config)
        .owns(secrets.clone(), watcher::Config::default())
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(100)), Arc::clone(&context))
        .for_each(|outcome| {
            // It is retried after a moment. A permanent error makes a later wait fail, and this
            // line explains it.
            if let Err(error) = outcome {
                eprintln!("{error:?}");
            }
            futures::future::ready(())
        });
    let running = tokio::spawn(running);
    let until = async |what: &str, secret: Option<&str>| {
        let waiting = async {
            loop {
                let logged = context.log.lock().expect("nobody panics with it").contains(what);
                let there = match secret {
                    Some(name) => secrets.get_opt(name).await.expect("get").is_some(),
                    None => true,
                };
                if logged && there {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
    };
    for name in ["first", "second"] {
        maps.create(&PostParams::default(), &map(name, "1")).await.expect("create");
        until(&format!(r#"made {name} Some("1")"#), Some(name)).await;
    }
    maps.patch("first", &PatchParams::default(), &Patch::Merge(json!({"data": {"value": "2"}})))
        .await
        .expect("patch");
    until(r#"made first Some("2")"#, Some("first")).await;
    // A deleted secret is made again: the controller watches its own objects.
    let before = secrets.get("first").await.expect("get").uid();
    secrets.delete("first", &DeleteParams::default()).await.expect("delete");
    let back = async {
        while secrets.get_opt("first").await.expect("get").and_then(|secret| secret.uid()) == before
            || secrets.get_opt("first").await.expect("get").is_none()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, back).await.expect("it comes back");
    maps.delete("second", &DeleteParams::default()).await.expect("delete");
    until("cleaned second", None).await;
    // The garbage collector deletes the owned secret.
    let gone = wait::await_condition(secrets.clone(), "second", |object: Option<&Secret>| object.is_none());
    tokio::time::timeout(DEADLINE, gone).await.expect("in time").expect("no error");
    maps.delete("first", &DeleteParams::default()).await.expect("delete");
    until("cleaned first", None).await;
    running.abort();
    context.log.lock().expect("nobody panics with it").iter().cloned().collect()
}

async fn everything(kubeconfig: &Path) -> Vec<String> {
    let client = client(kubeconfig).await;
    let mut seen = watched(&client, watcher::Config::default(), "listed").await;
    seen.extend(watched(&client, watcher::Config::default().streaming_lists(), "streamed").await);
    seen.extend(waited(&client).await);
    seen.extend(controlled(&client).await);
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_and_controllers_see_and_do_the_same() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    println!("the real server");
    let real = everything(ControlPlane::start().kubeconfig()).await;
    println!("ours");
    let ours = everything(&home.path().join("kubeconfig")).await;
    assert_eq!(ours, real);
    println!("{real:#?}");
}
