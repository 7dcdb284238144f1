//! Evaluates label selectors.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::Labels;

/// Returns true if a selector matches these labels. An empty or missing selector matches
/// everything.
pub fn selects(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    let Some(selector) = selector else { return true };
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key).is_some_and(|found| found == value));
    let fits = selector.match_expressions.iter().flatten().all(|expression| {
        let found = labels.get(&expression.key);
        let among = |value: &String| expression.values.iter().flatten().any(|wanted| wanted == value);
        match expression.operator.as_str() {
            "In" => found.is_some_and(among),
            "NotIn" => !found.is_some_and(among),
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            // An unknown operator selects nothing.
            _ => false,
        }
    });
    equal && fits
}
