//! Deletes events after an hour, the default of kube-apiserver. Without it each claim and each pod
//! would leave a few objects for ever.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use kube::{Client, ResourceExt as _};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// The age at which events are deleted: kube-apiserver's `--event-ttl`.
const LIFE: Duration = Duration::from_secs(3600);
/// The interval of sweeps.
const LOOK: Duration = Duration::from_secs(5 * 60);
/// The page size of lists.
const PAGE: u32 = 500;
/// The pause between two deletions. They are not urgent, and each is a write.
const PAUSE: Duration = Duration::from_millis(5);

/// Deletes old events every few minutes until told to stop.
pub(crate) async fn run(client: Client, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
        if let Some(Err(error)) = stop.run_until_cancelled(sweep(&client, Timestamp::now())).await {
            debug!(%error, "old events not deleted; looked at again later");
        }
    }
}

async fn sweep(client: &Client, now: Timestamp) -> kube::Result<()> {
    let all: Api<Event> = Api::all(client.clone());
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = all.list_metadata(&parameters).await?;
        for event in page.items.iter().filter(|event| is_over(&event.metadata, now)) {
            let events: Api<Event> =
                Api::namespaced(client.clone(), event.metadata.namespace.as_deref().unwrap_or_default());
            let preconditions = Preconditions { uid: event.metadata.uid.clone(), resource_version: None };
            let of_this = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            match events.delete(&event.name_any(), &of_this).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(PAUSE).await;
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = ListParams::default().limit(PAGE).continue_token(&token),
            None => return Ok(()),
        }
    }
}

fn is_over(event: &ObjectMeta, now: Timestamp) -> bool {
    let Some(Time(created)) = &event.creation_timestamp else { return false };
    Duration::try_from(now.duration_since(*created)).is_ok_and(|age| age >= LIFE)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::sweep;

    #[tokio::test(start_paused = true)]
    async fn events_go_after_an_hour_and_not_before() {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let log = deleted.clone();
        let answer = move |request: Request<Body>| {
            let event = |name: &str, created: &str| json!({"metadata": {"name": name, "namespace": "n", "uid": name, "creationTimestamp": created}});
            let body = match *request.method() {
                Method::GET => json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {},
                    "items": [event("old", "2026-01-01T10:00:00Z"), event("new", "2026-01-01T10:00:01Z")],
                }),
                _ => {
                    log.lock().unwrap().push(request.uri().path().to_owned());
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})
                }
            };
            async move { Ok::<_, Infallible>(Response::new(Body::from(body.to_string().into_bytes()))) }
        };
        let client = Client::new(tower::service_fn(answer), "default");
        sweep(&client, "2026-01-01T11:00:00Z".parse().unwrap()).await.unwrap();
        assert_eq!(*deleted.lock().unwrap(), ["/api/v1/namespaces/n/events/old"]);
    }
}
