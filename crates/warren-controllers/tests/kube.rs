//! The scenarios judged by a real control plane.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

mod scenarios;
mod support;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Config, ResourceExt};
use tokio::sync::Mutex;
use warren_testkit::kube::ControlPlane;

use support::{DEADLINE, Place};

/// Controllers look at all namespaces, so a shared control plane has room for one scenario at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

async fn place() -> Place {
    let alone = ONE_AT_A_TIME.lock().await;
    let kubeconfig = Kubeconfig::read_from(ControlPlane::start().kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let client = Client::try_from(config.clone()).unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in warren_api::crds() {
        let name = definition.name_any();
        definitions
            .patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&definition))
            .await
            .unwrap();
        let established = await_condition(definitions.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(DEADLINE, established).await.unwrap().unwrap();
    }
    Place::new(
        move |writes| {
            ClientBuilder::try_from(config.clone()).unwrap().with_layer(&support::recording(writes)).build()
        },
        alone,
    )
    .await
}

scenarios::tests!(place);
