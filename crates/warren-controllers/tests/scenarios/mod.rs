//! What the controllers must do, through the API only, so that the same scenarios run on any server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::kubelet::Kubelet;
use crate::support::{self, Place, condition, is_ready};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::ListParams;
use kube::runtime::wait::Condition;
use serde_json::json;
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_controllers::leader::Election;
use warren_controllers::{Config, Controllers};

fn extensions() -> Config {
    Config { extensions: true, ..Config::default() }
}

fn sandbox(name: &str, spec: serde_json::Value) -> serde_json::Value {
    let mut object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "i", "ports": [{"containerPort": 80}]}]}}},
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

pub async fn a_sandbox_becomes_ready_is_suspended_and_resumed_and_takes_its_children_along(place: Place) {
    let controllers = Controllers::start(place.client.clone(), Config::default());
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    let spec = json!({"service": true, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]});
    place.create::<Sandbox>(sandbox("one", spec)).await;
    let ready = place.wait::<Sandbox>("one", "ready", is_ready("True/DependenciesReady")).await.unwrap();
    let status = ready.status.clone().unwrap();
    assert_eq!(status.service_fqdn.unwrap(), format!("one.{}.svc.cluster.local", place.namespace));
    assert_eq!(status.node_name.as_deref(), Some("pretend"));
    assert_eq!(status.pod_ips.len(), 1);
    assert_eq!(ready.annotations()["agents.x-k8s.io/pod-name"], "one");
    let first = place.api::<Pod>().get("one").await.unwrap();
    place.api::<PersistentVolumeClaim>().get("data-one").await.unwrap();
    let service = place.api::<Service>().get("one").await.unwrap();
    assert_eq!(service.spec.unwrap().ports.unwrap()[0].name.as_deref(), Some("p-80-tcp"));

    place.patch::<Sandbox>("one", json!({"spec": {"operatingMode": "Suspended"}})).await;
    let down = |sandbox: Option<&Sandbox>| {
        sandbox
            .and_then(|sandbox| condition(sandbox, "Suspended"))
            .is_some_and(|found| found["status"] == "True")
    };
    let suspended = place.wait::<Sandbox>("one", "suspended", down).await.unwrap();
    assert!(!suspended.annotations().contains_key("agents.x-k8s.io/pod-name"));
    assert!(place.api::<Pod>().get_opt("one").await.unwrap().is_none());
    place.api::<PersistentVolumeClaim>().get("data-one").await.unwrap();

    place.patch::<Sandbox>("one", json!({"spec": {"operatingMode": "Running"}})).await;
    place.wait::<Sandbox>("one", "ready again", is_ready("True/DependenciesReady")).await;
    let second = place.api::<Pod>().get("one").await.unwrap();
    assert_ne!(first.uid(), second.uid());

    // Collecting the children is the server's work; ours is that it can.
    let owner = &second.owner_references()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.controller, owner.block_owner_deletion),
        ("Sandbox", Some(true), Some(true))
    );
    controllers.shutdown().await;
}

pub async fn row_10_expiry_is_stored_before_the_pod_goes(place: Place) {
    let controllers = Controllers::start(place.client.clone(), Config::default());
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    place.create::<Sandbox>(sandbox("two", json!({}))).await;
    place.wait::<Sandbox>("two", "ready", is_ready("True/DependenciesReady")).await;
    place.patch::<Sandbox>("two", json!({"spec": {"shutdownTime": "2020-01-01T00:00:00Z"}})).await;
    let empty = is_ready("False/SandboxExpired").and(|sandbox: Option<&Sandbox>| {
        sandbox.is_some_and(|sandbox| sandbox.status.clone().unwrap().pod_ips.is_empty())
    });
    place.wait::<Sandbox>("two", "expired and empty", empty).await;
    place.wait::<Pod>("two", "gone", |pod: Option<&Pod>| pod.is_none()).await;
    place.patch::<Sandbox>("two", json!({"spec": {"shutdownTime": null}})).await;
    place.wait::<Sandbox>("two", "revived", is_ready("True/DependenciesReady")).await;
    controllers.shutdown().await;
}

