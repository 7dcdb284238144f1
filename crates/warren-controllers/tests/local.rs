//! The scenarios on our own API server, in process: the local home without its containers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

mod scenarios;
mod support;

use std::sync::Arc;

use kube::Client;
use tower::ServiceBuilder;
use warren_apiserver::{ApiServer, Config, Identity, NoNodes, Storage};

use support::Place;

async fn place() -> Place {
    let crds =
        warren_api::crds().iter().map(|definition| serde_json::to_value(definition).unwrap()).collect();
    let config =
        Config { storage: Storage::Memory, crds, nodes: Arc::new(NoNodes), now: jiff::Timestamp::now };
    let server = ApiServer::open(config).await.unwrap();
    Place::new(
        move |writes| {
            let service = server.as_user(Identity::admin());
            Client::new(ServiceBuilder::new().layer(support::recording(writes)).service(service), "default")
        },
        (),
    )
    .await
}

scenarios::tests!(place);
