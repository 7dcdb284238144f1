//! Ownership after writes other than an apply.

use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::Value;
use warren_store::Body;

use super::compare::{Difference, compare};
use super::entries::{self, Entry, Operation};
use super::fields::Fields;
use super::shape::Shape;
use super::zero::zero;
use crate::call::Call;
use crate::definition::Target;
use crate::limits::{DEEPEST_OBJECT, too_deep};
use crate::status::{ApiError, FieldError, Problem, Subject};

/// The longest manager name, in characters.
const LONGEST_NAME: usize = 128;
/// The manager of the fields that existed before an object's first apply.
pub(super) const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Fields without an owner: they name the object, or only the server sets them.
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

/// One write: its manager, endpoint and time.
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

    /// Returns the managers after a write, as the stored list. `sent` is the client's
    /// `managedFields`. `old` is the previous object, or `None` for a new one. Neither tree
    /// contains managers.
    pub fn update(&self, old: Option<&Body>, sent: Option<&Value>, new: &Value) -> Result<Bytes, ApiError> {
        let sent = match self.subresource {
            "" if entries::is_reset(sent) => Some(Vec::new()),
            "" => entries::read(sent).filter(|sent| !sent.is_empty()),
            _ => None,
        };
        let Some(old) = old else {
            let before = zero(self.target);
            self.target.schema()?;
            let differences = Differences::new(self, &before, new);
            // If list entries cannot be told apart, store the object without owners instead of
            // refusing it.
            return written(
                self.updated(sent.unwrap_or_default(), differences, &self.manager).unwrap_or_default(),
            );
        };
        let mut differences = Differences::new(self, &old.tree, new);
        let owners = match sent {
            Some(owners) => owners,
            None if old.managed_fields.is_empty() => Vec::new(),
            None if self.nothing_changes_hands(&mut differences, &old.managed_fields)? => {
                return Ok(old.managed_fields.clone());
            }
            None => entries::parse(&old.managed_fields).unwrap_or_default(),
        };
        // An object that was created without tracking stays untracked until its first apply.
        if owners.is_empty() {
            return Ok(Bytes::new());
        }
        self.target.schema()?;
        written(self.updated(owners, differences, &self.manager).unwrap_or_default())
    }

    /// Returns true if the write leaves the managers unchanged. This is decided without parsing
    /// their fields.
    fn nothing_changes_hands(
        &self,
        differences: &mut Differences<'_>,
        managers: &[u8],
    ) -> Result<bool, ApiError> {
        self.target.schema()?;
        let definition = &self.target.definition;
        let unchanged = matches!(
            differences.at(&self.target.version().api_version),
            Ok(difference) if difference.is_none_or(Difference::is_empty)
        );
        let is_served =
            |wanted: &str| definition.versions.iter().any(|version| *version.api_version == *wanted);
        // The next write removes the managers of a version that is no longer served. A status
        // update does not, because it leaves the metadata alone.
        let may_lose_managers = definition.custom && self.subresource != "status";
        Ok(unchanged && (!may_lose_managers || entries::speak_of(managers, is_served)))
    }

    /// Returns the owners after `manager` made these changes. Fails if the objects cannot be
    /// compared.
    pub(super) fn updated(
        &self,
        mut owners: Vec<Entry>,
        mut differences: Differences<'_>,
        manager: &str,
    ) -> Result<Vec<Entry>, String> {
        let version = self.target.version();
        differences.at(&version.api_version)?;
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
            // kube-apiserver converts the managers of a scale to those of its object, and loses the
            // time.
            time: (self.subresource != "scale").then(|| self.time.clone()),
            fields,
        }
    }

    /// Returns the fields that this endpoint always resets. Sending them makes no manager their
    /// owner.
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

/// The differences between two objects, computed once for each version of their kind.
pub(super) struct Differences<'a> {
    tracker: &'a Tracker<'a>,
    old: &'a Value,
    new: &'a Value,
    known: Vec<(Box<str>, Difference)>,
}

impl<'a> Differences<'a> {
    pub fn new(tracker: &'a Tracker<'a>, old: &'a Value, new: &'a Value) -> Differences<'a> {
        Differences { tracker, old, new, known: Vec::new() }
    }

    /// Returns the difference in a version, or `None` if it is not served.
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

    /// Returns the fields that the new object adds or modifies, in a version that has been
    /// compared.
    fn into_changes(self, api_version: &str) -> Fields {
        let compared = self.known.into_iter().find(|(version, _)| **version == *api_version);
        let Difference { added: mut changed, modified, .. } =
            compared.map(|(_, difference)| difference).unwrap_or_default();
        changed.unite(&modified);
        changed
    }

    /// Removes changed fields from their owners. Managers of a custom version that is no longer
    /// served lose all fields.
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
                // A built-in kind that is also served by another group: keep the fields.
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

/// Formats the owners for the store. Fails if they would nest the object too deeply.
pub(super) fn written(owners: Vec<Entry>) -> Result<Bytes, ApiError> {
    const ABOVE: usize = 4; // The object, its metadata, the list and the entry.
    match owners.iter().all(|owner| owner.fields.is_within(DEEPEST_OBJECT - ABOVE)) {
        true => Ok(entries::write(owners)),
        false => Err(too_deep()),
    }
}

/// Checks the query parameters that name a manager. `kind` is the type of the request's options.
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

/// Returns the printable part of the user agent before the first slash.
pub(super) fn name_from_user_agent(headers: &http::HeaderMap) -> String {
    let agent = headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let prefix = agent.unwrap_or_default().split('/').next().unwrap_or_default();
    prefix.chars().filter(|character| !character.is_control()).take(LONGEST_NAME).collect()
}
