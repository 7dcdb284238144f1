//! Pod disruption budgets. `crate::disruption` honours them and writes their status.

use serde_json::{Value, json};

use super::network::validate_selector;
use super::workloads::{at_most_all, validate_share};
use super::{Behaviour, PLAIN};
use crate::status::FieldError;

pub(super) static POD_DISRUPTION_BUDGET: Behaviour = Behaviour {
    has_generation: true,
    unconditional_update: false,
    prepare_create: |budget| {
        budget["status"] =
            json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
    },
    validate,
    ..PLAIN
};

fn validate(budget: &Value, errors: &mut Vec<FieldError>) {
    const POLICIES: [&str; 2] = ["AlwaysAllow", "IfHealthyBudget"];
    let spec = &budget["spec"];
    let shares = ["minAvailable", "maxUnavailable"];
    if shares.iter().all(|name| !spec[*name].is_null()) {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid("spec", spec.clone(), detail));
    }
    for name in shares {
        let field = format!("spec.{name}");
        validate_share(&spec[name], &field, errors);
        at_most_all(&spec[name], &field, errors);
    }
    validate_selector(&spec["selector"], "spec.selector", errors);
    let policy = &spec["unhealthyPodEvictionPolicy"];
    if !policy.is_null() && !policy.as_str().is_some_and(|policy| POLICIES.contains(&policy)) {
        let field = "spec.unhealthyPodEvictionPolicy";
        errors.push(FieldError::unsupported(field, policy.clone(), &POLICIES));
    }
}
