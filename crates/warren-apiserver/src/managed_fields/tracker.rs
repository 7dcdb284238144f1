//! Ownership by update: every write that is not an apply.

use std::sync::LazyLock;

use serde_json::Value;

use super::compare::{Difference, compare};
use super::entries::{self, Entry, Operation};
use super::fields::Fields;
use super::shape::Shape;
use super::zero::zero;
use crate::call::Call;
use crate::definition::Target;
use crate::metadata::metadata_mut;
use crate::status::{ApiError, FieldError, Problem, Subject};

/// Longest name of a manager.
const LONGEST_NAME: usize = 128;
/// Who owns what was there before an object's first apply.
pub(super) const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Fields that nobody owns: they name the object, or are the server's own.
const NEVER_OWNED: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

/// One write, as ownership sees it: who, through which endpoint, when.
pub(crate) struct Tracker<'a> {
    pub(super) target: &'a Target,
    pub(super) manager: Box<str>,
    pub(super) subresource: &'a str,
    pub(super) time: Box<str>,
}

impl<'a> Tracker<'a> {
    pub fn new(call: &'a Call<'_>) -> Tracker<'a> {
        let manager = match call.query.text("fieldManager") {
            Some(name) => name.to_owned(),
            None => name_from_user_agent(call.headers),
        };
        Tracker {
            target: &call.target,
            manager: if manager.is_empty() { "unknown".into() } else { manager.into() },
            subresource: call.subresource.unwrap_or_default(),
            time: warren_store::deletion::timestamp(call.now).into(),
        }
    }

    /// Records what a write changed. `sent` is what the client sent as `managedFields`, `old` the object before, or
    /// nothing for a new one. Sets `managedFields` of `new`.
    pub fn update(&self, old: Option<&Value>, sent: Option<&Value>, new: &mut Value) -> Result<(), ApiError> {
        let live =
            || old.and_then(|old| entries::read(old["metadata"].get("managedFields"))).unwrap_or_default();
        let owners = if !self.subresource.is_empty() {
            live()
        } else if entries::is_reset(sent) {
            Vec::new()
        } else {
            entries::read(sent).filter(|sent| !sent.is_empty()).unwrap_or_else(live)
        };
        metadata_mut(new).shift_remove("managedFields");
        // An object that nobody applied or created with tracking stays untracked until its first apply.
        if owners.is_empty() && old.is_some() {
            return Ok(());
        }
        let before;
        let old = match old {
            Some(old) => old,
            None => {
                before = zero(self.target);
                &before
            }
        };
        self.target.schema()?;
        // An object whose list entries cannot be told apart is stored without owners rather than refused.
        let owners = self.updated(owners, old, new, &self.manager).unwrap_or_default();
        set(new, owners);
        Ok(())
    }

    /// The owners after `manager` has turned `old` into `new`. Fails if the two cannot be compared.
    pub(super) fn updated(
        &self,
        mut owners: Vec<Entry>,
        old: &Value,
        new: &Value,
        manager: &str,
    ) -> Result<Vec<Entry>, String> {
        let mut differences = Differences { tracker: self, old, new, known: Vec::new() };
        let version = self.target.version();
        if differences.at(&version.api_version)?.is_none_or(Difference::is_empty) {
            return Ok(owners);
        }
        differences.take_from(&mut owners)?;
        let mut changed = differences.into_changes(&version.api_version);
        changed.subtract(never_owned());
        if !changed.is_empty() {
            let entry = self.entry(Operation::Update, manager, changed);
            match owners.iter_mut().find(|owner| owner.is_same_manager(&entry)) {
                Some(owner) => {
                    owner.fields.unite(&entry.fields);
                    owner.time = entry.time;
                }
                None => owners.push(entry),
            }
        }
        owners.retain(|owner| !owner.fields.is_empty());
        entries::cap(&mut owners);
        Ok(owners)
    }

    pub(super) fn entry(&self, operation: Operation, manager: &str, fields: Fields) -> Entry {
        Entry {
            manager: manager.into(),
            operation,
            api_version: self.target.version().api_version.clone(),
            subresource: self.subresource.into(),
            // The real server converts the managers of a scale to those of its object, and loses the time.
            time: (self.subresource != "scale").then(|| self.time.clone()),
            fields,
        }
    }

    /// What this endpoint puts back to what it was, whatever a client says; saying it makes nobody its owner.
    pub(super) fn ignored(&self) -> Fields {
        let definition = &self.target.definition;
        let whole_metadata = definition.custom || &*definition.resource == crate::crd::RESOURCE;
        match self.subresource {
            "status" if whole_metadata => Fields::from_paths(&[&["metadata"], &["spec"]]),
            "status" if &*definition.resource == "pods" => Fields::from_paths(&[
                &["spec"],
                &["metadata", "deletionTimestamp"],
                &["metadata", "ownerReferences"],
            ]),
            "status" => Fields::from_paths(&[&["spec"]]),
            "" if self.target.version().status => Fields::from_paths(&[&["status"]]),
            _ => Fields::default(),
        }
    }
}

