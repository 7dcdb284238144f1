//! Decides about the pod of a sandbox. Ownership decides which pod it is; the `pod-name` annotation
//! is only a hint that is kept correct. A live pod is never replaced and its spec never enforced:
//! only its labels and annotations follow the sandbox.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use warren_api::sandbox::OperatingMode;
use warren_api::{Sandbox, annotations, labels};

use super::{Plan, World, drift, volumes};
use crate::merge;
use crate::ownership::{self, Ownership};
use crate::propagation;
use crate::step::{Action, Failure, Kind, Object, Propagation, Stage, Step};

/// The pod that a sandbox has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PodView<'a> {
    /// No pod.
    Absent,
    /// Exactly one pod that the sandbox controls, perhaps dying or finished.
    Mine(&'a Pod),
    /// No pod of its own, and another pod has its name.
    NotMine(&'a Pod, Ownership),
    /// More than one pod of its own. Nothing is changed until a user has resolved it.
    Multiple(usize),
}

/// Finds the sandbox's pod.
pub(super) fn view(world: &World) -> PodView<'_> {
    let mine: Vec<&Pod> = mine(world).collect();
    match mine.as_slice() {
        [] => {}
        [pod] => return PodView::Mine(pod),
        several => return PodView::Multiple(several.len()),
    }
    // The annotated name is tried first. If there is no such pod, the sandbox's name is.
    let annotated = annotated_name(&world.sandbox).and_then(|name| named(world, name));
    match annotated.or_else(|| named(world, world.name())) {
        None => PodView::Absent,
        Some(pod) => {
            PodView::NotMine(pod, ownership::classify(&pod.metadata, world.uid(), &world.tracking_hash()))
        }
    }
}

/// Returns every pod that the sandbox controls and that belongs to it: one with its tracking label
/// or with the name of its pod. An annotation that names no pod is ignored.
pub(super) fn mine(world: &World) -> impl Iterator<Item = &Pod> {
    let annotated = annotated_name(&world.sandbox).filter(|name| named(world, name).is_some());
    let (hash, name) = (world.tracking_hash(), annotated.unwrap_or(world.name()));
    world.pods.iter().map(|pod| &**pod).filter(move |pod| {
        let is_meant = ownership::label(&pod.metadata, labels::SANDBOX_NAME_HASH) == Some(hash.as_str())
            || pod.metadata.name.as_deref() == Some(name);
        is_meant && ownership::is_controlled_by(&pod.metadata, world.uid())
    })
}

/// Plans for the pod.
pub(super) fn plan(world: &World, view: &PodView<'_>, plan: &mut Plan) {
    let suspended = world.sandbox.spec.operating_mode == OperatingMode::Suspended;
    let annotated = annotated_name(&world.sandbox);
    let mut push = |action| plan.steps.push(Step::new(Stage::Pod, action));
    match view {
        PodView::Multiple(count) => {
            plan.problems.push(Failure::found(Stage::Pod, multiple_text(*count)));
        }
        PodView::Mine(pod) if suspended => {
            if annotated.is_some_and(|name| Some(name) != pod.metadata.name.as_deref()) {
                push(set_pod_name(&world.sandbox, Value::Null));
            }
            if pod.metadata.deletion_timestamp.is_none() {
                push(delete(pod));
            }
        }
        PodView::Mine(pod) => {
            if let Some(body) = metadata_patch(&world.sandbox, &pod.metadata) {
                push(merge_pod(pod, body));
            }
            if annotated != pod.metadata.name.as_deref()
                && !is_named_by_its_claim(world, pod.metadata.name.as_deref())
            {
                push(set_pod_name(&world.sandbox, json!(pod.metadata.name)));
            }
        }
        PodView::Absent | PodView::NotMine(..) if suspended => {
            if annotated.is_some() && !is_made_once(&world.sandbox) {
                push(set_pod_name(&world.sandbox, Value::Null));
            }
        }
        // The pod was made once and is gone: its work must not run again.
        PodView::Absent if annotated.is_some() && is_made_once(&world.sandbox) => {}
        PodView::Absent => {
            push(Action::Create(Object::Pod(Box::new(new_pod(&world.sandbox)))));
            if annotated != Some(world.name()) && !is_named_by_its_claim(world, Some(world.name())) {
                push(set_pod_name(&world.sandbox, json!(world.name())));
            }
        }
        PodView::NotMine(pod, Ownership::Adoptable) => {
            let body = metadata_patch(&world.sandbox, &pod.metadata).unwrap_or_else(|| json!({}));
            push(world.adopt(Kind::Pod, &pod.metadata, body));
            if annotated != pod.metadata.name.as_deref() {
                push(set_pod_name(&world.sandbox, json!(pod.metadata.name)));
            }
        }
        PodView::NotMine(pod, ownership) => {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            if annotated.is_some() && *ownership == Ownership::Foreign {
                push(set_pod_name(&world.sandbox, Value::Null));
            }
            plan.problems.push(Failure::found(
                Stage::Pod,
                match ownership {
                    Ownership::Foreign => format!("pod {name} is controlled by another object"),
                    _ => format!("pod {name} exists without an owner and is not labelled for adoption"),
                },
            ));
        }
    }
}

