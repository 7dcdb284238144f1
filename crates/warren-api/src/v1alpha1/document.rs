//! A manifest during its conversion: fields are moved, and losses are noted.

use serde_json::{Map, Value};

use super::{ConversionError, Note};

/// A manifest, the notes about it, and a flag for changes.
pub(super) struct Document {
    pub(super) object: Value,
    pub(super) notes: Vec<Note>,
    pub(super) changed: bool,
}

impl Document {
    /// Creates a document. `spec` must be an object; missing metadata is created.
    pub(super) fn new(object: Value) -> Result<Self, ConversionError> {
        match object.get("spec") {
            Some(Value::Object(_)) => {}
            Some(_) => return Err(field_error("spec", "not an object")),
            None => return Err(ConversionError::NotAManifest { path: "spec" }),
        }
        if object.get("metadata").is_some_and(|metadata| !metadata.is_object()) {
            return Err(field_error("metadata", "not an object"));
        }
        Ok(Self { object, notes: Vec::new(), changed: false })
    }

    pub(super) fn set_api_version(&mut self, api_version: &str) {
        if self.object["apiVersion"] != api_version {
            self.object["apiVersion"] = Value::from(api_version);
            self.changed = true;
        }
    }

    /// Returns the object at a path of plain names such as `spec.lifecycle`; creates it if missing.
    pub(super) fn object_at(&mut self, path: &str) -> Result<&mut Map<String, Value>, ConversionError> {
        let mut place = &mut self.object;
        for step in path.split('.') {
            place = place
                .as_object_mut()
                .ok_or_else(|| field_error(path, "not an object"))?
                .entry(step)
                .or_insert_with(|| Value::Object(Map::new()));
        }
        place.as_object_mut().ok_or_else(|| field_error(path, "not an object"))
    }

    /// Returns the value at a path of plain names.
    pub(super) fn get(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.object, |place, step| place.get(step)).filter(|value| !value.is_null())
    }

    /// Returns the string at a path of plain names. Fails if the value is something else.
    pub(super) fn text(&self, path: &str) -> Result<Option<&str>, ConversionError> {
        match self.get(path) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(field_error(path, "not a string")),
        }
    }

    /// Removes and returns the value at a path of plain names. A null is removed but not returned.
    pub(super) fn take(&mut self, path: &str) -> Option<Value> {
        let (parent, name) = path.rsplit_once('.')?;
        let parent = parent.split('.').try_fold(&mut self.object, |place, step| place.get_mut(step))?;
        // Keep the order of the remaining fields.
        let value = parent.as_object_mut()?.shift_remove(name)?;
        self.changed = true;
        (!value.is_null()).then_some(value)
    }

    /// Sets the value at a path of plain names. A new field is appended.
    pub(super) fn put(&mut self, path: &str, value: impl Into<Value>) -> Result<(), ConversionError> {
        let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
        self.object_at(parent)?.insert(name.to_owned(), value.into());
        self.changed = true;
        Ok(())
    }

    /// Moves a value to its new path. If there is another value, that one stays and a note is
    /// added.
    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<(), ConversionError> {
        let Some(value) = self.take(from) else { return Ok(()) };
        if self.get(to).is_some_and(|present| *present != value) {
            self.note(from, format!("`{to}` is set as well and wins"), "");
            return Ok(());
        }
        self.put(to, value)
    }

    /// Removes a value and notes the loss.
    pub(super) fn drop(&mut self, path: &str, reason: &str, advice: &str) {
        if self.take(path).is_some() {
            self.note(path, reason, advice);
        }
    }

    pub(super) fn note(&mut self, path: &str, reason: impl Into<String>, advice: impl Into<String>) {
        self.notes.push(Note { path: path.to_owned(), reason: reason.into(), advice: advice.into() });
    }

    /// Removes and returns the template's name of a claim or pool, in any spelling in use: `{ name:
    /// … }` or the bare name.
    pub(super) fn take_template_name(&mut self) -> Result<Option<String>, ConversionError> {
        let mut found: Option<String> = None;
        for field in ["sandboxTemplateRef", "templateRef", "sandboxTemplateName", "templateName"] {
            let path = format!("spec.{field}");
            let name = match self.get(&path) {
                None => continue,
                Some(Value::String(name)) => name.clone(),
                Some(Value::Object(reference)) => match reference.get("name") {
                    Some(Value::String(name)) => name.clone(),
                    _ => return Err(field_error(&format!("{path}.name"), "not a string")),
                },
                Some(_) => return Err(field_error(&path, "neither a name nor a reference")),
            };
            match &found {
                Some(first) if *first != name => {
                    self.note(&path, format!("`{first}` is named as well and wins"), "")
                }
                _ => found = Some(name),
            }
            self.take(&path);
        }
        Ok(found)
    }

    /// Removes and returns a non-negative 32-bit number.
    pub(super) fn take_count(&mut self, path: &str) -> Result<Option<i32>, ConversionError> {
        match self.take(path) {
            None => Ok(None),
            Some(value) => value
                .as_i64()
                .and_then(|count| i32::try_from(count).ok())
                .filter(|count| *count >= 0)
                .map(Some)
                .ok_or_else(|| field_error(path, "not a count")),
        }
    }
}

pub(super) fn field_error(path: &str, problem: &str) -> ConversionError {
    ConversionError::Field { path: path.to_owned(), problem: problem.to_owned() }
}