pub async fn rows_15_and_16_a_warm_claim_takes_a_waiting_sandbox_in_three_writes(place: Place) {
    let (client, writes) = place.watched_client();
    let controllers = Controllers::start(client, extensions());
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    place.pool("pool", 1, json!({})).await;
    place.full("pool", 1).await;
    let waiting = place.api::<Pod>().list(&ListParams::default()).await.unwrap().items.remove(0);
    assert_eq!(waiting.annotations()["cluster-autoscaler.kubernetes.io/safe-to-evict"], "true");
    assert!(waiting.labels().contains_key("agents.x-k8s.io/warm-pool-sandbox"));
    let waiting = place.api::<Sandbox>().list(&ListParams::default()).await.unwrap().items.remove(0);
    let pod = place.api::<Pod>().get(&waiting.name_any()).await.unwrap();
    writes.lock().unwrap().clear();
    place.claim("c", "pool", json!({})).await;
    let sandbox = place.claimed("c").await;
    let claim = place.api::<SandboxClaim>().get("c").await.unwrap();

    assert_eq!(sandbox.name_any(), waiting.name_any());
    let owners: Vec<&str> = sandbox.owner_references().iter().map(|owner| owner.kind.as_str()).collect();
    assert_eq!(owners, ["SandboxClaim"]);
    for key in ["warm-pool-sandbox", "sandbox-template-hash", "sandbox-pod-template-hash"] {
        assert!(!sandbox.labels().contains_key(&format!("agents.x-k8s.io/{key}")), "{key}");
    }
    assert_eq!(sandbox.labels()["agents.x-k8s.io/launch-type"], "warm");
    assert!(sandbox.labels().contains_key("agents.x-k8s.io/sandbox-template-ref-hash"));
    assert_eq!(sandbox.annotations()["agents.x-k8s.io/pod-name"], sandbox.name_any());
    assert_eq!(claim.annotations()["agents.x-k8s.io/sandbox-name"], sandbox.name_any());
    for key in ["controller-first-observed-at", "claim-first-ready-at"] {
        assert!(claim.annotations().contains_key(&format!("agents.x-k8s.io/{key}")), "{key}");
    }
    let clean = |pod: Option<&Pod>| {
        pod.is_some_and(|pod| {
            !pod.labels().contains_key("agents.x-k8s.io/warm-pool-sandbox")
                && !pod.annotations().contains_key("cluster-autoscaler.kubernetes.io/safe-to-evict")
        })
    };
    let after = place.wait::<Pod>(&pod.name_any(), "free of the pool's labels", clean).await.unwrap();
    assert_eq!(after.uid(), pod.uid());

    let about = |name: &str| -> Vec<String> {
        let writes = writes.lock().unwrap();
        writes
            .iter()
            .filter(|write| write.contains(name))
            .map(|write| write.rsplit('/').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(about("/sandboxclaims/"), ["c", "status"], "assignment and status, nothing else");
    // The adoption (tried again if a late status of the waiting sandbox got in between); and, off the path to Ready, the
    // sandbox's status: the last of what it was before, the new generation after.
    let (name, written) = (sandbox.name_any(), about(&format!("/sandboxes/{}", sandbox.name_any())));
    let tries = written.iter().filter(|write| **write == name).count();
    assert!((1..=2).contains(&tries), "{written:?}");
    assert!(written.iter().all(|write| *write == name || write == "status"), "{written:?}");
    controllers.shutdown().await;
}

pub async fn rows_19_20_and_24_an_empty_pool_or_own_env_starts_cold(place: Place) {
    let controllers = Controllers::start(place.client.clone(), extensions());
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    place.pool("pool", 1, json!({"envVarsInjectionPolicy": "Allowed"})).await;
    place.full("pool", 1).await;
    place.claim("own-env", "pool", json!({"env": [{"name": "A", "value": "1"}]})).await;
    let sandbox = place.claimed("own-env").await;
    assert_eq!(sandbox.name_any(), "own-env");
    assert_eq!(sandbox.labels()["agents.x-k8s.io/launch-type"], "cold");
    let pod = place.api::<Pod>().get("own-env").await.unwrap();
    assert!(!pod.labels().contains_key("agents.x-k8s.io/claim-uid"));
    let spec = pod.spec.unwrap();
    assert_eq!(spec.containers[0].env.as_ref().unwrap()[0].name, "A");
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert_eq!(place.full("pool", 1).await.status.unwrap().replicas, 1);

    place.claim("no-pool", "missing", json!({})).await;
    place.wait::<SandboxClaim>("no-pool", "told", is_ready("False/WarmPoolNotFound")).await;
    place.pool("missing", 0, json!({})).await;
    assert_eq!(place.claimed("no-pool").await.name_any(), "no-pool");
    place.claim("bad", "pool", json!({"additionalPodMetadata": {"labels": {"app": "sandbox-router"}}})).await;
    place.wait::<SandboxClaim>("bad", "refused", is_ready("False/InvalidMetadata")).await;
    controllers.shutdown().await;
}

/// Controllers in a runtime of their own, which can be ended like a process: every pass is cut off where it stands.
struct Killable {
    runtime: tokio::runtime::Runtime,
    _controllers: Controllers,
}

impl Killable {
    fn start(place: &Place) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let inside = runtime.enter();
        let controllers = Controllers::start(place.watched_client().0, extensions());
        drop(inside);
        Self { runtime, _controllers: controllers }
    }

    fn kill(self) {
        self.runtime.shutdown_background();
    }
}

/// Every claim has one sandbox, every sandbox one claim.
async fn exactly_once(place: &Place, claims: usize) -> BTreeMap<String, usize> {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for number in 0..claims {
        let sandbox = place.claimed(&format!("c{number}")).await;
        assert!(taken.insert(sandbox.name_any()), "{} serves two claims", sandbox.name_any());
        *kinds.entry(sandbox.labels()["agents.x-k8s.io/launch-type"].clone()).or_default() += 1;
    }
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for sandbox in place.api::<Sandbox>().list(&ListParams::default()).await.unwrap() {
        for owner in sandbox.owner_references().iter().filter(|owner| owner.kind == "SandboxClaim") {
            owners.entry(owner.name.clone()).or_default().push(sandbox.name_any());
        }
    }
    let greedy: Vec<_> = owners.iter().filter(|(_, sandboxes)| sandboxes.len() != 1).collect();
    assert!(greedy.is_empty(), "claims with several sandboxes: {greedy:?}");
    assert_eq!(owners.len(), claims);
    kinds
}

pub async fn row_17_more_claims_than_members_while_the_controller_is_killed_again_and_again(place: Place) {
    let mut controllers = Killable::start(&place);
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    place.pool("pool", 10, json!({})).await;
    place.full("pool", 10).await;
    for number in 0..30 {
        place.claim(&format!("c{number}"), "pool", json!({})).await;
        if number % 10 == 5 {
            controllers.kill();
            controllers = Killable::start(&place);
        }
    }
    let kinds = exactly_once(&place, 30).await;
    assert!(kinds["warm"] >= 10, "{kinds:?}");
    place.full("pool", 10).await;
    controllers.kill();
}

pub async fn row_17_three_controllers_that_fight_still_give_exactly_one_each(place: Place) {
    let all: Vec<Controllers> =
        (0..3).map(|_| Controllers::start(place.watched_client().0, extensions())).collect();
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    place.pool("pool", 6, json!({})).await;
    for number in 0..20 {
        place.claim(&format!("c{number}"), "pool", json!({})).await;
    }
    exactly_once(&place, 20).await;
    for controllers in all {
        controllers.shutdown().await;
    }
}

pub async fn rows_25_and_27_a_pool_is_scaled_and_rolled(place: Place) {
    let controllers = Controllers::start(place.client.clone(), extensions());
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    place.pool("pool", 4, json!({})).await;
    place.patch::<SandboxWarmPool>("pool", json!({"spec": {"updateStrategy": {"type": "Recreate"}}})).await;
    place.full("pool", 4).await;
    let names = async || -> BTreeSet<String> {
        let members = place.api::<Sandbox>().list(&ListParams::default()).await.unwrap();
        members
            .items
            .iter()
            .filter(|member| member.metadata.deletion_timestamp.is_none())
            .map(ResourceExt::name_any)
            .collect()
    };
    let first = names().await;
    place.patch::<SandboxWarmPool>("pool", json!({"spec": {"replicas": 2}})).await;
    place.full("pool", 2).await;
    let fewer = names().await;
    assert!(fewer.is_subset(&first));

    // Labels do not roll, the pod does.
    let labels = json!({"spec": {"podTemplate": {"metadata": {"labels": {"x": "y"}}}}});
    place.patch::<SandboxTemplate>("pool", labels).await;
    place
        .patch::<SandboxTemplate>(
            "pool",
            json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "j"}]}}}}),
        )
        .await;
    let rolled = async || -> bool {
        let members = place.api::<Sandbox>().list(&ListParams::default()).await.unwrap();
        let image =
            |member: &Sandbox| member.spec.blueprint.pod_template.spec.containers[0].image.clone().unwrap();
        members.items.len() == 2 && members.items.iter().all(|member| image(member) == "j")
    };
    let deadline = tokio::time::Instant::now() + support::DEADLINE;
    while !rolled().await {
        assert!(tokio::time::Instant::now() < deadline, "the pool was never rolled");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    place.full("pool", 2).await;
    assert!(names().await.is_disjoint(&fewer));
    controllers.shutdown().await;
}