/// Returns true if the claim is to write the pod's name. While a sandbox waits in its pool no
/// client asks for its pod, and the claim that adopts it writes the name in the same write. This
/// holds only for a pod of the usual name.
fn is_named_by_its_claim(world: &World, pod: Option<&str>) -> bool {
    annotated_name(&world.sandbox).is_none()
        && pod == Some(world.name())
        && ownership::is_pooled(&world.sandbox.metadata)
}

/// Returns the message of `MultiplePods`.
pub(super) fn multiple_text(count: usize) -> String {
    format!("{count} pods are controlled by this sandbox, expected at most one")
}

/// Deletes a pod with its own grace period.
pub(super) fn delete(pod: &Pod) -> Action {
    Action::Delete {
        kind: Kind::Pod,
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        version: None,
        propagation: Propagation::Background,
    }
}

/// Builds the pod to create for a sandbox.
#[must_use]
pub(super) fn new_pod(sandbox: &Sandbox) -> Pod {
    let mut metadata = propagation::desired(sandbox, &ObjectMeta::default());
    let mut spec = PodSpec::clone(&sandbox.spec.blueprint.pod_template.spec);
    let fingerprint = drift::fingerprint(&spec);
    metadata.annotations.insert(annotations::POD_TEMPLATE_FINGERPRINT.to_owned(), fingerprint);
    volumes::mount_claims(sandbox, &mut spec);
    Pod {
        metadata: ObjectMeta {
            name: sandbox.metadata.name.clone(),
            namespace: sandbox.metadata.namespace.clone(),
            labels: Some(metadata.labels),
            annotations: Some(metadata.annotations),
            owner_references: Some(vec![ownership::reference_to(sandbox)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

fn annotated_name(sandbox: &Sandbox) -> Option<&str> {
    ownership::annotation(&sandbox.metadata, annotations::POD_NAME).filter(|name| !name.is_empty())
}

fn is_made_once(sandbox: &Sandbox) -> bool {
    ownership::annotation(&sandbox.metadata, annotations::POD_REPLACEMENT) == Some(annotations::NEVER)
}

fn named<'a>(world: &'a World, name: &str) -> Option<&'a Pod> {
    world.pods.iter().map(|pod| &**pod).find(|pod| pod.metadata.name.as_deref() == Some(name))
}

/// Returns the patch that brings a pod's labels and annotations in line. It needs no guard: it
/// contains only keys of our own.
fn metadata_patch(sandbox: &Sandbox, present: &ObjectMeta) -> Option<Value> {
    let desired = propagation::desired(sandbox, present);
    let empty = Default::default();
    let mut body = json!({});
    let labels = merge::between_maps(present.labels.as_ref().unwrap_or(&empty), &desired.labels);
    if let Some(labels) = labels {
        merge::set(&mut body, &["metadata", "labels"], labels);
    }
    let annotations =
        merge::between_maps(present.annotations.as_ref().unwrap_or(&empty), &desired.annotations);
    if let Some(annotations) = annotations {
        merge::set(&mut body, &["metadata", "annotations"], annotations);
    }
    (body != json!({})).then_some(body)
}

fn merge_pod(pod: &Pod, mut body: Value) -> Action {
    merge::set(&mut body, &["metadata", "uid"], json!(pod.metadata.uid));
    Action::Merge { kind: Kind::Pod, name: pod.metadata.name.clone().unwrap_or_default(), body }
}

fn set_pod_name(sandbox: &Sandbox, value: Value) -> Action {
    Action::Merge {
        kind: Kind::Sandbox,
        name: sandbox.metadata.name.clone().unwrap_or_default(),
        body: json!({"metadata": {"uid": sandbox.metadata.uid, "annotations": {annotations::POD_NAME: value}}}),
    }
}
