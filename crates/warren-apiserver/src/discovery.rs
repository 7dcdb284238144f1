//! Discovery documents: the served resources, in the legacy and in the aggregated form.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::definition::{Definition, Version};
use crate::resource_registry::Registry;
use crate::respond::{self, ResponseBody};

/// The verbs of custom resources. kube-apiserver lists them in this order, which differs from that
/// of built-in kinds.
const CUSTOM_VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// Answers `/version`: the Kubernetes release whose behaviour this server follows.
pub(crate) fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": concat!("v1.36.3+warren-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }),
    })
}

/// Answers `/`.
pub(crate) fn index(registry: &Registry) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for (group, _) in registry.groups().filter(|(group, _)| !group.is_empty()) {
        paths.push(format!("/apis/{group}"));
        paths.extend(registry.versions(group).iter().map(|version| format!("/apis/{group}/{version}")));
    }
    paths.extend(
        ["/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"].map(str::to_owned),
    );
    json!({"paths": paths})
}

/// Answers `/api`.
pub(crate) fn core(registry: &Registry, headers: &HeaderMap) -> Response<ResponseBody> {
    if wants_aggregated(headers) {
        return aggregated(registry, |group| group.is_empty());
    }
    let body = json!({
        "kind": "APIVersions",
        "versions": registry.versions(""),
        "serverAddressByClientCIDRs": [],
    });
    respond::json(StatusCode::OK, &body)
}

/// Answers `/apis`.
pub(crate) fn groups(registry: &Registry, headers: &HeaderMap) -> Response<ResponseBody> {
    if wants_aggregated(headers) {
        return aggregated(registry, |group| !group.is_empty());
    }
    let named = registry.groups().map(|(group, _)| group).filter(|group| !group.is_empty());
    let groups: Vec<Value> = named.map(|group| group_entry(registry, group)).collect();
    respond::json(StatusCode::OK, &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
}

/// Answers `/apis/{group}`.
pub(crate) fn group(registry: &Registry, group: &str) -> Option<Response<ResponseBody>> {
    if group.is_empty() || registry.versions(group).is_empty() {
        return None;
    }
    let mut entry = group_entry(registry, group);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Some(respond::json(StatusCode::OK, &entry))
}

fn group_entry(registry: &Registry, group: &str) -> Value {
    let version = |name: &&str| json!({"groupVersion": format!("{group}/{name}"), "version": name});
    let versions: Vec<Value> = registry.versions(group).iter().map(version).collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
}

/// Answers `/api/v1` and `/apis/{group}/{version}`.
pub(crate) fn resources(registry: &Registry, group: &str, version: &str) -> Option<Response<ResponseBody>> {
    if !registry.versions(group).contains(&version) {
        return None;
    }
    let mut resources = Vec::new();
    for definition in definitions(registry, group) {
        let Some(served) = definition.version(version) else { continue };
        let mut entry = json!({
            "name": &*definition.plural,
            "singularName": &*definition.singular,
            "namespaced": definition.namespaced,
            "kind": &*definition.kind,
            "verbs": verbs(definition),
        });
        if !definition.short_names.is_empty() {
            entry["shortNames"] = strings(&definition.short_names);
        }
        if !definition.categories.is_empty() {
            entry["categories"] = strings(&definition.categories);
        }
        entry["storageVersionHash"] = "".into();
        resources.push(entry);
        for (name, kind, verbs, api) in subresources(definition, served) {
            let mut entry = json!({
                "name": format!("{}/{name}", definition.plural),
                "singularName": "",
                "namespaced": definition.namespaced,
                "kind": kind,
                "verbs": verbs,
            });
            if let Some((group, version)) = api {
                entry["group"] = group.into();
                entry["version"] = version.into();
            }
            resources.push(entry);
        }
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut body = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": resources});
    // The document for `v1` has no `apiVersion` field, as on a real cluster.
    if !group.is_empty() {
        body["apiVersion"] = "v1".into();
    }
    Some(respond::json(StatusCode::OK, &body))
}

fn definitions<'a>(registry: &'a Registry, group: &str) -> Vec<&'a Definition> {
    let found = registry.groups().find(|(name, _)| *name == group);
    found
        .map(|(_, definitions)| definitions.into_iter().map(|definition| &**definition).collect())
        .unwrap_or_default()
}

