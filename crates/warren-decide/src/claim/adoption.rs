//! Adopts a warm sandbox and keeps its metadata in line with the claim.

use jiff::Timestamp;
use serde_json::{Value, json};
use warren_api::blueprint::PodMetadata;
use warren_api::conditions::{self, ConditionType, EventAction, EventReason};
use warren_api::{NameHash, Sandbox, SandboxTemplate, annotations, labels};

use super::{Offer, Settings, Trouble, World, metadata};
use crate::merge;
use crate::ownership;
use crate::step::{Action, Kind, Note, Severity, Stage, Step};

/// Plans the first guarded write: the claim commits to a sandbox. Any controller that sees the
/// commitment completes it.
pub(super) fn assign(world: &World, sandbox: &Sandbox, settings: &Settings, now: Timestamp) -> Step {
    let name = sandbox.metadata.name.clone().unwrap_or_default();
    let mut annotations = observed(world, settings);
    annotations[annotations::SANDBOX_NAME] = json!(name);
    if is_ready(sandbox) && !lacks_template(world) && !is_stamped(world) {
        annotations[annotations::CLAIM_FIRST_READY_AT] = json!(now.to_string());
    }
    guarded(world, annotations)
}

/// Plans to remove the annotation that the claim was Ready for the first time. This is due if the
/// sandbox was no longer ready when the claim got it, or if the claim is in trouble with it: the
/// claim could not use it.
pub(super) fn take_back_promise(world: &World, sandbox: &Sandbox, is_in_trouble: bool) -> Option<Step> {
    let is_published = world.status_sandbox() == sandbox.metadata.name.as_deref();
    (is_stamped(world) && !is_published && (is_in_trouble || !is_ready(sandbox)))
        .then(|| guarded(world, json!({annotations::CLAIM_FIRST_READY_AT: null})))
}

/// Returns true if the claim adds to metadata that are not known. Such a claim cannot be Ready yet.
fn lacks_template(world: &World) -> bool {
    world.template.is_none() && !world.claim.spec.additional_pod_metadata.is_empty()
}

fn is_stamped(world: &World) -> bool {
    ownership::annotation(&world.claim.metadata, annotations::CLAIM_FIRST_READY_AT).is_some()
}

pub(super) fn is_ready(sandbox: &Sandbox) -> bool {
    let status = sandbox.status.as_ref();
    status.is_some_and(|status| conditions::is_true(&status.conditions, ConditionType::Ready))
}

/// Writes annotations to the claim, unless the claim has changed since it was read.
pub(super) fn guarded(world: &World, annotations: Value) -> Step {
    let version = &world.claim.metadata.resource_version;
    let body = json!({"metadata": {"resourceVersion": version, "annotations": annotations}});
    Step::new(Stage::Subject, Action::Merge { kind: Kind::SandboxClaim, name: world.name().to_owned(), body })
}

/// Returns the annotation that says when the claim was first seen, unless it is there or switched
/// off.
pub(super) fn observed(world: &World, settings: &Settings) -> Value {
    let key = annotations::CONTROLLER_FIRST_OBSERVED_AT;
    let known = ownership::annotation(&world.claim.metadata, key).is_some();
    match known || settings.disable_observability_annotations {
        true => json!({}),
        false => json!({key: world.first_seen.to_string()}),
    }
}

/// Plans the second guarded write: the sandbox gets its new owner and loses everything that came
/// from the pool. Owner and `pod-name` are one write, so that a claimed, ready sandbox always names
/// its pod.
pub(super) fn take_over(world: &World, sandbox: &Sandbox) -> Result<Step, String> {
    let mut wanted = sandbox.clone();
    wanted.metadata.owner_references = Some(vec![ownership::reference_to(&*world.claim)]);
    let labels = wanted.metadata.labels.get_or_insert_default();
    for key in [labels::WARM_POOL_SANDBOX, labels::SANDBOX_TEMPLATE_HASH, labels::SANDBOX_POD_TEMPLATE_HASH] {
        labels.remove(key);
    }
    labels.insert(labels::LAUNCH_TYPE.to_owned(), labels::LAUNCH_TYPE_WARM.to_owned());
    let annotations = wanted.metadata.annotations.get_or_insert_default();
    annotations.insert(annotations::POD_NAME.to_owned(), sandbox.metadata.name.clone().unwrap_or_default());
    if let Some(trace) = ownership::annotation(&world.claim.metadata, annotations::TRACE_CONTEXT) {
        annotations.insert(annotations::TRACE_CONTEXT.to_owned(), trace.to_owned());
    }
    retain_volumes(world, &mut wanted);
    identify(world, &mut wanted, true);
    wanted.spec.blueprint.pod_template.metadata = metadata_of_pod(world, sandbox)?;
    let mut body = difference(sandbox, &wanted).unwrap_or_else(|| json!({}));
    merge::set(&mut body, &["metadata", "resourceVersion"], json!(sandbox.metadata.resource_version));
    Ok(merge_sandbox(sandbox, body))
}

