//! Sets of fields, in the notation of `fieldsV1`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::element::Element;

/// A set of paths as a tree. Each node says if the path up to it is in the set, and holds the nodes
/// below. No node below is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fields {
    pub owned: bool,
    /// Sorted. Lists are short (seldom more than a dozen) and mostly read in order, and a `Vec`
    /// costs one allocation.
    below: Vec<(Element, Fields)>,
}

impl Fields {
    /// Builds a set of paths through plain fields.
    pub fn from_paths(paths: &[&[&str]]) -> Fields {
        let mut all = Fields::default();
        for path in paths {
            let mut at = &mut all;
            for name in *path {
                at = at.at(Element::field(name));
            }
            at.owned = true;
        }
        all
    }

    pub fn is_empty(&self) -> bool {
        !self.owned && self.below.is_empty()
    }

    fn position(&self, element: &Element) -> Result<usize, usize> {
        self.below.binary_search_by(|(own, _)| own.cmp(element))
    }

    /// Returns the node below a step; creates it if absent.
    fn at(&mut self, element: Element) -> &mut Fields {
        // Steps mostly arrive in order, so try the end first.
        let is_behind = self.below.last().is_none_or(|(last, _)| *last < element);
        let position = if is_behind { Err(self.below.len()) } else { self.position(&element) };
        let index = position.unwrap_or_else(|index| {
            self.below.insert(index, (element, Fields::default()));
            index
        });
        &mut self.below[index].1
    }

    pub fn get(&self, element: &Element) -> Option<&Fields> {
        self.position(element).ok().map(|index| &self.below[index].1)
    }

    pub fn children(&self) -> impl Iterator<Item = (&Element, &Fields)> {
        self.below.iter().map(|(element, fields)| (element, fields))
    }

    /// Sets the node below a step, unless `fields` is empty.
    pub fn insert(&mut self, element: Element, fields: Fields) {
        if !fields.is_empty() {
            *self.at(element) = fields;
        }
    }

    pub fn unite(&mut self, other: &Fields) {
        self.owned |= other.owned;
        for (element, theirs) in &other.below {
            match self.position(element) {
                Ok(index) => self.below[index].1.unite(theirs),
                Err(index) => self.below.insert(index, (element.clone(), theirs.clone())),
            }
        }
    }

    /// Removes exactly these paths. Paths below them stay.
    pub fn subtract(&mut self, other: &Fields) {
        self.owned &= !other.owned;
        self.for_shared(other, Fields::subtract);
    }

    /// Removes these paths and everything below them.
    pub fn subtract_trees(&mut self, other: &Fields) {
        match other.owned {
            true => *self = Fields::default(),
            false => self.for_shared(other, Fields::subtract_trees),
        }
    }

    /// Applies `change` to each pair of nodes below a common step.
    fn for_shared(&mut self, other: &Fields, change: fn(&mut Fields, &Fields)) {
        for (element, theirs) in &other.below {
            if let Ok(index) = self.position(element) {
                change(&mut self.below[index].1, theirs);
                if self.below[index].1.is_empty() {
                    self.below.remove(index);
                }
            }
        }
    }

    pub fn intersection(&self, other: &Fields) -> Fields {
        let mut both = Fields { owned: self.owned && other.owned, below: Vec::new() };
        for (element, own) in &self.below {
            if let Some(theirs) = other.get(element) {
                both.insert(element.clone(), own.intersection(theirs));
            }
        }
        both
    }

    /// Returns all paths, parents before children.
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

    /// Returns true if the set as JSON has at most this many levels.
    pub fn is_within(&self, levels: usize) -> bool {
        levels > 0 && self.below.iter().all(|(_, fields)| fields.is_within(levels - 1))
    }
}

/// Writes `fieldsV1`.
impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        if self.owned && !self.below.is_empty() {
            object.serialize_entry(".", &Fields::default())?;
        }
        for (element, fields) in &self.below {
            object.serialize_entry(element, fields)?;
        }
        object.end()
    }
}

/// Reads `fieldsV1`. The root node may come out as a path itself; readers of a whole set clear
/// that.
impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a set of fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        while let Some(step) = access.next_key()? {
            match step {
                Step::Here => {
                    access.next_value::<IgnoredAny>()?;
                    fields.owned = true;
                }
                Step::Into(element) => fields.insert(element, access.next_value()?),
            }
        }
        // An empty object is a path as well.
        fields.owned |= fields.below.is_empty();
        Ok(fields)
    }
}

/// A key in `fieldsV1`.
enum Step {
    Here,
    Into(Element),
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Step, D::Error> {
        deserializer.deserialize_str(StepVisitor)
    }
}

struct StepVisitor;

impl Visitor<'_> for StepVisitor {
    type Value = Step;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a step to a field")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Step, E> {
        match text {
            "." => Ok(Step::Here),
            text => Element::parse(text).map(Step::Into).ok_or_else(|| E::custom("no such step")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Fields;

    fn fields(value: Value) -> Fields {
        let mut fields: Fields = serde_json::from_value(value).unwrap();
        fields.owned = false;
        fields
    }

    fn to_json(fields: &Fields) -> Value {
        serde_json::to_value(fields).unwrap()
    }

    #[test]
    fn reads_what_it_writes() {
        let written = json!({
            "f:data": {".": {}, "f:k": {}},
            "f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}},
            "f:metadata": {"f:finalizers": {"v:\"a\"": {}, "i:0": {}}},
        });
        assert_eq!(to_json(&fields(written.clone())), written);
        let text = written.to_string();
        let mut read: Fields = serde_json::from_str(&text).unwrap();
        read.owned = false;
        assert_eq!(read, fields(written));
        assert!(serde_json::from_value::<Fields>(json!({"x:y": {}})).is_err());
        assert!(serde_json::from_value::<Fields>(json!({"f:a": 1})).is_err());
    }

    #[test]
    fn levels_are_those_of_the_json() {
        for (value, levels) in
            [(json!({}), 1), (json!({"f:a": {}}), 2), (json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}), 3)]
        {
            let fields = fields(value.clone());
            assert!(fields.is_within(levels) && !fields.is_within(levels - 1), "{value}");
            assert!(crate::limits::depth_within(&value, levels));
            assert!(!crate::limits::depth_within(&value, levels - 1));
        }
    }

    #[test]
    fn set_operations() {
        let all = fields(json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}));
        let mut rest = all.clone();
        rest.subtract(&fields(json!({"f:a": {}})));
        assert_eq!(to_json(&rest), json!({"f:a": {"f:b": {}}, "f:c": {}}));
        let mut rest = all.clone();
        rest.subtract_trees(&fields(json!({"f:a": {}})));
        assert_eq!(to_json(&rest), json!({"f:c": {}}));
        assert_eq!(
            to_json(&all.intersection(&fields(json!({"f:a": {"f:b": {}}})))),
            json!({"f:a": {"f:b": {}}})
        );
        let mut united = fields(json!({"f:z": {}}));
        united.unite(&all);
        assert_eq!(united.paths(), [".a", ".c", ".z", ".a.b"]);
    }
}
