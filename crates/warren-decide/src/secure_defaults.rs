//! Fills in secure defaults where a template says nothing. They are applied when a claim or a pool
//! derives a sandbox from a template. A sandbox that a user writes directly is left as it is.

use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};
use warren_api::SandboxTemplateSpec;
use warren_api::template::NetworkPolicyManagement;

/// Public resolvers: the default policy denies access to the cluster's own.
const NAMESERVERS: [&str; 2] = ["8.8.8.8", "1.1.1.1"];

/// Returns true if the template leaves the network to the controller altogether.
#[must_use]
pub fn is_secure_default(template: &SandboxTemplateSpec) -> bool {
    template.network_policy_management == NetworkPolicyManagement::Managed
        && template.network_policy.is_none()
}

/// Fills in a pod spec that was copied from the template.
pub fn apply(template: &SandboxTemplateSpec, spec: &mut PodSpec) {
    fill_in(spec, is_secure_default(template));
}

/// Fills in a pod spec, with or without a network that is left to the controller.
pub(crate) fn fill_in(spec: &mut PodSpec, is_secure_default: bool) {
    spec.automount_service_account_token.get_or_insert(false);
    let no_dns_policy = spec.dns_policy.as_deref().is_none_or(str::is_empty);
    if is_secure_default && no_dns_policy {
        spec.dns_policy = Some("None".to_owned());
        spec.dns_config = Some(PodDNSConfig {
            nameservers: Some(NAMESERVERS.map(str::to_owned).to_vec()),
            ..PodDNSConfig::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::{Value, json};
    use warren_api::SandboxTemplateSpec;

    use super::apply;

    fn derived(template: Value) -> Value {
        let template: SandboxTemplateSpec = serde_json::from_value(template).unwrap();
        let mut spec = PodSpec::clone(&template.blueprint.pod_template.spec);
        apply(&template, &mut spec);
        json!([spec.automount_service_account_token, spec.dns_policy, spec.dns_config])
    }

    /// Row 28, for the pod.
    #[test]
    fn dns_and_token_only_where_nothing_is_said() {
        let plain = json!({"podTemplate": {"spec": {"containers": []}}});
        let resolvers = json!({"nameservers": ["8.8.8.8", "1.1.1.1"]});
        assert_eq!(derived(plain), json!([false, "None", resolvers]));
        let own = json!({"podTemplate": {"spec": {
            "containers": [], "dnsPolicy": "Default", "automountServiceAccountToken": true}}});
        assert_eq!(derived(own), json!([true, "Default", null]));
        let rules = json!({"networkPolicy": {}, "podTemplate": {"spec": {"containers": []}}});
        assert_eq!(derived(rules), json!([false, null, null]));
        let unmanaged =
            json!({"networkPolicyManagement": "Unmanaged", "podTemplate": {"spec": {"containers": []}}});
        assert_eq!(derived(unmanaged), json!([false, null, null]));
    }
}
