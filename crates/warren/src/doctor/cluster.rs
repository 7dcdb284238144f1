//! Examines a cluster for `warren doctor --context`. It reads objects and checks permissions, and
//! creates no persistent objects.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use warren_api::{EXTENSIONS_GROUP, GROUP, SandboxWarmPool, VERSION};
use warren_client::kube::api::{Api, PostParams};
use warren_client::kube::{self, Client};
use warren_local::doctor::{Finding, Verdict};

use crate::destination::Destination;

/// The verbs that `run`, `warmup`, `status`, `stop` and `cleanup` need.
const NEEDED: [Access; 5] = [
    ("claims-access", EXTENSIONS_GROUP, "sandboxclaims", "", &["get", "list", "watch", "create", "delete"]),
    ("pools-access", EXTENSIONS_GROUP, "sandboxwarmpools", "", &["get"]),
    ("sandboxes-access", GROUP, "sandboxes", "", &["get", "list", "watch"]),
    ("pods-access", "", "pods", "", &["get", "list", "watch"]),
    ("exec-access", "", "pods", "exec", &["create", "get"]),
];

/// A name for the check, a group, a resource, a subresource, and verbs.
type Access = (&'static str, &'static str, &'static str, &'static str, &'static [&'static str]);

/// The kinds of agent-sandbox, by group.
const KINDS: [(&str, &[&str]); 2] =
    [(GROUP, &["sandboxes"]), (EXTENSIONS_GROUP, &["sandboxclaims", "sandboxwarmpools", "sandboxtemplates"])];

/// Examines a cluster.
pub async fn examine(destination: &Destination) -> Vec<Finding> {
    let client = match destination.connect().await {
        Ok(client) => client,
        Err(error) => {
            let remedy = "check the kubeconfig and the context".to_owned();
            return vec![problem("connection", crate::report::chain(&error), Some(remedy))];
        }
    };
    let mut findings = Vec::new();
    match client.apiserver_version().await {
        Ok(version) => findings.push(ok("api-server", format!("Kubernetes {}", version.git_version))),
        Err(error) => {
            let remedy = "check the network and the credentials of this context".to_owned();
            let error = crate::report::chain(&error.into());
            findings.push(problem("api-server", error, Some(remedy)));
            return findings;
        }
    }
    for (group, plurals) in KINDS {
        findings.extend(kinds(&client, group, plurals).await);
    }
    for needed in NEEDED {
        findings.push(access(&client, &destination.namespace, needed).await);
    }
    if let Some(pool) = destination.config.text("pool") {
        findings.push(warm_pool(&client, &destination.namespace, pool).await);
    }
    findings
}

fn ok(check: &'static str, found: String) -> Finding {
    Finding { check, verdict: Verdict::Ok, found, meaning: String::new(), remedy: None }
}

fn problem(check: &'static str, found: String, remedy: Option<String>) -> Finding {
    Finding { check, verdict: Verdict::Problem, found, meaning: String::new(), remedy }
}

fn warning(check: &'static str, found: String, meaning: String) -> Finding {
    Finding { check, verdict: Verdict::Warning, found, meaning, remedy: None }
}

/// Checks that a group serves its kinds in our version.
async fn kinds(client: &Client, group: &'static str, plurals: &[&'static str]) -> Vec<Finding> {
    let remedy = "install the CRDs: `kubectl apply --server-side -f deploy/crds`".to_owned();
    let served = match client.list_api_group_resources(&format!("{group}/{VERSION}")).await {
        Ok(list) => list.resources,
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => {
            return vec![problem(group, crate::report::chain(&error.into()), None)];
        }
    };
    let check = |plural: &&'static str| match served.iter().any(|resource| resource.name == **plural) {
        true => ok(plural, format!("served as {group}/{VERSION}")),
        false => problem(plural, format!("not served as {group}/{VERSION}"), Some(remedy.clone())),
    };
    plurals.iter().map(check).collect()
}

/// Checks that all verbs on a resource are allowed.
async fn access(
    client: &Client,
    namespace: &str,
    (check, group, resource, subresource, verbs): Access,
) -> Finding {
    let full = match subresource {
        "" => resource.to_owned(),
        subresource => format!("{resource}/{subresource}"),
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut refused = Vec::new();
    for verb in verbs {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(namespace.to_owned()),
                    group: Some(group.to_owned()),
                    resource: Some(resource.to_owned()),
                    subresource: Some(subresource.to_owned()).filter(|name| !name.is_empty()),
                    verb: Some((*verb).to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        match reviews.create(&PostParams::default(), &review).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {}
            Ok(_) => refused.push(*verb),
            Err(error) => return problem(check, crate::report::chain(&error.into()), None),
        }
    }
    match refused.is_empty() {
        true => ok(check, format!("{full}: {} allowed in `{namespace}`", verbs.join(", "))),
        false => problem(
            check,
            format!("{full}: {} not allowed in `{namespace}`", refused.join(", ")),
            Some("ask for a Role with these verbs".to_owned()),
        ),
    }
}

/// Checks the pool that the settings name.
async fn warm_pool(client: &Client, namespace: &str, name: &str) -> Finding {
    let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), namespace);
    match pools.get_opt(name).await {
        Ok(Some(pool)) => {
            let ready = pool.status.map_or(0, |status| status.ready_replicas);
            let found = format!("`{name}`: {ready} of {} ready", pool.spec.replicas);
            match ready == 0 && pool.spec.replicas > 0 {
                true => warning("pool", found, "a claim waits until a sandbox has started".to_owned()),
                false => ok("pool", found),
            }
        }
        Ok(None) => {
            let remedy = format!("create it with `warren pool create {name} --template TEMPLATE`");
            problem("pool", format!("there is no `{name}` in `{namespace}`"), Some(remedy))
        }
        Err(error) => problem("pool", crate::report::chain(&error.into()), None),
    }
}
