//! Who may do what: Kubernetes' role-based access control, as the real server enforces it.
//!
//! Whoever is in the group `system:masters` may do everything and is let through before anything here is looked at; for
//! all others the roles and bindings in the store are compiled into a [`Policy`], once per change of them.

mod aggregation;
mod attributes;
mod bootstrap;
mod escalation;
mod impersonation;
mod policy;
mod rule;
mod tokens;

use std::sync::{Arc, Mutex, PoisonError};

use warren_store::Store;

use crate::identity::Identity;
use crate::status::ApiError;

pub(crate) use aggregation::keep_aggregated;
pub(crate) use attributes::Attributes;
pub(crate) use bootstrap::first_objects;
pub(crate) use escalation::check_escalation;
pub(crate) use impersonation::{impersonate, is_asked_for as is_impersonation};
pub(crate) use policy::{Decision, Policy};
pub(crate) use rule::Rule;
pub(crate) use tokens::{AUDIENCE, BoundObject, Claims, REFUSED, account_groups, account_user};
pub use tokens::{Accounts, SigningKey, SigningKeyError};

/// The group of roles and bindings, which is part of the names of their resources.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// The policy in force. Compiled when it is first asked for after a change.
#[derive(Default)]
pub(crate) struct Access {
    policy: Mutex<Option<Arc<Policy>>>,
}

impl Access {
    pub fn policy(&self, store: &Store) -> Arc<Policy> {
        // Compiling happens under the lock: a change that is committed meanwhile waits, and then clears what was compiled.
        let mut policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(policy.get_or_insert_with(|| Arc::new(Policy::compile(store))))
    }

    /// To be called after every write of a role or binding.
    pub fn changed(&self) {
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Decides about one request.
    pub fn decide(&self, store: &Store, identity: &Identity, attributes: &Attributes<'_>) -> Decision {
        if identity.is_all_powerful() {
            return Decision::Allowed { reason: String::new() };
        }
        self.policy(store).decide(identity, attributes)
    }

    /// Refuses what is not allowed, in the words of the real server.
    pub fn authorize(
        &self,
        store: &Store,
        identity: &Identity,
        attributes: &Attributes<'_>,
    ) -> Result<(), ApiError> {
        match self.decide(store, identity, attributes) {
            Decision::Allowed { .. } => Ok(()),
            Decision::Denied { reason } => Err(attributes.forbidden(&identity.user, &reason)),
        }
    }
}
