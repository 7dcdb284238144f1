//! Tests volume claims of sandboxes and of claims.

use anyhow::Result;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, labels};

use super::objects::{controller, refused, suspended};
use crate::controllers::place::{Place, state};
use crate::controllers::workload::{self, volume};

fn sized(name: &str, size: &str) -> Value {
    let mut template = volume(name);
    template["spec"]["resources"]["requests"]["storage"] = json!(size);
    template
}

async fn wait_ready(place: &Place, name: &str) -> Result<()> {
    place.wait_ready::<Sandbox>(name, "True/DependenciesReady").await.map(drop)
}

/// Returns the name and size of every volume claim.
async fn sizes(place: &Place) -> Result<Vec<String>> {
    let mut found: Vec<String> = place
        .list::<PersistentVolumeClaim>()
        .await?
        .iter()
        .map(|volume| {
            let size = volume
                .spec
                .as_ref()
                .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage").cloned());
            format!("{} {}", volume.name_any(), size.unwrap_or_default().0)
        })
        .collect();
    found.sort();
    Ok(found)
}

/// The sandbox owns the claim, the pod uses it, a suspension keeps it, and the sandbox's end
/// deletes it.
pub async fn a_volume_claim_lives_as_long_as_its_sandbox(place: Place) -> Result<()> {
    let spec = json!({"volumeClaimTemplates": [sized("data", "1Gi"), sized("cache", "2Gi")]});
    place.create::<Sandbox>(workload::sandbox("keeper", spec)).await?;
    wait_ready(&place, "keeper").await?;
    assert_eq!(sizes(&place).await?, ["cache-keeper 2Gi", "data-keeper 1Gi"]);
    let sandbox: Sandbox = place.get("keeper").await?;
    let data: PersistentVolumeClaim = place.get("data-keeper").await?;
    assert_eq!(
        controller(&data),
        format!("agents.x-k8s.io/v1beta1 Sandbox keeper {}", sandbox.uid().unwrap_or_default())
    );
    assert_eq!(data.labels().get(labels::SANDBOX_NAME_HASH), Some(&NameHash::of("keeper").to_string()));
    let pod: Pod = place.get("keeper").await?;
    let volumes = serde_json::to_value(pod.spec.and_then(|spec| spec.volumes))?;
    for name in ["data", "cache"] {
        let wanted = json!({"name": name, "persistentVolumeClaim": {"claimName": format!("{name}-keeper")}});
        assert!(volumes.as_array().is_some_and(|all| all.contains(&wanted)), "{name} in {volumes}");
    }

    place.patch::<Sandbox>("keeper", suspended(true)).await?;
    place
        .wait_for("keeper", "suspended", |sandbox: &Sandbox| {
            state(sandbox, "Suspended") == "True/PodTerminated"
        })
        .await?;
    assert_eq!(place.get::<PersistentVolumeClaim>("data-keeper").await?.uid(), data.uid());
    place.patch::<Sandbox>("keeper", suspended(false)).await?;
    wait_ready(&place, "keeper").await?;
    assert_eq!(place.get::<PersistentVolumeClaim>("data-keeper").await?.uid(), data.uid());

    place.delete::<Sandbox>("keeper").await?;
    place.wait_gone::<PersistentVolumeClaim>("data-keeper").await?;
    place.wait_gone::<PersistentVolumeClaim>("cache-keeper").await
}

/// The server itself refuses to add, change or remove one.
pub async fn volume_claim_templates_of_a_sandbox_are_immutable(place: Place) -> Result<()> {
    let suspended = json!({"operatingMode": "Suspended"});
    let with_volume = workload::with(suspended.clone(), json!({"volumeClaimTemplates": [volume("data")]}));
    place.create::<Sandbox>(workload::sandbox("with", with_volume)).await?;
    place.create::<Sandbox>(workload::sandbox("without", suspended)).await?;
    for (name, templates) in [
        ("without", json!([volume("data")])),
        ("with", json!([sized("data", "9Gi")])),
        ("with", json!([volume("data"), volume("more")])),
        ("with", Value::Null),
    ] {
        let patch = json!({"spec": {"volumeClaimTemplates": templates}});
        match place.try_patch::<Sandbox>(name, patch).await {
            Err(kube::Error::Api(status)) => {
                assert_eq!(status.code, 422, "{status:?}");
                assert!(status.message.contains("volumeClaimTemplates is immutable"), "{status:?}");
            }
            other => panic!("{templates} on {name} was not refused: {other:?}"),
        }
    }
    // Those of a template are mutable.
    let spec = json!({"volumeClaimTemplates": [volume("data")]});
    place.create::<SandboxTemplate>(workload::template("free", spec)).await?;
    place.patch::<SandboxTemplate>("free", json!({"spec": {"volumeClaimTemplates": null}})).await?;
    Ok(())
}

