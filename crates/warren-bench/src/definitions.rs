//! Installs our CustomResourceDefinitions on a cluster.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt as _};

/// The time limit. A definition is usually served within a second, and within ten on a busy
/// machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// Applies them and waits until they are served.
pub async fn install(kubeconfig: &Path) -> anyhow::Result<()> {
    let client = warren_client::connect::from_kubeconfig(kubeconfig).await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    for definition in warren_api::crds() {
        let name = definition.name_any();
        let params = PatchParams::apply("warren-bench").force();
        definitions.patch(&name, &params, &Patch::Apply(&definition)).await?;
        let served = await_condition(definitions.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(DEADLINE, served).await.with_context(|| format!("{name} is not served"))??;
    }
    Ok(())
}
