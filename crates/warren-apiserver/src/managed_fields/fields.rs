//! Sets of fields, as `fieldsV1` writes them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::element::Element;

/// Nesting beyond which what a client sent as `fieldsV1` is refused.
const DEEPEST: usize = 128;

/// A set of paths as a tree. This is one node of it: whether the path up to here is in the set, and what follows. No
/// node below is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fields {
    pub owned: bool,
    below: BTreeMap<Element, Fields>,
}

impl Fields {
    /// A set of paths through plain fields.
    pub fn from_paths(paths: &[&[&str]]) -> Fields {
        let mut all = Fields::default();
        for path in paths {
            let mut at = &mut all;
            for name in *path {
                at = at.below.entry(Element::field(name)).or_default();
            }
            at.owned = true;
        }
        all
    }

    pub fn is_empty(&self) -> bool {
        !self.owned && self.below.is_empty()
    }

    pub fn get(&self, element: &Element) -> Option<&Fields> {
        self.below.get(element)
    }

    pub fn children(&self) -> impl Iterator<Item = (&Element, &Fields)> {
        self.below.iter()
    }

    /// Adds what is below a step, if it is anything.
    pub fn insert(&mut self, element: Element, fields: Fields) {
        if !fields.is_empty() {
            self.below.insert(element, fields);
        }
    }

    pub fn unite(&mut self, other: &Fields) {
        self.owned |= other.owned;
        for (element, theirs) in &other.below {
            match self.below.get_mut(element) {
                Some(own) => own.unite(theirs),
                None => {
                    self.below.insert(element.clone(), theirs.clone());
                }
            }
        }
    }

    /// Takes exactly these paths away; what is below them stays.
    pub fn subtract(&mut self, other: &Fields) {
        self.owned &= !other.owned;
        if other.below.is_empty() {
            return;
        }
        self.below.retain(|element, own| {
            if let Some(theirs) = other.below.get(element) {
                own.subtract(theirs);
            }
            !own.is_empty()
        });
    }

    /// Takes these paths away with everything below them.
    pub fn subtract_trees(&mut self, other: &Fields) {
        if other.owned {
            *self = Fields::default();
            return;
        }
        if other.below.is_empty() {
            return;
        }
        self.below.retain(|element, own| {
            if let Some(theirs) = other.below.get(element) {
                own.subtract_trees(theirs);
            }
            !own.is_empty()
        });
    }

    pub fn intersection(&self, other: &Fields) -> Fields {
        let mut both = Fields { owned: self.owned && other.owned, below: BTreeMap::new() };
        for (element, own) in &self.below {
            if let Some(theirs) = other.below.get(element) {
                both.insert(element.clone(), own.intersection(theirs));
            }
        }
        both
    }

    /// Every path, parents before children.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect(&mut String::new(), &mut paths);
        paths
    }

    fn collect(&self, path: &mut String, paths: &mut Vec<String>) {
        let step = |element: &Element, path: &mut String| {
            let end = path.len();
            path.push_str(&element.to_string());
            end
        };
        for (element, _) in self.below.iter().filter(|(_, fields)| fields.owned) {
            let end = step(element, path);
            paths.push(path.clone());
            path.truncate(end);
        }
        for (element, fields) in &self.below {
            let end = step(element, path);
            fields.collect(path, paths);
            path.truncate(end);
        }
    }

    /// `fieldsV1`.
    pub fn to_json(&self) -> Value {
        let mut object = Map::with_capacity(self.below.len());
        if self.owned && !self.below.is_empty() {
            object.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (element, fields) in &self.below {
            object.insert(element.to_key(), fields.to_json());
        }
        Value::Object(object)
    }

    /// Reads `fieldsV1`; nothing if it is not that.
    pub fn from_json(value: &Value) -> Option<Fields> {
        let mut fields = Fields::read(value, 0)?;
        fields.owned = false;
        Some(fields)
    }

    fn read(value: &Value, depth: usize) -> Option<Fields> {
        let object = value.as_object().filter(|_| depth < DEEPEST)?;
        let mut fields = Fields { owned: object.is_empty(), below: BTreeMap::new() };
        for (key, child) in object {
            if key == "." {
                fields.owned = true;
            } else {
                fields.insert(Element::parse(key)?, Fields::read(child, depth + 1)?);
            }
        }
        Some(fields)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Fields;

    fn fields(value: serde_json::Value) -> Fields {
        Fields::from_json(&value).unwrap()
    }

    #[test]
    fn reads_what_it_writes() {
        let written = json!({
            "f:data": {".": {}, "f:k": {}},
            "f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}},
            "f:metadata": {"f:finalizers": {"v:\"a\"": {}, "i:0": {}}},
        });
        assert_eq!(fields(written.clone()).to_json(), written);
        assert!(Fields::from_json(&json!({"x:y": {}})).is_none());
        assert!(Fields::from_json(&json!({"f:a": 1})).is_none());
    }

    #[test]
    fn set_operations() {
        let all = fields(json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}));
        let mut rest = all.clone();
        rest.subtract(&fields(json!({"f:a": {}})));
        assert_eq!(rest.to_json(), json!({"f:a": {"f:b": {}}, "f:c": {}}));
        let mut rest = all.clone();
        rest.subtract_trees(&fields(json!({"f:a": {}})));
        assert_eq!(rest.to_json(), json!({"f:c": {}}));
        assert_eq!(
            all.intersection(&fields(json!({"f:a": {"f:b": {}}}))).to_json(),
            json!({"f:a": {"f:b": {}}})
        );
        let mut united = fields(json!({"f:z": {}}));
        united.unite(&all);
        assert_eq!(united.paths(), [".a", ".c", ".z", ".a.b"]);
    }
}