/// What differs between two objects, as each version of their kind sees it.
pub(super) struct Differences<'a> {
    pub tracker: &'a Tracker<'a>,
    pub old: &'a Value,
    pub new: &'a Value,
    pub known: Vec<(Box<str>, Difference)>,
}

impl Differences<'_> {
    /// The difference in a version, or nothing for a version that is not served.
    pub fn at(&mut self, api_version: &str) -> Result<Option<&Difference>, String> {
        let known = self.known.iter().position(|(version, _)| **version == *api_version);
        let index = match known {
            Some(index) => index,
            None => {
                let versions = &self.tracker.target.definition.versions;
                let version = versions.iter().find(|version| *version.api_version == *api_version);
                let Some(version) = version else { return Ok(None) };
                let schema = version.schema.get().map_err(|error| error.message)?;
                let mut difference = compare(self.old, self.new, Shape(Some(schema)))?;
                difference.ignore(&self.tracker.ignored());
                self.known.push((api_version.into(), difference));
                self.known.len() - 1
            }
        };
        Ok(Some(&self.known[index].1))
    }

    /// What the new object says that the old one did not, in a version that has been compared.
    fn into_changes(self, api_version: &str) -> Fields {
        let compared = self.known.into_iter().find(|(version, _)| **version == *api_version);
        let Difference { added: mut changed, modified, .. } =
            compared.map(|(_, difference)| difference).unwrap_or_default();
        changed.unite(&modified);
        changed
    }

    /// Takes what changed from those who owned it. Managers of a version that is no longer served own nothing.
    pub fn take_from(&mut self, owners: &mut [Entry]) -> Result<(), String> {
        let custom = self.tracker.target.definition.custom;
        for owner in owners.iter_mut() {
            match self.at(&owner.api_version)? {
                Some(difference) => {
                    owner.fields.subtract(&difference.added);
                    owner.fields.subtract(&difference.modified);
                    owner.fields.subtract(&difference.removed);
                }
                None if custom => owner.fields = Fields::default(),
                // A built-in kind that is also served by another group.
                None => {}
            }
        }
        Ok(())
    }
}

pub(super) fn never_owned() -> &'static Fields {
    static FIELDS: LazyLock<Fields> = LazyLock::new(|| Fields::from_paths(NEVER_OWNED));
    &FIELDS
}

/// Writes the owners into an object.
pub(super) fn set(object: &mut Value, owners: Vec<Entry>) {
    let metadata = metadata_mut(object);
    match entries::write(owners) {
        Some(list) => {
            metadata.insert("managedFields".to_owned(), list);
        }
        None => {
            metadata.shift_remove("managedFields");
        }
    }
}

/// Whether a write would change nothing but the times of its managers: such a write is not made.
pub(crate) fn differs_in_time_alone(old: &Value, new: &Value) -> bool {
    let (Some(old_fields), Some(new_fields)) = (old.as_object(), new.as_object()) else { return false };
    let (old_metadata, new_metadata) = (&old["metadata"], &new["metadata"]);
    let rest = |metadata: &Value| -> Vec<(String, Value)> {
        let fields = metadata.as_object().into_iter().flatten();
        let mut rest: Vec<_> = fields
            .filter(|(name, _)| *name != "managedFields")
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        rest.sort_by(|(left, _), (right, _)| left.cmp(right));
        rest
    };
    old_fields.len() == new_fields.len()
        && old_fields.iter().all(|(name, value)| name == "metadata" || new_fields.get(name) == Some(value))
        && entries::same_but_for_time(old_metadata.get("managedFields"), new_metadata.get("managedFields"))
        && rest(old_metadata) == rest(new_metadata)
}

/// Checks the parameters that name a manager. `kind` is that of the request's options.
pub(crate) fn check_options(call: &Call<'_>, kind: &'static str, is_apply: bool) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    if call.query.text("force").is_some() && kind == "PatchOptions" && !is_apply {
        errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
    }
    match call.query.text("fieldManager") {
        None if is_apply => errors.push(FieldError::required("fieldManager", "is required for apply patch")),
        Some(name) if name.len() > LONGEST_NAME => {
            let problem = Problem::TooLong(LONGEST_NAME);
            errors.push(FieldError { field: "fieldManager".to_owned(), problem });
        }
        Some(name) if name.chars().any(char::is_control) => {
            let detail = "should only contain printable characters";
            errors.push(FieldError::invalid("fieldManager", name, detail));
        }
        _ => {}
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(Subject { group: "meta.k8s.io", kind, name: "" }, errors))
}

/// What comes before the first slash, as far as it can be printed.
pub(super) fn name_from_user_agent(headers: &http::HeaderMap) -> String {
    let agent = headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let prefix = agent.unwrap_or_default().split('/').next().unwrap_or_default();
    prefix.chars().filter(|character| !character.is_control()).take(LONGEST_NAME).collect()
}
