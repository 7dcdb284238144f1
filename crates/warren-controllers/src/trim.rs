//! Trims objects of each kind before they are cached. Fields that no decision reads are dropped:
//! twenty thousand pods with their specs and managed fields would be most of our memory.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStatus, PersistentVolumeClaim, Pod, PodSpec, PodStatus, Service,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use warren_api::conditions::ConditionType;
use warren_api::{AgentTask, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations, labels};
use warren_decide::ownership;

use crate::cache::{Index, Keeping};
use crate::shared_specs;

pub(crate) const SANDBOX: Keeping<Sandbox> = Keeping {
    trim: sandbox,
    indices: |sandbox| {
        let metadata = &sandbox.metadata;
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let pool = ownership::label(metadata, labels::WARM_POOL_SANDBOX);
        let pool = pool.map(|hash| Index::PoolLabel(namespace, hash.to_owned()));
        controller(metadata).into_iter().chain(pool).collect()
    },
};

pub(crate) const CLAIM: Keeping<SandboxClaim> = Keeping {
    trim: |claim| metadata(&mut claim.metadata),
    indices: |claim| {
        let namespace = claim.metadata.namespace.clone().unwrap_or_default();
        // Claims have no controller but a task.
        let task = controller(&claim.metadata);
        let shown = claim.status.as_ref().and_then(|status| status.sandbox.as_ref()?.name.as_deref());
        let promised = ownership::annotation(&claim.metadata, annotations::SANDBOX_NAME);
        let promised = promised.filter(|name| Some(*name) != shown);
        let promised = promised.map(|name| Index::Promise(namespace.clone(), name.to_owned()));
        let pool = Index::Pool(namespace, claim.spec.warm_pool_ref.name.clone());
        promised.into_iter().chain([pool]).chain(task).collect()
    },
};

pub(crate) const POOL: Keeping<SandboxWarmPool> = Keeping {
    trim: |pool| metadata(&mut pool.metadata),
    indices: |pool| {
        let namespace = pool.metadata.namespace.clone().unwrap_or_default();
        vec![Index::Template(namespace, pool.spec.sandbox_template_ref.name.clone())]
    },
};

pub(crate) const TEMPLATE: Keeping<SandboxTemplate> =
    Keeping { trim: |template| metadata(&mut template.metadata), indices: |_| Vec::new() };

pub(crate) const NETWORK_POLICY: Keeping<NetworkPolicy> =
    Keeping { trim: |policy| metadata(&mut policy.metadata), indices: |_| Vec::new() };

pub(crate) const TASK: Keeping<AgentTask> = Keeping {
    trim: |task| metadata(&mut task.metadata),
    indices: |task| {
        let namespace = task.metadata.namespace.clone().unwrap_or_default();
        let runner = &task.spec.runner;
        let template = runner.sandbox_template_name.clone();
        let template = template.map(|template| Index::Template(namespace.clone(), template));
        let pool = runner.warm_pool_name.clone().map(|pool| Index::Pool(namespace, pool));
        template.into_iter().chain(pool).collect()
    },
};

pub(crate) const POD: Keeping<Pod> =
    Keeping { trim: pod, indices: |pod| controller(&pod.metadata).into_iter().collect() };

pub(crate) const SERVICE: Keeping<Service> = Keeping {
    trim: |service| {
        metadata(&mut service.metadata);
        service.status = None;
    },
    indices: |_| Vec::new(),
};

pub(crate) const VOLUME_CLAIM: Keeping<PersistentVolumeClaim> = Keeping {
    trim: |claim| {
        metadata(&mut claim.metadata);
        claim.spec = None;
        claim.status = None;
    },
    indices: |_| Vec::new(),
};

/// Shrinks a list to its length. Lists are parsed with spare capacity. They never grow here, and
/// the spare memory of twenty thousand of each would be tens of megabytes.
pub(crate) fn fit<T>(list: &mut Option<Vec<T>>) {
    list.iter_mut().for_each(Vec::shrink_to_fit);
}

fn sandbox(sandbox: &mut Sandbox) {
    metadata(&mut sandbox.metadata);
    let blueprint = &mut sandbox.spec.blueprint;
    blueprint.volume_claim_templates.shrink_to_fit();
    shared_specs::share(&mut blueprint.pod_template.spec);
    if let Some(status) = &mut sandbox.status {
        status.conditions.shrink_to_fit();
    }
}

fn metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    fit(&mut metadata.owner_references);
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(annotations::LAST_APPLIED);
    }
}

fn pod(pod: &mut Pod) {
    metadata(&mut pod.metadata);
    pod.metadata.finalizers = None;
    // Decisions about a task depend on how its pod ends.
    let is_of_a_task = ownership::annotation(&pod.metadata, annotations::TASK).is_some();
    if let Some(spec) = pod.spec.take() {
        pod.spec = Some(PodSpec {
            node_name: spec.node_name,
            active_deadline_seconds: spec.active_deadline_seconds,
            // Only a pod that is never restarted may be given the command of a task.
            restart_policy: spec.restart_policy.filter(|policy| policy == "Never"),
            ..PodSpec::default()
        });
    }
    if let Some(status) = pod.status.take() {
        let read = |type_: &str| {
            [ConditionType::Ready.as_str(), ConditionType::PodScheduled.as_str()].contains(&type_)
                || is_of_a_task && type_ == "DisruptionTarget"
        };
        let containers = if is_of_a_task { states } else { stuck };
        // The reason and message of a failed pod say why a node refused or evicted it. A running
        // pod has neither.
        let is_failed = status.phase.as_deref() == Some("Failed");
        pod.status = Some(PodStatus {
            phase: status.phase,
            start_time: status.start_time,
            pod_ips: status.pod_ips.map(|mut addresses| {
                addresses.shrink_to_fit();
                addresses
            }),
            conditions: status.conditions.map(|mut conditions| {
                conditions.retain(|condition| read(&condition.type_));
                conditions.shrink_to_fit();
                conditions
            }),
            init_container_statuses: containers(status.init_container_statuses),
            container_statuses: containers(status.container_statuses),
            reason: status.reason.filter(|_| is_failed || is_of_a_task),
            message: status.message.filter(|_| is_failed || is_of_a_task),
            ..PodStatus::default()
        });
    }
}

/// Keeps only the reason why a container cannot start, which few have.
fn stuck(containers: Option<Vec<ContainerStatus>>) -> Option<Vec<ContainerStatus>> {
    let waiting = containers?.into_iter().filter_map(|container| {
        let waiting = container.state?.waiting.filter(|waiting| waiting.reason.is_some())?;
        let state = Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() });
        Some(ContainerStatus { name: container.name, state, ..ContainerStatus::default() })
    });
    Some(waiting.collect::<Vec<_>>()).filter(|waiting| !waiting.is_empty())
}

fn states(containers: Option<Vec<ContainerStatus>>) -> Option<Vec<ContainerStatus>> {
    let states = containers?.into_iter().map(|container| ContainerStatus {
        name: container.name,
        state: container.state,
        ..ContainerStatus::default()
    });
    Some(states.collect())
}

fn controller(metadata: &ObjectMeta) -> Option<Index> {
    let namespace = metadata.namespace.clone().unwrap_or_default();
    Some(Index::Controller(namespace, ownership::controller(metadata)?.uid.clone()))
}
