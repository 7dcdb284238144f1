//! Keeps a cache in step with the server.

mod unread;

use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use kube::core::error_boundary::InvalidObject;
use kube::core::{DeserializeGuard, Status};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::cache::Cache;
use crate::object::Typed;
use unread::Unread;

/// Watches every object of a kind in all namespaces until told to stop. A broken watch is resumed
/// with backoff.
///
/// A server accepts objects that we cannot parse, for example with a number too large for its type.
/// `tell` is called for each new problem, and returns true if it was reported; if not, it is called
/// again when this process leads. The cache keeps the last readable state, or goes without the
/// object. Other objects are not delayed.
pub(crate) async fn run<K: Typed>(
    client: Client,
    config: watcher::Config,
    cache: Arc<Cache<K>>,
    stop: CancellationToken,
    leading: CancellationToken,
    tell: impl Fn(&InvalidObject) -> bool,
) {
    let mut events = plain(client.clone(), config.clone());
    let (mut is_guarded, mut leads, mut unread) = (false, false, Unread::new(K::kind(&())));
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            () = leading.cancelled(), if !leads => {
                leads = true;
                unread.tell(&tell);
                continue;
            }
            event = events.next() => event,
        };
        match event {
            Some(Ok(event)) => observe(&cache, event, &mut unread, &tell),
            Some(Err(error)) => {
                if is_not_served(&error) {
                    // If a kind is not served, it has no objects; other kinds must not wait for it.
                    cache.mark_listed();
                }
                tracing::warn!(kind = %K::kind(&()), error = &error as &dyn std::error::Error, "watch broke off");
                if is_unreadable(&error) && !is_guarded {
                    events = guarded(client.clone(), config.clone());
                    is_guarded = true;
                }
            }
            None => return,
        }
    }
}

type Events<K> = BoxStream<'static, watcher::Result<watcher::Event<DeserializeGuard<K>>>>;

/// Watches without a guard: one object that cannot be parsed fails its list or event. Parsing each
/// object separately costs several times as much, so it is used only on clusters with such an
/// object.
fn plain<K: Typed>(client: Client, config: watcher::Config) -> Events<K> {
    let readable = |event| match event {
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitApply(object) => watcher::Event::InitApply(DeserializeGuard(Ok(object))),
        watcher::Event::InitDone => watcher::Event::InitDone,
        watcher::Event::Apply(object) => watcher::Event::Apply(DeserializeGuard(Ok(object))),
        watcher::Event::Delete(object) => watcher::Event::Delete(DeserializeGuard(Ok(object))),
    };
    watcher(Api::<K>::all(client), config).default_backoff().map_ok(readable).boxed()
}

fn guarded<K: Typed>(client: Client, config: watcher::Config) -> Events<K> {
    watcher(Api::<DeserializeGuard<K>>::all(client), config).default_backoff().boxed()
}

fn observe<K: Typed>(
    cache: &Cache<K>,
    event: watcher::Event<DeserializeGuard<K>>,
    unread: &mut Unread,
    tell: impl Fn(&InvalidObject) -> bool,
) {
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
    match &event {
        Init => unread.begin_list(),
        InitDone => unread.end_list(),
        InitApply(DeserializeGuard(Ok(object)))
        | Apply(DeserializeGuard(Ok(object)))
        | Delete(DeserializeGuard(Ok(object))) => unread.forget(object.meta()),
        Delete(DeserializeGuard(Err(object))) => unread.forget(&object.metadata),
        InitApply(DeserializeGuard(Err(object))) | Apply(DeserializeGuard(Err(object))) => {
            unread.note(object.clone(), tell);
        }
    }
    match event {
        Init => cache.observe(Init),
        InitDone => cache.observe(InitDone),
        InitApply(DeserializeGuard(Ok(object))) => cache.observe(InitApply(object)),
        Apply(DeserializeGuard(Ok(object))) => cache.observe(Apply(object)),
        Delete(DeserializeGuard(Ok(object))) => cache.observe(Delete(object)),
        InitApply(DeserializeGuard(Err(object))) => cache.list_unread(&object.metadata),
        Apply(DeserializeGuard(Err(_))) => {}
        Delete(DeserializeGuard(Err(object))) => cache.end(&object.metadata),
    }
}

fn is_not_served(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => status.is_not_found(),
        _ => false,
    }
}

fn is_unreadable(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed};
    match error {
        InitialListFailed(kube::Error::SerdeError(_)) | WatchFailed(kube::Error::SerdeError(_)) => true,
        // The client takes an event that it cannot parse for a status, whose fields are all
        // optional: an empty one.
        WatchFailed(kube::Error::Api(status)) => **status == Status::default(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use kube::runtime::watcher;
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;
    use warren_api::Sandbox;

    use super::run;
    use crate::cache::Cache;
    use crate::queue::ObjectKey;
    use crate::trim;

    /// Builds a sandbox with a probe on a port. The CRD accepts any number there, our type does
    /// not.
    fn sandbox(name: &str, version: u64, port: u64) -> Value {
        let probe = json!({"httpGet": {"port": port}});
        json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": version.to_string()},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "readinessProbe": probe}]}}},
        })
    }

    /// Builds a server with two sandboxes, one of them on such a port. Each watch shows another
    /// state of both and then stays silent.
    fn server(port: u64) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let body = match is_watch {
                false => json!({
                    "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "SandboxList", "metadata": {"resourceVersion": "5"},
                    "items": [sandbox("good", 3, 80), sandbox("bad", 4, port)],
                })
                .to_string(),
                true => [sandbox("bad", 6, 1 << 41), sandbox("good", 7, 81)]
                    .map(|object| format!("{}\n", json!({"type": "MODIFIED", "object": object})))
                    .concat(),
            };
            Ok::<_, std::convert::Infallible>(Response::new(Body::from(body.into_bytes())))
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_cannot_be_read_holds_nobody_up() {
        assert_eq!(told_of_bad(1 << 40, 2).await, ["4", "6"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_cannot_be_read_any_more_holds_nobody_up() {
        assert_eq!(told_of_bad(80, 1).await, ["6"]);
    }

    /// Returns the first `count` reported states of the sandbox on such a port, and checks that the
    /// other one is kept up to date.
    async fn told_of_bad(port: u64, count: usize) -> Vec<String> {
        let cache = Arc::new(Cache::new(trim::SANDBOX));
        let stop = CancellationToken::new();
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = told.clone();
        let tell = move |object: &super::InvalidObject| {
            let metadata = object.metadata.clone();
            sink.lock().unwrap().push((metadata.name.unwrap(), metadata.resource_version.unwrap()));
            true
        };
        let watching = tokio::spawn(run::<Sandbox>(
            server(port),
            watcher::Config::default(),
            cache.clone(),
            stop.clone(),
            CancellationToken::new(),
            tell,
        ));
        cache.wait_until_listed().await;
        let key = |name: &str| ObjectKey { namespace: "n".to_owned(), name: name.to_owned() };
        let is_new = || {
            let seen = cache.get(&key("good")).and_then(|sandbox| sandbox.metadata.resource_version.clone());
            seen.as_deref() == Some("7")
        };
        while !is_new() || told.lock().unwrap().len() < count {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(cache.holds(&key("bad")), port == 80, "the last state that could be read is kept");
        stop.cancel();
        watching.await.unwrap();
        let told = told.lock().unwrap();
        assert!(told.iter().all(|(name, _)| name == "bad"), "{told:?}");
        told.iter().map(|(_, version)| version.clone()).collect()
    }
}