fn verbs(definition: &Definition) -> Vec<&'static str> {
    if definition.custom { CUSTOM_VERBS.to_vec() } else { definition.behaviour.verbs.to_vec() }
}

type Subresource<'a> = (&'a str, &'a str, Vec<&'a str>, Option<(&'a str, &'a str)>);

fn subresources<'a>(definition: &'a Definition, version: &'a Version) -> Vec<Subresource<'a>> {
    let mut all: Vec<Subresource<'a>> = version
        .subresources
        .iter()
        .map(|(name, kind, verbs)| (*name, *kind, verbs.to_vec(), api_of(kind)))
        .collect();
    if version.status {
        all.push(("status", &definition.kind, STATUS_VERBS.to_vec(), None));
    }
    if version.scale.is_some() {
        all.push(("scale", "Scale", STATUS_VERBS.to_vec(), Some(("autoscaling", "v1"))));
    }
    all
}

/// Returns the group and version of a subresource's kind, if they differ from those of its
/// resource.
fn api_of(kind: &str) -> Option<(&'static str, &'static str)> {
    match kind {
        "Eviction" => Some(("policy", "v1")),
        "TokenRequest" => Some(("authentication.k8s.io", "v1")),
        _ => None,
    }
}

fn strings(names: &[Box<str>]) -> Value {
    names.iter().map(|name| Value::from(&**name)).collect()
}

fn wants_aggregated(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|candidate| {
        let parts: Vec<_> = candidate.split(';').map(str::trim).collect();
        parts.contains(&"g=apidiscovery.k8s.io")
            && parts.contains(&"v=v2")
            && parts.contains(&"application/json")
    })
}

fn aggregated(registry: &Registry, wanted: impl Fn(&str) -> bool) -> Response<ResponseBody> {
    let groups: Vec<Value> = registry
        .groups()
        .filter(|(group, _)| wanted(group))
        .map(|(group, _)| {
            let versions: Vec<Value> = registry
                .versions(group)
                .iter()
                .map(|version| aggregated_version(registry, group, version))
                .collect();
            let mut metadata = json!({"creationTimestamp": null});
            if !group.is_empty() {
                metadata["name"] = group.into();
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let body = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": groups,
    });
    let mut response = respond::json(StatusCode::OK, &body);
    let content_type =
        HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

fn aggregated_version(registry: &Registry, group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    for definition in definitions(registry, group) {
        let Some(served) = definition.version(version) else { continue };
        let response_kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
        // For built-in kinds, empty strings stand for the group and version of this document.
        let (own_group, own_version) = if definition.custom { (group, version) } else { ("", "") };
        let mut entry = json!({
            "resource": &*definition.plural,
            "responseKind": response_kind(own_group, own_version, &definition.kind),
            "scope": if definition.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": &*definition.singular,
            "verbs": verbs(definition),
        });
        if !definition.short_names.is_empty() {
            entry["shortNames"] = strings(&definition.short_names);
        }
        if !definition.categories.is_empty() {
            entry["categories"] = strings(&definition.categories);
        }
        let subresources: Vec<Value> = subresources(definition, served)
            .into_iter()
            .map(|(name, kind, verbs, api)| {
                let (group, version) = api.unwrap_or((own_group, own_version));
                json!({"subresource": name, "responseKind": response_kind(group, version, kind), "verbs": verbs})
            })
            .collect();
        if !subresources.is_empty() {
            entry["subresources"] = subresources.into();
        }
        resources.push(entry);
    }
    json!({"version": version, "resources": resources, "freshness": "Current"})
}
