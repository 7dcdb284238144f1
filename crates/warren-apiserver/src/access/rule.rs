//! One rule of a role: matching against requests and against other rules.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::Attributes;

/// A `PolicyRule`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Rule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    pub resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    pub non_resource_urls: Vec<String>,
}

/// The wildcard in each list of a rule.
const ALL: &str = "*";

fn names(list: &[String], wanted: &str) -> bool {
    list.iter().any(|known| known == ALL || known == wanted)
}

impl Rule {
    /// Parses the rules of a role. Roles are validated when they are written, so an unreadable rule
    /// is skipped and grants nothing.
    pub fn list(rules: &Value) -> Vec<Rule> {
        let rules = rules.as_array().map(Vec::as_slice).unwrap_or_default();
        rules.iter().filter_map(|rule| Rule::deserialize(rule).ok()).collect()
    }

    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        match attributes {
            Attributes::Resource { verb, group, resource, subresource, name, .. } => {
                names(&self.verbs, verb)
                    && names(&self.api_groups, group)
                    && self.resources.iter().any(|known| resource_matches(known, resource, subresource))
                    && (self.resource_names.is_empty()
                        || self.resource_names.iter().any(|known| known == name))
            }
            Attributes::Path { verb, path } => {
                names(&self.verbs, verb)
                    && self.non_resource_urls.iter().any(|known| url_matches(known, path))
            }
        }
    }

    /// Splits the rule into rules with one verb on one resource or path each.
    fn parts(&self) -> Vec<Rule> {
        let mut parts = Vec::new();
        let one = |text: &String| vec![text.clone()];
        for verb in &self.verbs {
            for url in &self.non_resource_urls {
                parts.push(Rule { verbs: one(verb), non_resource_urls: one(url), ..Rule::default() });
            }
        }
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let part = Rule {
                        verbs: one(verb),
                        api_groups: one(group),
                        resources: one(resource),
                        ..Rule::default()
                    };
                    if self.resource_names.is_empty() {
                        parts.push(part);
                        continue;
                    }
                    for name in &self.resource_names {
                        parts.push(Rule { resource_names: one(name), ..part.clone() });
                    }
                }
            }
        }
        parts
    }

    /// Returns true if this rule allows everything that `part` allows. `part` comes from
    /// [`Rule::parts`].
    fn covers_part(&self, part: &Rule) -> bool {
        let covers = |owned: &[String], wanted: &[String]| wanted.iter().all(|one| names(owned, one));
        let resource_covered = |wanted: &String| {
            let subresource = wanted.split_once('/').map(|(_, subresource)| subresource);
            self.resources.iter().any(|owned| {
                owned == ALL
                    || owned == wanted
                    || subresource.is_some_and(|subresource| owned.strip_prefix("*/") == Some(subresource))
            })
        };
        let names_covered = self.resource_names.is_empty()
            || (!part.resource_names.is_empty()
                && part.resource_names.iter().all(|name| self.resource_names.contains(name)));
        covers(&self.verbs, &part.verbs)
            && covers(&self.api_groups, &part.api_groups)
            && part.resources.iter().all(resource_covered)
            && (part.resources.is_empty() || names_covered)
            && part
                .non_resource_urls
                .iter()
                .all(|url| self.non_resource_urls.iter().any(|owned| url_covers(owned, url)))
    }

    /// Formats the rule as kube-apiserver's errors do.
    fn describe(&self) -> String {
        let lists = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let shown: Vec<String> = lists
            .iter()
            .filter(|(_, list)| !list.is_empty())
            .map(|(name, list)| format!("{name}:{}", quoted(list)))
            .collect();
        format!("{{{}}}", shown.join(", "))
    }
}

