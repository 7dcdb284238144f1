//! Tests the controllers with exactly the rights of `deploy/rbac`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use warren_api::conditions::{ConditionType, is_true};
use warren_api::{AgentTask, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations};
use warren_controllers::leader::Election;
use warren_controllers::permissions::{NAMESPACE, SERVICE_ACCOUNT, manifests};
use warren_controllers::{Config, Controllers};

use super::{extensions, sandbox};
use crate::support::{self, DEADLINE, Place};

const LONG_AGO: &str = "2020-01-01T00:00:00Z";

/// A resource and a verb.
type Right<'a> = (&'a str, &'a str);

/// The controllers' service account: a client that acts as it, and its refused requests, as method
/// and path.
pub struct Account {
    pub client: Client,
    refused: Arc<Mutex<Vec<String>>>,
}

impl Account {
    /// Creates the account with all its rights, and waits until they are in force.
    pub async fn new(place: &Place) -> Self {
        let (client, refused) = (place.client.clone(), Arc::<Mutex<Vec<String>>>::default());
        let user = format!("system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}");
        let told = refused.clone();
        // The controllers also handle objects of other tests, whose requests are refused on
        // purpose.
        let ours = [place.namespace.clone(), NAMESPACE.to_owned()];
        let service = tower::service_fn(move |mut request: http::Request<Body>| {
            let (client, told) = (client.clone(), told.clone());
            let call = format!("{} {}", request.method(), request.uri().path());
            let namespace = call.split_once("/namespaces/").and_then(|(_, rest)| rest.split('/').next());
            let is_ours = namespace.is_none_or(|namespace| ours.iter().any(|ours| ours == namespace));
            request.headers_mut().insert("impersonate-user", user.parse().unwrap());
            async move {
                let answer = client.send(request).await?;
                if is_ours && answer.status() == http::StatusCode::FORBIDDEN {
                    told.lock().unwrap().push(call);
                }
                Ok::<_, kube::Error>(answer)
            }
        });
        let account = Self { client: Client::new(service, "default"), refused };
        account.hand_out(place, None).await;
        account.wait_until_owners_are_known(place).await;
        account.refused.lock().unwrap().clear();
        account
    }

    /// Applies the manifests without one right, and waits until the server uses them: it learns of
    /// roles by watches.
    pub async fn hand_out(&self, place: &Place, lost: Option<Right<'_>>) {
        for mut object in manifests().into_iter().flat_map(|(_, objects)| objects) {
            if let Some(rules) = object.get_mut("rules") {
                *rules = each_right(rules)
                    .filter(|(_, right)| Some(*right) != lost)
                    .map(|(rule, _)| rule)
                    .collect();
            }
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            let kind = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
            let kind = ApiResource::from_gvk(&kind);
            let api: Api<DynamicObject> = match object.namespace() {
                Some(namespace) => Api::namespaced_with(place.client.clone(), &namespace, &kind),
                None => Api::all_with(place.client.clone(), &kind),
            };
            let params = PatchParams::apply("test").force();
            api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await.unwrap();
        }
        for object in manifests().into_iter().flat_map(|(_, objects)| objects) {
            for (rule, right) in each_right(&object["rules"]) {
                let what = format!("{right:?} as it should be");
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
                eventually(&what, async || self.may(namespace, &rule).await == (Some(right) != lost)).await;
            }
        }
    }

    async fn may(&self, namespace: &str, rule: &Value) -> bool {
        let (resource, subresource) = match rule["resources"][0].as_str().unwrap().split_once('/') {
            Some(both) => both,
            None => (rule["resources"][0].as_str().unwrap(), ""),
        };
        let review = json!({"metadata": {}, "spec": {"resourceAttributes": {
            "namespace": namespace, "group": rule["apiGroups"][0], "resource": resource, "subresource": subresource,
            "name": rule["resourceNames"].get(0), "verb": rule["verbs"][0],
        }}});
        let review: SelfSubjectAccessReview = serde_json::from_value(review).unwrap();
        let answer = Api::all(self.client.clone()).create(&PostParams::default(), &review).await.unwrap();
        answer.status.unwrap().allowed
    }

