//! Keeps a cache in step with the server.

use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::cache::Cache;

/// Watches every object of a kind in all namespaces until told to stop. A broken watch is taken up again, with backoff.
pub(crate) async fn run<K>(
    client: Client,
    config: watcher::Config,
    cache: Arc<Cache<K>>,
    stop: CancellationToken,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let mut events = watcher(Api::<K>::all(client), config).default_backoff().boxed();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            Some(Ok(event)) => cache.observe(event),
            Some(Err(error)) => {
                if is_not_served(&error) {
                    // Nothing of a kind can exist where it is not served; the rest must not wait for it.
                    cache.mark_listed();
                }
                tracing::warn!(kind = %K::kind(&()), error = &error as &dyn std::error::Error, "watch broke off");
            }
            None => return,
        }
    }
}

fn is_not_served(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => status.is_not_found(),
        _ => false,
    }
}
