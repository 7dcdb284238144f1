//! Acting as somebody else, with the headers that `kubectl --as` sends.

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

/// The user that the request is to be carried out as: another one if it says so, and its sender may.
pub(crate) fn impersonate(
    server: &Inner,
    sender: Arc<Identity>,
    headers: &HeaderMap,
) -> Result<Arc<Identity>, ApiError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let asks = headers.keys().any(|name| name.as_str().starts_with("impersonate-"));
    if !asks {
        return Ok(sender);
    }
    let user = text(USER);
    if user.is_empty() {
        return Err(ApiError::internal(
            "requested other impersonation attributes without impersonating a user",
        ));
    }
    let ask = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        let verb = "impersonate";
        let attributes = Attributes::Resource { verb, group, resource, subresource, namespace, name };
        server.access.authorize(&server.store, &sender, &attributes)
    };
    let account = user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    match account {
        Some((namespace, name)) => ask("", "serviceaccounts", "", namespace, name)?,
        None => ask("", "users", "", "", user)?,
    }
    let mut groups = Vec::new();
    for group in headers.get_all(GROUP).iter().filter_map(|value| value.to_str().ok()) {
        ask("", "groups", "", "", group)?;
        groups.push(group.to_owned());
    }
    let uid = text(UID);
    if !uid.is_empty() {
        ask("authentication.k8s.io", "uids", "", "", uid)?;
    }
    let mut extra: Vec<(String, Vec<String>)> = Vec::new();
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(EXTRA) else { continue };
        let (key, value) = (query::decode(key, false), value.to_str().unwrap_or_default());
        ask("authentication.k8s.io", "userextras", key.as_str(), "", value)?;
        match extra.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value.to_owned()),
            None => extra.push((key, vec![value.to_owned()])),
        }
    }
    if let Some((namespace, _)) = account
        && groups.is_empty()
    {
        groups = account_groups(namespace);
    }
    let anonymous = user == "system:anonymous";
    if anonymous && !groups.iter().any(|group| group == "system:unauthenticated") {
        groups.push("system:unauthenticated".to_owned());
    }
    if !anonymous && !groups.iter().any(|group| group == EVERYONE || group == "system:unauthenticated") {
        groups.push(EVERYONE.to_owned());
    }
    let uid = Some(uid.to_owned()).filter(|uid| !uid.is_empty());
    Ok(Arc::new(Identity { user: user.to_owned(), groups, uid, extra }))
}