/// Formats a list the way Go prints it.
pub(crate) fn quoted(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|text| format!("{text:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

fn resource_matches(known: &str, resource: &str, subresource: &str) -> bool {
    if known == ALL {
        return true;
    }
    match subresource {
        "" => known == resource,
        _ => match known.split_once('/') {
            Some((of, below)) => (of == ALL || of == resource) && below == subresource,
            None => false,
        },
    }
}

fn url_matches(known: &str, path: &str) -> bool {
    known == ALL || known == path || known.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

fn url_covers(owned: &str, wanted: &str) -> bool {
    let wanted_prefix = wanted.strip_suffix('*').unwrap_or(wanted);
    owned == ALL
        || owned == wanted
        || owned.strip_suffix('*').is_some_and(|prefix| wanted_prefix.starts_with(prefix))
}

/// Describes the parts of `wanted` that no rule of `owned` covers. The result is sorted, with the
/// verbs of one resource joined.
pub(super) fn missing(owned: &[Rule], wanted: &[Rule]) -> Vec<String> {
    let parts = wanted.iter().flat_map(Rule::parts);
    let uncovered = parts.filter(|part| !owned.iter().any(|rule| rule.covers_part(part)));
    // The key identifies the resource, so that its verbs are joined. Each path keeps a key of its
    // own.
    let mut compact: BTreeMap<String, Rule> = BTreeMap::new();
    for part in uncovered {
        let thing = match part.resources.is_empty() {
            true => part.describe(),
            false => Rule { verbs: Vec::new(), ..part.clone() }.describe(),
        };
        match compact.get_mut(&thing) {
            Some(known) => known.verbs.extend(part.verbs),
            None => {
                compact.insert(thing, part);
            }
        }
    }
    let mut described: Vec<String> = compact.values().map(Rule::describe).collect();
    described.sort();
    described.dedup();
    described
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Attributes, Rule, missing};

    fn rules(rules: serde_json::Value) -> Vec<Rule> {
        Rule::list(&rules)
    }

    fn request<'a>(
        verb: &'static str,
        resource: &'a str,
        subresource: &'a str,
        name: &'a str,
    ) -> Attributes<'a> {
        Attributes::Resource { verb, group: "", resource, subresource, namespace: "n", name }
    }

    #[test]
    fn rules_allow_what_they_name() {
        let rules = rules(json!([
            {"apiGroups": [""], "resources": ["pods", "*/scale"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"], "verbs": ["*"]},
            {"nonResourceURLs": ["/metrics", "/healthz/*"], "verbs": ["get"]},
        ]));
        let allowed = |attributes| rules.iter().any(|rule| rule.allows(&attributes));
        assert!(allowed(request("get", "pods", "", "p")));
        assert!(!allowed(request("get", "pods", "log", "p")));
        assert!(allowed(request("get", "widgets", "scale", "w")));
        assert!(!allowed(request("list", "pods", "", "")));
        assert!(allowed(request("delete", "secrets", "", "one")));
        assert!(!allowed(request("delete", "secrets", "", "two")));
        assert!(!allowed(request("list", "secrets", "", "")));
        assert!(allowed(Attributes::Path { verb: "get", path: "/healthz/ping" }));
        assert!(!allowed(Attributes::Path { verb: "get", path: "/logs" }));
    }

    #[test]
    fn what_is_not_covered_is_said_compactly() {
        let owned = rules(json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["get"]},
        ]));
        let wanted = rules(json!([
            {"apiGroups": [""], "resources": ["pods", "configmaps"], "verbs": ["get", "list"]},
            {"apiGroups": ["apps"], "resources": ["sets/scale"], "verbs": ["update"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"], "verbs": ["get"]},
            {"nonResourceURLs": ["/x"], "verbs": ["get"]},
        ]));
        assert_eq!(
            missing(&owned, &wanted),
            [
                r#"{APIGroups:[""], Resources:["configmaps"], Verbs:["get" "list"]}"#,
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["list"]}"#,
                r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["b"], Verbs:["get"]}"#,
                r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#,
            ]
        );
        let all = rules(json!([
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["*"]},
        ]));
        assert!(missing(&all, &wanted).is_empty());
        assert!(!missing(&wanted, &all).is_empty());
    }
}
