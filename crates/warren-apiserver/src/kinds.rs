//! The built-in kinds, as data. Adding one is a row in [`TABLE`]; a kind with defaults, checks or
//! conversions of its own also has a module here with a [`Behaviour`].

use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};

use crate::definition::{Column, Columns, Conversion, Definition, LazySchema, Scale, SchemaSource, Version};
use crate::schema::{Compiler, Schema};
use crate::status::FieldError;

pub(crate) use go_types::describe;
pub(crate) use quantity::canonical_quantity;
pub(crate) use reviews::Review;

mod cluster;
pub(crate) mod columns;
mod config;
mod events;
mod go_types;
mod metrics;
mod namespaces;
mod network;
pub(crate) mod pods;
mod pods_defaults;
mod pods_validation;
mod policy;
mod quantity;
mod reviews;
mod roles;
mod services;
mod volumes;
mod workloads;

/// The types of the built-in kinds, from Kubernetes' own OpenAPI document without descriptions.
/// `schemas/generate.py` makes the file.
const SCHEMAS: &str = include_str!("../schemas/builtin.json");
/// The types of `metrics.k8s.io`, which are not in that document.
const METRICS_SCHEMAS: &str = include_str!("../schemas/metrics.json");

/// Parses the built-in types. Used only for the OpenAPI document; validation uses the compiled form
/// below.
pub(crate) fn builtin_schemas() -> Map<String, Value> {
    let parse = |text: &str| -> Map<String, Value> {
        serde_json::from_str(text).expect("the embedded schemas are valid JSON: a test reads them")
    };
    let mut schemas = parse(SCHEMAS);
    schemas.extend(parse(METRICS_SCHEMAS));
    schemas
}

static COMPILED: LazyLock<std::collections::HashMap<&'static str, Arc<Schema>>> = LazyLock::new(|| {
    let components = builtin_schemas();
    let mut compiler = Compiler::with_components(&components);
    let rows = TABLE.iter().chain([&TOKEN_REQUEST]).map(|row| row.schema);
    rows.map(|name| (name, compiler.component(name).expect("the embedded schemas compile: a test does it")))
        .collect()
});

/// Returns the compiled schema of a built-in type.
pub(crate) fn builtin_schema(name: &str) -> Result<Arc<Schema>, String> {
    COMPILED.get(name).cloned().ok_or_else(|| format!("no built-in type {name}"))
}

/// Returns the schema of `metadata`, which is the same for every kind.
pub(crate) fn metadata_schema() -> &'static Arc<Schema> {
    COMPILED
        .get("io.k8s.api.core.v1.ConfigMap")
        .and_then(|schema| schema.properties.get("metadata"))
        .expect("a config map has metadata")
}

/// Behaviour of a kind that its schema does not express.
#[derive(Debug)]
pub(crate) struct Behaviour {
    /// Fills in defaults, on every write.
    pub default: fn(&mut Value),
    /// Prepares a new object: its first status and allocated values.
    pub prepare_create: fn(&mut Value),
    /// Prepares an updated object. The arguments are the new and the old version.
    pub prepare_update: fn(&mut Value, &Value),
    /// Prepares an object whose status is updated.
    pub prepare_status: fn(&mut Value, &Value),
    /// Validates an object.
    pub validate: fn(&Value, &mut Vec<FieldError>),
    /// Validates an update. The arguments are the new and the old version.
    pub validate_update: fn(&Value, &Value, &mut Vec<FieldError>),
    /// Returns the grace period of a deletion, given the requested one.
    pub grace_period: fn(&Value, Option<i64>) -> i64,
    /// True if an object with a grace period of zero is marked as deleted before it is removed, so
    /// that watchers see both events.
    pub marks_before_removal: bool,
    /// True if `metadata.generation` counts changes of the spec.
    pub has_generation: bool,
    /// True if a completed deletion answers with the object instead of a `Status`.
    pub returns_deleted: bool,
    /// True if an update may omit the resourceVersion.
    pub unconditional_update: bool,
    /// True if an update of a missing object creates it.
    pub create_on_update: bool,
    /// The fields that are maps with base64 values.
    pub binary_maps: &'static [&'static str],
    /// The supported verbs, in the order of discovery.
    pub verbs: &'static [&'static str],
    /// Set for reviews: kinds that are answered and not stored.
    pub review: Option<Review>,
    /// True if the nodes are asked for it and not the store.
    pub measured: bool,
    pub name: NameRule,
}

