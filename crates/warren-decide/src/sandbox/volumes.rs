//! Decides about the volume claims of a sandbox. They are made once and never deleted here. Only
//! the owner and our label of an existing claim are changed.
//!
//! Garbage collection deletes them with the sandbox, so suspending and expiring keep the data. If
//! they are to be kept, the sandbox does not own them: only its label identifies them, and a later
//! sandbox of the same name finds them again.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;
use warren_api::blueprint::PersistentVolumeClaimTemplate;
use warren_api::{Sandbox, annotations, labels};

use super::{Plan, World};
use crate::bounded::bounded;
use crate::merge::json;
use crate::ownership::{self, Ownership};
use crate::step::{Action, Failure, Kind, Object, Stage, Step};

/// Returns the name of the claim that a template makes for a sandbox.
#[must_use]
pub fn claim_name(template: &PersistentVolumeClaimTemplate, sandbox: &str) -> String {
    format!("{}-{sandbox}", template.metadata.name)
}

/// The treatment of the claims when the sandbox is deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Retention {
    Delete,
    Retain,
}

impl Retention {
    fn of(sandbox: &Sandbox) -> Result<Self, String> {
        match ownership::annotation(&sandbox.metadata, annotations::PVC_RETENTION) {
            None | Some(annotations::DELETE) => Ok(Self::Delete),
            Some(annotations::RETAIN) => Ok(Self::Retain),
            Some(other) => Err(format!(
                "annotation {}: {:?} is neither {} nor {}",
                annotations::PVC_RETENTION,
                bounded(other, 64),
                annotations::RETAIN,
                annotations::DELETE
            )),
        }
    }
}

/// Plans the missing claims, up to the first problem.
pub(super) fn plan(world: &World, plan: &mut Plan) {
    let templates = &world.sandbox.spec.blueprint.volume_claim_templates;
    let retention = match Retention::of(&world.sandbox) {
        Ok(retention) => retention,
        // Either guess could lose data or leave it behind, so nothing is made or changed until the
        // value is valid.
        Err(text) => {
            if !templates.is_empty() {
                plan.problems.push(Failure::found(Stage::Volumes, text));
            }
            return;
        }
    };
    for template in templates {
        let name = claim_name(template, world.name());
        let present = world.volume_claims.iter().find(|claim| claim.metadata.name.as_ref() == Some(&name));
        let Some(present) = present else {
            let claim = new_claim(world, template, name, retention);
            let action = Action::Create(Object::PersistentVolumeClaim(Box::new(claim)));
            plan.steps.push(Step::new(Stage::Volumes, action));
            continue;
        };
        match ownership::classify(&present.metadata, world.uid(), &world.tracking_hash()) {
            Ownership::Mine if retention == Retention::Retain => {
                plan.steps.push(Step::new(Stage::Volumes, disown(world, &present.metadata)));
            }
            Ownership::Mine => {}
            // Identified by the label, and meant to outlive the sandbox.
            Ownership::Adoptable if retention == Retention::Retain => {}
            Ownership::Adoptable => {
                let action = world.adopt(Kind::PersistentVolumeClaim, &present.metadata, json!({}));
                plan.steps.push(Step::new(Stage::Volumes, action));
            }
            Ownership::Unowned => {
                let text = format!(
                    "persistent volume claim {name} exists without an owner and is not labelled for adoption"
                );
                plan.problems.push(Failure::found(Stage::Volumes, text));
                return;
            }
            Ownership::Foreign => {
                let text = format!("persistent volume claim {name} is controlled by another object");
                plan.problems.push(Failure::found(Stage::Volumes, text));
                return;
            }
        }
    }
}

/// Plans for the claims of an expired sandbox. None is made or adopted any more. Those that are to
/// be kept are released, as the sandbox may be deleted next.
pub(super) fn release(world: &World, plan: &mut Plan) {
    let mut mine =
        world.volume_claims.iter().filter(|claim| ownership::is_controlled_by(&claim.metadata, world.uid()));
    match Retention::of(&world.sandbox) {
        Ok(Retention::Delete) => {}
        Ok(Retention::Retain) => {
            plan.steps.extend(mine.map(|claim| Step::new(Stage::Volumes, disown(world, &claim.metadata))));
        }
        Err(text) => plan.problems.extend(mine.next().map(|_| Failure::found(Stage::Volumes, text))),
    }
}

/// Removes the sandbox from the owners of a claim. The claim keeps the label by which it is found.
/// The write is guarded: it replaces the whole list of owners, which may contain others.
fn disown(world: &World, claim: &ObjectMeta) -> Action {
    let others = claim.owner_references.iter().flatten().filter(|owner| owner.uid != world.uid());
    let mut body = json!({"metadata": {
        "ownerReferences": others.collect::<Vec<_>>(),
        "resourceVersion": claim.resource_version,
    }});
    if ownership::label(claim, labels::SANDBOX_NAME_HASH) != Some(&world.tracking_hash()) {
        let hash = json(&world.tracking_hash());
        crate::merge::set(&mut body, &["metadata", "labels", labels::SANDBOX_NAME_HASH], hash);
    }
    let name = claim.name.clone().unwrap_or_default();
    Action::Merge { kind: Kind::PersistentVolumeClaim, name, body }
}

/// Adds the sandbox's claims to the pod's volumes, at the end. They replace the template's volumes
/// of the same name.
pub(super) fn mount_claims(sandbox: &Sandbox, spec: &mut PodSpec) {
    let templates = &sandbox.spec.blueprint.volume_claim_templates;
    if templates.is_empty() {
        return;
    }
    let name = sandbox.metadata.name.as_deref().unwrap_or_default();
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|volume| !templates.iter().any(|template| template.metadata.name == volume.name));
    volumes.extend(templates.iter().map(|template| Volume {
        name: template.metadata.name.clone(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(template, name),
            ..PersistentVolumeClaimVolumeSource::default()
        }),
        ..Volume::default()
    }));
}

fn new_claim(
    world: &World,
    template: &PersistentVolumeClaimTemplate,
    name: String,
    retention: Retention,
) -> PersistentVolumeClaim {
    let mut labels = template.metadata.labels.clone();
    labels.insert(labels::SANDBOX_NAME_HASH.to_owned(), world.tracking_hash());
    let annotations = template.metadata.annotations.clone();
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: world.sandbox.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: (retention == Retention::Delete)
                .then(|| vec![ownership::reference_to(&*world.sandbox)]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec.clone()),
        status: None,
    }
}
