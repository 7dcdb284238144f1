//! Makes a sandbox for a claim, because none is waiting or the claim asks for something of its own.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;
use warren_api::conditions::{EventAction, EventReason};
use warren_api::{Sandbox, SandboxSpec, annotations, labels};

use super::{Settings, Trouble, World, adoption, injection};
use crate::ownership;
use crate::secure_defaults;
use crate::step::{Action, Note, Object, Severity, Stage, Step};

/// Commits the claim to a sandbox of the claim's name, before it is made.
pub(super) fn commit(world: &World, settings: &Settings) -> Step {
    let mut annotations = adoption::observed(world, settings);
    annotations[annotations::SANDBOX_NAME] = json!(world.name());
    adoption::guarded(world, annotations)
}

/// Plans the creation of the sandbox, or returns the trouble that prevents it.
pub(super) fn create(world: &World) -> Result<Step, Trouble> {
    let Some(template) = &world.template else { return Err(adoption::missing(world)) };
    let spec = &world.claim.spec;
    let mut blueprint = template.spec.blueprint.clone();
    blueprint.volume_claim_templates = injection::volumes(
        template.spec.volume_claim_templates_policy,
        &template.spec.blueprint.volume_claim_templates,
        &spec.volume_claim_templates,
    )
    .map_err(Trouble::VolumeClaimTemplates)?;
    blueprint.pod_template.metadata = adoption::pod_metadata(world, template).map_err(Trouble::Error)?;
    injection::environment(
        template.spec.env_vars_injection_policy,
        Arc::make_mut(&mut blueprint.pod_template.spec),
        &spec.env,
    )?;
    secure_defaults::apply(&template.spec, Arc::make_mut(&mut blueprint.pod_template.spec));

    let mut own_labels: std::collections::BTreeMap<_, _> =
        adoption::identity(world, template).into_iter().collect();
    own_labels.insert(labels::LAUNCH_TYPE.to_owned(), labels::LAUNCH_TYPE_COLD.to_owned());
    let template_name = template.metadata.name.clone().unwrap_or_default();
    let mut own_annotations =
        std::collections::BTreeMap::from([(annotations::SANDBOX_TEMPLATE_REF.to_owned(), template_name)]);
    if let Some(trace) = ownership::annotation(&world.claim.metadata, annotations::TRACE_CONTEXT) {
        own_annotations.insert(annotations::TRACE_CONTEXT.to_owned(), trace.to_owned());
    }
    let mut sandbox = Sandbox {
        metadata: ObjectMeta {
            name: world.claim.metadata.name.clone(),
            namespace: world.claim.metadata.namespace.clone(),
            labels: Some(own_labels),
            annotations: Some(own_annotations),
            owner_references: Some(vec![ownership::reference_to(&*world.claim)]),
            ..ObjectMeta::default()
        },
        spec: SandboxSpec { blueprint, ..SandboxSpec::default() },
        status: None,
    };
    adoption::retain_volumes(world, &mut sandbox);
    Ok(Step::new(Stage::Subject, Action::Create(Object::Sandbox(Box::new(sandbox)))))
}

/// Returns the event of a created sandbox.
pub(super) fn notes(world: &World, settings: &Settings) -> Vec<Note> {
    if settings.disable_events {
        return Vec::new();
    }
    vec![Note {
        severity: Severity::Normal,
        reason: EventReason::SandboxProvisioned.as_str(),
        action: EventAction::Provisioning.as_str(),
        text: format!("created sandbox {}", world.name()),
    }]
}
