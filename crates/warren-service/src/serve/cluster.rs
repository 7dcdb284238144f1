//! The home or cluster behind the sandboxes: its pools and claims, its controller, and what a
//! kubeconfig names.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::Namespace;
use serde_json::{Value, json};
use warren_api::conditions::{self, ConditionType};
use warren_api::{SandboxClaim, SandboxWarmPool};
use warren_client::connect;
use warren_client::files::chain;
use warren_client::home::Surroundings;
use warren_client::kube::api::{Api, ListParams};
use warren_client::kube::config::Kubeconfig;
use warren_client::kube::{Client, ResourceExt as _};
use warren_providers::Connect as _;

use super::Service;
use super::answer::{Body, Failure, data};
use super::request::Request;
use super::settings::{self, Kubernetes};

type Answer = Result<Response<Body>, Failure>;

/// Says that the home or cluster does not answer.
pub fn unavailable(message: impl Into<String>) -> Failure {
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "PROVIDER_UNAVAILABLE", message)
}

/// Connects to the home or cluster. A provider without one has neither pools nor claims.
pub async fn reach(service: &Service) -> Result<Option<(Client, String)>, Failure> {
    let Some(reach) = &service.reach else { return Ok(None) };
    let client = reach.connect(false).await.map_err(unavailable)?;
    let namespace = service.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    Ok(Some((client, namespace)))
}

/// Lists warm pools.
pub async fn pools(service: &Service) -> Answer {
    let Some((client, namespace)) = reach(service).await? else { return data(&[(); 0]) };
    let api: Api<SandboxWarmPool> = Api::namespaced(client, &namespace);
    let listed = api.list(&ListParams::default()).await.map_err(|error| unavailable(chain(&error)))?;
    let uid = |pool: &SandboxWarmPool| pool.metadata.uid.clone().unwrap_or_default();
    service.fills.keep(&listed.iter().map(uid).collect());
    let pools: Vec<Value> = listed
        .iter()
        .map(|pool| {
            json!({
                "name": pool.name_any(),
                "namespace": pool.namespace(),
                "template": pool.spec.sandbox_template_ref.name,
                "replicas": pool.spec.replicas,
                "ready": pool.status.as_ref().map_or(0, |status| status.ready_replicas),
                "history": service.fills.of(&uid(pool)),
            })
        })
        .collect();
    data(&pools)
}

/// Lists claims.
pub async fn claims(service: &Service) -> Answer {
    let Some((client, namespace)) = reach(service).await? else { return data(&[(); 0]) };
    let api: Api<SandboxClaim> = Api::namespaced(client, &namespace);
    let listed = api.list(&ListParams::default()).await.map_err(|error| unavailable(chain(&error)))?;
    let claims: Vec<Value> = listed
        .iter()
        .map(|claim| {
            let status = claim.status.as_ref();
            let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
            let ready = conditions::find(conditions, ConditionType::Ready);
            json!({
                "name": claim.name_any(),
                "namespace": claim.namespace(),
                "pool": claim.spec.warm_pool_ref.name,
                "sandbox": status.and_then(|status| status.sandbox.as_ref()?.name.clone()),
                "ready": conditions::is_true(conditions, ConditionType::Ready),
                "reason": ready.map(|ready| &ready.reason),
                "createdAt": claim.metadata.creation_timestamp,
            })
        })
        .collect();
    data(&claims)
}

/// Shows whether the controller is installed.
pub async fn controller(service: &Service) -> Answer {
    let health = service.provider.health_check().await;
    match health.details.get("controller") {
        Some(controller) => data(controller),
        None => {
            let reason = health.message.unwrap_or_default();
            Err(unavailable(format!("Failed to check CRD controller: {reason}")))
        }
    }
}

/// Returns the kubeconfig at a path, or the user's own. One that others could have written is
/// refused: a kubeconfig can name programs to execute.
pub fn kubeconfig(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = match named {
        Some(path) if path.is_absolute() => path.to_owned(),
        Some(_) => return Err(Failure::invalid("kubeconfigPath", "has to be absolute")),
        None => {
            let home = Surroundings::of_this_process().home;
            home.ok_or_else(|| Failure::invalid("kubeconfigPath", "is needed: this user has no home"))?
                .join(".kube/config")
        }
    };
    let refused = |problem: &str| Failure::invalid("kubeconfigPath", problem);
    let metadata = path.metadata().map_err(|_| refused("names no file that can be read"))?;
    let own = Path::new("/proc/self").metadata().map_err(|_| refused("cannot be checked"))?.uid();
    match metadata.is_file() && metadata.uid() == own && metadata.mode() & 0o022 == 0 {
        true => Ok(path),
        false => Err(refused("names a file that others than its owner, the user of this service, may write")),
    }
}

/// Answers what is asked about the cluster of a kubeconfig.
pub async fn cluster(service: &Service, what: &str, request: &Request) -> Answer {
    let stored: Kubernetes = settings::read(&service.database, settings::KUBERNETES).await?;
    let named = request.parameter("kubeconfigPath").map(PathBuf::from).or(stored.kube_config_path);
    let context = request.parameter("context").or(stored.kube_context);
    match what {
        "contexts" => data(&contexts(named.as_deref())?),
        "status" => data(&status(named.as_deref(), context.as_deref()).await),
        "namespaces" => {
            let client = client(named.as_deref(), context.as_deref()).await?;
            let api: Api<Namespace> = Api::all(client);
            let listed =
                api.list(&ListParams::default()).await.map_err(|error| unavailable(chain(&error)))?;
            let namespaces: Vec<Value> = listed
                .iter()
                .map(|namespace| {
                    let phase = namespace.status.as_ref().and_then(|status| status.phase.clone());
                    json!({ "name": namespace.name_any(), "status": phase })
                })
                .collect();
            data(&namespaces)
        }
        _ => Err(Failure::no_route()),
    }
}

fn contexts(named: Option<&Path>) -> Result<Value, Failure> {
    let path = kubeconfig(named)?;
    let read = Kubeconfig::read_from(path);
    let config = read.map_err(|error| Failure::invalid("kubeconfigPath", chain(&error)))?;
    let contexts: Vec<Value> = config
        .contexts
        .iter()
        .map(|named| {
            let context = named.context.as_ref();
            json!({
                "name": named.name,
                "cluster": context.map(|context| &context.cluster),
                "namespace": context.and_then(|context| context.namespace.clone()),
            })
        })
        .collect();
    Ok(json!({ "contexts": contexts, "current": config.current_context }))
}

async fn client(named: Option<&Path>, context: Option<&str>) -> Result<Client, Failure> {
    let path = kubeconfig(named)?;
    connect::from_context(&path, context).await.map_err(|error| unavailable(chain(&error)))
}

/// Tells whether a cluster answers. A failure to reach it is an answer, too.
async fn status(named: Option<&Path>, context: Option<&str>) -> Value {
    let unhealthy = |message: String| json!({ "healthy": false, "message": message });
    let client = match client(named, context).await {
        Ok(client) => client,
        Err(failure) => return unhealthy(failure.message),
    };
    let namespace = client.default_namespace().to_owned();
    match tokio::time::timeout(std::time::Duration::from_secs(10), client.apiserver_version()).await {
        Ok(Ok(version)) => {
            json!({ "healthy": true, "message": null, "serverVersion": version.git_version, "namespace": namespace })
        }
        Ok(Err(error)) => unhealthy(chain(&error)),
        Err(_) => unhealthy("the cluster does not answer within 10 s".to_owned()),
    }
}
