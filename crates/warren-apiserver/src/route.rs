//! Parsing of request paths.

/// A parsed path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// `/healthz`, `/livez`, `/readyz` and the paths below them.
    Health,
    Version,
    /// `/metrics`
    Metrics,
    /// `/`
    Index,
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/{group}`
    Group(&'a str),
    /// `/api/v1`, `/apis/{group}/{version}`
    Resources {
        group: &'a str,
        version: &'a str,
    },
    OpenApiV2,
    /// `/openapi/v3`
    OpenApiIndex,
    /// `/openapi/v3/…`
    OpenApiGroup {
        group: &'a str,
        version: &'a str,
    },
    Resource(ResourcePath<'a>),
    /// More segments than any subresource has.
    TooDeep {
        group: &'a str,
    },
    Unknown,
}

/// The path of a resource, an object or a subresource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResourcePath<'a> {
    pub group: &'a str,
    pub version: &'a str,
    /// The namespace, if the path has one.
    pub namespace: Option<&'a str>,
    pub plural: &'a str,
    pub name: Option<&'a str>,
    pub subresource: Option<&'a str>,
    /// True if the path asks for a watch: `/api/v1/watch/…`.
    pub watch: bool,
}

pub(crate) fn parse(path: &str) -> Route<'_> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match segments.as_slice() {
        [""] => Route::Index,
        ["healthz" | "livez" | "readyz", ..] => Route::Health,
        ["version"] => Route::Version,
        ["metrics"] => Route::Metrics,
        ["api"] => Route::CoreVersions,
        ["apis"] => Route::Groups,
        ["apis", group] => Route::Group(group),
        ["openapi", "v2"] => Route::OpenApiV2,
        ["openapi", "v3"] => Route::OpenApiIndex,
        ["openapi", "v3", "api", version] => Route::OpenApiGroup { group: "", version },
        ["openapi", "v3", "apis", group, version] => Route::OpenApiGroup { group, version },
        ["api", version] => Route::Resources { group: "", version },
        ["apis", group, version] => Route::Resources { group, version },
        ["api", version, rest @ ..] => resource("", version, rest),
        ["apis", group, version, rest @ ..] => resource(group, version, rest),
        _ => Route::Unknown,
    }
}

fn resource<'a>(group: &'a str, version: &'a str, rest: &[&'a str]) -> Route<'a> {
    let (rest, watch) = match rest {
        ["watch", rest @ ..] if !rest.is_empty() => (rest, true),
        rest => (rest, false),
    };
    let path = |namespace, plural, name, subresource| {
        Route::Resource(ResourcePath { group, version, namespace, plural, name, subresource, watch })
    };
    match *rest {
        // A namespace is an object of the core group. Only these further segments are its
        // subresources; others are resources in it.
        ["namespaces", name, subresource @ ("status" | "finalize")] if group.is_empty() => {
            path(None, "namespaces", Some(name), Some(subresource))
        }
        ["namespaces", name] if group.is_empty() => path(None, "namespaces", Some(name), None),
        ["namespaces", namespace, plural] => path(Some(namespace), plural, None, None),
        ["namespaces", namespace, plural, name] => path(Some(namespace), plural, Some(name), None),
        ["namespaces", namespace, plural, name, subresource] => {
            path(Some(namespace), plural, Some(name), Some(subresource))
        }
        [plural] => path(None, plural, None, None),
        [plural, name] => path(None, plural, Some(name), None),
        [plural, name, subresource] => path(None, plural, Some(name), Some(subresource)),
        // The node interprets the rest of the path.
        ["nodes", name, "proxy", ..] if group.is_empty() => path(None, "nodes", Some(name), Some("proxy")),
        _ => Route::TooDeep { group },
    }
}

#[cfg(test)]
mod tests {
    use super::{ResourcePath, Route, parse};

    #[test]
    fn paths() {
        let pods = ResourcePath {
            group: "",
            version: "v1",
            namespace: Some("a"),
            plural: "pods",
            name: Some("b"),
            subresource: Some("status"),
            watch: false,
        };
        assert_eq!(parse("/api/v1/namespaces/a/pods/b/status"), Route::Resource(pods));
        let namespace = ResourcePath { namespace: None, plural: "namespaces", name: Some("a"), ..pods };
        assert_eq!(parse("/api/v1/namespaces/a/status"), Route::Resource(namespace));
        let all = ResourcePath { namespace: None, name: None, subresource: None, ..pods };
        assert_eq!(parse("/api/v1/pods"), Route::Resource(all));
        let watched = ResourcePath { watch: true, namespace: Some("a"), ..all };
        assert_eq!(parse("/api/v1/watch/namespaces/a/pods"), Route::Resource(watched));
        assert_eq!(parse("/apis/"), Route::Groups);
        assert_eq!(parse("/readyz/ping"), Route::Health);
        assert_eq!(parse("/apis/x.y/v1"), Route::Resources { group: "x.y", version: "v1" });
        assert_eq!(parse("/nothing"), Route::Unknown);
    }
}
