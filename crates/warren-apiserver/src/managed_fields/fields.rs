//! Sets of fields, as `fieldsV1` writes them.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::element::Element;

/// A set of paths as a tree. This is one node of it: whether the path up to here is in the set, and what follows. No
/// node below is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fields {
    pub owned: bool,
    /// Sorted. There are seldom more than a dozen, and they are mostly read in order: a list costs one allocation.
    below: Vec<(Element, Fields)>,
}

impl Fields {
    /// A set of paths through plain fields.
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

    /// What is below a step, made if there is nothing.
    fn at(&mut self, element: Element) -> &mut Fields {
        // What is read or compared comes in order, so that the end is the usual place.
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

    /// Adds what is below a step, if it is anything.
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

    /// Takes exactly these paths away; what is below them stays.
    pub fn subtract(&mut self, other: &Fields) {
        self.owned &= !other.owned;
        self.for_shared(other, Fields::subtract);
    }

    /// Takes these paths away with everything below them.
    pub fn subtract_trees(&mut self, other: &Fields) {
        match other.owned {
            true => *self = Fields::default(),
            false => self.for_shared(other, Fields::subtract_trees),
        }
    }

    /// Changes what is below the steps that both have.
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

    /// Whether the set as JSON has at most so many levels.
    pub fn is_within(&self, levels: usize) -> bool {
        levels > 0 && self.below.iter().all(|(_, fields)| fields.is_within(levels - 1))
    }
}

/// `fieldsV1`.
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

/// `fieldsV1`, where the node at the top is taken for a path as well: whoever reads a whole set puts that right.
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
        // No step at all leads to here, too.
        fields.owned |= fields.below.is_empty();
        Ok(fields)
    }
}

/// A key of a set.
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
