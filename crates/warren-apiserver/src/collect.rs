//! The garbage collector's tasks: carry out the decisions of `warren_store::garbage`, and delete
//! the objects of deleted definitions.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::Value;
use tokio::task::JoinHandle;
use warren_store::garbage::{Collector, Task};
use warren_store::{
    Action, Body, Expect, Filter, Key, ListRequest, Object, WatchFrom, Write, WriteError, deletion,
};

use crate::crd;
use crate::server::Inner;
use crate::verbs::{DeleteOptions, remove};

/// Deletions that run concurrently, so that a large cascade shares its commits.
const CONCURRENT_TASKS: usize = 64;
const ATTEMPTS: usize = 64;

pub(crate) fn start(server: &Arc<Inner>) -> Vec<JoinHandle<()>> {
    vec![
        tokio::spawn(collect(Arc::clone(server))),
        tokio::spawn(clean_definitions(Arc::clone(server))),
        tokio::spawn(crate::protection::release_unused_claims(Arc::clone(server))),
        tokio::spawn(crate::access::keep_aggregated(Arc::clone(server))),
        tokio::spawn(crate::disruption::keep_status(Arc::clone(server))),
    ]
}

async fn collect(server: Arc<Inner>) {
    let mut collector = Collector::new(&server.store);
    loop {
        let tasks = tokio::select! {
            tasks = collector.next() => tasks,
            () = server.shutdown.cancelled() => None,
        };
        let Some(tasks) = tasks else { return };
        let server = &server;
        futures::stream::iter(tasks)
            .for_each_concurrent(CONCURRENT_TASKS, |task| async move { carry_out(server, task).await })
            .await;
    }
}

async fn carry_out(server: &Inner, task: Task) {
    match task {
        Task::Delete(object, propagation) => {
            let options = DeleteOptions {
                uid: Some(object.meta.uid.to_string()),
                propagation: Some(propagation),
                ..DeleteOptions::default()
            };
            delete(server, &object.key, &options).await;
        }
        Task::DropOwners(object, uids) => {
            change(server, &object.key, |value| {
                let Some(metadata) = value["metadata"].as_object_mut() else { return };
                let Some(owners) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) else {
                    return;
                };
                owners.retain(|owner| !uids.iter().any(|uid| owner["uid"] == **uid));
                if owners.is_empty() {
                    metadata.shift_remove("ownerReferences");
                }
            })
            .await;
        }
        Task::Release(object, finalizer) => release(server, &object.key, finalizer).await,
        Task::FinishNamespace(namespace) => {
            change(server, &namespace.key, |value| {
                let finalizers = value.get_mut("spec").and_then(|spec| spec.get_mut("finalizers"));
                if let Some(finalizers) = finalizers.and_then(Value::as_array_mut) {
                    finalizers.retain(|finalizer| finalizer != "kubernetes");
                }
            })
            .await;
        }
    }
}

async fn delete(server: &Inner, key: &Key, options: &DeleteOptions) {
    let registry = server.registry();
    let Some(definition) = registry.by_resource(&key.resource) else {
        tracing::warn!(object = %key, "cannot collect an object of a kind that is not served");
        return;
    };
    // An error here means that the object is gone or was replaced: the goal is reached.
    let _ = remove(server, definition, key, options, server.now(), None).await;
}

pub(crate) async fn release(server: &Inner, key: &Key, finalizer: &str) {
    change(server, key, |value| {
        let Some(metadata) = value["metadata"].as_object_mut() else { return };
        if let Some(finalizers) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
            finalizers.retain(|name| name != finalizer);
            if finalizers.is_empty() {
                metadata.shift_remove("finalizers");
            }
        }
    })
    .await;
}

/// Edits an object and retries on conflicts. Removes the object if this edit cleared its last
/// finalizer.
pub(crate) async fn change(server: &Inner, key: &Key, edit: impl Fn(&mut Value)) {
    for _ in 0..ATTEMPTS {
        let Some(current) = server.store.newest(key) else { return };
        let Body { tree: old, managed_fields } = current.split();
        let mut new = old.clone();
        edit(&mut new);
        if new == old {
            return;
        }
        let held = &*key.resource == "namespaces"
            && new["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        let action = match deletion::is_finished(&new) && !held {
            true => Action::Delete,
            false => Action::Put(Body { tree: new, managed_fields }),
        };
        let write = Write { key: key.clone(), expect: Expect::Version(current.version), action };
        match server.store.write_one(write).await {
            Ok(stored) => return server.written(&stored, Some(&current)),
            Err(WriteError::Conflict { .. }) => {}
            Err(WriteError::Missing(_) | WriteError::Closed) => return,
            Err(error) => {
                tracing::error!(object = %key, %error, "garbage collection could not write");
                return;
            }
        }
    }
    tracing::warn!(object = %key, "garbage collection gave up: somebody keeps writing");
}

/// Watches for deleted definitions and cleans them up.
async fn clean_definitions(server: Arc<Inner>) {
    let resource: Arc<str> = crd::RESOURCE.into();
    loop {
        let Ok(mut watch) = server.store.watch(&resource, Filter::default(), WatchFrom::Start) else {
            return;
        };
        let initial = std::mem::take(&mut watch.initial);
        for definition in initial {
            begin_cleaning(&server, &definition);
        }
        loop {
            let change = tokio::select! {
                change = watch.next() => change,
                () = server.shutdown.cancelled() => return,
            };
            match change {
                Some(change) => begin_cleaning(&server, &change.object),
                // The watch was cut off because it fell behind: start again.
                None => break,
            }
        }
    }
}

fn begin_cleaning(server: &Arc<Inner>, definition: &Arc<Object>) {
    if definition.meta.deleting && definition.meta.has_finalizer(crd::CLEANUP_FINALIZER) {
        tokio::spawn(clean(Arc::clone(server), definition.key.clone()));
    }
}

/// Deletes every object of a definition, then releases the definition's finalizer. It may run
/// several times at once.
async fn clean(server: Arc<Inner>, definition: Key) {
    let resource: Arc<str> = Arc::clone(&definition.name);
    loop {
        let Ok(mut watch) = server.store.watch(&resource, Filter::default(), WatchFrom::Start) else {
            return;
        };
        let filter = Filter::default();
        let request =
            ListRequest { resource: &resource, filter: &filter, limit: None, after: None, at: None };
        let Ok(list) = server.store.list(&request) else { return };
        if list.items.is_empty() {
            return release(&server, &definition, crd::CLEANUP_FINALIZER).await;
        }
        for object in list.items.iter().filter(|object| !object.meta.deleting) {
            delete(&server, &object.key, &DeleteOptions::default()).await;
        }
        // Objects that still have finalizers cause an event here when they go.
        let _ = tokio::select! {
            change = watch.next() => change,
            () = server.shutdown.cancelled() => return,
        };
    }
}