pub async fn row_28_a_template_keeps_its_policy_while_it_manages_one(place: Place) {
    let controllers = Controllers::start(place.client.clone(), extensions());
    place.pool("pool", 0, json!({})).await;
    let exists = |policy: Option<&NetworkPolicy>| policy.is_some();
    place.wait::<NetworkPolicy>("pool-network-policy", "made", exists).await;
    let labelled = |template: Option<&SandboxTemplate>| {
        template.is_some_and(|template| {
            template.labels().contains_key("agents.x-k8s.io/sandbox-template-ref-hash")
        })
    };
    place.wait::<SandboxTemplate>("pool", "labelled", labelled).await;
    place.patch::<SandboxTemplate>("pool", json!({"spec": {"networkPolicyManagement": "Unmanaged"}})).await;
    place
        .wait::<NetworkPolicy>("pool-network-policy", "gone", |policy: Option<&NetworkPolicy>| {
            policy.is_none()
        })
        .await;
    controllers.shutdown().await;
}

pub async fn row_29_a_claim_expires_in_two_steps(place: Place) {
    let controllers = Controllers::start(place.client.clone(), extensions());
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    place.pool("pool", 0, json!({})).await;
    place.claim("keep", "pool", json!({})).await;
    place.claim("drop", "pool", json!({})).await;
    place.claimed("keep").await;
    place.claimed("drop").await;
    let past = |policy: &str| json!({"spec": {"lifecycle": {"shutdownTime": "2020-01-01T00:00:00Z", "shutdownPolicy": policy}}});
    place.patch::<SandboxClaim>("keep", past("Retain")).await;
    place.patch::<SandboxClaim>("drop", past("Delete")).await;
    let cleared = is_ready("False/ClaimExpired").and(|claim: Option<&SandboxClaim>| {
        claim.is_some_and(|claim| claim.status.clone().unwrap().sandbox.is_none())
    });
    place.wait::<SandboxClaim>("keep", "expired without a sandbox", cleared).await;
    place.wait::<SandboxClaim>("drop", "gone", |claim: Option<&SandboxClaim>| claim.is_none()).await;
    place.patch::<SandboxClaim>("keep", json!({"spec": {"lifecycle": null}})).await;
    place.claimed("keep").await;
    controllers.shutdown().await;
}

