//! Tests of ownership and server-side apply.

use std::sync::Arc;

use http::HeaderMap;
use serde_json::{Value, json};

use warren_store::Body;

use super::Tracker;
use crate::definition::Target;
use crate::status::ApiError;

fn target(kind: &str) -> Target {
    let definitions = crate::kinds::definitions();
    let definition = definitions.iter().find(|definition| *definition.kind == *kind).unwrap();
    Target::new(&Arc::clone(definition), "v1").unwrap()
}

/// Applies and updates an object as different managers, and shows the owners at the end.
struct World {
    target: Target,
    object: Option<Body>,
}

impl World {
    fn new(kind: &str) -> World {
        World { target: target(kind), object: None }
    }

    fn tracker(&self, manager: &str, second: u32) -> Tracker<'_> {
        Tracker {
            target: &self.target,
            manager: manager.into(),
            subresource: "",
            time: format!("2026-01-01T00:00:{second:02}Z").into(),
        }
    }

    fn apply(&mut self, manager: &str, configuration: Value, force: bool) -> Result<(), ApiError> {
        let object = self.tracker(manager, 1).apply(self.object.as_ref(), &configuration, force)?;
        self.object = Some(object);
        Ok(())
    }

    fn update(&mut self, manager: &str, mut new: Value) {
        let sent = new["metadata"].as_object_mut().unwrap().shift_remove("managedFields");
        let owners = self.tracker(manager, 2).update(self.object.as_ref(), sent.as_ref(), &new).unwrap();
        new["metadata"]["uid"] = "u".into();
        self.object = Some(Body { tree: new, managed_fields: owners });
    }

    fn whole(&self) -> Value {
        self.object.clone().unwrap().whole()
    }

    fn data(&self) -> Value {
        self.whole()["data"].clone()
    }

    fn owners(&self) -> Vec<(String, Value)> {
        let list = self.whole()["metadata"]["managedFields"].as_array().cloned();
        let entries = list.unwrap_or_default().into_iter();
        entries
            .map(|entry| {
                let word = |name: &str| entry[name].as_str().unwrap_or("-").to_owned();
                (format!("{} {}", word("manager"), word("operation")), entry["fieldsV1"].clone())
            })
            .collect()
    }
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

#[test]
fn an_update_takes_a_field_and_apply_wants_it_back() {
    let mut world = World::new("ConfigMap");
    world.apply("one", map(json!({"k": "v", "l": "w"})), false).unwrap();
    world.update("editor", map(json!({"k": "edited", "l": "w"})));
    assert_eq!(
        world.owners(),
        [
            ("one Apply".to_owned(), json!({"f:data": {"f:l": {}}})),
            ("editor Update".to_owned(), json!({"f:data": {"f:k": {}}})),
        ]
    );
    let refused = world.apply("one", map(json!({"k": "v", "l": "w"})), false).unwrap_err();
    assert_eq!(refused.message, "Apply failed with 1 conflict: conflict with \"editor\" using v1: .data.k");
    world.apply("one", map(json!({"k": "v"})), true).unwrap();
    assert_eq!(world.owners(), [("one Apply".to_owned(), json!({"f:data": {"f:k": {}}}))]);
    assert_eq!(world.data(), json!({"k": "v"}));
}

#[test]
fn conflicts_with_several_managers_are_listed_by_manager() {
    let mut world = World::new("ConfigMap");
    world.apply("one", map(json!({"a": "1", "b": "1"})), false).unwrap();
    world.apply("two", map(json!({"c": "1"})), false).unwrap();
    let refused = world.apply("three", map(json!({"a": "2", "b": "2", "c": "2"})), false).unwrap_err();
    assert_eq!(
        refused.message,
        "Apply failed with 3 conflicts: conflicts with \"one\":\n- .data.a\n- .data.b\nconflicts with \"two\":\n- .data.c"
    );
}

#[test]
fn a_field_goes_when_its_last_owner_lets_go() {
    let mut world = World::new("ConfigMap");
    world.apply("one", map(json!({"k": "v"})), false).unwrap();
    world.apply("two", map(json!({"k": "v"})), false).unwrap();
    world.apply("one", map(json!({})), false).unwrap();
    assert_eq!(world.data(), json!({"k": "v"}));
    let nothing = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    world.apply("one", nothing.clone(), false).unwrap();
    world.apply("two", nothing, false).unwrap();
    assert_eq!(world.data(), Value::Null);
    assert!(world.owners().is_empty());
    world.update("editor", map(json!({"k": "v"})));
    assert!(world.owners().is_empty(), "an object that lost all its managers is not tracked");
}

