//! Watches objects that pods refer to: each once for all pods that need it, and for as long as one
//! does.

use std::collections::HashMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::debug;

/// The known state of an object.
#[derive(Debug, Clone)]
pub(crate) enum Known<K> {
    NotYet,
    Absent,
    Here(Arc<K>),
}

/// An object that is watched. The watch ends when the last holder drops this.
#[derive(Debug)]
pub(crate) struct Watched<K> {
    pub(crate) news: watch::Receiver<Known<K>>,
    task: AbortHandle,
}

impl<K> Drop for Watched<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Watches by namespace and name.
type Kept<K> = Mutex<HashMap<(String, String), Weak<Watched<K>>>>;

/// All objects that pods of this node refer to.
#[derive(Default)]
pub(crate) struct Objects {
    config_maps: Kept<ConfigMap>,
    secrets: Kept<Secret>,
    claims: Kept<PersistentVolumeClaim>,
}

impl Objects {
    pub(crate) fn config_map(&self, client: &Client, namespace: &str, name: &str) -> Arc<Watched<ConfigMap>> {
        keep(&self.config_maps, client, namespace, name)
    }

    pub(crate) fn secret(&self, client: &Client, namespace: &str, name: &str) -> Arc<Watched<Secret>> {
        keep(&self.secrets, client, namespace, name)
    }

    pub(crate) fn claim(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> Arc<Watched<PersistentVolumeClaim>> {
        keep(&self.claims, client, namespace, name)
    }
}

fn keep<K>(kept: &Kept<K>, client: &Client, namespace: &str, name: &str) -> Arc<Watched<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (namespace.to_owned(), name.to_owned());
    if let Some(known) = kept.get(&key).and_then(Weak::upgrade) {
        return known;
    }
    kept.retain(|_, watched| watched.strong_count() > 0);
    let (tell, news) = watch::channel(Known::NotYet);
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let name = name.to_owned();
    let task = tokio::spawn(async move {
        let mut seen = pin!(watch_object(api, &name).default_backoff());
        while let Some(seen) = seen.next().await {
            match seen {
                Ok(Some(object)) => tell.send_replace(Known::Here(Arc::new(object))),
                Ok(None) => tell.send_replace(Known::Absent),
                Err(error) => {
                    debug!(%name, %error, "watch of an object interrupted");
                    continue;
                }
            };
        }
    });
    let watched = Arc::new(Watched { news, task: task.abort_handle() });
    kept.insert(key, Arc::downgrade(&watched));
    watched
}
