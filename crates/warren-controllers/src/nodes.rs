//! Watches the nodes, to know whose sandboxes may not be handed out. Without permission to see
//! nodes, as in older installations, all nodes count as fit.

use std::collections::HashSet;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;
use warren_decide::node::is_fit;

/// Calls `observe` for every node, and again whenever its fitness may have changed, until told to
/// stop. Cancels `asked` when all nodes are known, or cannot be. A deleted node is not fit: its
/// pods are gone too, even if their objects still exist.
pub(crate) async fn run(
    client: Client,
    stop: CancellationToken,
    asked: CancellationToken,
    observe: impl Fn(&str, bool),
) {
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
                asked.cancel();
            }
            Some(Ok(watcher::Event::Apply(node))) => {
                observe(&node.name_any(), is_fit(&node));
                known.insert(node.name_any());
            }
            Some(Ok(watcher::Event::Delete(node))) => {
                observe(&node.name_any(), false);
                known.remove(&node.name_any());
            }
            Some(Err(error)) => {
                // Log it once: without permission the same error repeats.
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "nodes cannot be watched; sandboxes are handed out without regard to their node"
                    );
                }
                asked.cancel();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response, StatusCode};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::run;

    /// Builds a server that first denies access to nodes, then lists two of them, and then stays
    /// silent.
    fn server(lists: Arc<AtomicUsize>) -> Client {
        let answer = move |request: Request<Body>| {
            let lists = lists.clone();
            async move {
                if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                    std::future::pending::<()>().await;
                }
                let (code, body) = match lists.fetch_add(1, Ordering::SeqCst) {
                    0 => (
                        StatusCode::FORBIDDEN,
                        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                            "message": "nodes is forbidden", "reason": "Forbidden", "code": 403}),
                    ),
                    _ => (
                        StatusCode::OK,
                        json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": [
                            {"metadata": {"name": "good", "resourceVersion": "3"}},
                            {"metadata": {"name": "leaving", "resourceVersion": "4"}, "spec": {"unschedulable": true}}]}),
                    ),
                };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(
                    Response::builder().status(code).body(body).expect("a response"),
                )
            }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_are_told_as_soon_as_we_may_see_them() {
        let (sender, mut told) = mpsc::unbounded_channel();
        let (lists, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let observe =
            move |name: &str, is_fit| sender.send((name.to_owned(), is_fit)).expect("somebody listens");
        let asked = CancellationToken::new();
        let watching = tokio::spawn(run(server(lists.clone()), stop.clone(), asked.clone(), observe));
        asked.cancelled().await;
        assert_eq!(lists.load(Ordering::SeqCst), 1, "nobody waits for what is refused");
        assert_eq!(told.recv().await, Some(("good".to_owned(), true)));
        assert_eq!(told.recv().await, Some(("leaving".to_owned(), false)));
        assert_eq!(lists.load(Ordering::SeqCst), 2, "the refusal was survived");
        stop.cancel();
        watching.await.expect("it ends when told to");
    }
}