#[test]
fn an_untracked_object_belongs_to_the_time_before() {
    let mut world = World::new("ConfigMap");
    world.update("creator", map(json!({"k": "v"})));
    let mut reset = map(json!({"k": "v"}));
    reset["metadata"]["managedFields"] = json!([{}]);
    world.update("creator", reset);
    assert!(world.owners().is_empty());
    world.apply("one", map(json!({"l": "w"})), false).unwrap();
    assert_eq!(
        world.owners(),
        [
            ("one Apply".to_owned(), json!({"f:data": {"f:l": {}}})),
            ("before-first-apply Update".to_owned(), json!({"f:data": {".": {}, "f:k": {}}})),
        ]
    );
}

#[test]
fn list_entries_are_owned_by_key_and_keep_their_order() {
    let service = |ports: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}});
    let mut world = World::new("Service");
    world.apply("one", service(json!([{"port": 80}, {"port": 81, "protocol": "TCP"}])), false).unwrap();
    world.apply("two", service(json!([{"port": 90, "protocol": "UDP"}])), false).unwrap();
    world
        .apply(
            "one",
            service(json!([{"port": 81, "protocol": "TCP"}, {"port": 70, "protocol": "TCP"}])),
            false,
        )
        .unwrap();
    let ports = &world.whole()["spec"]["ports"];
    let numbers: Vec<_> =
        ports.as_array().unwrap().iter().map(|port| port["port"].as_i64().unwrap()).collect();
    assert_eq!(numbers, [81, 90, 70]);
    let twice = world.apply("one", service(json!([{"port": 1}, {"port": 1, "protocol": "TCP"}])), false);
    assert_eq!(
        twice.unwrap_err().message,
        "failed to create typed patch object (/s; /v1, Kind=Service): .spec.ports: duplicate entries for key [port=1,protocol=\"TCP\"]"
    );
}

#[test]
fn kubectl_takes_over_what_it_applied_before() {
    let mut world = World::new("ConfigMap");
    let mut first = map(json!({"k": "v"}));
    let kept = first.to_string();
    first["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": kept});
    world.update("kubectl-client-side-apply", first);
    assert!(world.apply("other", map(json!({"k": "w"})), false).is_err());
    world.apply("kubectl", map(json!({"k": "w"})), false).unwrap();
    let annotation =
        &world.whole()["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    let expected = "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"w\"},\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}\n";
    assert_eq!(annotation, expected);
}

#[test]
fn managers_are_named_by_their_program() {
    let mut headers = HeaderMap::new();
    headers.insert("user-agent", "kubectl-edit/v1.36 (linux)".parse().unwrap());
    assert_eq!(super::tracker::name_from_user_agent(&headers), "kubectl-edit");
}

#[test]
fn a_scale_is_owned_through_its_own_endpoint() {
    let mut world = World::new("ConfigMap");
    world.update("creator", map(json!({"k": "v"})));
    let new = map(json!({"k": "w"}));
    let tracker = Tracker { subresource: "scale", ..world.tracker("scaler", 2) };
    let managed_fields = tracker.update(world.object.as_ref(), None, &new).unwrap();
    let whole = Body { tree: new, managed_fields }.whole();
    let entries = whole["metadata"]["managedFields"].as_array().unwrap();
    let scaler = entries.iter().find(|entry| entry["manager"] == "scaler").unwrap();
    assert_eq!(
        *scaler,
        json!({
            "manager": "scaler", "operation": "Update", "apiVersion": "v1", "subresource": "scale",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:k": {}}},
        })
    );
}

#[test]
fn a_write_that_changes_nothing_leaves_managers_unless_their_version_is_gone() {
    let definition = json!({"spec": {
        "group": "x.io", "scope": "Namespaced", "names": {"plural": "as", "kind": "A"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        }}}],
    }});
    let definition = crate::crd::definition(&definition.to_string().into()).unwrap();
    let target = Target::new(&Arc::new(definition), "v1").unwrap();
    let world = World { target, object: None };
    let entry = |version: &str| {
        json!({
            "manager": version, "operation": "Update", "apiVersion": format!("x.io/{version}"),
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:k": {}}},
        })
    };
    let tree = json!({"apiVersion": "x.io/v1", "kind": "A", "metadata": {"name": "a"}, "spec": {"k": 1}});
    for (list, wanted) in [
        (json!([entry("v1")]), json!([entry("v1")]).to_string()),
        (json!([entry("v0"), entry("v1")]), json!([entry("v1")]).to_string()),
        (json!([entry("v0")]), String::new()),
    ] {
        let old = Body { tree: tree.clone(), managed_fields: list.to_string().into() };
        let tracker = world.tracker("other", 3);
        assert_eq!(tracker.update(Some(&old), None, &tree).unwrap(), wanted);
        let status = Tracker { subresource: "status", ..tracker };
        assert_eq!(status.update(Some(&old), None, &tree).unwrap(), old.managed_fields);
    }
}