/// The rule for names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameRule {
    /// RFC 1123 subdomain, the rule of most kinds.
    Subdomain,
    /// RFC 1123 label, the rule of namespaces and services.
    Label,
    /// Anything that fits into a path. Roles and bindings have it: their names contain colons.
    PathSegment,
}

/// The behaviour of a kind without special rules.
pub(crate) const PLAIN: Behaviour = Behaviour {
    default: |_| {},
    prepare_create: |_| {},
    prepare_update: |_, _| {},
    prepare_status: |_, _| {},
    validate: |_, _| {},
    validate_update: |_, _, _| {},
    grace_period: |_, _| 0,
    marks_before_removal: false,
    has_generation: false,
    returns_deleted: false,
    unconditional_update: true,
    create_on_update: false,
    binary_maps: &[],
    verbs: &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    review: None,
    measured: false,
    name: NameRule::Subdomain,
};

static PLAIN_KIND: Behaviour = PLAIN;
static SERVICE_ACCOUNT: Behaviour = Behaviour { returns_deleted: true, ..PLAIN };
static CUSTOM_RESOURCE_DEFINITION: Behaviour = Behaviour {
    has_generation: true,
    default: crate::crd::default_definition,
    prepare_create: crate::crd::prepare_definition,
    prepare_update: |new, _| crate::crd::prepare_definition(new),
    validate: crate::crd::validate_definition,
    ..PLAIN
};
/// Component statuses. There are no components, so the list is always empty.
static COMPONENT_STATUS: Behaviour = Behaviour { verbs: &["get", "list"], ..PLAIN };
/// The behaviour of custom resources: all rules come from the schema.
pub(crate) static CUSTOM: Behaviour =
    Behaviour { has_generation: true, unconditional_update: false, ..PLAIN };

/// One built-in kind.
struct Row {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
    namespaced: bool,
    status: bool,
    /// True if the kind has a `scale` subresource.
    scale: bool,
    subresources: &'static [(&'static str, &'static str, &'static [&'static str])],
    schema: &'static str,
    fields: &'static [&'static str],
    columns: &'static [Column],
    behaviour: &'static Behaviour,
    /// The resource of another row that it is stored as, with the conversion.
    stored_as: Option<(&'static str, &'static Conversion)>,
}

const ROW: Row = Row {
    group: "",
    version: "v1",
    kind: "",
    plural: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    status: false,
    scale: false,
    subresources: &[],
    schema: "",
    fields: &[],
    columns: columns::NAME_AND_AGE,
    behaviour: &PLAIN_KIND,
    stored_as: None,
};

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