/// Returns the pod template's metadata for an adopted sandbox, or an error if the claim asks for
/// metadata that are not allowed.
pub(super) fn metadata_of_pod(world: &World, sandbox: &Sandbox) -> Result<PodMetadata, String> {
    match &world.template {
        Some(template) => pod_metadata(world, template),
        None => edited_in_place(world, sandbox),
    }
}

/// Returns the event of an adoption from the queue. Completing an earlier adoption records none.
pub(super) fn notes(world: &World, sandbox: &Sandbox, settings: &Settings) -> Vec<Note> {
    let offered = matches!(&world.offer, Offer::Sandbox(offer) if offer.metadata.uid == sandbox.metadata.uid);
    if settings.disable_events || !offered {
        return Vec::new();
    }
    let name = sandbox.metadata.name.as_deref().unwrap_or_default();
    vec![Note {
        severity: Severity::Normal,
        reason: EventReason::SandboxAdopted.as_str(),
        action: EventAction::Adoption.as_str(),
        text: format!("took sandbox {name} from pool {}", world.claim.spec.warm_pool_ref.name),
    }]
}

/// Brings the labels of a claim's sandbox and its pod template in line with the claim and the
/// template, in one write.
pub(super) fn converge(world: &World, sandbox: &Sandbox) -> Result<Option<Step>, Trouble> {
    let mut wanted = sandbox.clone();
    match &world.template {
        Some(template) => {
            identify(world, &mut wanted, false);
            wanted.spec.blueprint.pod_template.metadata =
                pod_metadata(world, template).map_err(Trouble::Error)?;
        }
        None if lacks_template(world) => return Err(missing(world)),
        None => {}
    }
    retain_volumes(world, &mut wanted);
    let labels = wanted.metadata.labels.get_or_insert_default();
    if !labels.contains_key(labels::LAUNCH_TYPE) {
        // A sandbox of the claim's own name was made for it; any other was taken from a pool.
        let value = match sandbox.metadata.name.as_deref() == Some(world.name()) {
            true => labels::LAUNCH_TYPE_COLD,
            false => labels::LAUNCH_TYPE_WARM,
        };
        labels.insert(labels::LAUNCH_TYPE.to_owned(), value.to_owned());
    }
    Ok(difference(sandbox, &wanted).map(|body| merge_sandbox(sandbox, body)))
}

/// Copies the retention of volumes from the claim, or else from the template. If neither sets one,
/// the sandbox keeps its own. A pool never sets one: unused volumes are not kept.
pub(super) fn retain_volumes(world: &World, sandbox: &mut Sandbox) {
    let template = world.template.as_ref().map(|template| &template.metadata);
    let said = [Some(&world.claim.metadata), template].into_iter().flatten();
    let mut said = said.filter_map(|metadata| ownership::annotation(metadata, annotations::PVC_RETENTION));
    if let Some(retention) = said.next() {
        let annotations = sandbox.metadata.annotations.get_or_insert_default();
        annotations.insert(annotations::PVC_RETENTION.to_owned(), retention.to_owned());
    }
}

/// Returns which is missing: the pool, or its template.
pub(super) fn missing(world: &World) -> Trouble {
    match &world.pool {
        None => Trouble::PoolMissing(world.claim.spec.warm_pool_ref.name.clone()),
        Some(pool) => Trouble::TemplateMissing(pool.spec.sandbox_template_ref.name.clone()),
    }
}

/// Returns the metadata of the pod template: the template's, the identity labels, and the claim's
/// additions.
pub(super) fn pod_metadata(world: &World, template: &SandboxTemplate) -> Result<PodMetadata, String> {
    let mut metadata = template.spec.blueprint.pod_template.metadata.clone();
    metadata.labels.extend(identity(world, template));
    add_to(world, metadata)
}

