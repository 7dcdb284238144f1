//! Authorization: Kubernetes' role-based access control, as kube-apiserver enforces it.
//!
//! Members of the group `system:masters` are allowed everything without any lookup. For all other
//! users the roles and bindings of the store are compiled into a [`Policy`], once after each
//! change.

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

/// The API group of roles and bindings. Resource names in the store end with it.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// The policy in force. It is compiled at the first request after a change.
#[derive(Default)]
pub(crate) struct Access {
    policy: Mutex<Option<Arc<Policy>>>,
}

impl Access {
    pub fn policy(&self, store: &Store) -> Arc<Policy> {
        // Compile under the lock. A change committed meanwhile waits in `changed` and then discards
        // the result.
        let mut policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(policy.get_or_insert_with(|| Arc::new(Policy::compile(store))))
    }

    /// Discards the compiled policy. Call it after every write of a role or binding.
    pub fn changed(&self) {
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Decides whether a request is allowed.
    pub fn decide(&self, store: &Store, identity: &Identity, attributes: &Attributes<'_>) -> Decision {
        if identity.is_all_powerful() {
            return Decision::Allowed { reason: String::new() };
        }
        self.policy(store).decide(identity, attributes)
    }

    /// Returns the error of kube-apiserver if the request is not allowed.
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