    /// Waits until the admission plugin for owners knows new CRDs: until then it refuses them as
    /// owners, for up to half a minute.
    async fn wait_until_owners_are_known(&self, place: &Place) {
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &place.namespace);
        for (version, kind) in [
            ("agents.x-k8s.io/v1beta1", "Sandbox"),
            ("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim"),
            ("extensions.agents.x-k8s.io/v1beta1", "SandboxTemplate"),
            ("extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool"),
            ("warren.dev/v1alpha1", "AgentTask"),
        ] {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "owned", "ownerReferences": [{"apiVersion": version, "kind": kind,
                    "name": "owner", "uid": "11111111-2222-3333-4444-555555555555", "blockOwnerDeletion": true}]},
                "spec": {"containers": [{"name": "main", "image": "i"}]},
            }))
            .unwrap();
            eventually(kind, async || pods.create(&params, &pod).await.is_ok()).await;
        }
    }

    /// Waits until the account was refused this request.
    pub async fn is_refused(&self, method: &str, path: &str) {
        let call = format!("{method} {path}");
        eventually(&call, async || self.refused.lock().unwrap().contains(&call)).await;
    }
}

/// Splits the rules of a role into single rights.
fn each_right(rules: &Value) -> impl Iterator<Item = (Value, Right<'_>)> {
    rules.as_array().into_iter().flatten().flat_map(|rule| {
        let texts = |key: &str| rule[key].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
        let rights =
            texts("resources").flat_map(move |resource| texts("verbs").map(move |verb| (resource, verb)));
        rights.map(move |(resource, verb)| {
            let mut only = rule.clone();
            (only["resources"], only["verbs"]) = (json!([resource]), json!([verb]));
            (only, (resource, verb))
        })
    })
}

