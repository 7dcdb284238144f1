//! Impersonation: acting as another user, with the headers that `kubectl --as` sends.
//!
//! There are two kinds of permission. The verb `impersonate` on a user allows everything that this
//! user may do. The verb `impersonate:user-info` allows only the actions for which the sender also
//! holds `impersonate-on:user-info:VERB`. For service accounts and nodes another word stands in
//! place of `user-info`.

use std::sync::Arc;

use http::HeaderMap;

use super::{Attributes, account_groups};
use crate::identity::{EVERYONE, Identity};
use crate::query;
use crate::server::Inner;
use crate::status::ApiError;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
/// The API group of user attributes that have no resource of their own, such as `uids`.
const AUTHENTICATION: &str = "authentication.k8s.io";

/// Returns true if the request has impersonation headers.
pub(crate) fn is_asked_for(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with("impersonate-"))
}

/// The user that the headers ask for.
struct Wanted {
    user: String,
    groups: Vec<String>,
    uid: Option<String>,
    extra: Vec<(String, Vec<String>)>,
}

impl Wanted {
    fn read(headers: &HeaderMap) -> Result<Wanted, ApiError> {
        let texts = |name: &str| -> Vec<String> {
            let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
            values.map(str::to_owned).collect()
        };
        let first = |name: &str| texts(name).into_iter().next().filter(|text| !text.is_empty());
        let user = first(USER).ok_or_else(|| {
            ApiError::bad_request("requested to impersonate without impersonating a user name")
        })?;
        let mut extra: Vec<(String, Vec<String>)> = Vec::new();
        for name in headers.keys() {
            if let Some(key) = name.as_str().strip_prefix(EXTRA) {
                extra.push((query::decode(key, false), texts(name.as_str())));
            }
        }
        Ok(Wanted { user, groups: texts(GROUP), uid: first(UID), extra })
    }

    /// Returns namespace and name if the user is a service account.
    fn account(&self) -> Option<(&str, &str)> {
        self.user.strip_prefix("system:serviceaccount:")?.split_once(':')
    }

    fn node(&self) -> Option<&str> {
        self.user.strip_prefix("system:node:")
    }

    /// Returns the word that stands for `user-info` in the verbs of constrained impersonation.
    /// Returns `None` for service accounts and nodes if the request asks for more than the name.
    fn mode(&self) -> Option<&'static str> {
        let only_user = self.groups.is_empty() && self.uid.is_none() && self.extra.is_empty();
        match (self.node(), self.account()) {
            (Some(_), _) => only_user.then_some("arbitrary-node"),
            (_, Some(_)) => only_user.then_some("serviceaccount"),
            (None, None) => Some("user-info"),
        }
    }

    /// Checks the permission for each attribute that the headers ask for.
    fn check(
        &self,
        verb: &str,
        users: &str,
        ask: impl Fn(Attributes<'_>) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let ask = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
            ask(Attributes::Resource { verb, group, resource, subresource, namespace, name })
        };
        match (self.node().filter(|_| users == AUTHENTICATION), self.account()) {
            (Some(node), _) => ask(users, "nodes", "", "", node)?,
            (None, Some((namespace, name))) => ask(users, "serviceaccounts", "", namespace, name)?,
            (None, None) => ask(users, "users", "", "", &self.user)?,
        }
        self.groups.iter().try_for_each(|group| ask(users, "groups", "", "", group))?;
        self.uid.iter().try_for_each(|uid| ask(AUTHENTICATION, "uids", "", "", uid))?;
        for (key, values) in &self.extra {
            values.iter().try_for_each(|value| ask(AUTHENTICATION, "userextras", key, "", value))?;
        }
        Ok(())
    }

    fn into_identity(self) -> Identity {
        const NOBODY: &str = "system:unauthenticated";
        let account = self.account().map(|(namespace, _)| account_groups(namespace));
        let mut groups = match account {
            Some(of_namespace) if self.groups.is_empty() => of_namespace,
            _ => self.groups,
        };
        let joins = if self.user == "system:anonymous" { NOBODY } else { EVERYONE };
        if !groups.iter().any(|group| group == joins || group == NOBODY) {
            groups.push(joins.to_owned());
        }
        Identity { user: self.user, groups, uid: self.uid, extra: self.extra }
    }
}

/// Returns the user that a request acts as. Fails if the sender lacks the permission.
pub(crate) fn impersonate(
    server: &Inner,
    sender: &Identity,
    headers: &HeaderMap,
    request: &Attributes<'_>,
) -> Result<Arc<Identity>, ApiError> {
    let wanted = Wanted::read(headers)?;
    let ask = |attributes: Attributes<'_>| server.access.authorize(&server.store, sender, &attributes);
    let within_bounds = wanted.mode().map(|mode| {
        let on = format!("impersonate-on:{mode}:{}", request.verb());
        ask(request.with_verb(&on))?;
        wanted.check(&format!("impersonate:{mode}"), AUTHENTICATION, ask)
    });
    match within_bounds {
        Some(Ok(())) => {}
        // If both kinds of permission are missing, report the first.
        Some(Err(first)) => wanted.check("impersonate", "", ask).map_err(|_| first)?,
        None => wanted.check("impersonate", "", ask)?,
    }
    Ok(Arc::new(wanted.into_identity()))
}
