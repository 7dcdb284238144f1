//! Sandboxes of the local home or of a cluster, through [`warren_client`].

mod commands;
mod explain;
mod manifest;
mod view;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use warren_api::{Sandbox, SandboxClaim, labels};
use warren_client::exec::{Exec, ExecRequest};
use warren_client::files::{ByExec, Place, chain};
use warren_client::kube::api::{Api, ListParams, Patch, PatchParams};
use warren_client::kube::{self, Client, ResourceExt as _};
use warren_client::launch::{self, LaunchError, Launched};
use warren_client::sandbox::{self, SandboxError, SandboxKey};

use crate::by_exec::{self, FILE_TIMEOUT};
use crate::error::{Code, ProviderError};
use crate::limits::{self, Wanted};
use crate::process::{Command, Process};
use crate::provider::{
    Answer, Connect, Entry, Explanation, FileStream, Happening, Health, Info, Metrics, Provider,
    ProviderEvent, Status, Step,
};

/// If a sandbox is not Ready after this long, subscribers are sent an error.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// Values for sandboxes for which a client names nothing.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The namespace; the client's own if none is named.
    pub namespace: Option<String>,
    /// The image.
    pub image: Option<String>,
    /// True for Warren's own home, with its node.
    pub local_home: bool,
    /// The class of runtime that sandboxes run on.
    pub runtime_class: Option<String>,
    /// The most sandboxes that there may be.
    pub most_sandboxes: usize,
}

/// Sandboxes of one namespace, those that others made included. Clones share it.
#[derive(Clone)]
pub struct WarrenProvider(Arc<Inner>);

struct Inner {
    options: Options,
    connect: Box<dyn Connect>,
    events: broadcast::Sender<ProviderEvent>,
    /// When a sandbox was last used through this provider.
    used: Mutex<HashMap<String, Timestamp>>,
}

impl WarrenProvider {
    /// Makes a provider. Connects to nothing yet.
    pub fn new(options: Options, connect: impl Connect) -> Self {
        let (events, _) = broadcast::channel(256);
        Self(Arc::new(Inner { options, connect: Box::new(connect), events, used: Mutex::default() }))
    }

    /// Connects, and returns the client with the namespace.
    async fn reach(&self, start: bool) -> Result<(Client, String), ProviderError> {
        let client = self.0.connect.connect(start).await;
        let client = client.map_err(|error| ProviderError::new(Code::ProviderUnavailable, error))?;
        let own = self.0.options.namespace.clone();
        let namespace = own.unwrap_or_else(|| client.default_namespace().to_owned());
        Ok((client, namespace))
    }

    fn touch(&self, id: &str) {
        let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert(id.to_owned(), Timestamp::now());
    }

    fn info(&self, launched: &Launched, behind: Option<&Sandbox>) -> Info {
        let mut info = view::info(launched, behind);
        let used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = used.get(&info.id) {
            info.last_activity_at = info.last_activity_at.max(Some(*last));
        }
        info
    }

    fn emit(&self, step: Step, info: &Info, error: Option<String>) {
        // Without subscribers there is nothing to tell.
        let _ = self.0.events.send(ProviderEvent {
            step,
            sandbox_id: info.id.clone(),
            project_id: info.project_id.clone(),
            error,
        });
    }

    async fn find(&self, id: &str) -> Result<(Client, Launched, Option<Sandbox>), ProviderError> {
        let (client, namespace) = self.reach(false).await?;
        if !is_object_name(id) {
            return Err(ProviderError::not_found(id));
        }
        let key = SandboxKey { namespace, name: id.to_owned() };
        let failed = |error: SandboxError| server(Code::ProviderUnavailable, &error);
        let found = launch::find(&client, &key).await.map_err(failed)?;
        let launched = found.ok_or_else(|| ProviderError::not_found(id))?;
        let behind = launch::behind(&client, &launched).await.map_err(failed)?;
        Ok((client, launched, behind))
    }

    /// Finds the pod in which commands of a sandbox run.
    async fn place(&self, id: &str) -> Result<Place, ProviderError> {
        let (client, launched, behind) = self.find(id).await?;
        let info = self.info(&launched, behind.as_ref());
        let (Status::Running, Some(sandbox)) = (info.status, behind) else {
            return Err(ProviderError::invalid_state(info.status.name()));
        };
        self.touch(id);
        Ok(Place { client, namespace: info.namespace, pod: sandbox::pod_name(&sandbox) })
    }

    async fn files(&self, id: &str) -> Result<ByExec, ProviderError> {
        Ok(ByExec { place: self.place(id).await?, timeout: FILE_TIMEOUT })
    }

