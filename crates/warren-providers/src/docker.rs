//! Sandboxes as containers of a Docker engine, through its API.
//!
//! A container has the limits and denials of [`container`], one volume for its files, and is found
//! again by its labels. A sandbox that is being made is known by its volume and in memory alone.
//! Sandboxes that a crash left half made are removed at the next start. Files are read and written
//! by commands in the sandbox, as its user: the engine's own way to files works as root on the
//! machine.

mod commands;
mod container;
mod engine;
mod view;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::Docker;
use bollard::models::{SystemInfo, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptions, CreateImageOptions, EventsOptions, InspectContainerOptions,
    InspectNetworkOptions, ListContainersOptions, ListVolumesOptions, RemoveContainerOptions,
    RemoveVolumeOptions, StartContainerOptions, StatsOptions, StopContainerOptions, UploadToContainerOptions,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use warren_client::files::ByExec;

use crate::by_exec::{self, FILE_TIMEOUT};
use crate::error::{Code, ProviderError};
use crate::limits::{self, Wanted};
use crate::process::{Command, Process};
use crate::provider::{
    Answer, Entry, Explanation, FileStream, Happening, Health, Info, Metrics, Provider, ProviderEvent,
    Reason, Status, Step,
};
use commands::Place;
use container::{Description, container_name, prepare_name, volume_name};
use engine::{Engine, engine_error, refusal};

/// The grace time of a sandbox that is stopped, and of one that is removed, in seconds.
const STOP_SECONDS: i32 = 10;
const REMOVE_SECONDS: i32 = 5;

/// The time limit of a pull.
const PULL_TIMEOUT: Duration = Duration::from_secs(900);

/// The time limit of a health check of the engine.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(20);

/// The interval at which the state of a sandbox is polled while a caller waits for it.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// The number of tries to remove something that the engine still uses.
const REMOVE_TRIES: u32 = 40;

/// The configuration of the docker provider.
#[derive(Clone, Debug, Default)]
pub struct DockerOptions {
    /// The engine: `unix://PATH`, or `tcp://ADDRESS:PORT` on loopback.
    pub host: Option<String>,
    /// Tells these sandboxes from those of other services on the same engine. It must stay the same
    /// over restarts.
    pub owner: String,
    /// The image.
    pub image: Option<String>,
    /// The Docker network of sandboxes with the network `full`. Without one they are refused.
    pub network: Option<String>,
    /// The most sandboxes that there may be.
    pub most_sandboxes: usize,
}

/// Sandboxes on a Docker engine. Clones share it.
#[derive(Clone, Debug)]
pub struct DockerProvider(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: DockerOptions,
    engine: Arc<Engine>,
    events: broadcast::Sender<ProviderEvent>,
    /// Sandboxes that are being made, or could not be made.
    making: Mutex<HashMap<String, Making>>,
    /// When a sandbox was last used through this provider.
    used: Mutex<HashMap<String, Timestamp>>,
    /// Held while a sandbox is registered, so that a project gets one and the limit is kept.
    registering: tokio::sync::Mutex<()>,
}

/// A sandbox that is being made, or could not be made.
#[derive(Clone, Debug)]
struct Making {
    info: Info,
    /// Gives the making up.
    stop: CancellationToken,
    /// Cancelled when the making is over, whatever came of it.
    over: CancellationToken,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_id(id: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    id.starts_with("docker-") && id.len() <= 32 && id.bytes().all(fits)
}

/// Names the tag `latest` where none is named: the engine would pull every one.
fn with_tag(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    match name.contains([':', '@']) {
        true => image.to_owned(),
        false => format!("{image}:latest"),
    }
}

impl DockerProvider {
    /// Checks the options. Connects to nothing yet.
    pub fn new(options: DockerOptions) -> Result<Self, ProviderError> {
        let host = options.host.clone().unwrap_or_else(|| engine::DEFAULT_ADDRESS.to_owned());
        let engine = Arc::new(Engine::new(&host)?);
        limits::check_identifier("owner", &options.owner)?;
        if let Some(image) = &options.image {
            container::check_reference(image)?;
        }
        let unfit = |network: &String| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            // The last two would be the engine's own default, which joins containers.
            let taken = ["host", "none", "default", "bridge"].contains(&network.as_str());
            taken
                || !network.bytes().all(fits)
                || !network.starts_with(|first: char| first.is_ascii_alphanumeric())
        };
        if options.network.as_ref().is_some_and(unfit) {
            let problem = "has to be a network of its own for sandboxes, without traffic between them; create one with \
                           `docker network create --opt com.docker.network.bridge.enable_icc=false NAME`";
            return Err(ProviderError::invalid("dockerNetwork", problem));
        }
        let (events, _) = broadcast::channel(256);
        Ok(Self(Arc::new(Inner {
            options,
            engine,
            events,
            making: Mutex::default(),
            used: Mutex::default(),
            registering: tokio::sync::Mutex::default(),
        })))
    }

    /// Removes what an earlier run of this owner left half made, and ends its terminals. Returns
    /// the number of sandboxes that are removed by it. Sandboxes that were complete stay. To be
    /// called before the first sandbox is made, and by one process at a time.
    pub async fn recover(&self) -> Result<usize, ProviderError> {
        let docker = self.0.engine.client().await?;
        let mut whole = std::collections::HashSet::new();
        let mut running = Vec::new();
        let mut half = std::collections::BTreeSet::new();
        let owner = &self.0.options.owner;
        for container in self.containers(&docker, &[]).await? {
            let labels = container.labels.unwrap_or_default();
            let Some(id) = labels.get(container::SANDBOX).filter(|id| is_id(id)).cloned() else { continue };
            let state = container.state.map(|state| state.to_string()).unwrap_or_default();
            let made = labels.get(container::ROLE).is_some_and(|role| role == container::ROLE_SANDBOX);
            if made && state == "running" {
                running.push(container_name(&id));
            }
            match made && state != "created" {
                true => whole.insert(id),
                false => half.insert(id),
            };
        }
        let failed = |error| engine_error(Code::ProviderUnavailable, "list Docker volumes", &error);
        let filters = HashMap::from([("label".to_owned(), vec![format!("{}={owner}", container::OWNER)])]);
        let listed = docker.list_volumes(Some(ListVolumesOptions { filters: Some(filters) })).await;
        for volume in listed.map_err(failed)?.volumes.unwrap_or_default() {
            let id = volume.labels.get(container::SANDBOX).filter(|id| is_id(id));
            half.extend(id.filter(|id| !whole.contains(*id)).cloned());
        }
        for container in running {
            let place = Place { engine: self.0.engine.clone(), docker: docker.clone(), container };
            if let Err(error) = place.end_terminals().await {
                let (container, error) = (&place.container, error.message);
                tracing::warn!(container, error, "terminals of an earlier service may still run");
            }
        }
        let mut removed = 0;
        for id in half {
            remove_container(&docker, &prepare_name(&id)).await?;
            // A sandbox that runs may have kept the container that prepared its volume.
            if !whole.contains(&id) {
                take_away(&docker, &id).await?;
                removed += 1;
            }
        }
        Ok(removed)
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

    fn touch(&self, id: &str) {
        locked(&self.0.used).insert(id.to_owned(), Timestamp::now());
    }

    fn with_use(&self, mut info: Info) -> Info {
        if let Some(last) = locked(&self.0.used).get(&info.id) {
            info.last_activity_at = info.last_activity_at.max(Some(*last));
        }
        info
    }

    fn making(&self, id: &str) -> Option<Making> {
        locked(&self.0.making).get(id).cloned()
    }

    /// Lists this owner's containers that have some more labels.
    async fn containers(
        &self,
        docker: &Docker,
        labels: &[String],
    ) -> Result<Vec<bollard::models::ContainerSummary>, ProviderError> {
        let own = format!("{}={}", container::OWNER, self.0.options.owner);
        let labels = std::iter::once(own).chain(labels.iter().cloned()).collect();
        let filters = HashMap::from([("label".to_owned(), labels)]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..Default::default() };
        let listed = docker.list_containers(Some(options)).await;
        listed.map_err(|error| engine_error(Code::ProviderUnavailable, "list Docker containers", &error))
    }

    async fn all(&self) -> Result<Vec<Info>, ProviderError> {
        let docker = self.0.engine.client().await?;
        // Before the containers: one that is finished in between is in their list.
        let mut all: HashMap<String, Info> = locked(&self.0.making)
            .values()
            .map(|making| (making.info.id.clone(), making.info.clone()))
            .collect();
        let role = format!("{}={}", container::ROLE, container::ROLE_SANDBOX);
        for container in self.containers(&docker, &[role]).await? {
            if let Some(info) = view::listed(&container, &self.0.options.owner) {
                all.entry(info.id.clone()).or_insert(info);
            }
        }
        let mut all: Vec<Info> = all.into_values().map(|info| self.with_use(info)).collect();
        all.sort_by(|one, other| other.created_at.cmp(&one.created_at).then_with(|| one.id.cmp(&other.id)));
        Ok(all)
    }

    async fn find(&self, id: &str) -> Result<(Docker, Info), ProviderError> {
        if !is_id(id) {
            return Err(ProviderError::not_found(id));
        }
        let docker = self.0.engine.client().await?;
        if let Some(making) = self.making(id) {
            return Ok((docker, making.info));
        }
        let seen = docker.inspect_container(&container_name(id), None::<InspectContainerOptions>).await;
        let seen = seen.map_err(|error| match refusal(&error) {
            Some(404) => ProviderError::not_found(id),
            _ => engine_error(Code::ProviderUnavailable, "look at a Docker container", &error),
        })?;
        let info =
            view::inspected(&seen, &self.0.options.owner).ok_or_else(|| ProviderError::not_found(id))?;
        Ok((docker, self.with_use(info)))
    }

    async fn place(&self, id: &str) -> Result<Place, ProviderError> {
        let (docker, info) = self.find(id).await?;
        if info.status != Status::Running {
            return Err(ProviderError::invalid_state(info.status.name()));
        }
        self.touch(id);
        Ok(Place { engine: self.0.engine.clone(), docker, container: container_name(id) })
    }

    async fn files(&self, id: &str) -> Result<ByExec<Place>, ProviderError> {
        Ok(ByExec { place: self.place(id).await?, timeout: FILE_TIMEOUT })
    }

    async fn register(&self, wanted: Wanted) -> Result<Info, ProviderError> {
        let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(12).collect();
        let id = format!("docker-{}", random.to_ascii_lowercase());
        let wanted = Description::new(id.clone(), wanted, &self.0.options, Timestamp::now())?;
        let docker = self.0.engine.client().await?;
        let failed = |error| engine_error(Code::ProviderUnavailable, "ask the Docker engine", &error);
        let engine = docker.info().await.map_err(failed)?;
        wanted.check_engine(&engine)?;
        if let Some(network) = wanted.joins() {
            check_network(&docker, network).await?;
        }
        let _registering = self.0.registering.lock().await;
        let all = self.all().await?;
        if all.len() >= self.0.options.most_sandboxes {
            return Err(limits::too_many(self.0.options.most_sandboxes));
        }
        if let Some(project) = &wanted.project
            && all.iter().any(|info| info.project_id.as_ref() == Some(project))
        {
            let message = format!("project `{project}` has a sandbox already; start it, or remove it first");
            return Err(
                ProviderError::new(Code::SandboxAlreadyExists, message).with(json!({ "projectId": project }))
            );
        }
        let volume = VolumeCreateRequest {
            name: Some(volume_name(&id)),
            labels: Some(wanted.labels(container::ROLE_SANDBOX)),
            ..VolumeCreateRequest::default()
        };
        let made = docker.create_volume(volume).await;
        made.map_err(|error| {
            engine_error(Code::SandboxCreationFailed, "create the sandbox's volume", &error)
        })?;
        let labels = wanted.labels(container::ROLE_SANDBOX);
        let info = Info {
            id: id.clone(),
            name: container_name(&id),
            namespace: String::new(),
            project_id: wanted.project.clone(),
            status: Status::Creating,
            message: None,
            image: Some(wanted.image.clone()),
            created_at: Some(wanted.created),
            last_activity_at: Some(wanted.created),
            ports: Vec::new(),
            labels: labels.into_iter().collect(),
            network: wanted.network,
        };
        let making =
            Making { info: info.clone(), stop: CancellationToken::new(), over: CancellationToken::new() };
        locked(&self.0.making).insert(id, making.clone());
        self.emit(Step::Creating, &info, None);
        let provider = self.clone();
        tokio::spawn(async move { provider.make(docker, wanted, engine, making).await });
        Ok(info)
    }

    /// Makes a sandbox that is registered, or notes why it could not be made.
    async fn make(&self, docker: Docker, wanted: Description, engine: SystemInfo, making: Making) {
        // At every end of this task, because removing the sandbox waits for it.
        let _over = making.over.clone().drop_guard();
        let made = make_container(&docker, &wanted, &engine, &making.stop).await;
        let id = &wanted.id;
        let failure = match made {
            Ok(()) => {
                locked(&self.0.making).remove(id);
                self.emit(Step::Created, &making.info, None);
                self.emit(Step::Started, &making.info, None);
                None
            }
            Err(mut error) => {
                if let Err(left) = take_away(&docker, id).await {
                    error.message = format!("{}; and what was made of it is left: {left}", error.message);
                }
                Some(error.message)
            }
        };
        if let Some(message) = failure {
            if let Some(making) = locked(&self.0.making).get_mut(id) {
                making.info.status = Status::Error;
                making.info.message = Some(message.clone());
            }
            self.emit(Step::Error, &making.info, Some(message));
        }
    }

    async fn wait(&self, id: &str) -> Result<Info, ProviderError> {
        loop {
            let (_, info) = self.find(id).await?;
            match info.status {
                Status::Running => return Ok(info),
                Status::Error => {
                    let reason = info.message.unwrap_or_else(|| "the container is broken".to_owned());
                    let message = format!("Failed to start sandbox: {reason}");
                    return Err(ProviderError::new(Code::SandboxStartFailed, message)
                        .with(json!({ "reason": reason })));
                }
                Status::Stopped | Status::Stopping => {
                    return Err(ProviderError::invalid_state(info.status.name()));
                }
                Status::Creating => match self.making(id) {
                    Some(making) => making.over.cancelled().await,
                    None => tokio::time::sleep(LOOK_PAUSE).await,
                },
            }
        }
    }
}

/// Makes and starts the container of a sandbox whose volume is there.
async fn make_container(
    docker: &Docker,
    wanted: &Description,
    engine: &SystemInfo,
    stop: &CancellationToken,
) -> Result<(), ProviderError> {
    let failed =
        |action: &'static str| move |error| engine_error(Code::SandboxCreationFailed, action, &error);
    let given_up =
        || ProviderError::new(Code::SandboxCreationFailed, "the sandbox was removed before it ran");
    if !has_image(docker, &wanted.image).await? {
        tokio::select! {
            pulled = pull(docker, &wanted.image) => pulled?,
            () = stop.cancelled() => return Err(given_up()),
        }
    }
    let named = |name: String| Some(CreateContainerOptions { name: Some(name), ..Default::default() });
    let prepare = prepare_name(&wanted.id);
    let made = docker.create_container(named(prepare.clone()), wanted.preparation()).await;
    made.map_err(failed("prepare the sandbox's volume"))?;
    let options = UploadToContainerOptions { path: "/".to_owned(), ..Default::default() };
    let archive = bollard::body_full(Bytes::from(container::workspace_archive()));
    let given = docker.upload_to_container(&prepare, Some(options), archive).await;
    given.map_err(failed("give the sandbox's volume to its user"))?;
    remove_container(docker, &prepare).await?;
    if stop.is_cancelled() {
        return Err(given_up());
    }
    let name = container_name(&wanted.id);
    let made = docker.create_container(named(name.clone()), wanted.container(engine)).await;
    made.map_err(failed("create the sandbox's container"))?;
    let started = docker.start_container(&name, None::<StartContainerOptions>).await;
    started.map_err(failed("start the sandbox's container"))?;
    match stop.is_cancelled() {
        true => Err(given_up()),
        false => Ok(()),
    }
}

/// Checks that sandboxes do not reach each other through a network.
async fn check_network(docker: &Docker, name: &str) -> Result<(), ProviderError> {
    let create = format!("`docker network create --opt com.docker.network.bridge.enable_icc=false {name}`");
    let found = docker.inspect_network(name, None::<InspectNetworkOptions>).await;
    let found = found.map_err(|error| match refusal(&error) {
        Some(404) => ProviderError::invalid(
            "network",
            format!("`full` needs the Docker network `{name}`, which is not there; create it with {create}"),
        ),
        _ => engine_error(Code::ProviderUnavailable, "look at the Docker network", &error),
    })?;
    let traffic = found.options.unwrap_or_default().remove("com.docker.network.bridge.enable_icc");
    match found.driver.as_deref() == Some("bridge") && traffic.as_deref() == Some("false") {
        true => Ok(()),
        false => Err(ProviderError::invalid(
            "network",
            format!(
                "`full` is refused: sandboxes would reach each other through the Docker network `{name}`; create it with {create}"
            ),
        )),
    }
}

async fn has_image(docker: &Docker, image: &str) -> Result<bool, ProviderError> {
    match docker.inspect_image(image).await {
        Ok(_) => Ok(true),
        Err(error) => match refusal(&error) {
            Some(404) => Ok(false),
            Some(400) => Err(ProviderError::invalid("image", "is not the name of an image")),
            _ => Err(engine_error(Code::ProviderUnavailable, "look for the image", &error)),
        },
    }
}

async fn pull(docker: &Docker, image: &str) -> Result<(), ProviderError> {
    let options = CreateImageOptions { from_image: Some(with_tag(image)), ..Default::default() };
    let pulling = docker.create_image(Some(options), None, None).try_for_each(|_| async { Ok(()) });
    let failed = |reason: String| {
        let message = format!("pull image `{image}`: {reason}");
        ProviderError::new(Code::ImageNotFound, message).with(json!({ "image": image, "reason": reason }))
    };
    match tokio::time::timeout(PULL_TIMEOUT, pulling).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            let error = engine_error(Code::ImageNotFound, "", &error);
            let reason = error.details["reason"].as_str().unwrap_or_default().to_owned();
            Err(failed(reason))
        }
        Err(_) => Err(failed(format!("not done within {} s", PULL_TIMEOUT.as_secs()))),
    }
}

