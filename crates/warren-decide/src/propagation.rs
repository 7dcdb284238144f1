//! Computes the labels and annotations of a sandbox's pod: which come from the template, which the
//! controller derives, and which must be removed. Those of other actors are never touched.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use warren_api::{NameHash, Sandbox, annotations, labels};

use crate::ownership::{self, label};

type Strings = BTreeMap<String, String>;

/// Labels and annotations of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMetadata {
    /// Labels.
    pub labels: Strings,
    /// Annotations.
    pub annotations: Strings,
}

/// Returns the metadata that a sandbox's pod should have, given its present metadata (empty for a
/// new pod).
///
/// A key that was copied from the template earlier and is no longer in it is removed: tracking
/// lists on the pod remember the copied keys. Reserved keys that an older controller let through
/// are removed the same way.
#[must_use]
pub fn desired(sandbox: &Sandbox, present: &ObjectMeta) -> PodMetadata {
    let template = &sandbox.spec.blueprint.pod_template.metadata;
    let mut labels = present.labels.clone().unwrap_or_default();
    let mut annotations = present.annotations.clone().unwrap_or_default();

    propagate(
        &template.labels,
        labels::is_reserved,
        &mut labels,
        annotations.get(annotations::PROPAGATED_LABELS).cloned(),
        |keys| track(&mut annotations, annotations::PROPAGATED_LABELS, keys),
    );
    let listed = annotations.get(annotations::PROPAGATED_ANNOTATIONS).cloned();
    let mut keys = Vec::new();
    propagate(&template.annotations, annotations::is_reserved, &mut annotations, listed, |copied| {
        keys = copied
    });
    track(&mut annotations, annotations::PROPAGATED_ANNOTATIONS, keys);

    derive_labels(sandbox, &mut labels);
    PodMetadata { labels, annotations }
}

/// Returns the label value that ties a child to its sandbox.
#[must_use]
pub fn tracking_hash(sandbox: &Sandbox) -> String {
    NameHash::of(sandbox.metadata.name.as_deref().unwrap_or_default()).to_string()
}

/// Returns the value of `created-by` on a pod. Its values are a closed set, so that free text from
/// clients does not become a label.
#[must_use]
pub fn normalise_created_by(text: &str) -> &'static str {
    match text {
        "go-client" => "go-client",
        "python-client" => "python-client",
        "controller" => "controller",
        _ => "unknown",
    }
}

fn propagate(
    template: &Strings,
    is_reserved: impl Fn(&str) -> bool,
    target: &mut Strings,
    listed: Option<String>,
    record: impl FnOnce(Vec<String>),
) {
    for key in listed.iter().flat_map(|text| text.split(',')).filter(|key| !key.is_empty()) {
        if is_reserved(key) || !template.contains_key(key) {
            target.remove(key);
        }
    }
    let mut copied = Vec::new();
    for (key, value) in template.iter().filter(|(key, _)| !is_reserved(key)) {
        target.insert(key.clone(), value.clone());
        copied.push(key.clone());
    }
    record(copied);
}

/// Writes a tracking list. An existing list becomes empty rather than absent, so that it stays
/// clear that we manage the pod.
fn track(annotations: &mut Strings, key: &str, copied: Vec<String>) {
    if !copied.is_empty() || annotations.contains_key(key) {
        annotations.insert(key.to_owned(), copied.join(","));
    }
}

fn derive_labels(sandbox: &Sandbox, labels: &mut Strings) {
    let metadata = &sandbox.metadata;
    let mut put = |key: &str, value: Option<String>| match value {
        Some(value) => {
            labels.insert(key.to_owned(), value);
        }
        None => {
            labels.remove(key);
        }
    };
    put(labels::SANDBOX_NAME_HASH, Some(tracking_hash(sandbox)));
    let pool = label(metadata, labels::WARM_POOL_SANDBOX).filter(|_| ownership::is_pooled(metadata));
    put(labels::WARM_POOL_SANDBOX, pool.map(str::to_owned));
    let template = label(metadata, labels::SANDBOX_TEMPLATE_REF_HASH);
    let is_derived = ownership::is_extension_owned(metadata) || ownership::is_of_a_task(metadata);
    let template = template.filter(|_| is_derived);
    put(labels::SANDBOX_TEMPLATE_REF_HASH, template.map(str::to_owned));
    let created_by = label(metadata, labels::CREATED_BY).map(normalise_created_by);
    put(labels::CREATED_BY, created_by.map(str::to_owned));
}
