//! The spans of a sandbox's reconcile: the reconcile, its volumes and its pod.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use warren_decide::ownership;
use warren_decide::sandbox::World;
use warren_decide::step::{Failure, Kind, Stage, Step};

use super::{Span, Tracer};
use crate::cluster::Cluster;

/// Running spans. Those of volumes and pod last from their first write to the last observation, and
/// exist without any write, too.
#[derive(Default)]
pub(crate) struct SandboxSpans {
    pass: Span,
    volumes: Option<Span>,
    pod: Option<Span>,
    had_pod: bool,
}

impl SandboxSpans {
    pub(crate) fn begin(tracer: &Tracer, world: &World) -> Self {
        let metadata = &world.sandbox.metadata;
        let mut pass = tracer.pass("ReconcileSandbox", metadata);
        if pass.is_recorded() {
            pass.set("sandbox.name", metadata.name.clone().unwrap_or_default());
            pass.set("sandbox.namespace", metadata.namespace.clone().unwrap_or_default());
        }
        Self { pass, volumes: None, pod: None, had_pod: own_pod(world).is_some() }
    }

    /// Returns the write that gives the sandbox this context, if it has none.
    pub(crate) fn stamp(&self, world: &World) -> Option<Step> {
        self.pass.stamp(Kind::Sandbox, &world.sandbox.metadata)
    }

    /// Carries out steps in order and measures each stage.
    pub(crate) async fn apply(
        &mut self,
        cluster: &Cluster,
        namespace: &str,
        manager: &'static str,
        steps: Vec<Step>,
    ) -> Vec<Failure> {
        if !self.pass.is_recorded() {
            return cluster.apply(namespace, manager, steps).await;
        }
        let mut failures = Vec::new();
        let mut steps = steps.into_iter().peekable();
        while let Some(stage) = steps.peek().map(|step| step.stage) {
            let of_stage: Vec<Step> =
                std::iter::from_fn(|| steps.next_if(|step| step.stage == stage)).collect();
            // It begins with the first write and ends with the reconcile.
            if stage == Stage::Volumes && self.volumes.is_none() {
                self.volumes = Some(self.pass.child("reconcilePVCs"));
            }
            if stage == Stage::Pod && self.pod.is_none() {
                self.pod = Some(self.pass.child("reconcilePod"));
            }
            failures.extend(cluster.apply(namespace, manager, of_stage).await);
        }
        failures
    }

    /// Ends the spans of volumes and pod with the last observation. The reconcile's span goes on.
    pub(crate) fn observe(&mut self, world: &World) {
        if !self.pass.is_recorded() {
            return;
        }
        drop(self.volumes.take().unwrap_or_else(|| self.pass.child("reconcilePVCs")));
        let mut span = self.pod.take().unwrap_or_else(|| self.pass.child("reconcilePod"));
        if let Some(pod) = own_pod(world) {
            let name = if self.had_pod { "ExistingPodStatusObserved" } else { "NewPodStatusObserved" };
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            let attributes =
                vec![("pod.Name", pod.metadata.name.clone().unwrap_or_default()), ("pod.Phase", phase)];
            span.happened(name, attributes);
        }
    }
}

fn own_pod(world: &World) -> Option<&Arc<Pod>> {
    let uid = world.sandbox.metadata.uid.as_deref().unwrap_or_default();
    world.pods.iter().find(|pod| ownership::is_controlled_by(&pod.metadata, uid))
}