    /// Sets the mode of the sandbox behind an id.
    async fn set_mode(&self, id: &str, mode: &str, code: Code) -> Result<Info, ProviderError> {
        let (client, launched, behind) = self.find(id).await?;
        let Some(sandbox) = behind else { return Err(ProviderError::invalid_state("creating")) };
        let api: Api<Sandbox> = Api::namespaced(client, &launched.key().namespace);
        let patch = Patch::Merge(json!({ "spec": { "operatingMode": mode } }));
        let patched = api.patch(&sandbox.name_any(), &PatchParams::default(), &patch).await;
        let sandbox = patched.map_err(|error| server(code, &error))?;
        let launched = match launched {
            Launched::Sandbox(_) => Launched::Sandbox(Box::new(sandbox.clone())),
            claim => claim,
        };
        Ok(self.info(&launched, Some(&sandbox)))
    }

    async fn all(&self, selector: &str) -> Result<Vec<Info>, ProviderError> {
        let (client, namespace) = self.reach(false).await?;
        let parameters = ListParams::default().labels(selector);
        let failed = |error: kube::Error| server(Code::ProviderUnavailable, &error);
        let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), &namespace);
        let claims = claims.list(&parameters).await.map_err(failed)?.items;
        let sandboxes: Api<Sandbox> = Api::namespaced(client, &namespace);
        let sandboxes = sandboxes.list(&ListParams::default()).await.map_err(failed)?.items;
        let by_name: HashMap<String, &Sandbox> =
            sandboxes.iter().map(|sandbox| (sandbox.name_any(), sandbox)).collect();
        let mut all: Vec<Info> = Vec::new();
        for claim in claims {
            let given = claim.status.as_ref().and_then(|status| status.sandbox.as_ref()?.name.clone());
            let behind = given.and_then(|name| by_name.get(&name).copied());
            all.push(self.info(&Launched::Claim(Box::new(claim)), behind));
        }
        let project = selector.split_once('=').map(|(_, project)| project);
        // Those of pools and claims have an owner.
        for sandbox in sandboxes.iter().filter(|sandbox| sandbox.owner_references().is_empty()) {
            if project.is_none() || sandbox.labels().get(labels::PROJECT).map(String::as_str) == project {
                all.push(self.info(&Launched::Sandbox(Box::new(sandbox.clone())), Some(sandbox)));
            }
        }
        all.sort_by(|one, other| other.created_at.cmp(&one.created_at).then_with(|| one.id.cmp(&other.id)));
        Ok(all)
    }

    async fn launch(&self, wanted: Wanted) -> Result<Info, ProviderError> {
        wanted.check()?;
        let (client, namespace) = self.reach(true).await?;
        let made = self.all("").await?;
        if made.len() >= self.0.options.most_sandboxes {
            return Err(limits::too_many(self.0.options.most_sandboxes));
        }
        let name = manifest::name(wanted.project_id.as_deref());
        let launched = match manifest::launch(&wanted, &namespace, &name, Timestamp::now()) {
            Some(launch) => launch::launch(&client, &launch).await.map_err(|error| match error {
                LaunchError::NoSource { kind: "SandboxTemplate", .. } => {
                    ProviderError::invalid("template", format!("names none that is there: {error}"))
                }
                LaunchError::NoSource { .. } => {
                    ProviderError::invalid("pool", format!("names none that is there: {error}"))
                }
                LaunchError::Server(error) => created(&error, &wanted),
            })?,
            None => {
                let sandbox = manifest::sandbox(&wanted, &self.0.options, &name)?;
                let made = sandbox::create(&client, &namespace, &sandbox).await;
                Launched::Sandbox(Box::new(made.map_err(|error| created(&error, &wanted))?))
            }
        };
        let info = self.info(&launched, None);
        self.emit(Step::Creating, &info, None);
        // For subscribers only: the sandbox becomes Ready without this task.
        let (provider, told) = (self.clone(), info.clone());
        tokio::spawn(async move {
            match launch::wait_ready(&client, launched, START_TIMEOUT).await {
                Ok(_) => {
                    provider.emit(Step::Created, &told, None);
                    provider.emit(Step::Started, &told, None);
                }
                Err(error) => provider.emit(Step::Error, &told, Some(chain(&error))),
            }
        });
        Ok(info)
    }
}

fn is_object_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    !name.is_empty() && name.len() <= 253 && name.bytes().all(fits)
}