/// Claims may add volumes of their own as far as the template allows; a refused one gets the reason
/// and no sandbox.
pub async fn volume_claims_of_a_claim_follow_the_policy_of_the_template(place: Place) -> Result<()> {
    let own = json!([sized("data", "1Gi")]);
    let template = |policy: Value| json!({"volumeClaimTemplates": own, "volumeClaimTemplatesPolicy": policy});
    for (name, policy) in [("no", "Disallowed"), ("add", "Allowed"), ("replace", "Overrides")] {
        place.pool(name, 0, template(json!(policy))).await?;
    }
    place
        .create::<SandboxTemplate>(workload::template("unset", json!({"volumeClaimTemplates": own})))
        .await?;
    place.create::<SandboxWarmPool>(workload::pool("unset", "unset", 0)).await?;

    let brings = |volumes: &[Value]| json!({"volumeClaimTemplates": volumes});
    let nameless = workload::with(volume("x"), json!({"metadata": {"name": ""}}));
    for (name, pool, volumes) in [
        ("refused", "no", vec![volume("more")]),
        ("refused-by-default", "unset", vec![volume("more")]),
        ("clash", "add", vec![volume("data")]),
        ("nameless", "add", vec![nameless]),
        ("twice", "replace", vec![volume("more"), volume("more")]),
    ] {
        place.claim(name, pool, brings(&volumes)).await?;
        refused(&place, name, "VolumeClaimTemplatesError").await?;
        assert!(place.get_opt::<Sandbox>(name).await?.is_none(), "{name} got a sandbox");
    }

    let order = |sandbox: &Sandbox| -> Vec<String> {
        let templates = &sandbox.spec.blueprint.volume_claim_templates;
        templates.iter().map(|template| template.metadata.name.clone()).collect()
    };
    // A claim without volumes is served under any policy.
    place.claim("none", "no", json!({})).await?;
    wait_ready(&place, "none").await?;
    place.claim("adds", "add", brings(&[sized("more", "2Gi")])).await?;
    wait_ready(&place, "adds").await?;
    assert_eq!(order(&place.get("adds").await?), ["data", "more"]);
    let volumes = [sized("more", "4Gi"), sized("data", "3Gi")];
    place.claim("replaces", "replace", brings(&volumes)).await?;
    wait_ready(&place, "replaces").await?;
    assert_eq!(order(&place.get("replaces").await?), ["data", "more"]);
    assert_eq!(
        sizes(&place).await?,
        ["data-adds 1Gi", "data-none 1Gi", "data-replaces 3Gi", "more-adds 2Gi", "more-replaces 4Gi"]
    );

    // A refused claim that is corrected is served.
    place
        .patch::<SandboxClaim>("clash", json!({"spec": {"volumeClaimTemplates": [volume("other")]}}))
        .await?;
    wait_ready(&place, "clash").await
}

/// A claim with volumes never adopts a warm sandbox, which cannot have them; one without volumes
/// does.
pub async fn a_claim_with_volumes_leaves_the_pool_alone(place: Place) -> Result<()> {
    place.pool("pool", 1, json!({"volumeClaimTemplatesPolicy": "Allowed"})).await?;
    let pool = place.wait_full("pool", 1).await?;
    let waiting = place.members("pool").await?[0].name_any();
    place.claim("own", "pool", json!({"volumeClaimTemplates": [volume("data")]})).await?;
    wait_ready(&place, "own").await?;
    let cold: Sandbox = place.get("own").await?;
    assert_eq!(cold.labels().get(labels::LAUNCH_TYPE).map(String::as_str), Some("cold"));
    assert!(controller(&place.get::<Sandbox>(&waiting).await?).contains("SandboxWarmPool"));
    assert_eq!(pool.name_any(), "pool");

    place.claim("plain", "pool", json!({})).await?;
    let warm = place.wait_claimed("plain").await?;
    assert_eq!((warm.name_any(), warm.labels()[labels::LAUNCH_TYPE].as_str()), (waiting, "warm"));
    Ok(())
}