static TABLE: &[Row] = &[
    Row {
        kind: "Namespace",
        plural: "namespaces",
        short_names: &["ns"],
        namespaced: false,
        status: true,
        subresources: &[("finalize", "Namespace", &["update"])],
        schema: "io.k8s.api.core.v1.Namespace",
        fields: &["status.phase"],
        columns: columns::NAMESPACE,
        behaviour: &namespaces::BEHAVIOUR,
        ..ROW
    },
    Row {
        kind: "Pod",
        plural: "pods",
        short_names: &["po"],
        categories: &["all"],
        status: true,
        subresources: &[
            ("attach", "PodAttachOptions", &["create", "get"]),
            ("binding", "Binding", &["create"]),
            ("ephemeralcontainers", "Pod", &["get", "patch", "update"]),
            ("eviction", "Eviction", &["create"]),
            ("exec", "PodExecOptions", &["create", "get"]),
            ("log", "Pod", &["get"]),
            ("portforward", "PodPortForwardOptions", &["create", "get"]),
            ("proxy", "PodProxyOptions", &["create", "delete", "get", "patch", "update"]),
            ("resize", "Pod", &["get", "patch", "update"]),
        ],
        schema: "io.k8s.api.core.v1.Pod",
        fields: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        columns: columns::POD,
        behaviour: &pods::BEHAVIOUR,
        ..ROW
    },
    Row {
        kind: "Event",
        plural: "events",
        short_names: &["ev"],
        schema: "io.k8s.api.core.v1.Event",
        fields: EVENT_FIELDS,
        columns: columns::EVENT,
        behaviour: &events::BEHAVIOUR,
        ..ROW
    },
    Row {
        kind: "Service",
        plural: "services",
        short_names: &["svc"],
        categories: &["all"],
        status: true,
        subresources: &[("proxy", "ServiceProxyOptions", &["create", "delete", "get", "patch", "update"])],
        schema: "io.k8s.api.core.v1.Service",
        fields: &["spec.clusterIP", "spec.type"],
        columns: columns::SERVICE,
        behaviour: &services::BEHAVIOUR,
        ..ROW
    },
    Row {
        kind: "PersistentVolume",
        plural: "persistentvolumes",
        short_names: &["pv"],
        namespaced: false,
        status: true,
        schema: "io.k8s.api.core.v1.PersistentVolume",
        columns: columns::PERSISTENT_VOLUME,
        behaviour: &volumes::VOLUME,
        ..ROW
    },
    Row {
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        short_names: &["pvc"],
        status: true,
        schema: "io.k8s.api.core.v1.PersistentVolumeClaim",
        columns: columns::PERSISTENT_VOLUME_CLAIM,
        behaviour: &volumes::CLAIM,
        ..ROW
    },
    Row {
        kind: "ConfigMap",
        plural: "configmaps",
        short_names: &["cm"],
        schema: "io.k8s.api.core.v1.ConfigMap",
        columns: columns::CONFIG_MAP,
        behaviour: &config::CONFIG_MAP,
        ..ROW
    },
    Row {
        kind: "Secret",
        plural: "secrets",
        schema: "io.k8s.api.core.v1.Secret",
        fields: &["type"],
        columns: columns::SECRET,
        behaviour: &config::SECRET,
        ..ROW
    },
    Row {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        short_names: &["sa"],
        subresources: &[("token", "TokenRequest", &["create"])],
        schema: "io.k8s.api.core.v1.ServiceAccount",
        behaviour: &SERVICE_ACCOUNT,
        ..ROW
    },
    Row {
        kind: "Node",
        plural: "nodes",
        short_names: &["no"],
        namespaced: false,
        status: true,
        subresources: &[("proxy", "NodeProxyOptions", &["create", "delete", "get", "patch", "update"])],
        schema: "io.k8s.api.core.v1.Node",
        fields: &["spec.unschedulable"],
        columns: columns::NODE,
        behaviour: &cluster::NODE,
        ..ROW
    },
    Row {
        kind: "ComponentStatus",
        plural: "componentstatuses",
        short_names: &["cs"],
        namespaced: false,
        schema: "io.k8s.api.core.v1.ComponentStatus",
        behaviour: &COMPONENT_STATUS,
        ..ROW
    },
    Row {
        group: "apps",
        kind: "DaemonSet",
        plural: "daemonsets",
        short_names: &["ds"],
        categories: &["all"],
        status: true,
        schema: "io.k8s.api.apps.v1.DaemonSet",
        columns: columns::DAEMON_SET,
        behaviour: &workloads::DAEMON_SET,
        ..ROW
    },
    Row {
        group: "apps",
        kind: "Deployment",
        plural: "deployments",
        short_names: &["deploy"],
        categories: &["all"],
        status: true,
        scale: true,
        schema: "io.k8s.api.apps.v1.Deployment",
        columns: columns::DEPLOYMENT,
        behaviour: &workloads::DEPLOYMENT,
        ..ROW
    },
    Row {
        group: "apps",
        kind: "ReplicaSet",
        plural: "replicasets",
        short_names: &["rs"],
        categories: &["all"],
        status: true,
        scale: true,
        schema: "io.k8s.api.apps.v1.ReplicaSet",
        fields: &["status.replicas"],
        columns: columns::REPLICA_SET,
        behaviour: &workloads::REPLICA_SET,
        ..ROW
    },
    Row {
        group: "apps",
        kind: "StatefulSet",
        plural: "statefulsets",
        short_names: &["sts"],
        categories: &["all"],
        status: true,
        scale: true,
        schema: "io.k8s.api.apps.v1.StatefulSet",
        columns: columns::STATEFUL_SET,
        behaviour: &workloads::STATEFUL_SET,
        ..ROW
    },
    Row {
        group: "events.k8s.io",
        kind: "Event",
        plural: "events",
        short_names: &["ev"],
        schema: "io.k8s.api.events.v1.Event",
        // Selectors look at the stored form, so these are the core names here as well.
        fields: EVENT_FIELDS,
        columns: columns::EVENT,
        behaviour: &events::NEW_BEHAVIOUR,
        stored_as: Some(("events", &events::CONVERSION)),
        ..ROW
    },
    Row {
        group: "coordination.k8s.io",
        kind: "Lease",
        plural: "leases",
        schema: "io.k8s.api.coordination.v1.Lease",
        columns: columns::LEASE,
        behaviour: &cluster::LEASE,
        ..ROW
    },
    Row {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        plural: "endpointslices",
        schema: "io.k8s.api.discovery.v1.EndpointSlice",
        columns: columns::ENDPOINT_SLICE,
        behaviour: &network::ENDPOINT_SLICE,
        ..ROW
    },
    Row {
        group: "storage.k8s.io",
        kind: "StorageClass",
        plural: "storageclasses",
        short_names: &["sc"],
        namespaced: false,
        schema: "io.k8s.api.storage.v1.StorageClass",
        columns: columns::STORAGE_CLASS,
        behaviour: &volumes::CLASS,
        ..ROW
    },
    Row {
        group: "networking.k8s.io",
        kind: "NetworkPolicy",
        plural: "networkpolicies",
        short_names: &["netpol"],
        schema: "io.k8s.api.networking.v1.NetworkPolicy",
        columns: columns::NETWORK_POLICY,
        behaviour: &network::NETWORK_POLICY,
        ..ROW
    },
    Row {
        group: "policy",
        kind: "PodDisruptionBudget",
        plural: "poddisruptionbudgets",
        short_names: &["pdb"],
        status: true,
        schema: "io.k8s.api.policy.v1.PodDisruptionBudget",
        columns: columns::POD_DISRUPTION_BUDGET,
        behaviour: &policy::POD_DISRUPTION_BUDGET,
        ..ROW
    },
    Row {
        group: "node.k8s.io",
        kind: "RuntimeClass",
        plural: "runtimeclasses",
        namespaced: false,
        schema: "io.k8s.api.node.v1.RuntimeClass",
        columns: columns::RUNTIME_CLASS,
        behaviour: &cluster::RUNTIME_CLASS,
        ..ROW
    },
    Row {
        group: "rbac.authorization.k8s.io",
        kind: "Role",
        plural: "roles",
        schema: "io.k8s.api.rbac.v1.Role",
        columns: columns::ROLE,
        behaviour: &roles::ROLE,
        ..ROW
    },
    Row {
        group: "rbac.authorization.k8s.io",
        kind: "RoleBinding",
        plural: "rolebindings",
        schema: "io.k8s.api.rbac.v1.RoleBinding",
        columns: columns::ROLE_BINDING,
        behaviour: &roles::ROLE_BINDING,
        ..ROW
    },
    Row {
        group: "rbac.authorization.k8s.io",
        kind: "ClusterRole",
        plural: "clusterroles",
        namespaced: false,
        schema: "io.k8s.api.rbac.v1.ClusterRole",
        columns: columns::ROLE,
        behaviour: &roles::CLUSTER_ROLE,
        ..ROW
    },
    Row {
        group: "rbac.authorization.k8s.io",
        kind: "ClusterRoleBinding",
        plural: "clusterrolebindings",
        namespaced: false,
        schema: "io.k8s.api.rbac.v1.ClusterRoleBinding",
        columns: columns::CLUSTER_ROLE_BINDING,
        behaviour: &roles::CLUSTER_ROLE_BINDING,
        ..ROW
    },
    Row {
        group: "authentication.k8s.io",
        kind: "TokenReview",
        plural: "tokenreviews",
        namespaced: false,
        schema: "io.k8s.api.authentication.v1.TokenReview",
        behaviour: &reviews::TOKEN,
        ..ROW
    },
    Row {
        group: "authentication.k8s.io",
        kind: "SelfSubjectReview",
        plural: "selfsubjectreviews",
        namespaced: false,
        schema: "io.k8s.api.authentication.v1.SelfSubjectReview",
        behaviour: &reviews::ONESELF,
        ..ROW
    },
    Row {
        group: "authorization.k8s.io",
        kind: "SubjectAccessReview",
        plural: "subjectaccessreviews",
        namespaced: false,
        schema: "io.k8s.api.authorization.v1.SubjectAccessReview",
        behaviour: &reviews::ACCESS,
        ..ROW
    },
    Row {
        group: "authorization.k8s.io",
        kind: "LocalSubjectAccessReview",
        plural: "localsubjectaccessreviews",
        schema: "io.k8s.api.authorization.v1.LocalSubjectAccessReview",
        behaviour: &reviews::LOCAL_ACCESS,
        ..ROW
    },
    Row {
        group: "authorization.k8s.io",
        kind: "SelfSubjectAccessReview",
        plural: "selfsubjectaccessreviews",
        namespaced: false,
        schema: "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
        behaviour: &reviews::OWN_ACCESS,
        ..ROW
    },
    Row {
        group: "authorization.k8s.io",
        kind: "SelfSubjectRulesReview",
        plural: "selfsubjectrulesreviews",
        namespaced: false,
        schema: "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
        behaviour: &reviews::OWN_RULES,
        ..ROW
    },
    Row {
        group: "apiextensions.k8s.io",
        kind: "CustomResourceDefinition",
        plural: "customresourcedefinitions",
        short_names: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        status: true,
        schema: "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        columns: columns::CUSTOM_RESOURCE_DEFINITION,
        behaviour: &CUSTOM_RESOURCE_DEFINITION,
        ..ROW
    },
    Row {
        group: "metrics.k8s.io",
        version: "v1beta1",
        kind: "NodeMetrics",
        plural: "nodes",
        namespaced: false,
        schema: "io.k8s.metrics.pkg.apis.metrics.v1beta1.NodeMetrics",
        columns: metrics::COLUMNS,
        behaviour: &metrics::BEHAVIOUR,
        ..ROW
    },
    Row {
        group: "metrics.k8s.io",
        version: "v1beta1",
        kind: "PodMetrics",
        plural: "pods",
        schema: "io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics",
        columns: metrics::COLUMNS,
        behaviour: &metrics::BEHAVIOUR,
        ..ROW
    },
];

