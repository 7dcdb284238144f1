//! Watches the nodes, to tell which are no place to hand out sandboxes on. Where we may not see them, as with the
//! permissions of older installations, everything goes on without.

use std::collections::HashSet;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;
use warren_decide::node::is_fit;

/// Tells `observe` of every node whether it is fit, and again whenever that may have changed, until told to stop. A node
/// that is gone is not fit: what ran on it is gone too, whether or not anybody has said so yet.
pub(crate) async fn run(client: Client, stop: CancellationToken, observe: impl Fn(&str, bool)) {
    let mut events = watcher(Api::<Node>::all(client), watcher::Config::default()).default_backoff().boxed();
    let mut known = HashSet::new();
    let mut listing = HashSet::new();
    let mut is_reported = false;
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            None => return,
            Some(Ok(watcher::Event::Init)) => listing.clear(),
            Some(Ok(watcher::Event::InitApply(node))) => {
                observe(&node.name_any(), is_fit(&node));
                listing.insert(node.name_any());
            }
            Some(Ok(watcher::Event::InitDone)) => {
                is_reported = false;
                let gone = std::mem::replace(&mut known, std::mem::take(&mut listing));
                gone.difference(&known).for_each(|name| observe(name, false));
            }
            Some(Ok(watcher::Event::Apply(node))) => {
                observe(&node.name_any(), is_fit(&node));
                known.insert(node.name_any());
            }
            Some(Ok(watcher::Event::Delete(node))) => {
                observe(&node.name_any(), false);
                known.remove(&node.name_any());
            }
            // Once is enough: without permission the same comes again for as long as we run.
            Some(Err(error)) if !std::mem::replace(&mut is_reported, true) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "nodes cannot be watched; sandboxes are handed out without regard to their node"
                );
            }
            Some(Err(_)) => {}
        }
    }
}
