//! Detects warm sandboxes that differ from their template. A hash usually decides. Where it
//! differs, the relevant parts are compared one by one, so that hashes of another program are safe,
//! too.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::Value;
use warren_api::blueprint::{PersistentVolumeClaimTemplate, SandboxBlueprint};
use warren_api::{NameHash, Sandbox, SandboxTemplate, labels};

use crate::merge::json;
use crate::ownership::label;
use crate::secure_defaults;
use crate::semantic;

/// The hashes that a template's sandboxes carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashes {
    /// The hash of the template's name.
    pub name: String,
    /// The hash of the whole blueprint: pod template, volume claim templates, service.
    pub blueprint: String,
    /// The hash of the pod template alone; informational.
    pub pod_template: String,
}

impl Hashes {
    /// Computes the hashes of a template.
    #[must_use]
    pub fn of(template: &SandboxTemplate) -> Self {
        let blueprint = &template.spec.blueprint;
        Self {
            name: NameHash::of(template.metadata.name.as_deref().unwrap_or_default()).into(),
            blueprint: NameHash::of(&json(blueprint).to_string()).into(),
            pod_template: NameHash::of(&json(&blueprint.pod_template).to_string()).into(),
        }
    }
}

/// A template in the form that its sandboxes should have: computed once, compared with many.
#[derive(Debug)]
pub struct TemplateComparison<'a> {
    template: &'a SandboxTemplate,
    hashes: Hashes,
    /// The pod as it is made now, and as it would be if the template had network rules and has
    /// none, or the reverse. Made when the hashes differ.
    pods: OnceLock<[Value; 2]>,
    /// The last compared pod and its result: members made from one template share one spec.
    last: Mutex<Option<(Arc<PodSpec>, Pods)>>,
}

/// Which of a template's two pods a pod equals.
#[derive(Clone, Copy, Debug)]
struct Pods {
    present: bool,
    with_other_network: bool,
}

impl<'a> TemplateComparison<'a> {
    /// Prepares a template for comparisons.
    #[must_use]
    pub fn new(template: &'a SandboxTemplate) -> Self {
        Self { template, hashes: Hashes::of(template), pods: OnceLock::new(), last: Mutex::default() }
    }

    /// Returns the template's hashes.
    #[must_use]
    pub fn hashes(&self) -> &Hashes {
        &self.hashes
    }

    /// Returns true if a member of a pool is outdated. An edit of labels, annotations or network
    /// rules does not make it so.
    #[must_use]
    pub fn is_stale(&self, member: &Sandbox) -> bool {
        if label(&member.metadata, labels::SANDBOX_TEMPLATE_REF_HASH) != Some(&self.hashes.name) {
            return true;
        }
        if label(&member.metadata, labels::SANDBOX_TEMPLATE_HASH) == Some(&self.hashes.blueprint) {
            return false;
        }
        let blueprint = &member.spec.blueprint;
        let pods = self.compare(&blueprint.pod_template.spec);
        !(self.matches_beside_pod(blueprint) && (pods.present || pods.with_other_network))
    }

    /// Returns true if an orphan is outdated. Its hash label could be forged, so it is ignored: the
    /// orphan must equal a sandbox that the pool would make now.
    #[must_use]
    pub fn is_stale_orphan(&self, orphan: &Sandbox) -> bool {
        let blueprint = &orphan.spec.blueprint;
        label(&orphan.metadata, labels::SANDBOX_TEMPLATE_REF_HASH) != Some(&self.hashes.name)
            || !self.matches_beside_pod(blueprint)
            || !self.compare(&blueprint.pod_template.spec).present
    }

    fn compare(&self, pod: &Arc<PodSpec>) -> Pods {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pods)) = last.as_ref().filter(|(compared, _)| Arc::ptr_eq(compared, pod)) {
            return *pods;
        }
        let [present, with_other_network] = self.pods.get_or_init(|| {
            let is_secure_default = secure_defaults::is_secure_default(&self.template.spec);
            [is_secure_default, !is_secure_default].map(|is_secure_default| {
                let mut spec = PodSpec::clone(&self.template.spec.blueprint.pod_template.spec);
                secure_defaults::fill_in(&mut spec, is_secure_default);
                semantic::canonical(&spec)
            })
        });
        let canonical = semantic::canonical(&**pod);
        let pods =
            Pods { present: canonical == *present, with_other_network: canonical == *with_other_network };
        *last = Some((pod.clone(), pods));
        pods
    }

    fn matches_beside_pod(&self, blueprint: &SandboxBlueprint) -> bool {
        let wanted = &self.template.spec.blueprint;
        blueprint.service == wanted.service
            && blueprint.volume_claim_templates.len() == wanted.volume_claim_templates.len()
            && blueprint.volume_claim_templates.iter().zip(&wanted.volume_claim_templates).all(same_volume)
    }
}