/// The body of `serviceaccounts/token`: a kind without a resource.
static TOKEN_REQUEST: Row = Row {
    group: "authentication.k8s.io",
    kind: "TokenRequest",
    plural: "tokenrequests",
    schema: "io.k8s.api.authentication.v1.TokenRequest",
    ..ROW
};

/// Returns the definition that token requests are parsed by.
pub(crate) fn token_request() -> Arc<Definition> {
    Arc::new(TOKEN_REQUEST.definition())
}

pub(crate) fn definitions() -> Vec<Arc<Definition>> {
    TABLE.iter().map(|row| Arc::new(row.definition())).collect()
}

impl Row {
    fn definition(&self) -> Definition {
        let boxed = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
        let own_resource = match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        };
        let api_version = match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        };
        Definition {
            group: self.group.into(),
            kind: self.kind.into(),
            list_kind: format!("{}List", self.kind).into(),
            plural: self.plural.into(),
            singular: self.kind.to_lowercase().into(),
            short_names: boxed(self.short_names),
            categories: boxed(self.categories),
            namespaced: self.namespaced,
            resource: self.stored_as.map_or(own_resource.as_str(), |(resource, _)| resource).into(),
            versions: vec![Version {
                name: self.version.into(),
                api_version: api_version.into(),
                status: self.status,
                scale: self.scale.then(Scale::of_replicas),
                subresources: self.subresources,
                columns: Columns::Builtin(self.columns),
                selectable_fields: boxed(self.fields),
                schema: LazySchema::new(SchemaSource::Builtin(self.schema)),
                conversion: self.stored_as.map(|(_, conversion)| conversion),
                storage: true,
                deprecated: false,
                deprecation_warning: None,
            }],
            behaviour: self.behaviour,
            custom: false,
        }
    }
}