/// Returns the labels that identify the sandbox's claim, on the sandbox itself and in its pod
/// template.
pub(super) fn identity(world: &World, template: &SandboxTemplate) -> Vec<(String, String)> {
    let hash = NameHash::of(template.metadata.name.as_deref().unwrap_or_default()).to_string();
    let mut labels = vec![
        (labels::CLAIM_UID.to_owned(), world.uid().to_owned()),
        (labels::SANDBOX_TEMPLATE_REF_HASH.to_owned(), hash),
    ];
    labels.extend(created_by(world).map(|text| (labels::CREATED_BY.to_owned(), text.to_owned())));
    labels
}

fn add_to(world: &World, mut metadata: PodMetadata) -> Result<PodMetadata, String> {
    let added = &world.claim.spec.additional_pod_metadata;
    metadata::add("label", &mut metadata.labels, &added.labels)?;
    metadata::add("annotation", &mut metadata.annotations, &added.annotations)?;
    Ok(metadata)
}

/// Removes the pool's additions from the present metadata. Used when the template, and so its
/// metadata, is not known.
fn edited_in_place(world: &World, sandbox: &Sandbox) -> Result<PodMetadata, String> {
    let mut metadata = sandbox.spec.blueprint.pod_template.metadata.clone();
    for key in [labels::WARM_POOL_SANDBOX, labels::SANDBOX_TEMPLATE_HASH, labels::SANDBOX_POD_TEMPLATE_HASH] {
        metadata.labels.remove(key);
    }
    metadata.labels.insert(labels::CLAIM_UID.to_owned(), world.uid().to_owned());
    match created_by(world) {
        Some(text) => metadata.labels.insert(labels::CREATED_BY.to_owned(), text.to_owned()),
        None => metadata.labels.remove(labels::CREATED_BY),
    };
    if metadata.annotations.get(annotations::SAFE_TO_EVICT).is_some_and(|value| value == "true") {
        metadata.annotations.remove(annotations::SAFE_TO_EVICT);
    }
    add_to(world, metadata)
}

/// Puts the identity labels on the sandbox itself.
fn identify(world: &World, sandbox: &mut Sandbox, adopting: bool) {
    let labels = sandbox.metadata.labels.get_or_insert_default();
    if let Some(template) = &world.template {
        let hash = NameHash::of(template.metadata.name.as_deref().unwrap_or_default()).to_string();
        labels.insert(labels::SANDBOX_TEMPLATE_REF_HASH.to_owned(), hash);
    }
    if adopting {
        labels.insert(labels::CLAIM_UID.to_owned(), world.uid().to_owned());
    }
    match created_by(world) {
        Some(text) => labels.insert(labels::CREATED_BY.to_owned(), text.to_owned()),
        None => labels.remove(labels::CREATED_BY),
    };
}

fn created_by(world: &World) -> Option<&str> {
    ownership::label(&world.claim.metadata, labels::CREATED_BY)
}

/// Returns the patch for the fields that we may change: metadata and the pod template's metadata.
/// Comparing only those avoids serialising the pod's spec for every claim.
fn difference(present: &Sandbox, wanted: &Sandbox) -> Option<Value> {
    let mut body = json!({});
    let labels = |sandbox: &Sandbox| sandbox.metadata.labels.clone().unwrap_or_default();
    if let Some(patch) = merge::between_maps(&labels(present), &labels(wanted)) {
        merge::set(&mut body, &["metadata", "labels"], patch);
    }
    let annotations = |sandbox: &Sandbox| sandbox.metadata.annotations.clone().unwrap_or_default();
    if let Some(patch) = merge::between_maps(&annotations(present), &annotations(wanted)) {
        merge::set(&mut body, &["metadata", "annotations"], patch);
    }
    if present.metadata.owner_references != wanted.metadata.owner_references {
        merge::set(
            &mut body,
            &["metadata", "ownerReferences"],
            merge::json(&wanted.metadata.owner_references),
        );
    }
    let template = |sandbox: &Sandbox| sandbox.spec.blueprint.pod_template.metadata.clone();
    if let Some(patch) = merge::between_maps(&template(present).labels, &template(wanted).labels) {
        merge::set(&mut body, &["spec", "podTemplate", "metadata", "labels"], patch);
    }
    if let Some(patch) = merge::between_maps(&template(present).annotations, &template(wanted).annotations) {
        merge::set(&mut body, &["spec", "podTemplate", "metadata", "annotations"], patch);
    }
    (body != json!({})).then_some(body)
}

fn merge_sandbox(sandbox: &Sandbox, mut body: Value) -> Step {
    merge::set(&mut body, &["metadata", "uid"], json!(sandbox.metadata.uid));
    let name = sandbox.metadata.name.clone().unwrap_or_default();
    Step::new(Stage::Subject, Action::Merge { kind: Kind::Sandbox, name, body })
}
