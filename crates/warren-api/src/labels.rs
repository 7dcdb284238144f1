//! All label keys with a meaning here, and their writers.
//!
//! Keys under `agents.x-k8s.io` belong to agent-sandbox, and its published clients read them. Keys
//! under `warren.dev` are ours and never change the meaning of the others.

use crate::NameHash;

/// Hash of the sandbox's name, on its Pod, Service and PersistentVolumeClaims. The Service selects
/// by it. It also permits to take back a child without an owner.
pub const SANDBOX_NAME_HASH: &str = "agents.x-k8s.io/sandbox-name-hash";

/// `true` on a Pod, Service or PersistentVolumeClaim that a user allows a Sandbox of the same name
/// to take over.
pub const ADOPTABLE: &str = "agents.x-k8s.io/adoptable";

/// Hash of the pool's name, on a warm Sandbox, in its pod template and on its Pod while it is in
/// the pool.
pub const WARM_POOL_SANDBOX: &str = "agents.x-k8s.io/warm-pool-sandbox";

/// Hash of the template's name, on the template, on Sandboxes made from it and on their Pods.
/// NetworkPolicies select by it; it stays after a claim has taken the Sandbox.
pub const SANDBOX_TEMPLATE_REF_HASH: &str = "agents.x-k8s.io/sandbox-template-ref-hash";

/// Hash of the template's blueprint (pod template, volume claim templates, service) on a warm
/// Sandbox. It distinguishes stale members from current ones. Removed when a claim takes the
/// Sandbox.
pub const SANDBOX_TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-template-hash";

/// Hash of the template's pod template alone. Superseded by [`SANDBOX_TEMPLATE_HASH`], but still
/// written.
pub const SANDBOX_POD_TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-pod-template-hash";

/// The way in which a claim got its Sandbox: [`LAUNCH_TYPE_WARM`] or [`LAUNCH_TYPE_COLD`].
pub const LAUNCH_TYPE: &str = "agents.x-k8s.io/launch-type";

/// The Sandbox was waiting in a pool.
pub const LAUNCH_TYPE_WARM: &str = "warm";

/// The Sandbox was created for its claim.
pub const LAUNCH_TYPE_COLD: &str = "cold";

/// UID of the claim, on its Sandbox and in the pod template. Never copied to the Pod.
pub const CLAIM_UID: &str = "agents.x-k8s.io/claim-uid";

/// The creator of the sandbox: free text on a claim or Sandbox, one of a few words on the Pod.
pub const CREATED_BY: &str = "agents.x-k8s.io/created-by";

/// The client that created a claim or sandbox for a lease: [`PROVIDER_AGENT_SANDBOX`].
pub const PROVIDER: &str = "warren.dev/provider";

/// The value of [`PROVIDER`] that the command line writes.
pub const PROVIDER_AGENT_SANDBOX: &str = "agent-sandbox";

/// Id of the lease that a claim or sandbox was created for.
pub const LEASE_ID: &str = "warren.dev/lease-id";

/// The user's name for that lease.
pub const SLUG: &str = "warren.dev/slug";

/// Name of the assigned sandbox on a claim, as older controllers wrote it. The annotation of the
/// same key replaced it, and an existing label is moved there.
pub const LEGACY_SANDBOX_NAME: &str = "agents.x-k8s.io/sandbox-name";

/// Id of the MCP session that created a claim or Sandbox, as agent-sandbox's MCP server writes it
/// on claims.
pub const MCP_SESSION: &str = "mcp.k8s-agent-sandbox/session-id";

/// `true` on a claim or Sandbox created through E2B's API.
pub const E2B: &str = "warren.dev/e2b";

/// The project that a sandbox belongs to, on the claim or Sandbox that the service created for it.
pub const PROJECT: &str = "warren.dev/project";

/// Prefixes of the controllers' own keys, which are never copied from a template to a Pod.
pub const RESERVED_PREFIXES: [&str; 2] = ["agents.x-k8s.io/", "extensions.agents.x-k8s.io/"];

/// Returns true if a label key of a pod template is not copied to the Pod.
pub fn is_reserved(key: &str) -> bool {
    RESERVED_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// Returns the label selector of a sandbox's children, as in `Sandbox.status.selector`.
pub fn sandbox_selector(sandbox_name: &str) -> String {
    format!("{SANDBOX_NAME_HASH}={}", NameHash::of(sandbox_name))
}

/// Returns the label selector of a pool's waiting sandboxes, as in
/// `SandboxWarmPool.status.selector`.
pub fn pool_selector(pool_name: &str) -> String {
    format!("{WARM_POOL_SANDBOX}={}", NameHash::of(pool_name))
}
