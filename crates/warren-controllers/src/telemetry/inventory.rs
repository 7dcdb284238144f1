//! Computes `agent_sandboxes`, the number of sandboxes, from the cache at each scrape.

use std::collections::BTreeMap;

use warren_api::conditions::{self, ConditionType, Reason};
use warren_api::{Sandbox, SandboxClaim, SandboxWarmPool, annotations, labels};
use warren_decide::ownership;
use warren_decide::propagation::normalise_created_by;

use super::family::{Family, Text, Values};
use crate::cache::Cache;

const FAMILY: Family<7> = Family {
    name: "agent_sandboxes",
    help: "Sandboxes that exist at this moment.",
    labels: [
        "namespace",
        "ready_condition",
        "expired",
        "launch_type",
        "sandbox_template",
        "owned_by",
        "created_by",
    ],
};

pub(crate) fn write(sandboxes: &Cache<Sandbox>, text: &mut Text) {
    // With an incomplete list, sandboxes would seem to have ended.
    if !sandboxes.is_listed() {
        return;
    }
    let mut counts: BTreeMap<Values<7>, f64> = BTreeMap::new();
    for sandbox in sandboxes.all() {
        *counts.entry(values(&sandbox)).or_default() += 1.0;
    }
    text.numbers(&FAMILY, "gauge", counts.iter().map(|(values, count)| (values, *count)));
}

fn values(sandbox: &Sandbox) -> Values<7> {
    let metadata = &sandbox.metadata;
    let ready =
        sandbox.status.as_ref().and_then(|status| conditions::find(&status.conditions, ConditionType::Ready));
    let is_ready = ready.is_some_and(|ready| ready.status == "True");
    let is_expired = ready.is_some_and(|ready| ready.reason == Reason::SandboxExpired.as_str());
    let template = ownership::annotation(metadata, annotations::SANDBOX_TEMPLATE_REF)
        .filter(|name| !name.is_empty())
        .unwrap_or("unknown");
    let owner = ownership::controller(metadata);
    let owned_by = match owner {
        Some(owner) if ownership::is_kind::<SandboxClaim>(owner) => "SandboxClaim",
        Some(owner) if ownership::is_kind::<SandboxWarmPool>(owner) => "SandboxWarmPool",
        _ => "None",
    };
    let created_by = ownership::label(metadata, labels::CREATED_BY).map_or("unknown", normalise_created_by);
    [
        metadata.namespace.clone().unwrap_or_default().into(),
        is_ready.to_string().into(),
        is_expired.to_string().into(),
        launch_type(sandbox).into(),
        template.to_owned().into(),
        owned_by.into(),
        created_by.into(),
    ]
}

/// Returns how a sandbox was made: warm if its label says so, else cold.
pub(crate) fn launch_type(sandbox: &Sandbox) -> &'static str {
    match ownership::label(&sandbox.metadata, labels::LAUNCH_TYPE) {
        Some(labels::LAUNCH_TYPE_WARM) => labels::LAUNCH_TYPE_WARM,
        _ => labels::LAUNCH_TYPE_COLD,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use warren_api::Sandbox;

    use super::write;
    use crate::cache::{Cache, Keeping};
    use crate::telemetry::family::Text;

    fn page(sandboxes: &Cache<Sandbox>) -> String {
        let mut text = Text::default();
        write(sandboxes, &mut text);
        text.finish()
    }

    #[test]
    fn nothing_is_counted_before_everything_is_listed() {
        let sandboxes = Cache::<Sandbox>::new(Keeping { trim: |_| {}, indices: |_| vec![] });
        let sandbox = json!({
            "metadata": {"name": "s", "namespace": "default", "uid": "u", "resourceVersion": "1",
                "annotations": {"agents.x-k8s.io/sandbox-template-ref": ""}},
            "spec": {"podTemplate": {"spec": {"containers": []}}},
        });
        sandboxes.begin_list();
        sandboxes.list(Arc::new(serde_json::from_value(sandbox).unwrap()));
        assert_eq!(page(&sandboxes), "");
        sandboxes.end_list();
        let page = page(&sandboxes);
        assert!(page.contains("sandbox_template=\"unknown\"} 1\n"), "{page}");
    }
}
