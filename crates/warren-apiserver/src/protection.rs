//! Protection of volume claims in use. Every claim gets a finalizer at creation. It is removed once
//! the claim is deleted and no pod uses it. On a real cluster a controller does this.

use std::sync::Arc;

use serde_json::Value;
use warren_store::{Filter, Key, ListRequest, Object, WatchFrom};

use crate::collect::release;
use crate::server::Inner;

/// The finalizer of claims.
pub(crate) const FINALIZER: &str = "kubernetes.io/pvc-protection";
const CLAIMS: &str = "persistentvolumeclaims";

/// Releases deleted claims until the server stops.
pub(crate) async fn release_unused_claims(server: Arc<Inner>) {
    let (claims, pods): (Arc<str>, Arc<str>) = (CLAIMS.into(), "pods".into());
    loop {
        let from = WatchFrom::Version(server.store.version());
        let everything = Filter::default;
        let Ok(mut claim_watch) = server.store.watch(&claims, everything(), from) else { return };
        let Ok(mut pod_watch) = server.store.watch(&pods, everything(), from) else { return };
        for claim in list(&server, &claims, None) {
            consider(&server, &claim).await;
        }
        loop {
            tokio::select! {
                change = claim_watch.next() => match change {
                    Some(change) => consider(&server, &change.object).await,
                    // The watch was cut off because it fell behind: start again.
                    None => break,
                },
                change = pod_watch.next() => match change {
                    Some(change) => consider_claims_of(&server, &change.object).await,
                    None => break,
                },
                () = server.shutdown.cancelled() => return,
            }
        }
        if server.shutdown.is_cancelled() {
            return;
        }
    }
}

fn list(server: &Inner, resource: &Arc<str>, namespace: Option<&str>) -> Vec<Arc<Object>> {
    let filter = Filter { namespace: namespace.map(str::to_owned), ..Filter::default() };
    let request = ListRequest { resource, filter: &filter, limit: None, after: None, at: None };
    server.store.list(&request).map(|list| list.items).unwrap_or_default()
}

async fn consider(server: &Inner, claim: &Object) {
    if !claim.meta.deleting || !claim.meta.has_finalizer(FINALIZER) {
        return;
    }
    let pods = list(server, &"pods".into(), Some(&claim.key.namespace));
    if !pods.iter().any(|pod| uses(&pod.value(), &claim.key.name)) {
        release(server, &claim.key, FINALIZER).await;
    }
}

/// Checks the claims of a pod that has ended or is gone, since it may have been the last user.
/// Nearly all pods have no claims; for them this costs a search through their bytes.
async fn consider_claims_of(server: &Inner, pod: &Object) {
    const MARK: &[u8] = b"\"persistentVolumeClaim\"";
    if !pod.body.windows(MARK.len()).any(|window| window == MARK) {
        return;
    }
    for name in claims_of(&pod.value()) {
        if let Some(claim) = server.store.newest(&Key::new(CLAIMS, &*pod.key.namespace, name.as_str())) {
            consider(server, &claim).await;
        }
    }
}

fn claims_of(pod: &Value) -> Vec<String> {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let claims = volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str());
    claims.map(str::to_owned).collect()
}

fn uses(pod: &Value, claim: &str) -> bool {
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !ended && claims_of(pod).iter().any(|name| name == claim)
}
