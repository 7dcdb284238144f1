//! The registry of served resources, looked up by path.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::definition::{Definition, Target};

/// All resources that are served at one moment. It is replaced as a whole when a definition
/// changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Registry {
    /// By group, in the order of discovery, then by plural.
    groups: BTreeMap<Box<str>, BTreeMap<Box<str>, Arc<Definition>>>,
    by_resource: HashMap<Arc<str>, Arc<Definition>>,
}

impl Registry {
    pub fn with_builtins() -> Registry {
        let mut registry = Registry::default();
        for definition in crate::kinds::definitions() {
            registry.insert(definition);
        }
        registry
    }

    pub fn insert(&mut self, definition: Arc<Definition>) {
        // Events have two rows. The core form comes first, and the storage name keeps leading to
        // it.
        self.by_resource
            .entry(Arc::clone(&definition.resource))
            .and_modify(|known| {
                if definition.custom {
                    *known = Arc::clone(&definition);
                }
            })
            .or_insert_with(|| Arc::clone(&definition));
        self.groups
            .entry(definition.group.clone())
            .or_default()
            .insert(definition.plural.clone(), definition);
    }

    pub fn remove(&mut self, resource: &str) {
        let Some(definition) = self.by_resource.remove(resource) else { return };
        if let Some(group) = self.groups.get_mut(&definition.group) {
            group.remove(&definition.plural);
            if group.is_empty() {
                self.groups.remove(&definition.group);
            }
        }
    }

    /// Returns the definition that handles a stored resource.
    pub fn by_resource(&self, resource: &str) -> Option<&Arc<Definition>> {
        self.by_resource.get(resource)
    }

    pub fn target(&self, group: &str, version: &str, plural: &str) -> Option<Target> {
        Target::new(self.groups.get(group)?.get(plural)?, version)
    }

    /// Returns true if a group has kinds of the built-in table.
    pub fn is_builtin(&self, group: &str) -> bool {
        self.groups
            .get(group)
            .is_some_and(|definitions| definitions.values().any(|definition| !definition.custom))
    }

    /// Returns the groups and their resources. The core group has an empty name.
    pub fn groups(&self) -> impl Iterator<Item = (&str, Vec<&Arc<Definition>>)> {
        self.groups.iter().map(|(name, definitions)| (&**name, definitions.values().collect()))
    }

    /// Returns the versions that a group serves, preferred first.
    pub fn versions(&self, group: &str) -> Vec<&str> {
        let definitions = self.groups.get(group).into_iter().flat_map(BTreeMap::values);
        let mut versions: Vec<&str> = definitions
            .flat_map(|definition| definition.versions.iter().map(|version| &*version.name))
            .collect();
        versions.sort_by(|a, b| priority(b).cmp(&priority(a)).then_with(|| a.cmp(b)));
        versions.dedup();
        versions
    }
}

/// Returns the rank of a version in Kubernetes' order: stable, beta, alpha, then other names;
/// higher numbers first.
fn priority(version: &str) -> (u8, u64, u64) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..digits].parse().ok()?;
        Some(match &rest[digits..] {
            "" => (3, major, 0),
            beta if beta.starts_with("beta") => (2, major, beta[4..].parse().ok()?),
            alpha if alpha.starts_with("alpha") => (1, major, alpha[5..].parse().ok()?),
            _ => return None,
        })
    };
    parse().unwrap_or((0, 0, 0))
}

#[cfg(test)]
mod tests {
    use super::priority;

    #[test]
    fn versions_sort_by_stability() {
        let mut versions = ["foo", "v1alpha1", "v10", "v1beta2", "v2", "v1beta1"];
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        assert_eq!(versions, ["v10", "v2", "v1beta2", "v1beta1", "v1alpha1", "foo"]);
    }
}
