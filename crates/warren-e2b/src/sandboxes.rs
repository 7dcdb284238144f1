//! Sandboxes of E2B's clients as objects of the home. All of their state is in these objects, so a server that is
//! restarted knows them again.

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use serde_json::json;
use warren_api::blueprint::PodMetadata;
use warren_api::conditions::{self, ConditionType};
use warren_api::sandbox::OperatingMode;
use warren_api::{Sandbox, SandboxTemplate, SandboxWarmPool, annotations, labels};
use warren_client::kube::api::{Api, Patch, PatchParams};
use warren_client::kube::runtime::wait;
use warren_client::kube::{self, Client};
use warren_client::launch::{self, Launch, LaunchError, Launched, Source};
use warren_client::sandbox::{SandboxKey, WaitError};
use warren_proto::envd;

use crate::answer::{Refusal, chain};
use crate::create::{DEFAULT_TEMPLATE, NewSandbox};
use crate::{Config, keys, request};

/// The image of the local home for which nothing has to be fetched: this machine's own `/usr`.
const HOST_IMAGE: &str = "warren.dev/host";
/// The longest time that a sandbox may take to become Ready, or to stop for a pause.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time that a paused sandbox is kept, unless it is connected to.
const KEPT_WHILE_PAUSED: Duration = Duration::from_secs(30 * 24 * 3600);

/// The sandboxes of one home.
pub(crate) struct Sandboxes {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// The mode of sandboxes from the default template, if not the home's own.
    network: Option<String>,
}

/// A sandbox as a client sees it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) launched: Launched,
    /// The object that has a pod; none while a claim waits for one.
    pub(crate) sandbox: Option<Sandbox>,
}

impl Seen {
    pub(crate) fn id(&self) -> String {
        self.launched.key().name
    }

    pub(crate) fn uid(&self) -> String {
        self.launched.uid().unwrap_or_default()
    }

    pub(crate) fn template(&self) -> String {
        self.launched.annotations().get(annotations::E2B_TEMPLATE).cloned().unwrap_or_default()
    }

    pub(crate) fn metadata(&self) -> BTreeMap<String, String> {
        let text = self.launched.annotations().get(annotations::E2B_METADATA);
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    pub(crate) fn started(&self) -> Timestamp {
        self.launched.created().unwrap_or(Timestamp::UNIX_EPOCH)
    }

    pub(crate) fn ends(&self) -> Timestamp {
        self.launched.until().unwrap_or(Timestamp::MAX)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.sandbox.as_ref().is_some_and(|sandbox| sandbox.spec.operating_mode == OperatingMode::Suspended)
    }

    /// Returns a limit of the first container, such as `memory`.
    pub(crate) fn limit(&self, name: &str) -> Option<String> {
        let spec = &self.sandbox.as_ref()?.spec.blueprint.pod_template.spec;
        let limits = spec.containers.first()?.resources.as_ref()?.limits.as_ref()?;
        limits.get(name).map(|quantity| quantity.0.clone())
    }
}

impl Sandboxes {
    pub(crate) fn new(config: &Config) -> Sandboxes {
        let namespace = config.namespace.clone();
        Sandboxes {
            namespace: namespace.unwrap_or_else(|| config.client.default_namespace().to_owned()),
            client: config.client.clone(),
            network: config.network.clone(),
        }
    }

