//! `metadata.managedFields`: who owns what.

use serde_json::{Map, Value};

use super::fields::Fields;

/// How many managers with the operation `Update` are kept apart; the oldest beyond that are put together. The real
/// server's number.
const MOST_UPDATERS: usize = 10;
/// What the oldest are put together under.
const OLD_UPDATERS: &str = "ancient-changes";

/// How a manager came to own its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

/// One entry.
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
    /// Whether two entries speak for the same manager. An applier is the same in every version.
    pub fn is_same_manager(&self, other: &Entry) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// As conflicts name it.
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

    fn read(entry: &Value) -> Option<Entry> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if text("apiVersion").is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        Some(Entry {
            manager: text("manager").into(),
            operation,
            api_version: text("apiVersion").into(),
            subresource: text("subresource").into(),
            time: entry.get("time").and_then(Value::as_str).map(Into::into),
            fields: match entry.get("fieldsV1") {
                None | Some(Value::Null) => Fields::default(),
                Some(fields) => Fields::from_json(fields)?,
            },
        })
    }

    fn write(&self) -> Value {
        let mut entry = Map::with_capacity(7);
        let mut set = |name: &str, value: Value| entry.insert(name.to_owned(), value);
        if !self.manager.is_empty() {
            set("manager", (*self.manager).into());
        }
        let operation = match self.operation {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        };
        set("operation", operation.into());
        set("apiVersion", (*self.api_version).into());
        if let Some(time) = &self.time {
            set("time", (**time).into());
        }
        set("fieldsType", "FieldsV1".into());
        set("fieldsV1", self.fields.to_json());
        if !self.subresource.is_empty() {
            set("subresource", (*self.subresource).into());
        }
        Value::Object(entry)
    }
}

/// Reads a `managedFields` list; nothing if any entry is unreadable.
pub(super) fn read(list: Option<&Value>) -> Option<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    for entry in list.and_then(Value::as_array).into_iter().flatten() {
        let entry = Entry::read(entry)?;
        match entries.iter_mut().find(|known| known.is_same_manager(&entry)) {
            Some(known) => *known = entry,
            None => entries.push(entry),
        }
    }
    Some(entries)
}

/// Whether a client asks to forget all managers.
pub(super) fn is_reset(list: Option<&Value>) -> bool {
    match list.and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// The list as it is stored, or nothing for nobody.
pub(super) fn write(mut entries: Vec<Entry>) -> Option<Value> {
    if entries.is_empty() {
        return None;
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
    Some(entries.iter().map(Entry::write).collect())
}

/// Puts the oldest updaters together while there are too many.
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

/// Whether two lists differ in nothing but when.
pub(super) fn same_but_for_time(left: Option<&Value>, right: Option<&Value>) -> bool {
    let entries = |list: Option<&Value>| -> Vec<Map<String, Value>> {
        let entries = list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
        entries
            .map(|entry| {
                let timeless = entry.iter().filter(|(name, _)| *name != "time");
                timeless.map(|(name, value)| (name.clone(), value.clone())).collect()
            })
            .collect()
    };
    entries(left) == entries(right)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{cap, is_reset, read, write};

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
        let list = write(entries).unwrap();
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