pub async fn a_leader_that_leaves_is_followed_at_once_and_one_that_dies_when_its_lease_ends(place: Place) {
    let election = |identity: &str| Election {
        lease_duration: Duration::from_secs(2),
        renew_period: Duration::from_millis(200),
        ..Election::new(place.namespace.clone(), identity)
    };
    let first = election("first").lead(place.client.clone()).await;
    let second = tokio::spawn(election("second").lead(place.client.clone()));
    let held_by = |name: &'static str| {
        move |lease: Option<&Lease>| {
            lease.and_then(|lease| lease.spec.clone()?.holder_identity).is_some_and(|holder| holder == name)
        }
    };
    let lease = "a3317529.agent-sandbox.x-k8s.io";
    place.wait::<Lease>(lease, "the first one's", held_by("first")).await;
    assert!(!second.is_finished());
    first.release().await;
    let second = tokio::time::timeout(support::DEADLINE, second).await.unwrap().unwrap();
    place.wait::<Lease>(lease, "the second one's", held_by("second")).await;

    // Dies without a word; the lease runs out, and a third one takes it.
    drop(second);
    let third =
        tokio::time::timeout(support::DEADLINE, election("third").lead(place.client.clone())).await.unwrap();
    // Somebody who does not wait takes it by force: the leader notices.
    let theft = json!({"spec": {"holderIdentity": "thief"}});
    place.patch::<Lease>(lease, theft).await;
    tokio::time::timeout(support::DEADLINE, third.lost()).await.unwrap();
}

