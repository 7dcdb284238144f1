//! Server-side apply.

use serde_json::Value;
use warren_store::Body;

use super::compare::{compare, fields_of, with_parents};
use super::entries::{self, Entry, Operation};
use super::fields::Fields;
use super::merge::{merge, remove};
use super::shape::Shape;
use super::tracker::{BEFORE_FIRST_APPLY, Differences, Tracker, never_owned, written};
use super::validate::complaint;
use super::zero::zero;
use crate::metadata::{self, metadata_mut};
use crate::schema::{Schema, Type};
use crate::status::ApiError;

/// The annotation in which a client-side `kubectl apply` stores its configuration. A server-side
/// apply by `kubectl` takes over those fields.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const KUBECTL: &str = "kubectl";

enum Refusal {
    /// Other managers own these fields, with other values.
    Conflicts(Vec<(Entry, Fields)>),
    Error(ApiError),
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Refusal {
        Refusal::Error(error)
    }
}

impl Tracker<'_> {
    /// Applies a configuration to an object, or to none, and returns the result with its managers.
    pub fn apply(&self, live: Option<&Body>, configuration: &Value, force: bool) -> Result<Body, ApiError> {
        self.check_configuration(configuration)?;
        let mut applied = match self.apply_once(live, configuration, force) {
            Ok(applied) => applied,
            Err(Refusal::Error(error)) => return Err(error),
            Err(Refusal::Conflicts(conflicts)) => {
                let allowed = match live {
                    Some(live) if *self.manager == *KUBECTL => {
                        self.last_applied(&live.tree).unwrap_or_default()
                    }
                    _ => Fields::default(),
                };
                let remaining = without(conflicts, &allowed);
                if !remaining.is_empty() {
                    return Err(conflict(remaining));
                }
                match self.apply_once(live, configuration, true) {
                    Ok(applied) => applied,
                    Err(Refusal::Error(error)) => return Err(error),
                    Err(Refusal::Conflicts(conflicts)) => return Err(conflict(conflicts)),
                }
            }
        };
        let object = &mut applied.tree;
        if *self.manager == *KUBECTL && object["metadata"]["annotations"][LAST_APPLIED].is_string() {
            object["metadata"]["annotations"][LAST_APPLIED] = encoded(configuration).into();
        }
        if !self.target.definition.custom {
            fill_empty_texts(object, self.target.schema()?);
        }
        Ok(applied)
    }

    fn check_configuration(&self, configuration: &Value) -> Result<(), ApiError> {
        let text = |field: &str| configuration.get(field).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let slash = if api_version.contains('/') { "" } else { "/" };
        let type_ = format!("{slash}{api_version}, Kind={kind}");
        if *api_version != *self.target.version().api_version || *kind != *self.target.definition.kind {
            return Err(ApiError::bad_request(format!("invalid object type: {type_}")));
        }
        if configuration["metadata"]["managedFields"].is_array() {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        match complaint(configuration, Shape(Some(self.target.schema()?))) {
            None => Ok(()),
            Some(complaint) => {
                let name = metadata::text(configuration, "name");
                let namespace = metadata::text(configuration, "namespace");
                Err(ApiError::without_reason(format!(
                    "failed to create typed patch object ({namespace}/{name}; {type_}): {complaint}"
                )))
            }
        }
    }

    fn apply_once(&self, live: Option<&Body>, configuration: &Value, force: bool) -> Result<Body, Refusal> {
        let shape = Shape(Some(self.target.schema()?));
        let unusable = |cause: String| Refusal::Error(ApiError::without_reason(cause));
        let mut wanted = fields_of(configuration, shape).map_err(unusable)?;
        wanted.subtract_trees(&self.ignored());
        let Some(live) = live else {
            wanted.subtract(never_owned());
            let owners = some_entry(self.entry(Operation::Apply, &self.manager, wanted));
            return Ok(owned_by(configuration.clone(), owners)?);
        };
        let Body { tree: live, managed_fields } = live;
        let mut owners = entries::parse(managed_fields)
            .ok_or_else(|| unusable("failed to decode managed fields".to_owned()))?;
        if owners.is_empty() {
            let zero = zero(self.target);
            let differences = Differences::new(self, &zero, live);
            owners = self.updated(owners, differences, BEFORE_FIRST_APPLY).map_err(unusable)?;
        }
        let mut own = self.entry(Operation::Apply, &self.manager, wanted);
        let position = owners.iter().position(|owner| owner.is_same_manager(&own));
        let last = position.map(|position| owners.swap_remove(position));
        own.time = last.as_ref().and_then(|last| last.time.clone());

        let merged = merge(live, configuration, shape).map_err(unusable)?;
        let new = match &last {
            Some(last) => {
                prune(&merged, &last.fields, owners.iter().chain([&own]), shape).map_err(unusable)?
            }
            None => merged,
        };
        let mut differences = Differences::new(self, live, &new);
        if !force {
            let conflicts = conflicts(&owners, &mut differences).map_err(unusable)?;
            if !conflicts.is_empty() {
                return Err(Refusal::Conflicts(conflicts));
            }
        }
        differences.take_from(&mut owners).map_err(unusable)?;
        if new != *live {
            own.time = Some(self.time.clone());
        }
        own.fields.subtract(never_owned());
        owners.push(own);
        owners.retain(|owner| !owner.fields.is_empty());
        Ok(owned_by(new, owners)?)
    }

    /// Returns the fields that a client-side `kubectl apply` set and that are unchanged since.
    /// `kubectl` may take those over.
    fn last_applied(&self, live: &Value) -> Option<Fields> {
        let shape = Shape(Some(self.target.schema().ok()?));
        let last = live["metadata"]["annotations"][LAST_APPLIED].as_str()?;
        let last: Value = serde_json::from_str(last).ok()?;
        if last["apiVersion"] != *self.target.version().api_version || complaint(&last, shape).is_some() {
            return None;
        }
        let mut fields = fields_of(&last, shape).ok()?;
        let difference = compare(&last, live, shape).ok()?;
        for changed in [&difference.added, &difference.modified, &difference.removed] {
            fields.subtract(changed);
        }
        Some(fields)
    }
}

