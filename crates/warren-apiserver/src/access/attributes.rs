//! The attributes of a request that authorization looks at.

use http::Method;

use crate::query::Query;
use crate::route::Route;
use crate::status::ApiError;

/// A request, or a question about a request (an access review).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attributes<'a> {
    /// A request on a resource. The resource need not exist on this server.
    Resource {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        /// Empty if absent, like `namespace` and `name`.
        subresource: &'a str,
        namespace: &'a str,
        name: &'a str,
    },
    /// A request on any other path.
    Path { verb: &'a str, path: &'a str },
}

impl<'a> Attributes<'a> {
    /// Returns the attributes of a request with this method, path and query.
    pub fn of(method: &Method, path: &'a str, route: &Route<'a>, query: &'a Query) -> Attributes<'a> {
        let Route::Resource(resource) = route else {
            return Attributes::Path { verb: path_verb(method), path };
        };
        // A namespace counts as being inside itself, so that a role in it can grant access to it.
        let own_namespace =
            resource.name.filter(|_| resource.group.is_empty() && resource.plural == "namespaces");
        let selected = || {
            let selector = query.get("fieldSelector").unwrap_or_default();
            selector.split(',').find_map(|term| {
                let (field, name) = term.split_once('=')?;
                (field == "metadata.name").then(|| name.trim_start_matches('='))
            })
        };
        Attributes::Resource {
            verb: match *method {
                Method::POST => "create",
                Method::PUT => "update",
                Method::PATCH => "patch",
                Method::DELETE if resource.name.is_none() => "deletecollection",
                Method::DELETE => "delete",
                Method::GET | Method::HEAD if resource.name.is_some() && !resource.watch => "get",
                Method::GET | Method::HEAD if resource.watch || query.is_on("watch") => "watch",
                Method::GET | Method::HEAD => "list",
                _ => "",
            },
            group: resource.group,
            resource: resource.plural,
            subresource: resource.subresource.unwrap_or_default(),
            namespace: resource.namespace.or(own_namespace).unwrap_or_default(),
            name: match (resource.name, method) {
                (Some(name), _) => name,
                (None, &Method::GET) => selected().unwrap_or_default(),
                (None, _) => "",
            },
        }
    }

    pub fn verb(&self) -> &'a str {
        match self {
            Attributes::Resource { verb, .. } | Attributes::Path { verb, .. } => verb,
        }
    }

    /// Returns the same attributes with another verb.
    pub fn with_verb<'b>(&self, verb: &'b str) -> Attributes<'b>
    where
        'a: 'b,
    {
        match *self {
            Attributes::Resource { group, resource, subresource, namespace, name, .. } => {
                Attributes::Resource { verb, group, resource, subresource, namespace, name }
            }
            Attributes::Path { path, .. } => Attributes::Path { verb, path },
        }
    }

    /// Returns the error for a user who is not allowed to do this.
    pub fn forbidden(&self, user: &str, reason: &str) -> ApiError {
        let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        match *self {
            Attributes::Path { verb, path } => ApiError::forbidden_path(format!(
                "forbidden: User {user:?} cannot {verb} path {path:?}{because}"
            )),
            Attributes::Resource { verb, group, resource, subresource, namespace, name } => {
                let below = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
                let scope = match namespace {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                let why = format!(
                    "User {user:?} cannot {verb} resource \"{resource}{below}\" in API group {group:?} {scope}{because}"
                );
                ApiError::forbidden(crate::status::Subject { group, kind: resource, name }, &why)
            }
        }
    }
}

fn path_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::HEAD => "head",
        Method::OPTIONS => "options",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::Attributes;
    use crate::query::Query;

    #[test]
    fn requests_have_the_verbs_that_roles_name() {
        let check = |method: Method, path: &str, query: &str, expected: Attributes<'_>| {
            let query = Query::parse(query);
            let route = crate::route::parse(path);
            assert_eq!(Attributes::of(&method, path, &route, &query), expected, "{method} {path}");
        };
        let pods = |verb, name| Attributes::Resource {
            verb,
            group: "",
            resource: "pods",
            subresource: "",
            namespace: "a",
            name,
        };
        let path = "/api/v1/namespaces/a/pods";
        check(Method::GET, path, "", pods("list", ""));
        check(Method::GET, path, "watch=true", pods("watch", ""));
        check(Method::GET, path, "fieldSelector=metadata.name%3Dp", pods("list", "p"));
        check(Method::DELETE, path, "", pods("deletecollection", ""));
        check(Method::GET, "/api/v1/namespaces/a/pods/p", "watch=true", pods("get", "p"));
        check(Method::GET, "/api/v1/watch/namespaces/a/pods", "", pods("watch", ""));
        let namespace = Attributes::Resource {
            verb: "get",
            group: "",
            resource: "namespaces",
            subresource: "",
            namespace: "a",
            name: "a",
        };
        check(Method::GET, "/api/v1/namespaces/a", "", namespace);
        check(Method::GET, "/metrics", "", Attributes::Path { verb: "get", path: "/metrics" });
    }
}
