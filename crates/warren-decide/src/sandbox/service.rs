//! Decides about the headless service of a sandbox. `spec.service` has three values: true makes and
//! keeps one, false removes our own, and an absent value makes none but maintains one that we
//! already own.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use warren_api::labels;

use super::{Plan, World};
use crate::merge;
use crate::ownership::{self, Ownership};
use crate::ports;
use crate::step::{Action, Failure, Kind, Object, Propagation, Stage, Step};

/// The state of the service, for the Ready condition and the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceView {
    /// None is wanted and none is in use.
    Unused,
    /// One is wanted and does not exist.
    Missing,
    /// It exists and is ours.
    Present,
}

/// Determines the state of the service.
pub(super) fn view(world: &World) -> ServiceView {
    let ownership = ownership(world);
    match (world.sandbox.spec.blueprint.service, ownership) {
        (Some(false), _) => ServiceView::Unused,
        (_, Some(Ownership::Mine)) => ServiceView::Present,
        (Some(true), _) => ServiceView::Missing,
        (None, _) => ServiceView::Unused,
    }
}

/// Plans for the service.
pub(super) fn plan(world: &World, plan: &mut Plan) {
    let wanted = world.sandbox.spec.blueprint.service;
    let mut push = |action| plan.steps.push(Step::new(Stage::Service, action));
    let Some(service) = &world.service else {
        if wanted == Some(true) {
            push(Action::Create(Object::Service(Box::new(new_service(world)))));
        }
        return;
    };
    let name = world.name();
    let text = match (wanted, ownership(world).unwrap_or(Ownership::Unowned)) {
        (Some(false), Ownership::Mine) => return push(delete(service)),
        (Some(false), _) | (None, Ownership::Unowned | Ownership::Adoptable) => return,
        (_, Ownership::Mine) => {
            if let Some(mut body) = drift(world, service, wanted == Some(true)) {
                // The uid guards against another service of the same name.
                merge::set(&mut body, &["metadata", "uid"], json!(service.metadata.uid));
                push(Action::Merge { kind: Kind::Service, name: name.to_owned(), body });
            }
            return;
        }
        (Some(true), Ownership::Adoptable) if is_headless(service) => {
            let body = drift(world, service, true).unwrap_or_else(|| json!({}));
            return push(world.adopt(Kind::Service, &service.metadata, body));
        }
        (Some(true), Ownership::Adoptable) => {
            format!("service {name} has a cluster IP and cannot be adopted")
        }
        (Some(true), Ownership::Unowned) => {
            format!("service {name} exists without an owner and is not labelled for adoption")
        }
        (_, Ownership::Foreign) => format!("service {name} is controlled by another object"),
    };
    plan.problems.push(Failure::found(Stage::Service, text));
}

/// Deletes a service of ours.
pub(super) fn delete(service: &Service) -> Action {
    Action::Delete {
        kind: Kind::Service,
        name: service.metadata.name.clone().unwrap_or_default(),
        uid: service.metadata.uid.clone().unwrap_or_default(),
        version: None,
        propagation: Propagation::Background,
    }
}

/// Returns the service's ownership, if there is one.
pub(super) fn ownership(world: &World) -> Option<Ownership> {
    let service = world.service.as_ref()?;
    Some(ownership::classify(&service.metadata, world.uid(), &world.tracking_hash()))
}

fn is_headless(service: &Service) -> bool {
    let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
    matches!(address, None | Some("" | "None"))
}

fn selector(world: &World) -> BTreeMap<String, String> {
    BTreeMap::from([(labels::SANDBOX_NAME_HASH.to_owned(), world.tracking_hash())])
}

fn drift(world: &World, service: &Service, with_ports: bool) -> Option<Value> {
    let mut body = json!({});
    if ownership::label(&service.metadata, labels::SANDBOX_NAME_HASH) != Some(&world.tracking_hash()) {
        merge::set(
            &mut body,
            &["metadata", "labels", labels::SANDBOX_NAME_HASH],
            json!(world.tracking_hash()),
        );
    }
    let spec = service.spec.clone().unwrap_or_default();
    if let Some(patch) = merge::between_maps(&spec.selector.unwrap_or_default(), &selector(world)) {
        merge::set(&mut body, &["spec", "selector"], patch);
    }
    if with_ports {
        let wanted = ports::derive(&world.sandbox.spec.blueprint.pod_template.spec);
        if !ports::matches(spec.ports.as_deref().unwrap_or_default(), &wanted) {
            merge::set(&mut body, &["spec", "ports"], merge::json(&wanted));
        }
    }
    (body != json!({})).then_some(body)
}

fn new_service(world: &World) -> Service {
    let ports = ports::derive(&world.sandbox.spec.blueprint.pod_template.spec);
    Service {
        metadata: ObjectMeta {
            name: world.sandbox.metadata.name.clone(),
            namespace: world.sandbox.metadata.namespace.clone(),
            labels: Some(selector(world)),
            owner_references: Some(vec![ownership::reference_to(&*world.sandbox)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(selector(world)),
            ports: (!ports.is_empty()).then_some(ports),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