/// Kinds that kube-apiserver has and this server does not, by version. One error distinguishes them
/// from unknown kinds.
const ELSEWHERE: &[(&str, &[&str])] = &[
    ("v1", &["Endpoints", "LimitRange", "PodTemplate", "ReplicationController", "ResourceQuota"]),
    ("apps/v1", &["ControllerRevision"]),
    ("autoscaling/v1", &["HorizontalPodAutoscaler", "Scale"]),
    ("autoscaling/v2", &["HorizontalPodAutoscaler"]),
    ("batch/v1", &["CronJob", "Job"]),
    ("networking.k8s.io/v1", &["Ingress", "IngressClass"]),
    ("policy/v1", &["Eviction"]),
];

/// Returns true if a kind is one of Kubernetes' own.
pub(crate) fn is_registered(api_version: &str, kind: &str) -> bool {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let served = TABLE.iter().any(|row| row.group == group && row.version == version && row.kind == kind);
    served || ELSEWHERE.iter().any(|(known, kinds)| *known == api_version && kinds.contains(&kind))
}

/// Sets a field of an object if it is absent.
pub(crate) fn set_default(object: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    if !object.contains_key(name) {
        object.insert(name.to_owned(), value.into());
    }
}

/// Returns the object in a field; creates it if it is absent.
pub(crate) fn child<'a>(
    object: &'a mut Map<String, Value>,
    name: &str,
) -> Option<&'a mut Map<String, Value>> {
    object.entry(name).or_insert_with(|| Value::Object(Map::new())).as_object_mut()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_row_has_a_schema_that_compiles() {
        for definition in super::definitions() {
            for version in &definition.versions {
                version.schema.get().unwrap();
            }
        }
        assert!(super::metadata_schema().properties.contains_key("labels"));
    }
}