/// Makes an error of one that the server gave.
fn server(code: Code, error: &(dyn std::error::Error + 'static)) -> ProviderError {
    // Errors of the client have theirs in a box, which is another type.
    let cause = std::iter::successors(Some(error), |error| error.source()).find_map(|error| {
        let boxed = || error.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
        error.downcast_ref::<kube::Error>().or_else(boxed)
    });
    let reason = chain(error);
    let code = match cause {
        Some(kube::Error::Api(status)) => match status.code {
            400 | 422 => Code::ValidationError,
            401 | 403 | 429 => Code::ProviderUnavailable,
            _ => code,
        },
        // The server could not be asked.
        Some(_) => Code::ProviderUnavailable,
        None => code,
    };
    ProviderError::new(code, reason.clone()).with(json!({ "reason": reason }))
}

fn created(error: &SandboxError, wanted: &Wanted) -> ProviderError {
    match (error.source.as_ref(), &wanted.project_id) {
        (kube::Error::Api(status), Some(project)) if status.code == 409 => {
            let message = format!("project `{project}` has a sandbox already; start it, or remove it first");
            ProviderError::new(Code::SandboxAlreadyExists, message).with(json!({ "projectId": project }))
        }
        _ => server(Code::SandboxCreationFailed, error),
    }
}

impl Provider for WarrenProvider {
    fn name(&self) -> &'static str {
        if self.0.options.local_home { "warren" } else { "kubernetes" }
    }

    fn create(&self, wanted: Wanted) -> Answer<'_, Info> {
        Box::pin(self.launch(wanted))
    }

    fn wait_running<'a>(&'a self, id: &'a str, within: Duration) -> Answer<'a, Info> {
        Box::pin(async move {
            let (client, launched, _) = self.find(id).await?;
            let ready = launch::wait_ready(&client, launched, within).await;
            ready.map_err(|error| server(Code::SandboxStartFailed, &error))?;
            let (_, launched, behind) = self.find(id).await?;
            Ok(self.info(&launched, behind.as_ref()))
        })
    }

    fn get<'a>(&'a self, project: &'a str) -> Answer<'a, Option<Info>> {
        Box::pin(async move {
            limits::check_identifier("projectId", project)?;
            Ok(self.all(&format!("{}={project}", labels::PROJECT)).await?.into_iter().next())
        })
    }

    fn get_by_id<'a>(&'a self, id: &'a str) -> Answer<'a, Option<Info>> {
        Box::pin(async move {
            match self.find(id).await {
                Ok((_, launched, behind)) => Ok(Some(self.info(&launched, behind.as_ref()))),
                Err(error) if error.code == Code::SandboxNotFound => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn list(&self) -> Answer<'_, Vec<Info>> {
        Box::pin(self.all(""))
    }

    fn start<'a>(&'a self, id: &'a str) -> Answer<'a, Info> {
        Box::pin(async move {
            let info = self.set_mode(id, "Running", Code::SandboxStartFailed).await?;
            self.emit(Step::Started, &info, None);
            Ok(info)
        })
    }

    fn stop<'a>(&'a self, id: &'a str) -> Answer<'a, Info> {
        Box::pin(async move {
            let info = self.set_mode(id, "Suspended", Code::SandboxStopFailed).await?;
            self.emit(Step::Stopping, &info, None);
            self.emit(Step::Stopped, &info, None);
            Ok(info)
        })
    }

    fn remove<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let (client, launched, behind) = self.find(id).await?;
            let removed = launch::delete(&client, &launched).await;
            removed.map_err(|error| server(Code::SandboxRemovalFailed, &error))?;
            self.0.used.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
            self.emit(Step::Removed, &self.info(&launched, behind.as_ref()), None);
            Ok(())
        })
    }

    fn exec_stream<'a>(&'a self, id: &'a str, command: Command) -> Answer<'a, Process> {
        Box::pin(async move {
            command.check()?;
            let place = self.place(id).await?;
            let (words, input) = commands::words(&command);
            let request = ExecRequest {
                namespace: place.namespace,
                pod: place.pod,
                container: None,
                command: words,
                stdin: input.is_some() || command.stdin || command.terminal.is_some(),
                tty: command.terminal.is_some(),
            };
            let exec =
                Exec::start(&place.client, request).await.map_err(|error| commands::exec_failed(&error))?;
            let (process, inside) = Process::pair();
            if let Some(size) = command.terminal {
                // The channel is new and has room.
                let _ = process.resize.try_send(size);
            }
            tokio::spawn(commands::carry(exec, inside, input));
            Ok(process)
        })
    }

    fn read<'a>(&'a self, id: &'a str, path: &'a str) -> Answer<'a, FileStream> {
        Box::pin(async move { by_exec::read(path, self.files(id)).await })
    }

    fn write<'a>(&'a self, id: &'a str, path: &'a str, content: Vec<u8>) -> Answer<'a, ()> {
        Box::pin(async move { by_exec::write(path, content, self.files(id)).await })
    }

    fn list_files<'a>(&'a self, id: &'a str, path: &'a str) -> Answer<'a, Vec<Entry>> {
        Box::pin(async move { by_exec::list(path, self.files(id)).await })
    }

    fn metrics<'a>(&'a self, id: &'a str) -> Answer<'a, Metrics> {
        Box::pin(async move {
            let place = self.place(id).await?;
            let failed = |reason: String| {
                ProviderError::new(
                    Code::SandboxStatsFailed,
                    format!("Failed to get resource stats: {reason}"),
                )
                .with(json!({ "reason": reason }))
            };
            let path =
                format!("/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods/{}", place.namespace, place.pod);
            let request = http::Request::get(path).body(Vec::new());
            let request = request.map_err(|error| failed(error.to_string()))?;
            let used: Value = match place.client.request(request).await {
                Ok(used) => used,
                // A pod is measured some seconds after its start.
                Err(kube::Error::Api(status)) if status.code == 404 => Value::Null,
                Err(error) => return Err(failed(chain(&error))),
            };
            let info = self.get_by_id(id).await?.ok_or_else(|| ProviderError::not_found(id))?;
            Ok(view::metrics(&used, info.created_at, Timestamp::now()))
        })
    }

    fn history<'a>(&'a self, id: &'a str) -> Answer<'a, Vec<Happening>> {
        Box::pin(async move {
            let (client, launched, behind) = self.find(id).await?;
            let events = explain::events(&client, &launched, behind.as_ref()).await?;
            Ok(events.iter().map(explain::happening).collect())
        })
    }

    fn explain<'a>(&'a self, id: &'a str) -> Answer<'a, Explanation> {
        Box::pin(async move {
            let (client, launched, behind) = self.find(id).await?;
            let pod = explain::pod(&client, behind.as_ref()).await;
            let events: Vec<Event> = explain::events(&client, &launched, behind.as_ref()).await?;
            let info = self.info(&launched, behind.as_ref());
            Ok(explain::explanation(&info, &launched, behind.as_ref(), pod.as_ref(), &events))
        })
    }

    fn pull_image<'a>(&'a self, image: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            limits::check_image(image)?;
            if !self.0.options.local_home {
                // A cluster pulls when it starts a pod.
                return Ok(());
            }
            let (client, _) = self.reach(true).await?;
            let pulled = warren_client::images::pull(&client, image, true, |_| {}).await;
            pulled.map(drop).map_err(|error| {
                ProviderError::new(Code::ImageNotFound, chain(&error)).with(json!({ "image": image }))
            })
        })
    }

    fn is_image_available<'a>(&'a self, image: &'a str) -> Answer<'a, bool> {
        Box::pin(async move {
            limits::check_image(image)?;
            if !self.0.options.local_home || image.starts_with("warren.dev/") {
                return Ok(true);
            }
            let (client, _) = self.reach(false).await?;
            let images = warren_client::images::list(&client).await;
            let images = images.map_err(|error| server(Code::ProviderUnavailable, &error))?;
            Ok(images.iter().any(|found| view::is_name_of(&found.name, image)))
        })
    }

    fn health_check(&self) -> BoxFuture<'_, Health> {
        Box::pin(async move {
            let unhealthy = |message: String| Health {
                healthy: false,
                message: Some(message),
                details: json!({ "provider": self.name(), "namespace": self.0.options.namespace }),
            };
            let (client, namespace) = match self.reach(false).await {
                Ok(reached) => reached,
                Err(error) => return unhealthy(error.message),
            };
            let controller = match explain::controller(&client).await {
                Ok(controller) => controller,
                Err(error) => return unhealthy(error.message),
            };
            let namespace_exists = explain::namespace_exists(&client, &namespace).await;
            let infos = self.all("").await.unwrap_or_default();
            let running = infos.iter().filter(|info| info.status == Status::Running).count();
            let installed = controller["installed"] == true;
            Health {
                healthy: installed,
                message: (!installed).then(|| {
                    "Agent Sandbox CRD controller is not installed: run `warren controller`, or install agent-sandbox"
                        .to_owned()
                }),
                details: json!({
                    "provider": self.name(),
                    "controller": controller,
                    "namespace": namespace,
                    "namespaceExists": namespace_exists,
                    "sandboxes": infos.len(),
                    "sandboxesRunning": running,
                    "runtimeClassName": self.0.options.runtime_class.as_deref().unwrap_or("none"),
                }),
            }
        })
    }

    fn subscribe(&self) -> broadcast::Receiver<ProviderEvent> {
        self.0.events.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_server_keep_their_meaning_through_boxes() {
        let refused = |status: u16| {
            let mut answer = kube::core::Status::failure("no", "Reason");
            answer.code = status;
            let source = Box::new(kube::Error::Api(Box::new(answer)));
            let sandbox = SandboxKey { namespace: "n".to_owned(), name: "s".to_owned() };
            let error = sandbox::WaitError::Server(SandboxError { action: "create", sandbox, source });
            server(Code::SandboxCreationFailed, &error).code
        };
        assert_eq!(refused(422), Code::ValidationError);
        assert_eq!(refused(403), Code::ProviderUnavailable);
        assert_eq!(refused(500), Code::SandboxCreationFailed);
    }
}
