//! Every annotation key that has a meaning here, with who writes it.

/// Name of the backing Pod, on a Sandbox. Written after the Pod is made or taken over, and inside the patch by
/// which a claim takes a warm Sandbox.
pub const POD_NAME: &str = "agents.x-k8s.io/pod-name";

/// Plain name of the template, on a Sandbox; for metrics and launch attribution.
pub const SANDBOX_TEMPLATE_REF: &str = "agents.x-k8s.io/sandbox-template-ref";

/// Sorted, comma-separated label keys that the controller copied from the pod template to the Pod. It tells
/// which labels to remove later.
pub const PROPAGATED_LABELS: &str = "agents.x-k8s.io/propagated-labels";

/// The same for annotation keys.
pub const PROPAGATED_ANNOTATIONS: &str = "agents.x-k8s.io/propagated-annotations";

/// Sandbox assigned to a claim; written under a resourceVersion guard before the Sandbox is touched.
pub const SANDBOX_NAME: &str = "agents.x-k8s.io/sandbox-name";

/// When the controller first saw the claim (RFC 3339 with nanoseconds).
pub const CONTROLLER_FIRST_OBSERVED_AT: &str = "agents.x-k8s.io/controller-first-observed-at";

/// When the claim first became Ready, or [`FIRST_READY_UNKNOWN`]; guards the latency metrics against counting twice.
pub const CLAIM_FIRST_READY_AT: &str = "agents.x-k8s.io/claim-first-ready-at";

/// Value of [`CLAIM_FIRST_READY_AT`] on a claim that was found Ready without the annotation.
pub const FIRST_READY_UNKNOWN: &str = "unknown";

/// When an external mutating webhook first saw the claim.
pub const WEBHOOK_FIRST_OBSERVED_AT: &str = "agents.x-k8s.io/webhook-first-observed-at";

/// When the client asked for the claim; set by the SDKs.
pub const CLIENT_FIRST_REQUESTED_AT: &str = "agents.x-k8s.io/client-first-requested-at";

/// JSON map of W3C trace headers, on a claim and copied to its Sandbox.
pub const TRACE_CONTEXT: &str = "opentelemetry.io/trace-context";

/// `true` on pooled Pods, so that the cluster autoscaler may remove their node; gone once claimed.
pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// Snapshot of the `v1alpha1` Sandbox that a stored object was converted from.
pub const V1ALPHA1_SANDBOX_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandbox-state";

/// Snapshot of the `v1alpha1` SandboxClaim that a stored object was converted from.
pub const V1ALPHA1_SANDBOX_CLAIM_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxclaim-state";

/// Snapshot of the `v1alpha1` SandboxTemplate that a stored object was converted from.
pub const V1ALPHA1_SANDBOX_TEMPLATE_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxtemplate-state";

/// Snapshot of the `v1alpha1` SandboxWarmPool that a stored object was converted from.
pub const V1ALPHA1_SANDBOX_WARM_POOL_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxwarmpool-state";

/// Carries `volumeClaimTemplatesPolicy` on the `v1alpha1` view of a SandboxTemplate, which lacks the field.
pub const V1BETA1_VOLUME_CLAIM_TEMPLATES_POLICY: &str =
    "api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy";

/// When the migration tooling rewrote the stored object.
pub const STORAGE_MIGRATED_AT: &str = "agents.x-k8s.io/storage-migrated-at";

/// `true` on a pool that the migration tooling made for claims that named only a template.
pub const MIGRATION_SHADOW: &str = "agents.x-k8s.io/migration-shadow";

/// The template that such a pool was made for.
pub const MIGRATION_SOURCE_TEMPLATE: &str = "agents.x-k8s.io/migration-source-template";

/// The network mode of a Pod: `none`, `restricted` or `full`.
pub const NETWORK: &str = "warren.dev/network";

/// What a restricted Pod may reach through the egress proxy: host names, `*.` and a name, or blocks of IPv4 addresses, with
/// commas between.
pub const NETWORK_ALLOWED_HOSTS: &str = "warren.dev/network-allowed-hosts";

/// And on which ports: numbers or ranges such as `8000-8100`, with commas between.
pub const NETWORK_ALLOWED_PORTS: &str = "warren.dev/network-allowed-ports";

/// On a Pod: how many processes and threads each of its containers may have at once.
pub const PIDS_LIMIT: &str = "warren.dev/pids-limit";

/// On a Sandbox or a claim: how long it lives, as a duration from its creation such as `1h`.
pub const TTL: &str = "warren.dev/ttl";

