//! Label selectors.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::Labels;

/// Whether a selector is about an object with these labels. An empty one, or none where one is due, is about all.
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
            // An operator from the future selects nothing.
            _ => false,
        }
    });
    equal && fits
}