fn same_volume((left, right): (&PersistentVolumeClaimTemplate, &PersistentVolumeClaimTemplate)) -> bool {
    left.metadata.name == right.metadata.name && semantic::same(&left.spec, &right.spec)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use warren_api::{Sandbox, SandboxTemplate};

    use super::{Hashes, TemplateComparison};

    fn template(spec: Value) -> SandboxTemplate {
        let mut base = json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "a"}]}}});
        for (key, value) in spec.as_object().unwrap() {
            base[key] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "test-template"}, "spec": base})).unwrap()
    }

    fn member(of: &SandboxTemplate) -> Sandbox {
        let hashes = Hashes::of(of);
        let mut sandbox = Sandbox::default();
        sandbox.metadata.labels = Some(
            [
                ("agents.x-k8s.io/sandbox-template-ref-hash".to_owned(), hashes.name),
                ("agents.x-k8s.io/sandbox-template-hash".to_owned(), hashes.blueprint),
            ]
            .into(),
        );
        sandbox.spec.blueprint = of.spec.blueprint.clone();
        let spec = Arc::make_mut(&mut sandbox.spec.blueprint.pod_template.spec);
        crate::secure_defaults::apply(&of.spec, spec);
        sandbox
    }

    /// Row 25: which edits make a sandbox stale.
    #[test]
    fn only_what_changes_the_sandbox_makes_it_stale() {
        let volume =
            |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}, "spec": {}});
        let old = template(json!({"volumeClaimTemplates": [volume("a", json!({})), volume("b", json!({}))]}));
        let stale = |spec: Value| {
            let new = template(spec);
            TemplateComparison::new(&new).is_stale(&member(&old))
        };
        let volumes = json!([volume("a", json!({})), volume("b", json!({}))]);
        assert!(!stale(json!({"volumeClaimTemplates": volumes})));
        assert!(!stale(json!({"volumeClaimTemplates": volumes, "podTemplate": {
            "metadata": {"labels": {"new": "1"}}, "spec": {"containers": [{"name": "main", "image": "a"}]}}})));
        assert!(!stale(
            json!({"volumeClaimTemplates": [volume("a", json!({"x": "y"})), volume("b", json!({}))]})
        ));
        // The blueprint is the same, although secure DNS would no longer be derived.
        assert!(!stale(json!({"volumeClaimTemplates": volumes, "networkPolicy": {"egress": []}})));
        // The same holds together with an edit that changes the hash.
        assert!(!stale(
            json!({"volumeClaimTemplates": volumes, "networkPolicy": {"egress": []}, "podTemplate": {
            "metadata": {"labels": {"new": "1"}}, "spec": {"containers": [{"name": "main", "image": "a"}]}}})
        ));
        assert!(stale(json!({"volumeClaimTemplates": [volume("b", json!({})), volume("a", json!({}))]})));
        assert!(stale(json!({"volumeClaimTemplates": [volume("a", json!({}))]})));
        assert!(stale(json!({"volumeClaimTemplates": volumes, "service": true})));
        assert!(stale(json!({"volumeClaimTemplates": volumes, "podTemplate": {
            "spec": {"containers": [{"name": "main", "image": "b"}]}}})));
        // The same spec in the spelling of another controller or a user.
        assert!(!stale(json!({"volumeClaimTemplates": volumes, "podTemplate": {"spec": {"containers": [
            {"name": "main", "image": "a", "resources": {}, "env": []}]}}})));
        let mut renamed = old.clone();
        renamed.metadata.name = Some("other".to_owned());
        assert!(TemplateComparison::new(&renamed).is_stale(&member(&old)));
    }

    #[test]
    fn the_hash_of_an_orphan_is_not_believed() {
        let old = template(json!({}));
        let new = template(json!({"service": true}));
        let mut forged = member(&old);
        forged.metadata.labels = member(&new).metadata.labels;
        assert!(!TemplateComparison::new(&new).is_stale(&forged));
        assert!(TemplateComparison::new(&new).is_stale_orphan(&forged));
        assert!(!TemplateComparison::new(&old).is_stale_orphan(&member(&old)));
    }

    #[test]
    fn an_orphan_with_the_cluster_s_resolver_is_stale_where_the_network_is_left_to_us() {
        let (left_to_us, ruled) = (template(json!({})), template(json!({"networkPolicy": {"egress": []}})));
        assert!(!TemplateComparison::new(&left_to_us).is_stale(&member(&ruled)));
        assert!(TemplateComparison::new(&left_to_us).is_stale_orphan(&member(&ruled)));
        assert!(!TemplateComparison::new(&ruled).is_stale_orphan(&member(&ruled)));
    }
}