/// Builds an object with these managers. Managers in the configuration are ignored.
fn owned_by(mut object: Value, owners: Vec<Entry>) -> Result<Body, ApiError> {
    metadata_mut(&mut object).shift_remove("managedFields");
    Ok(Body { tree: object, managed_fields: written(owners)? })
}

fn some_entry(entry: Entry) -> Vec<Entry> {
    if entry.fields.is_empty() { Vec::new() } else { vec![entry] }
}

/// Returns the changed fields that other managers own.
fn conflicts(owners: &[Entry], differences: &mut Differences<'_>) -> Result<Vec<(Entry, Fields)>, String> {
    let mut conflicts = Vec::new();
    for owner in owners {
        let Some(difference) = differences.at(&owner.api_version)? else { continue };
        let mut contested = owner.fields.intersection(&difference.added);
        contested.unite(&owner.fields.intersection(&difference.modified));
        if !contested.is_empty() {
            conflicts.push((owner.clone(), contested));
        }
    }
    Ok(conflicts)
}

fn without(conflicts: Vec<(Entry, Fields)>, allowed: &Fields) -> Vec<(Entry, Fields)> {
    let remaining = conflicts.into_iter().map(|(owner, mut contested)| {
        contested.subtract(allowed);
        (owner, contested)
    });
    remaining.filter(|(_, contested)| !contested.is_empty()).collect()
}

fn conflict(mut conflicts: Vec<(Entry, Fields)>) -> ApiError {
    conflicts.sort_by(|(left, _), (right, _)| {
        (&left.manager, left.operation, &left.api_version, &left.subresource).cmp(&(
            &right.manager,
            right.operation,
            &right.api_version,
            &right.subresource,
        ))
    });
    let conflicts: Vec<(String, Vec<String>)> =
        conflicts.iter().map(|(owner, contested)| (owner.title(), contested.paths())).collect();
    ApiError::apply_conflict(&conflicts)
}

/// Removes the fields that a manager applied last time and does not list now, unless another
/// manager owns them. `owners` includes the manager with its new fields.
fn prune<'a>(
    merged: &Value,
    last: &Fields,
    owners: impl Iterator<Item = &'a Entry>,
    shape: Shape<'_>,
) -> Result<Value, String> {
    if last.is_empty() {
        return Ok(merged.clone());
    }
    let last = with_parents(last, shape);
    let pruned = remove(merged, &last, shape);
    let mut owned = Fields::default();
    owners.for_each(|owner| owned.unite(&owner.fields));
    // Restore the fields that other managers own.
    let all = with_parents(&fields_of(merged, shape)?, shape);
    let mut surplus = all.clone();
    surplus.subtract(&with_parents(&fields_of(&pruned, shape)?, shape));
    surplus.subtract(&with_parents(&owned, shape));
    let pruned = remove(merged, &surplus, shape);
    // Restore the fields without an owner, unless this manager owned them.
    let mut surplus = all;
    surplus.subtract(&with_parents(&fields_of(&pruned, shape)?, shape));
    Ok(remove(merged, &surplus.intersection(&last), shape))
}

/// Formats a configuration for the annotation.
fn encoded(configuration: &Value) -> String {
    let mut configuration = configuration.clone();
    let annotations = configuration.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        annotations.shift_remove(LAST_APPLIED);
    }
    configuration.sort_all_objects();
    format!("{configuration}\n")
}

/// Replaces nulls in maps of strings by empty strings, as Go's decoder does. Elsewhere a null means
/// absent.
fn fill_empty_texts(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(object) => {
            for (name, child) in object {
                let Some(below) = schema.field(name) else { continue };
                let is_key = !schema.properties.contains_key(name.as_str());
                if is_key && child.is_null() && below.type_ == Some(Type::String) {
                    *child = "".into();
                }
                fill_empty_texts(child, below);
            }
        }
        Value::Array(items) => {
            if let Some(below) = &schema.items {
                items.iter_mut().for_each(|item| fill_empty_texts(item, below));
            }
        }
        _ => {}
    }
}
