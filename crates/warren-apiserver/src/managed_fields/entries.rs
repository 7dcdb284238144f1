//! The entries of `metadata.managedFields`.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

use super::fields::Fields;

/// The maximum number of managers with the operation `Update`, as in kube-apiserver. The oldest
/// beyond that are merged.
const MOST_UPDATERS: usize = 10;
/// The manager name of the merged entries.
const OLD_UPDATERS: &str = "ancient-changes";

/// The kind of write that made a manager the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

/// One entry: a manager and its fields.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub manager: Box<str>,
    pub operation: Operation,
    pub api_version: Box<str>,
    pub subresource: Box<str>,
    /// RFC 3339 in UTC with whole seconds, so that the text sorts like the time.
    pub time: Option<Box<str>>,
    pub fields: Fields,
}

impl Entry {
    /// Returns true if both entries belong to the same manager. Versions matter for updates only.
    pub fn is_same_manager(&self, other: &Entry) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// Formats the manager for a conflict message.
    pub fn title(&self) -> String {
        let mut title = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            title.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == Operation::Update {
            title.push_str(&format!(" using {}", self.api_version));
        }
        title
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entry = serializer.serialize_map(None)?;
        if !self.manager.is_empty() {
            entry.serialize_entry("manager", &self.manager)?;
        }
        let operation = match self.operation {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        };
        entry.serialize_entry("operation", operation)?;
        entry.serialize_entry("apiVersion", &self.api_version)?;
        if let Some(time) = &self.time {
            entry.serialize_entry("time", time)?;
        }
        entry.serialize_entry("fieldsType", "FieldsV1")?;
        entry.serialize_entry("fieldsV1", &self.fields)?;
        if !self.subresource.is_empty() {
            entry.serialize_entry("subresource", &self.subresource)?;
        }
        entry.end()
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entry, D::Error> {
        deserializer.deserialize_map(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a manager with its fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Entry, A::Error> {
        let (mut manager, mut operation, mut api_version) = (None, None, None);
        let (mut subresource, mut time, mut fields_type) = (None, None, None);
        let mut fields = None;
        while let Some(name) = access.next_key()? {
            let text = match name {
                Member::Manager => &mut manager,
                Member::Operation => &mut operation,
                Member::ApiVersion => &mut api_version,
                Member::Subresource => &mut subresource,
                Member::Time => &mut time,
                Member::FieldsType => &mut fields_type,
                Member::FieldsV1 => {
                    fields = access.next_value::<Option<Fields>>()?;
                    continue;
                }
                Member::Other => {
                    access.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *text = match access.next_value()? {
                Text::Is(text) => Some(text),
                Text::Not(_) => None,
            };
        }
        let operation = match operation.as_deref() {
            Some("Apply") => Operation::Apply,
            Some("Update") => Operation::Update,
            _ => return Err(A::Error::custom("no such operation")),
        };
        let api_version = api_version.filter(|version| !version.is_empty());
        let api_version = api_version.ok_or_else(|| A::Error::missing_field("apiVersion"))?;
        if fields_type.as_deref() != Some("FieldsV1") {
            return Err(A::Error::custom("no such type of fields"));
        }
        let mut fields = fields.unwrap_or_default();
        // The path to the object itself is never in a set.
        fields.owned = false;
        let (manager, subresource) = (manager.unwrap_or_default(), subresource.unwrap_or_default());
        Ok(Entry { manager, operation, api_version, subresource, time, fields })
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Member {
    Manager,
    Operation,
    ApiVersion,
    Subresource,
    Time,
    FieldsType,
    FieldsV1,
    #[serde(other)]
    Other,
}

/// A value that should be a string. Clients may send anything for a custom resource; other types
/// count as absent.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Is(Box<str>),
    Not(IgnoredAny),
}

/// Parses a `managedFields` list from a client. Returns `None` if any entry is unreadable.
pub(super) fn read(list: Option<&Value>) -> Option<Vec<Entry>> {
    let entries = list.and_then(Value::as_array).into_iter().flatten();
    Some(distinct(entries.map(Entry::deserialize).collect::<Result<_, _>>().ok()?))
}

/// Parses a stored list. The text is empty if there are no managers. Returns `None` if any entry is
/// unreadable.
pub(super) fn parse(list: &[u8]) -> Option<Vec<Entry>> {
    if list.is_empty() {
        return Some(Vec::new());
    }
    Some(distinct(serde_json::from_slice(list).ok()?))
}

/// Removes duplicates: the last entry of each manager counts.
fn distinct(read: Vec<Entry>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::with_capacity(read.len() + 1);
    for entry in read {
        match entries.iter_mut().find(|known| known.is_same_manager(&entry)) {
            Some(known) => *known = entry,
            None => entries.push(entry),
        }
    }
    entries
}

/// Returns true if every entry of a list uses a version that is served. Does not parse the fields.
pub(super) fn speak_of(list: &[u8], is_served: impl Fn(&str) -> bool) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Speaker<'a> {
        #[serde(borrow)]
        api_version: Cow<'a, str>,
    }
    let speakers: Result<Vec<Speaker<'_>>, _> = serde_json::from_slice(list);
    speakers.is_ok_and(|speakers| speakers.iter().all(|speaker| is_served(&speaker.api_version)))
}

/// Returns true if the list is a client's request to clear all managers.
pub(super) fn is_reset(list: Option<&Value>) -> bool {
    match list.and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// Formats a list for the store; empty if there are no managers.
pub(super) fn write(mut entries: Vec<Entry>) -> Bytes {
    if entries.is_empty() {
        return Bytes::new();
    }
    entries.sort_by(|left, right| {
        (left.operation, &left.time, &left.manager, &left.api_version, &left.subresource).cmp(&(
            right.operation,
            &right.time,
            &right.manager,
            &right.api_version,
            &right.subresource,
        ))
    });
    serde_json::to_vec(&entries).expect("sets of fields are objects, and memory takes every byte").into()
}

/// Merges the oldest updaters if there are too many.
pub(super) fn cap(entries: &mut Vec<Entry>) {
    let is_updater = |entry: &&Entry| entry.operation == Operation::Update;
    let mut excess = entries.iter().filter(is_updater).count().saturating_sub(MOST_UPDATERS);
    if excess == 0 {
        return;
    }
    let (mut updaters, mut kept): (Vec<Entry>, Vec<Entry>) =
        entries.drain(..).partition(|entry| is_updater(&entry));
    updaters.sort_by(|left, right| (&left.time, &left.manager).cmp(&(&right.time, &right.manager)));
    let mut buckets: Vec<Entry> = Vec::new();
    for entry in updaters {
        let bucket = buckets.iter_mut().find(|bucket| bucket.api_version == entry.api_version);
        match bucket {
            Some(bucket) if excess > 0 => {
                bucket.fields.unite(&entry.fields);
                bucket.manager = OLD_UPDATERS.into();
                bucket.subresource = "".into();
                bucket.time = entry.time;
                excess -= 1;
            }
            None if excess > 0 => buckets.push(entry),
            _ => kept.push(entry),
        }
    }
    kept.extend(buckets);
    *entries = kept;
}

/// Returns true if two lists differ in their times only.
pub(crate) fn same_but_for_time(left: &[u8], right: &[u8]) -> bool {
    let timeless = |list: &[u8]| {
        let mut entries = parse(list)?;
        entries.iter_mut().for_each(|entry| entry.time = None);
        Some(entries)
    };
    left == right || timeless(left).is_some_and(|left| timeless(right) == Some(left))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{cap, is_reset, parse, read, same_but_for_time, speak_of, write};

    #[test]
    fn a_list_reads_the_same_from_a_tree_and_from_its_text() {
        let list = json!([
            {"manager": "b\"\\", "operation": "Update", "apiVersion": "a/v1", "time": "2026-01-01T00:00:00Z",
             "fieldsType": "FieldsV1", "fieldsV1": {"f:x\"": {}, "k:{\"a\":1}": {".": {}, "f:b": {}}}},
            {"operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": null},
            {"manager": 5, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "time": {"a": []},
             "subresource": "status", "other": [{}]},
            {"manager": "b\"\\", "operation": "Update", "apiVersion": "a/v1", "fieldsType": "FieldsV1",
             "fieldsV1": {"f:y": {}}},
        ]);
        let entries = read(Some(&list)).unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!(parse(list.to_string().as_bytes()), Some(entries.clone()));
        let written = write(entries);
        assert_eq!(parse(&written).map(write), Some(written));
        assert_eq!(parse(b""), Some(Vec::new()));
        for unreadable in [json!([1]), json!([["m", "Apply", "v1"]]), json!([{"operation": "Apply"}])] {
            assert_eq!(read(Some(&unreadable)), None);
            assert_eq!(parse(unreadable.to_string().as_bytes()), None);
        }
    }

    #[test]
    fn lists_are_compared_without_their_times() {
        let list = |time: &str, field: &str| {
            let entry = json!({"operation": "Update", "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1", "fieldsV1": {field: {}}});
            json!([entry]).to_string().into_bytes()
        };
        assert!(same_but_for_time(&list("1", "f:a"), &list("2", "f:a")));
        assert!(!same_but_for_time(&list("1", "f:a"), &list("1", "f:b")));
        assert!(!same_but_for_time(&list("1", "f:a"), b""));
        assert!(speak_of(&list("1", "f:a"), |version| version == "v1"));
        assert!(!speak_of(&list("1", "f:a"), |version| version == "v2"));
    }

    #[test]
    fn the_oldest_of_many_updaters_become_one() {
        let entry = |number: u32| {
            json!({
                "manager": format!("m{number:02}"), "operation": "Update", "apiVersion": "v1",
                "time": format!("2026-01-01T00:00:{number:02}Z"), "fieldsType": "FieldsV1",
                "fieldsV1": {format!("f:a{number:02}"): {}},
            })
        };
        let list = (0..12).map(entry).collect();
        let mut entries = read(Some(&list)).unwrap();
        cap(&mut entries);
        let list: Value = serde_json::from_slice(&write(entries)).unwrap();
        let names: Vec<_> =
            list.as_array().unwrap().iter().map(|entry| entry["manager"].as_str().unwrap()).collect();
        assert_eq!(names, ["ancient-changes", "m03", "m04", "m05", "m06", "m07", "m08", "m09", "m10", "m11"]);
        assert_eq!(list[0]["fieldsV1"], json!({"f:a00": {}, "f:a01": {}, "f:a02": {}}));
        assert_eq!(list[0]["time"], "2026-01-01T00:00:02Z");
    }

    #[test]
    fn unreadable_lists_and_resets() {
        assert!(
            read(Some(&json!([{"operation": "Replace", "apiVersion": "v1", "fieldsType": "FieldsV1"}])))
                .is_none()
        );
        assert!(read(Some(&json!([{"operation": "Apply", "apiVersion": "v1"}]))).is_none());
        assert!(read(None).unwrap().is_empty());
        assert!(is_reset(Some(&json!([]))) && is_reset(Some(&json!([{}]))));
        assert!(!is_reset(None) && !is_reset(Some(&json!([{"manager": "a"}]))));
    }
}