/// On a Pod: whether the node puts its guest daemon into it, [`ENABLED`], [`SANDBOXD`], [`E2B`] or
/// [`DISABLED`].
pub const GUEST: &str = "warren.dev/guest";

/// Value of [`GUEST`]: with the runtime API.
pub const ENABLED: &str = "enabled";

/// Value of [`GUEST`]: with the runtime API and sandboxd's REST and gRPC APIs.
pub const SANDBOXD: &str = "sandboxd";

/// Value of [`GUEST`]: with the runtime API and E2B's envd API.
pub const E2B: &str = "e2b";

/// On a Sandbox or a claim that was created through E2B's API: the template that its client asked for.
pub const E2B_TEMPLATE: &str = "warren.dev/e2b-template";

/// On a Sandbox or a claim that was created through E2B's API: its client's metadata, as a JSON object.
pub const E2B_METADATA: &str = "warren.dev/e2b-metadata";

/// Value of [`GUEST`].
pub const DISABLED: &str = "disabled";

/// On a claim: until when it must be Ready, or else it ends. A duration such as `90s` or `5m`, counted from when it began
/// to wait, or a time (RFC 3339).
pub const DEADLINE: &str = "warren.dev/deadline";

/// On a Sandbox, a claim or a template: what becomes of the sandbox's volume claims when it is deleted, [`RETAIN`] or
/// [`DELETE`]. A claim's word goes before its template's.
pub const PVC_RETENTION: &str = "warren.dev/pvc-retention";

/// Value of [`PVC_RETENTION`]: the volume claims stay.
pub const RETAIN: &str = "Retain";

/// Value of [`PVC_RETENTION`], and what holds without it: the volume claims go with the sandbox.
pub const DELETE: &str = "Delete";

/// On a pool: the most members that it may have, whatever `spec.replicas` says; dying ones count.
pub const MAX_MEMBERS: &str = "warren.dev/max-members";

/// On a pool: [`ROLLING_UPDATE`], which the schema's own `updateStrategy` has no word for.
pub const UPDATE_STRATEGY: &str = "warren.dev/update-strategy";

/// Value of [`UPDATE_STRATEGY`]: outdated members are replaced a few at a time.
pub const ROLLING_UPDATE: &str = "RollingUpdate";

/// On a pool with [`ROLLING_UPDATE`]: how many members may be missing or not ready because of it, as a number or a
/// percentage of the pool.
pub const MAX_UNAVAILABLE: &str = "warren.dev/max-unavailable";

/// On a pool: how long it may go without a new ready member while it needs some, as a duration.
pub const PROGRESS_DEADLINE: &str = "warren.dev/progress-deadline";

/// On a pool, written by the controller: how the rollout of its template stands, as a condition in JSON.
pub const PROGRESSING: &str = "warren.dev/progressing";

/// On a pool, written by the controller: how many members are of the present template. Only there while some are not.
pub const UPDATED_REPLICAS: &str = "warren.dev/updated-replicas";

/// On a Pod, written by the controller: hashes of the fields of the pod template that it was made from, by which a later
/// edit of the template is noticed.
pub const POD_TEMPLATE_FINGERPRINT: &str = "warren.dev/pod-template-fingerprint";

/// On a Sandbox: [`NEVER`] has its pod made once. When that is gone, no other is made in its place.
pub const POD_REPLACEMENT: &str = "warren.dev/pod-replacement";

/// Value of [`POD_REPLACEMENT`].
pub const NEVER: &str = "Never";

/// Name of the task, on its Sandboxes and their Pods.
pub const TASK: &str = "warren.dev/task";

/// On the claim or sandbox of a lease: the fingerprint of the place that the lease is valid in.
pub const PROVIDER_SCOPE: &str = "warren.dev/provider-scope";

/// On the claim or sandbox of a lease: the directory for files and commands, if one was chosen.
pub const WORKDIR: &str = "warren.dev/workdir";

/// On the claim or sandbox of a lease: the container for commands, if one was chosen.
pub const CONTAINER: &str = "warren.dev/container";

/// kubectl's own copy of an object: as large as the object, and only kubectl reads it, so we do not keep it. A pod that was pasted into
/// a template brings one along, and on the Pod it would be a copy of something else.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Whether an annotation key of a pod template stays off the Pod.
pub fn is_reserved(key: &str) -> bool {
    [TRACE_CONTEXT, POD_TEMPLATE_FINGERPRINT, LAST_APPLIED].contains(&key) || crate::labels::is_reserved(key)
}