/// Resumes a sandbox that was paused from outside, because the engine does not stop a paused one.
async fn thaw(docker: &Docker, info: &Info) {
    if info.status == Status::Stopped {
        // Most of them are not paused.
        let _ = docker.unpause_container(&info.name).await;
    }
}

/// Removes a container, with the volumes that its image asked for. One that is not there is
/// removed.
async fn remove_container(docker: &Docker, name: &str) -> Result<(), ProviderError> {
    for _ in 0..REMOVE_TRIES {
        let options = RemoveContainerOptions { v: true, force: true, link: false };
        match docker.remove_container(name, Some(options)).await {
            Ok(()) => return Ok(()),
            Err(error) => match refusal(&error) {
                Some(404) => return Ok(()),
                // The engine removes it already.
                Some(409) => tokio::time::sleep(LOOK_PAUSE).await,
                _ => return Err(engine_error(Code::SandboxRemovalFailed, "remove the container", &error)),
            },
        }
    }
    Err(ProviderError::new(
        Code::SandboxRemovalFailed,
        format!("the engine does not remove the container `{name}`"),
    ))
}

/// Removes everything of a sandbox: its containers and its volume.
async fn take_away(docker: &Docker, id: &str) -> Result<(), ProviderError> {
    remove_container(docker, &prepare_name(id)).await?;
    remove_container(docker, &container_name(id)).await?;
    let name = volume_name(id);
    for _ in 0..REMOVE_TRIES {
        match docker.remove_volume(&name, None::<RemoveVolumeOptions>).await {
            Ok(()) => return Ok(()),
            Err(error) => match refusal(&error) {
                Some(404) => return Ok(()),
                // Its container has gone just now.
                Some(409) => tokio::time::sleep(LOOK_PAUSE).await,
                _ => return Err(engine_error(Code::SandboxRemovalFailed, "remove the volume", &error)),
            },
        }
    }
    Err(ProviderError::new(
        Code::SandboxRemovalFailed,
        format!("the engine does not remove the volume `{name}`"),
    ))
}

