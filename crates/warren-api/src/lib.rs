//! The Kubernetes resources of Warren as data: `Sandbox`, `SandboxTemplate`, `SandboxClaim` and
//! `SandboxWarmPool` at `v1beta1`, and our own `AgentTask` at `v1alpha1`. It contains every label
//! and annotation key, condition, reason and message that published agent-sandbox clients know.
//!
//! It never talks to a server and makes no decisions. Start with [`Sandbox`] and
//! [`blueprint::SandboxBlueprint`]. [`labels`] and [`conditions`] define the vocabulary, [`crds`]
//! the definitions for a server.

pub mod annotations;
pub mod blueprint;
pub mod claim;
pub mod conditions;
mod crds;
pub mod go_duration;
pub mod labels;
mod name_hash;
pub mod pool;
pub mod sandbox;
pub mod schema;
pub mod task;
pub mod template;
mod time;
pub mod v1alpha1;
pub mod view;
mod words;

pub use claim::{SandboxClaim, SandboxClaimSpec, SandboxClaimStatus};
pub use crds::crds;
pub use name_hash::NameHash;
pub use pool::{SandboxWarmPool, SandboxWarmPoolSpec, SandboxWarmPoolStatus};
pub use sandbox::{Sandbox, SandboxSpec, SandboxStatus};
pub use task::{AgentTask, AgentTaskSpec, AgentTaskStatus};
pub use template::{SandboxTemplate, SandboxTemplateSpec};

/// API group of [`Sandbox`].
pub const GROUP: &str = "agents.x-k8s.io";

/// API group of [`SandboxTemplate`], [`SandboxClaim`] and [`SandboxWarmPool`].
pub const EXTENSIONS_GROUP: &str = "extensions.agents.x-k8s.io";

/// API group of [`AgentTask`], which is not part of agent-sandbox.
pub const OWN_GROUP: &str = "warren.dev";

/// The version of [`AgentTask`] that is served and stored.
pub const OWN_VERSION: &str = "v1alpha1";

/// The version that is served and stored.
pub const VERSION: &str = "v1beta1";
