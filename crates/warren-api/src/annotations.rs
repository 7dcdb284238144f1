//! All annotation keys with a meaning here, and their writers.

/// Name of the backing Pod, on a Sandbox. Written after the Pod is created or adopted, and in the
/// patch with which a claim takes a warm Sandbox.
pub const POD_NAME: &str = "agents.x-k8s.io/pod-name";

/// Plain name of the template, on a Sandbox. For metrics and launch attribution.
pub const SANDBOX_TEMPLATE_REF: &str = "agents.x-k8s.io/sandbox-template-ref";

/// Sorted, comma-separated label keys that the controller copied from the pod template to the Pod.
/// Used to find the labels to remove later.
pub const PROPAGATED_LABELS: &str = "agents.x-k8s.io/propagated-labels";

/// Sorted, comma-separated annotation keys that the controller copied from the pod template to the
/// Pod.
pub const PROPAGATED_ANNOTATIONS: &str = "agents.x-k8s.io/propagated-annotations";

/// Sandbox assigned to a claim. Written under a resourceVersion guard before the Sandbox is
/// changed.
pub const SANDBOX_NAME: &str = "agents.x-k8s.io/sandbox-name";

/// Time at which the controller first saw the claim (RFC 3339 with nanoseconds).
pub const CONTROLLER_FIRST_OBSERVED_AT: &str = "agents.x-k8s.io/controller-first-observed-at";

/// Time at which the claim first became Ready, or [`FIRST_READY_UNKNOWN`]. It keeps the latency
/// metrics from counting a claim twice.
pub const CLAIM_FIRST_READY_AT: &str = "agents.x-k8s.io/claim-first-ready-at";

/// Value of [`CLAIM_FIRST_READY_AT`] on a claim that was found Ready without the annotation.
pub const FIRST_READY_UNKNOWN: &str = "unknown";

/// Time at which an external mutating webhook first saw the claim.
pub const WEBHOOK_FIRST_OBSERVED_AT: &str = "agents.x-k8s.io/webhook-first-observed-at";

/// Time at which the client requested the claim. The SDKs set it.
pub const CLIENT_FIRST_REQUESTED_AT: &str = "agents.x-k8s.io/client-first-requested-at";

/// JSON map of W3C trace headers, on a claim. It is copied to its Sandbox.
pub const TRACE_CONTEXT: &str = "opentelemetry.io/trace-context";

/// `true` on pooled Pods, so that the cluster autoscaler may remove their node. Removed once
/// claimed.
pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// Snapshot of the `v1alpha1` Sandbox that a stored object was converted from.
pub const V1ALPHA1_SANDBOX_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandbox-state";

/// Snapshot of the `v1alpha1` SandboxClaim that a stored object was converted from.
pub const V1ALPHA1_SANDBOX_CLAIM_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxclaim-state";

/// Snapshot of the `v1alpha1` SandboxTemplate that a stored object was converted from.
pub const V1ALPHA1_SANDBOX_TEMPLATE_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxtemplate-state";

/// Snapshot of the `v1alpha1` SandboxWarmPool that a stored object was converted from.
pub const V1ALPHA1_SANDBOX_WARM_POOL_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxwarmpool-state";

/// Carries `volumeClaimTemplatesPolicy` on the `v1alpha1` view of a SandboxTemplate, which lacks
/// the field.
pub const V1BETA1_VOLUME_CLAIM_TEMPLATES_POLICY: &str =
    "api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy";

/// Time at which the migration tooling rewrote the stored object.
pub const STORAGE_MIGRATED_AT: &str = "agents.x-k8s.io/storage-migrated-at";

/// `true` on a pool that the migration tooling created for claims that named only a template.
pub const MIGRATION_SHADOW: &str = "agents.x-k8s.io/migration-shadow";

/// The template of a pool with [`MIGRATION_SHADOW`].
pub const MIGRATION_SOURCE_TEMPLATE: &str = "agents.x-k8s.io/migration-source-template";

/// The network mode of a Pod: `none`, `restricted` or `full`.
pub const NETWORK: &str = "warren.dev/network";

/// Comma-separated destinations that a restricted Pod may reach through the egress proxy: host
/// names, `*.` followed by a name, or blocks of IPv4 addresses.
pub const NETWORK_ALLOWED_HOSTS: &str = "warren.dev/network-allowed-hosts";

/// Comma-separated ports that a restricted Pod may reach: numbers, or ranges such as `8000-8100`.
pub const NETWORK_ALLOWED_PORTS: &str = "warren.dev/network-allowed-ports";

/// The hosts that a Pod without [`NETWORK_ALLOWED_HOSTS`] may reach: sources of code and scripts.
/// Package registries differ from place to place, so they are named by annotation.
pub const DEFAULT_ALLOWED_HOSTS: [&str; 4] =
    ["github.com", "api.github.com", "raw.githubusercontent.com", "cdn.jsdelivr.net"];

/// The ports of a Pod without [`NETWORK_ALLOWED_PORTS`]: HTTPS and HTTP.
pub const DEFAULT_ALLOWED_PORTS: [u16; 2] = [443, 80];