impl Provider for DockerProvider {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn create(&self, wanted: Wanted) -> Answer<'_, Info> {
        Box::pin(self.register(wanted))
    }

    fn wait_running<'a>(&'a self, id: &'a str, within: Duration) -> Answer<'a, Info> {
        Box::pin(async move {
            tokio::time::timeout(within, self.wait(id)).await.unwrap_or_else(|_| {
                let message = format!("Sandbox operation timed out after {}ms", within.as_millis());
                Err(ProviderError::new(Code::SandboxTimeout, message))
            })
        })
    }

    fn get<'a>(&'a self, project: &'a str) -> Answer<'a, Option<Info>> {
        Box::pin(async move {
            limits::check_identifier("projectId", project)?;
            Ok(self.all().await?.into_iter().find(|info| info.project_id.as_deref() == Some(project)))
        })
    }

    fn get_by_id<'a>(&'a self, id: &'a str) -> Answer<'a, Option<Info>> {
        Box::pin(async move {
            match self.find(id).await {
                Ok((_, info)) => Ok(Some(info)),
                Err(error) if error.code == Code::SandboxNotFound => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn list(&self) -> Answer<'_, Vec<Info>> {
        Box::pin(self.all())
    }

    fn start<'a>(&'a self, id: &'a str) -> Answer<'a, Info> {
        Box::pin(async move {
            let (docker, info) = self.find(id).await?;
            if self.making(id).is_some() {
                return Err(ProviderError::invalid_state(info.status.name()));
            }
            // A sandbox that runs counts as started. One that was paused from outside is resumed.
            let mut started =
                docker.start_container(&container_name(id), None::<StartContainerOptions>).await;
            if started.is_err() && docker.unpause_container(&container_name(id)).await.is_ok() {
                started = Ok(());
            }
            started.map_err(|error| match refusal(&error) {
                Some(404) => ProviderError::not_found(id),
                _ => engine_error(Code::SandboxStartFailed, "Failed to start sandbox", &error),
            })?;
            self.touch(id);
            let (_, info) = self.find(id).await?;
            self.emit(Step::Started, &info, None);
            Ok(info)
        })
    }

    fn stop<'a>(&'a self, id: &'a str) -> Answer<'a, Info> {
        Box::pin(async move {
            let (docker, info) = self.find(id).await?;
            if self.making(id).is_some() {
                return Err(ProviderError::invalid_state(info.status.name()));
            }
            self.emit(Step::Stopping, &info, None);
            thaw(&docker, &info).await;
            let options = StopContainerOptions { t: Some(STOP_SECONDS), signal: None };
            // One that is stopped already is stopped.
            let stopped = docker.stop_container(&container_name(id), Some(options)).await;
            stopped.map_err(|error| match refusal(&error) {
                Some(404) => ProviderError::not_found(id),
                _ => engine_error(Code::SandboxStopFailed, "Failed to stop sandbox", &error),
            })?;
            let (_, info) = self.find(id).await?;
            self.emit(Step::Stopped, &info, None);
            Ok(info)
        })
    }

    fn remove<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let (docker, info) = self.find(id).await?;
            if let Some(making) = self.making(id) {
                making.stop.cancel();
                making.over.cancelled().await;
            } else if info.status == Status::Running {
                let options = StopContainerOptions { t: Some(REMOVE_SECONDS), signal: None };
                // It is removed by force in any case.
                let _ = docker.stop_container(&container_name(id), Some(options)).await;
            }
            thaw(&docker, &info).await;
            take_away(&docker, id).await?;
            locked(&self.0.making).remove(id);
            locked(&self.0.used).remove(id);
            self.emit(Step::Removed, &info, None);
            Ok(())
        })
    }

    fn exec_stream<'a>(&'a self, id: &'a str, command: Command) -> Answer<'a, Process> {
        Box::pin(async move {
            command.check()?;
            self.place(id).await?.start(&command).await
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
            let (docker, info) = self.find(id).await?;
            if info.status != Status::Running {
                return Err(ProviderError::invalid_state(info.status.name()));
            }
            let failed = |reason: String| {
                let message = format!("Failed to get resource stats: {reason}");
                ProviderError::new(Code::SandboxStatsFailed, message).with(json!({ "reason": reason }))
            };
            // The engine measures once a second while it is asked.
            let options = StatsOptions { stream: true, one_shot: false };
            let measured =
                docker.stats(&container_name(id), Some(options)).take(2).try_collect::<Vec<_>>().await;
            let measured = measured
                .map_err(|error| failed(engine_error(Code::SandboxStatsFailed, "measure", &error).message))?;
            let after = measured.last().ok_or_else(|| failed("the engine measures nothing".to_owned()))?;
            let before = measured.first().filter(|_| measured.len() > 1);
            Ok(view::metrics(before, after, info.created_at, Timestamp::now()))
        })
    }

    fn history<'a>(&'a self, id: &'a str) -> Answer<'a, Vec<Happening>> {
        Box::pin(async move {
            let (docker, info) = self.find(id).await?;
            let now = Timestamp::now();
            let filters = [("type", "container".to_owned()), ("container", container_name(id))];
            let filters = filters.map(|(name, value)| (name.to_owned(), vec![value])).into();
            let options = EventsOptions {
                since: Some(info.created_at.unwrap_or(now).as_second().to_string()),
                // With an end in the past, the engine sends what it knows and closes.
                until: Some(format!("{}.{:09}", now.as_second(), now.subsec_nanosecond())),
                filters: Some(filters),
            };
            let listed = docker.events(Some(options)).try_collect::<Vec<_>>().await;
            let listed = listed
                .map_err(|error| engine_error(Code::ProviderUnavailable, "read Docker's events", &error))?;
            Ok(listed.iter().rev().filter_map(view::happening).collect())
        })
    }

    fn explain<'a>(&'a self, id: &'a str) -> Answer<'a, Explanation> {
        Box::pin(async move {
            let (_, info) = self.find(id).await?;
            let (state, next) = match info.status {
                Status::Running => ("runs", ""),
                Status::Creating => ("is being made", "Wait; a large image takes some minutes."),
                Status::Stopping => ("is being stopped or removed", "Wait until it is stopped."),
                Status::Stopped => ("is stopped", "Start it."),
                Status::Error => ("could not be made or is broken", "Remove it, and make a new one."),
            };
            let reasons = info.message.iter().map(|why| Reason {
                what: format!("The sandbox {state}."),
                why: why.clone(),
                next: match why.contains("OOMKilled") {
                    true => "Make a sandbox with more memory (`memoryMb`).".to_owned(),
                    false => next.to_owned(),
                },
            });
            Ok(Explanation {
                ready: info.status == Status::Running,
                summary: format!("Sandbox `{}` {state}.", info.name),
                reasons: reasons.collect(),
            })
        })
    }

    fn pull_image<'a>(&'a self, image: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            container::check_reference(image)?;
            pull(&self.0.engine.client().await?, image).await
        })
    }

    fn is_image_available<'a>(&'a self, image: &'a str) -> Answer<'a, bool> {
        Box::pin(async move {
            container::check_reference(image)?;
            has_image(&self.0.engine.client().await?, image).await
        })
    }

    fn health_check(&self) -> BoxFuture<'_, Health> {
        Box::pin(async move {
            let looked = async {
                let docker = self.0.engine.client().await?;
                let failed = |error| engine_error(Code::ProviderUnavailable, "ask the Docker engine", &error);
                let info = docker.info().await.map_err(failed)?;
                container::check_limits(&info)?;
                Ok::<_, ProviderError>((docker.client_version().to_string(), info, self.all().await?))
            };
            let looked = tokio::time::timeout(HEALTH_TIMEOUT, looked).await.unwrap_or_else(|_| {
                let message =
                    format!("the Docker engine does not answer within {} s", HEALTH_TIMEOUT.as_secs());
                Err(ProviderError::new(Code::ProviderUnavailable, message))
            });
            match looked {
                Ok((version, info, sandboxes)) => Health {
                    healthy: true,
                    message: None,
                    details: json!({
                        "provider": self.name(),
                        "serverVersion": info.server_version,
                        "apiVersion": version,
                        "kernelVersion": info.kernel_version,
                        "architecture": info.architecture,
                        "storageDriver": info.driver,
                        "securityOptions": info.security_options,
                        "sandboxes": sandboxes.len(),
                        "sandboxesRunning":
                            sandboxes.iter().filter(|info| info.status == Status::Running).count(),
                    }),
                },
                Err(error) => Health {
                    healthy: false,
                    message: Some(error.message),
                    details: json!({ "provider": self.name() }),
                },
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
    fn image_without_a_tag_is_its_latest() {
        for (image, expected) in [
            ("node", "node:latest"),
            ("node:22", "node:22"),
            ("localhost:5000/node", "localhost:5000/node:latest"),
            ("a/b@sha256:00", "a/b@sha256:00"),
        ] {
            assert_eq!(with_tag(image), expected);
        }
    }

    #[test]
    fn networks_that_join_sandboxes_to_the_machine_are_refused() {
        for network in ["host", "bridge", "container:other", "", "-a", "../x", "a?b"] {
            let options = DockerOptions {
                owner: "o".to_owned(),
                network: Some(network.to_owned()),
                ..DockerOptions::default()
            };
            let error = DockerProvider::new(options).expect_err("refused");
            assert_eq!(error.details["field"], "dockerNetwork");
        }
    }

    #[test]
    fn only_own_ids_become_names_of_containers() {
        assert!(is_id("docker-0a"));
        for id in ["", "none", "../x", "docker-A", "docker-a/json?", &format!("docker-{}", "a".repeat(40))] {
            assert!(!is_id(id), "{id}");
        }
    }
}
