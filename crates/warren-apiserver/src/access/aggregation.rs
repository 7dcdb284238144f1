//! Aggregated cluster roles: the rules of a role labelled
//! `rbac.authorization.k8s.io/aggregate-to-view: "true"` are added to the role `view`. On a real
//! cluster a controller does this; here it is a task of the server.

use std::sync::Arc;

use serde_json::Value;
use warren_store::{Action, Expect, Filter, LabelSelector, Object, Store, WatchFrom, Write, WriteError};

use super::policy::list;
use crate::label_selector;
use crate::server::Inner;

/// Keeps the rules of aggregated roles up to date, until the server stops.
pub(crate) async fn keep_aggregated(server: Arc<Inner>) {
    let resource: Arc<str> = format!("clusterroles.{}", super::GROUP).into();
    loop {
        let from = WatchFrom::Version(server.store.version());
        let Ok(mut watch) = server.store.watch(&resource, Filter::default(), from) else { return };
        loop {
            aggregate(&server).await;
            let change = tokio::select! {
                change = watch.next() => change,
                () = server.shutdown.cancelled() => return,
            };
            // The watch was cut off because it fell behind: start again.
            let Some(_) = change else { break };
            while watch.next_ready().is_some() {}
        }
    }
}

/// Updates every aggregated role once. A concurrent write by another client wakes the caller again.
async fn aggregate(server: &Inner) {
    for write in changes(&server.store) {
        match server.store.write_one(write).await {
            Ok(stored) => server.written(&stored, None),
            Err(WriteError::Conflict { .. } | WriteError::Missing(_) | WriteError::Closed) => {}
            Err(error) => tracing::error!(%error, "aggregated roles could not be written"),
        }
    }
}

fn changes(store: &Store) -> Vec<Write> {
    let mut roles: Vec<(Arc<Object>, Value)> =
        list(store, "clusterroles").into_iter().map(|role| (Arc::clone(&role), role.value())).collect();
    roles.sort_by(|(a, _), (b, _)| a.key.name.cmp(&b.key.name));
    let mut writes = Vec::new();
    for (object, role) in &roles {
        let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array();
        let selectors: Vec<LabelSelector> =
            selectors.into_iter().flatten().map(label_selector::read).collect();
        if selectors.is_empty() {
            continue;
        }
        let mut rules: Vec<&Value> = Vec::new();
        for selector in &selectors {
            let others = roles.iter().filter(|(other, _)| {
                other.key != object.key && selector.matches(|label| other.meta.label(label))
            });
            for rule in others.flat_map(|(_, other)| other["rules"].as_array()).flatten() {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
        }
        let now = role["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
        if now.len() == rules.len() && now.iter().all(|rule| rules.contains(&rule)) {
            continue;
        }
        let rules: Value = rules.into_iter().cloned().collect();
        let mut role = role.clone();
        role["rules"] = rules;
        let expect = Expect::Version(object.version);
        writes.push(Write { key: object.key.clone(), expect, action: Action::Put(role.into()) });
    }
    writes
}