    fn key(&self, id: &str) -> SandboxKey {
        SandboxKey { namespace: self.namespace.clone(), name: id.to_owned() }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Finds a sandbox. One that was not made here is not there, and neither is one whose time is over.
    pub(crate) async fn find(&self, id: &str) -> Result<Option<Seen>, Refusal> {
        if !request::is_id(id) {
            return Ok(None);
        }
        let found =
            launch::find(&self.client, &self.key(id)).await.map_err(|error| Refusal::server(&error))?;
        match found {
            Some(launched) if is_ours(&launched) => self.see(launched).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Finds a sandbox, or says that there is none.
    pub(crate) async fn get(&self, id: &str) -> Result<Seen, Refusal> {
        let shown: String = id.chars().take(64).collect();
        let missing = || Refusal::new(StatusCode::NOT_FOUND, format!("sandbox `{shown}` was not found"));
        self.find(id).await?.ok_or_else(missing)
    }

    async fn see(&self, launched: Launched) -> Result<Seen, Refusal> {
        let sandbox =
            launch::behind(&self.client, &launched).await.map_err(|error| Refusal::server(&error))?;
        Ok(Seen { launched, sandbox })
    }

    /// Lists all sandboxes, the newest first.
    pub(crate) async fn list(&self) -> Result<Vec<Seen>, Refusal> {
        let selector = format!("{}=true", labels::E2B);
        let listed = launch::list(&self.client, &self.namespace, &selector).await;
        let mut seen = Vec::new();
        for launched in listed.map_err(|error| Refusal::server(&error))?.into_iter().filter(is_ours) {
            seen.push(self.see(launched).await?);
        }
        seen.sort_by_key(|seen| (std::cmp::Reverse(seen.started()), seen.id()));
        Ok(seen)
    }

    /// Makes a sandbox and waits until it can be used. A request with a key that comes again finds the sandbox of the first.
    pub(crate) async fn create(&self, wanted: NewSandbox, again: Option<&str>) -> Result<Seen, Refusal> {
        let id = again.map_or_else(random_id, keys::name_of_request);
        let source = self.source(&wanted).await?;
        let is_image = matches!(source, Source::Image { .. });
        if wanted.offline && !is_image {
            return Err(Refusal::bad(
                "`allow_internet_access` cannot be false with a template of the home; its pod says what it reaches",
            ));
        }
        let launch = self.launch(&id, &wanted, source, is_image)?;
        let launched = match launch::launch(&self.client, &launch).await {
            Ok(launched) => launched,
            Err(LaunchError::Server(error)) if again.is_some() && is_status(&error.source, 409) => {
                return self.wait(self.get(&id).await?.launched).await;
            }
            Err(LaunchError::Server(error)) if is_status(&error.source, 422) => {
                return Err(Refusal::bad(chain(&error)));
            }
            Err(error) => return Err(Refusal::server(&error)),
        };
        let mut waited = self.wait(launched.clone()).await;
        if let Ok(seen) = &waited
            && wanted.timeout < PATIENCE
            && let Err(refusal) = self.renew(seen, Timestamp::now() + wanted.timeout).await
        {
            waited = Err(refusal);
        }
        if waited.is_err()
            && let Err(error) = launch::delete(&self.client, &launched).await
        {
            tracing::warn!(sandbox = id, error = chain(&error), "sandbox left to its timeout");
        }
        waited
    }

    async fn wait(&self, launched: Launched) -> Result<Seen, Refusal> {
        match launch::wait_ready(&self.client, launched.clone(), PATIENCE).await {
            Ok(sandbox) => Ok(Seen { launched, sandbox: Some(sandbox) }),
            Err(error @ WaitError::Ended { .. }) => Err(Refusal::bad(chain(&error))),
            Err(error) => Err(Refusal::server(&error)),
        }
    }

    fn launch(
        &self,
        id: &str,
        wanted: &NewSandbox,
        source: Source,
        is_image: bool,
    ) -> Result<Launch, Refusal> {
        let metadata = serde_json::to_string(&wanted.metadata).map_err(|error| Refusal::server(&error))?;
        let mut env = wanted.variables.clone();
        let mut pod_metadata = PodMetadata::default();
        if is_image {
            env.insert("E2B_SANDBOX".to_owned(), "true".to_owned());
            env.insert("E2B_SANDBOX_ID".to_owned(), id.to_owned());
            let guest = (annotations::GUEST.to_owned(), annotations::E2B.to_owned());
            let network = if wanted.offline { Some("none") } else { self.network.as_deref() };
            let network = network.map(|mode| (annotations::NETWORK.to_owned(), mode.to_owned()));
            pod_metadata.annotations = std::iter::once(guest).chain(network).collect();
        }
        Ok(Launch {
            key: self.key(id),
            source,
            labels: BTreeMap::from([(labels::E2B.to_owned(), "true".to_owned())]),
            annotations: BTreeMap::from([
                (annotations::E2B_TEMPLATE.to_owned(), wanted.template.clone()),
                (annotations::E2B_METADATA.to_owned(), metadata),
            ]),
            kept_directory: is_image.then(|| envd::DEFAULT_HOME.to_owned()),
            pod_metadata,
            env,
            limits: BTreeMap::new(),
            // A short time begins when the sandbox can be used; it would be over before on a busy machine.
            until: Timestamp::now() + wanted.timeout.max(PATIENCE),
        })
    }

    /// Returns what a template's name stands for: a pool, a template, or for the default name this machine's own `/usr`.
    async fn source(&self, wanted: &NewSandbox) -> Result<Source, Refusal> {
        let name = &wanted.template;
        let missing = || {
            let name: String = name.chars().take(128).collect();
            let message = format!(
                "`templateID`: there is no SandboxWarmPool and no SandboxTemplate `{name}` in namespace `{}`",
                self.namespace
            );
            Refusal::new(StatusCode::NOT_FOUND, message)
        };
        let is_name = (1..=63).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if !is_name {
            return Err(missing());
        }
        let failed = |error: kube::Error| Refusal::server(&error);
        let pool: Option<SandboxWarmPool> = self.api().get_opt(name).await.map_err(failed)?;
        let template_name = pool.as_ref().map_or(name, |pool| &pool.spec.sandbox_template_ref.name);
        let template: Option<SandboxTemplate> = self.api().get_opt(template_name).await.map_err(failed)?;
        match (&pool, template) {
            (_, None) if name == DEFAULT_TEMPLATE => {
                Ok(Source::Image { image: HOST_IMAGE.to_owned(), command: Some(launch::idle_command(true)) })
            }
            (_, None) => Err(missing()),
            (pool, Some(template)) => {
                let metadata = &template.spec.blueprint.pod_template.metadata;
                if metadata.annotations.get(annotations::GUEST).map(String::as_str) != Some(annotations::E2B)
                {
                    return Err(Refusal::bad(format!(
                        "`templateID`: the pods of SandboxTemplate `{template_name}` lack the annotation `{}: {}`, without \
                         which E2B's clients cannot use them",
                        annotations::GUEST,
                        annotations::E2B
                    )));
                }
                let name = name.clone();
                Ok(if pool.is_some() { Source::Pool(name) } else { Source::Template(name) })
            }
        }
    }

    /// Sets the time at which a sandbox ends.
    pub(crate) async fn renew(&self, seen: &Seen, until: Timestamp) -> Result<(), Refusal> {
        let renewed = launch::renew(&self.client, &seen.launched, until).await;
        renewed.map_err(|error| Refusal::server(&error))
    }

    /// Suspends a sandbox and waits until its processes have ended.
    pub(crate) async fn pause(&self, seen: &Seen) -> Result<(), Refusal> {
        if seen.is_paused() {
            let message = format!("sandbox `{}` is paused already", seen.id());
            return Err(Refusal::new(StatusCode::CONFLICT, message));
        }
        let sandbox = seen.sandbox.as_ref().ok_or_else(|| self.starting(seen))?;
        if sandbox.spec.blueprint.volume_claim_templates.is_empty() {
            return Err(Refusal::bad(
                "a sandbox of a template without `volumeClaimTemplates` cannot be paused: its files would be lost",
            ));
        }
        self.renew(seen, Timestamp::now() + KEPT_WHILE_PAUSED).await?;
        self.switch(sandbox, OperatingMode::Suspended, |sandbox| is_true(sandbox, ConditionType::Suspended))
            .await
            .map(drop)
    }

    /// Resumes a sandbox and waits until it can be used.
    pub(crate) async fn resume(&self, seen: Seen) -> Result<Seen, Refusal> {
        let sandbox = seen.sandbox.as_ref().ok_or_else(|| self.starting(&seen))?;
        let sandbox = self
            .switch(sandbox, OperatingMode::Running, |sandbox| {
                is_true(sandbox, ConditionType::Ready) && !is_true(sandbox, ConditionType::Suspended)
            })
            .await?;
        Ok(Seen { sandbox: Some(sandbox), ..seen })
    }

    fn starting(&self, seen: &Seen) -> Refusal {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, format!("sandbox `{}` has no pod yet", seen.id()))
    }

    async fn switch(
        &self,
        sandbox: &Sandbox,
        mode: OperatingMode,
        is_done: impl Fn(&Sandbox) -> bool,
    ) -> Result<Sandbox, Refusal> {
        let key = SandboxKey::of(sandbox);
        let sandboxes: Api<Sandbox> = Api::namespaced(self.client.clone(), &key.namespace);
        let patch = Patch::Merge(json!({ "spec": { "operatingMode": mode } }));
        let patched = sandboxes.patch(&key.name, &PatchParams::default(), &patch).await;
        patched.map_err(|error| Refusal::server(&error))?;
        let condition = |sandbox: Option<&Sandbox>| {
            sandbox.is_none_or(|sandbox| sandbox.spec.operating_mode != mode || is_done(sandbox))
        };
        let waited = wait::await_condition(sandboxes, &key.name, condition);
        match tokio::time::timeout(PATIENCE, waited).await {
            Ok(Ok(Some(sandbox))) => Ok(sandbox),
            Ok(Ok(None)) => {
                Err(Refusal::new(StatusCode::NOT_FOUND, format!("sandbox `{}` was deleted", key.name)))
            }
            Ok(Err(error)) => Err(Refusal::server(&error)),
            Err(_) => {
                let message =
                    format!("sandbox `{}` did not become {mode:?} in {} s", key.name, PATIENCE.as_secs());
                Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, message))
            }
        }
    }

    /// Deletes a sandbox with everything in it.
    pub(crate) async fn kill(&self, seen: &Seen) -> Result<(), Refusal> {
        launch::delete(&self.client, &seen.launched).await.map_err(|error| Refusal::server(&error))
    }
}

fn is_true(sandbox: &Sandbox, condition: ConditionType) -> bool {
    let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions::is_true(conditions, condition)
}

/// Returns whether a sandbox was made here and still lives.
fn is_ours(launched: &Launched) -> bool {
    launched.labels().get(labels::E2B).map(String::as_str) == Some("true")
        && !launched.is_deleted()
        && launched.until().is_none_or(|until| until > Timestamp::now())
}

fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Twenty characters, as E2B's own: who does not know an id does not find its ports.
fn random_id() -> String {
    let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(19).collect();
    format!("i{}", random.to_ascii_lowercase())
}