/// On a Pod: the maximum number of processes and threads of each container.
pub const PIDS_LIMIT: &str = "warren.dev/pids-limit";

/// On a Sandbox or a claim: its lifetime from creation, as a duration such as `1h`.
pub const TTL: &str = "warren.dev/ttl";

/// On a Pod: the guest daemon that the node adds to it: [`ENABLED`], [`SANDBOXD`], [`E2B`] or
/// [`DISABLED`].
pub const GUEST: &str = "warren.dev/guest";

/// Value of [`GUEST`]: with the runtime API.
pub const ENABLED: &str = "enabled";

/// Value of [`GUEST`]: with the runtime API and sandboxd's REST and gRPC APIs.
pub const SANDBOXD: &str = "sandboxd";

/// Value of [`GUEST`]: with the runtime API and E2B's envd API.
pub const E2B: &str = "e2b";

/// On a Sandbox or a claim created through E2B's API: the template that its client requested.
pub const E2B_TEMPLATE: &str = "warren.dev/e2b-template";

/// On a Sandbox or a claim created through E2B's API: its client's metadata, as a JSON object.
pub const E2B_METADATA: &str = "warren.dev/e2b-metadata";

/// Value of [`GUEST`]: no guest daemon.
pub const DISABLED: &str = "disabled";

/// On a claim: the deadline for it to be Ready, after which it ends. A duration such as `90s` or
/// `5m` from the start of its wait, or a time (RFC 3339).
pub const DEADLINE: &str = "warren.dev/deadline";

/// On a Sandbox, a claim or a template: the treatment of the sandbox's volume claims when it is
/// deleted, [`RETAIN`] or [`DELETE`]. The value of a claim overrides that of its template.
pub const PVC_RETENTION: &str = "warren.dev/pvc-retention";

/// Value of [`PVC_RETENTION`]: the volume claims stay.
pub const RETAIN: &str = "Retain";

/// Value of [`PVC_RETENTION`] and the default: the volume claims are deleted with the sandbox.
pub const DELETE: &str = "Delete";

/// On a pool: the maximum number of members, whatever `spec.replicas` says. Members that are being
/// deleted count.
pub const MAX_MEMBERS: &str = "warren.dev/max-members";

/// On a pool: [`ROLLING_UPDATE`], which is no value of the schema's own `updateStrategy`.
pub const UPDATE_STRATEGY: &str = "warren.dev/update-strategy";

/// Value of [`UPDATE_STRATEGY`]: outdated members are replaced a few at a time.
pub const ROLLING_UPDATE: &str = "RollingUpdate";

/// On a pool with [`ROLLING_UPDATE`]: the maximum number of members that may be missing or not
/// ready because of it, as a number or a percentage of the pool.
pub const MAX_UNAVAILABLE: &str = "warren.dev/max-unavailable";

/// On a pool: the longest time without a new ready member while some are needed, as a duration.
pub const PROGRESS_DEADLINE: &str = "warren.dev/progress-deadline";

/// On a pool, written by the controller: the progress of the template's rollout, as a condition in
/// JSON.
pub const PROGRESSING: &str = "warren.dev/progressing";

/// On a pool, written by the controller: the number of members of the current template. Present
/// only while there are others.
pub const UPDATED_REPLICAS: &str = "warren.dev/updated-replicas";

/// On a Pod, written by the controller: hashes of the fields of its pod template. They reveal a
/// later edit of the template.
pub const POD_TEMPLATE_FINGERPRINT: &str = "warren.dev/pod-template-fingerprint";

/// On a Sandbox: [`NEVER`] if its pod is made only once and not replaced when it is gone.
pub const POD_REPLACEMENT: &str = "warren.dev/pod-replacement";

/// Value of [`POD_REPLACEMENT`]: the pod is not replaced.
pub const NEVER: &str = "Never";

/// Name of the task, on its Sandboxes and their Pods.
pub const TASK: &str = "warren.dev/task";

/// On a Pod whose program waits for a task: the command and its variables, as JSON. Written once.
pub const TASK_COMMAND: &str = "warren.dev/task-command";

/// On the claim or sandbox of a lease: the fingerprint of the scope that the lease is valid in.
pub const PROVIDER_SCOPE: &str = "warren.dev/provider-scope";

/// On the claim or sandbox of a lease: the directory for files and commands, if one was chosen.
pub const WORKDIR: &str = "warren.dev/workdir";

/// On the claim or sandbox of a lease: the container for commands, if one was chosen.
pub const CONTAINER: &str = "warren.dev/container";

/// kubectl's own copy of an object, as large as the object. Only kubectl reads it, so we do not
/// keep it. A pod that was pasted into a template has one, and on the Pod it would describe another
/// object.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns true if an annotation key of a pod template is not copied to the Pod.
pub fn is_reserved(key: &str) -> bool {
    [TRACE_CONTEXT, POD_TEMPLATE_FINGERPRINT, LAST_APPLIED, TASK_COMMAND].contains(&key)
        || crate::labels::is_reserved(key)
}