pub async fn rows_1_and_2_a_pod_that_lingers_holds_up_suspending_and_resuming(place: Place) {
    let controllers = Controllers::start(place.client.clone(), Config::default());
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    place.create::<Sandbox>(sandbox("slow", json!({}))).await;
    let up = place.wait::<Sandbox>("slow", "ready", is_ready("True/DependenciesReady")).await.unwrap();
    let pod = place.patch::<Pod>("slow", json!({"metadata": {"finalizers": ["test.warren.dev/hold"]}})).await;
    place.patch::<Sandbox>("slow", json!({"spec": {"operatingMode": "Suspended"}})).await;
    let reason = |wanted: &'static str| {
        move |sandbox: Option<&Sandbox>| {
            sandbox
                .and_then(|sandbox| condition(sandbox, "Suspended"))
                .is_some_and(|found| found["reason"] == wanted)
        }
    };
    let waiting = place.wait::<Sandbox>("slow", "suspending", reason("PodTerminating")).await.unwrap();
    let since = |sandbox: &Sandbox| condition(sandbox, "Suspended").unwrap()["lastTransitionTime"].clone();
    assert_eq!(since(&waiting), since(&up), "both are False");
    // Resumed before the old pod is gone: it is neither replaced nor joined by a second one.
    place.patch::<Sandbox>("slow", json!({"spec": {"operatingMode": "Running"}})).await;
    place.wait::<Sandbox>("slow", "asked to run", reason("NotSuspended")).await;
    let pods = place.api::<Pod>().list(&ListParams::default()).await.unwrap();
    assert_eq!(pods.items.iter().map(|pod| pod.uid()).collect::<Vec<_>>(), [pod.uid()]);
    place.patch::<Pod>("slow", json!({"metadata": {"finalizers": null}})).await;
    let replaced = |new: Option<&Pod>| new.is_some_and(|new| new.uid() != pod.uid());
    place.wait::<Pod>("slow", "replaced", replaced).await;
    place.wait::<Sandbox>("slow", "ready again", is_ready("True/DependenciesReady")).await;
    controllers.shutdown().await;
}

pub async fn rows_6_13_and_22_objects_in_the_way_are_named_and_left_alone(place: Place) {
    let (client, writes) = place.watched_client();
    let controllers = Controllers::start(client, extensions());
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    let stranger = |name: &str, labels: serde_json::Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [{"name": "x", "image": "i"}]}})
    };
    let foreign = place.create::<Pod>(stranger("taken", json!({}))).await;
    let free = place.create::<Pod>(stranger("free", json!({"agents.x-k8s.io/adoptable": "true"}))).await;
    place.create::<Sandbox>(sandbox("taken", json!({}))).await;
    place.create::<Sandbox>(sandbox("free", json!({}))).await;
    place.wait::<Sandbox>("taken", "told", is_ready("False/ReconcilerError")).await;
    place.wait::<Sandbox>("free", "ready", is_ready("True/DependenciesReady")).await;
    assert_eq!(place.api::<Pod>().get("free").await.unwrap().uid(), free.uid(), "adopted, not replaced");
    let left = place.api::<Pod>().get("taken").await.unwrap();
    assert_eq!((left.uid(), left.owner_references().len()), (foreign.uid(), 0));

    place.pool("pool", 1, json!({})).await;
    place.full("pool", 1).await;
    place.claim("taken", "pool", json!({})).await;
    place.wait::<SandboxClaim>("taken", "told", is_ready("False/ReconcilerError")).await;
    assert_eq!(place.full("pool", 1).await.status.unwrap().replicas, 1, "the pool was not touched");
    // Trouble that lasts is said once: trying again writes nothing.
    let about = |name: &str| writes.lock().unwrap().iter().filter(|write| write.ends_with(name)).count();
    assert_eq!((about("/sandboxes/taken/status"), about("/sandboxclaims/taken/status")), (1, 1));
    controllers.shutdown().await;
}

/// Makes a test of every scenario, each in a place that `$place` gives.
macro_rules! tests {
    ($place:path) => {
        crate::scenarios::tests! { $place:
            a_sandbox_becomes_ready_is_suspended_and_resumed_and_takes_its_children_along
            row_10_expiry_is_stored_before_the_pod_goes
            rows_15_and_16_a_warm_claim_takes_a_waiting_sandbox_in_three_writes
            rows_19_20_and_24_an_empty_pool_or_own_env_starts_cold
            row_17_more_claims_than_members_while_the_controller_is_killed_again_and_again
            row_17_three_controllers_that_fight_still_give_exactly_one_each
            rows_25_and_27_a_pool_is_scaled_and_rolled
            row_28_a_template_keeps_its_policy_while_it_manages_one
            row_29_a_claim_expires_in_two_steps
            a_leader_that_leaves_is_followed_at_once_and_one_that_dies_when_its_lease_ends
            rows_1_and_2_a_pod_that_lingers_holds_up_suspending_and_resuming
            rows_6_13_and_22_objects_in_the_way_are_named_and_left_alone
        }
    };
    ($place:path: $($name:ident)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::scenarios::$name($place().await).await;
            }
        )+
    };
}
pub(crate) use tests;
