//! Builds a new member of a pool, and reads a member's properties.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use warren_api::conditions::{self, ConditionStatus, ConditionType};
use warren_api::{NameHash, Sandbox, SandboxSpec, SandboxTemplate, SandboxWarmPool, annotations, labels};

use super::Settings;
use crate::ownership;
use crate::secure_defaults;
use crate::staleness::{Hashes, TemplateComparison};

/// A member with its derived properties. Computing them touches scattered memory, which for a
/// thousand members is most of the cost of a reconcile, so it is done once.
#[derive(Clone, Copy)]
pub(super) struct Member<'a> {
    pub(super) sandbox: &'a Sandbox,
    /// True if it is of another template than the present one; false if there is no template.
    pub(super) is_stale: bool,
    pub(super) is_ready: bool,
    /// Its Ready condition, if it is ready.
    pub(super) ready: Option<&'a Condition>,
    pub(super) created: Option<Timestamp>,
}

impl<'a> Member<'a> {
    pub(super) fn new(sandbox: &'a Sandbox, comparison: Option<&TemplateComparison<'_>>) -> Self {
        let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice());
        let ready = conditions::find(conditions.unwrap_or_default(), ConditionType::Ready);
        Self {
            sandbox,
            is_stale: comparison.is_some_and(|comparison| comparison.is_stale(sandbox)),
            is_ready: ready.is_some_and(|ready| ready.status == ConditionStatus::True.as_str()),
            ready,
            created: sandbox.metadata.creation_timestamp.as_ref().map(|Time(time)| *time),
        }
    }
}

/// Builds the sandbox that a pool creates, before the server names it.
pub(super) fn new(
    pool: &SandboxWarmPool,
    template: &SandboxTemplate,
    hashes: &Hashes,
    settings: &Settings,
) -> Sandbox {
    let pool_name = pool.metadata.name.as_deref().unwrap_or_default();
    let pool_hash = NameHash::of(pool_name).to_string();
    let mut blueprint = template.spec.blueprint.clone();
    secure_defaults::apply(&template.spec, Arc::make_mut(&mut blueprint.pod_template.spec));
    let metadata = &mut blueprint.pod_template.metadata;
    for (key, value) in [
        (labels::WARM_POOL_SANDBOX, &pool_hash),
        (labels::SANDBOX_TEMPLATE_REF_HASH, &hashes.name),
        (labels::SANDBOX_POD_TEMPLATE_HASH, &hashes.pod_template),
        (labels::SANDBOX_TEMPLATE_HASH, &hashes.blueprint),
    ] {
        metadata.labels.insert(key.to_owned(), value.clone());
    }
    if settings.enable_eviction {
        metadata
            .annotations
            .entry(annotations::SAFE_TO_EVICT.to_owned())
            .or_insert_with(|| "true".to_owned());
    }
    let own_labels = [
        (labels::WARM_POOL_SANDBOX, pool_hash.as_str()),
        (labels::SANDBOX_TEMPLATE_REF_HASH, &hashes.name),
        (labels::LAUNCH_TYPE, labels::LAUNCH_TYPE_WARM),
        (labels::SANDBOX_POD_TEMPLATE_HASH, &hashes.pod_template),
        (labels::SANDBOX_TEMPLATE_HASH, &hashes.blueprint),
        (labels::CREATED_BY, "controller"),
    ];
    let template_name = template.metadata.name.clone().unwrap_or_default();
    Sandbox {
        metadata: ObjectMeta {
            generate_name: Some(format!("{pool_name}-")),
            namespace: pool.metadata.namespace.clone(),
            labels: Some(own_labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            annotations: Some([(annotations::SANDBOX_TEMPLATE_REF.to_owned(), template_name)].into()),
            owner_references: Some(vec![ownership::reference_to(pool)]),
            ..ObjectMeta::default()
        },
        spec: SandboxSpec { blueprint, ..SandboxSpec::default() },
        status: None,
    }
}
