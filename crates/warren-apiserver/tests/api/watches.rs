//! Tests of watches through a `kube::Client` in process.

use crate::support::{object, server};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};

fn config_map(name: &str, labels: Value) -> ConfigMap {
    object(json!({"metadata": {"name": name, "labels": labels}}))
}

fn summary(event: &WatchEvent<ConfigMap>) -> String {
    match event {
        WatchEvent::Added(map) => format!("added {}", map.metadata.name.as_deref().unwrap()),
        WatchEvent::Modified(map) => format!("modified {}", map.metadata.name.as_deref().unwrap()),
        WatchEvent::Deleted(map) => format!("deleted {}", map.metadata.name.as_deref().unwrap()),
        WatchEvent::Bookmark(bookmark) => {
            format!("bookmark {:?}", bookmark.metadata.annotations.get("k8s.io/initial-events-end"))
        }
        WatchEvent::Error(status) => format!("error {} {}", status.code, status.reason),
    }
}

async fn collect(client: &Client, parameters: &WatchParams, version: &str, count: usize) -> Vec<String> {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let stream = maps.watch(parameters, version).await.unwrap();
    stream.take(count).map_ok(|event| summary(&event)).try_collect().await.unwrap()
}

#[tokio::test]
async fn a_watch_tells_the_whole_story_in_order() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let first = maps.create(&PostParams::default(), &config_map("a", json!({"on": "1"}))).await.unwrap();
    let version = first.metadata.resource_version.unwrap();
    maps.create(&PostParams::default(), &config_map("b", json!({}))).await.unwrap();
    let off = Patch::Merge(json!({"metadata": {"labels": {"on": null}}}));
    maps.patch("a", &PatchParams::default(), &off).await.unwrap();
    maps.delete("b", &DeleteParams::default()).await.unwrap();

    let all = WatchParams::default();
    assert_eq!(collect(&client, &all, &version, 3).await, ["added b", "modified a", "deleted b"]);
    assert_eq!(collect(&client, &all, "0", 1).await, ["added a"]);
    let selected = WatchParams::default().labels("on=1");
    assert_eq!(collect(&client, &selected, &version, 1).await, ["deleted a"], "it ceased to match");
    let named = WatchParams::default().fields("metadata.name=b");
    assert_eq!(collect(&client, &named, &version, 2).await, ["added b", "deleted b"]);
}

#[tokio::test]
async fn initial_events_end_with_a_bookmark() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    maps.create(&PostParams::default(), &config_map("a", json!({}))).await.unwrap();
    let parameters = WatchParams::default().initial_events();
    let events = collect(&client, &parameters, "0", 3).await;
    assert_eq!(events, ["added a", "added kube-root-ca.crt", "bookmark Some(\"true\")"]);
}

#[tokio::test]
async fn a_version_that_is_too_old_is_said_to_be() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    maps.create(&PostParams::default(), &config_map("a", json!({}))).await.unwrap();
    for round in 0..4200 {
        let patch = Patch::Merge(json!({"data": {"round": round.to_string()}}));
        maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    }
    assert_eq!(collect(&client, &WatchParams::default(), "2", 1).await, ["error 410 Expired"]);
}

#[tokio::test]
async fn a_watch_ends_when_its_time_is_up() {
    let (_server, client) = server().await;
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let stream = secrets.watch(&WatchParams::default().timeout(1), "0").await.unwrap();
    assert_eq!(stream.count().await, 0);
}

#[tokio::test]
async fn the_runtime_watcher_works_in_both_of_its_modes() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    maps.create(&PostParams::default(), &config_map("a", json!({}))).await.unwrap();
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let stream = watcher(maps.clone(), config).default_backoff().applied_objects();
        futures::pin_mut!(stream);
        let seen = stream.next().await.unwrap().unwrap();
        assert_eq!(seen.metadata.name.as_deref(), Some("a"));
        let patch = Patch::Merge(json!({"data": {"x": "y"}}));
        maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
        let undo = Patch::Merge(json!({"data": null}));
        assert!(stream.next().await.unwrap().unwrap().data.is_some());
        maps.patch("a", &PatchParams::default(), &undo).await.unwrap();
    }
}

#[tokio::test]
async fn shutting_down_ends_watches() {
    let (server, client) = server().await;
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let stream = secrets.watch(&WatchParams::default(), "0").await.unwrap();
    server.shutdown().await;
    assert_eq!(stream.count().await, 0);
}