async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn with_volume() -> Value {
    sandbox(
        "kept",
        json!({"service": true, "volumeClaimTemplates": [{"metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}]}),
    )
}

/// Waits until that sandbox's volume claim has this number of owners.
pub async fn wait_for_owners(place: &Place, count: usize) {
    let owners = move |claim: Option<&PersistentVolumeClaim>| {
        claim.is_some_and(|claim| claim.owner_references().len() == count)
    };
    place.wait::<PersistentVolumeClaim>("data-kept", "owned as it should be", owners).await;
}

pub fn retention(value: &str) -> Value {
    json!({"metadata": {"annotations": {annotations::PVC_RETENTION: value}}})
}

pub async fn the_rights_that_are_handed_out_are_enough(place: Place) {
    let account = Account::new(&place).await;
    let leases: Api<Lease> = Api::namespaced(place.client.clone(), NAMESPACE);
    let election = Election::new(NAMESPACE, &place.namespace);
    let lease = election.name.clone();
    if leases.get_opt(&lease).await.unwrap().is_some() {
        leases.delete(&lease, &DeleteParams::default()).await.unwrap();
    }
    let leadership = election.lead(account.client.clone()).await;
    let controllers =
        Controllers::start(account.client.clone(), Config { agent_tasks: true, ..extensions() });
    let _nodes = support::nodes(&place).await;

    // A service that comes and goes; a volume claim that is owned, released and owned again.
    place.create::<Sandbox>(with_volume()).await;
    wait_for_owners(&place, 1).await;
    place.patch::<Sandbox>("kept", retention(annotations::RETAIN)).await;
    wait_for_owners(&place, 0).await;
    place.patch::<Sandbox>("kept", retention(annotations::DELETE)).await;
    wait_for_owners(&place, 1).await;
    place.wait("kept", "there", |service: Option<&Service>| service.is_some()).await;
    place.patch::<Sandbox>("kept", json!({"spec": {"service": false}})).await;
    place.wait("kept", "gone", |service: Option<&Service>| service.is_none()).await;
    // A pod that comes and goes; a sandbox that expires.
    place.create::<Sandbox>(sandbox("ending", json!({}))).await;
    place.wait::<Sandbox>("ending", "ready", support::is_ready("True/DependenciesReady")).await;
    place.patch::<Sandbox>("ending", json!({"spec": {"operatingMode": "Suspended"}})).await;
    place.wait("ending", "gone", |pod: Option<&Pod>| pod.is_none()).await;
    let over = json!({"shutdownTime": LONG_AGO, "shutdownPolicy": "Delete"});
    place.patch::<Sandbox>("ending", json!({"spec": over})).await;
    place.wait("ending", "gone", |sandbox: Option<&Sandbox>| sandbox.is_none()).await;
    // A claim that adopts a member and is deleted; one with a sandbox of its own, which survives
    // it.
    place.pool("pool", 1, json!({})).await;
    place.full("pool", 1).await;
    place.claim("warm", "pool", json!({})).await;
    let taken = place.claimed("warm").await;
    assert_ne!(taken.name_any(), "warm");
    let over = json!({"shutdownTime": LONG_AGO, "shutdownPolicy": "DeleteForeground"});
    place.patch::<SandboxClaim>("warm", json!({"spec": {"lifecycle": over}})).await;
    place.wait("warm", "gone", |claim: Option<&SandboxClaim>| claim.is_none()).await;
    place.pool("empty", 0, json!({})).await;
    place.claim("cold", "empty", json!({})).await;
    assert_eq!(place.claimed("cold").await.name_any(), "cold");
    let over = json!({"shutdownTime": LONG_AGO, "shutdownPolicy": "Retain"});
    place.patch::<SandboxClaim>("cold", json!({"spec": {"lifecycle": over}})).await;
    place.wait("cold", "gone", |sandbox: Option<&Sandbox>| sandbox.is_none()).await;
    place.full("pool", 1).await;
    place.patch::<SandboxWarmPool>("pool", json!({"spec": {"replicas": 0}})).await;
    place.full("pool", 0).await;
    // A task that is cancelled while its command runs, and deleted after its time.
    place
        .create::<AgentTask>(json!({"apiVersion": "warren.dev/v1alpha1", "kind": "AgentTask",
            "metadata": {"name": "work"}, "spec": {"runner": {"image": "i"}, "ttlSecondsAfterFinished": 0}}))
        .await;
    let runs = |task: Option<&AgentTask>| {
        let conditions = task.and_then(|task| Some(task.status.as_ref()?.conditions.as_slice()));
        conditions.is_some_and(|conditions| is_true(conditions, ConditionType::Running))
    };
    place.wait("work", "running", runs).await;
    place.patch::<AgentTask>("work", json!({"spec": {"cancel": true}})).await;
    place.wait("work", "gone", |task: Option<&AgentTask>| task.is_none()).await;
    // A policy that comes, changes and goes.
    let policy = "pool-network-policy";
    let first = place.wait(policy, "there", |policy: Option<&NetworkPolicy>| policy.is_some()).await.unwrap();
    let spec = first.spec;
    let rules = json!({"egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]});
    place.patch::<SandboxTemplate>("pool", json!({"spec": {"networkPolicy": rules}})).await;
    let changed = move |policy: Option<&NetworkPolicy>| policy.is_some_and(|policy| policy.spec != spec);
    place.wait(policy, "changed", changed).await;
    let unmanaged = json!({"spec": {"networkPolicyManagement": "Unmanaged"}});
    place.patch::<SandboxTemplate>("pool", unmanaged).await;
    place.wait(policy, "gone", |policy: Option<&NetworkPolicy>| policy.is_none()).await;

    controllers.shutdown().await;
    leadership.release().await;
    let holder = leases.get(&lease).await.unwrap().spec.unwrap().holder_identity;
    assert_eq!(holder.as_deref(), Some(""), "the lease was taken and given back");
    assert!(!place.api::<Event>().list(&ListParams::default()).await.unwrap().items.is_empty());
    assert_eq!(*account.refused.lock().unwrap(), Vec::<String>::new());
}

pub async fn a_right_that_is_taken_away_is_missed(place: Place) {
    let account = Account::new(&place).await;
    account.hand_out(&place, Some(("services", "create"))).await;
    let controllers = Controllers::start(account.client.clone(), Config::default());
    place.create::<Sandbox>(with_volume()).await;
    account.is_refused("POST", &format!("/api/v1/namespaces/{}/services", place.namespace)).await;
    controllers.shutdown().await;
    let refused = account.refused.lock().unwrap();
    assert!(refused.iter().all(|call| call.ends_with("/services")), "nothing but that: {refused:?}");
}
