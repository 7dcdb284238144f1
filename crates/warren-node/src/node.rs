//! The node itself: watches pods, keeps one worker for each, and serves kubelet's API.

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use kube::{Api, Client};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, error, info, warn};
use warren_decide::pod::{Networks, NodeFacts};
use warren_oci::cleanup;
use warren_oci::host_image::{HostImage, PrepareError};
use warren_oci::idmap::{IdAllocator, IdRange};
use warren_oci::privileges::Privileges;
use warren_oci::zygote::Zygote;

use crate::config::{NodeConfig, OwnPod};
use crate::disk;
use crate::drain;
use crate::events::Events;
use crate::guest_program;
use crate::images::Images;
use crate::kubelet::{self, AccessError, Identity, KubeletAccess};
use crate::network::{self, Network, Reach};
use crate::objects::Objects;
use crate::pod_registry::{Entry, Registry, Seen};
use crate::pod_request::{Builder, PodDirectory};
use crate::registration::{MachineFacts, Registration};
use crate::runtime_classes;
use crate::usage::Usage;
use crate::volume_claims;
use crate::worker::{Worker, root_cause};

/// The state that all workers of a node share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) facts: NodeFacts,
    pub(crate) home_id: String,
    pub(crate) zygote: Arc<Zygote>,
    pub(crate) builder: Builder,
    pub(crate) images: Arc<Images>,
    pub(crate) events: Events,
    pub(crate) objects: Objects,
    pub(crate) registry: Registry,
    /// True once the API has listed all pods. Before that an unknown pod may exist.
    listed: watch::Sender<bool>,
    /// The pod network, if there is one.
    pub(crate) network: Option<Arc<Network>>,
    pub(crate) usage: Usage,
    pub(crate) pods: PathBuf,
    own_pods: Vec<OwnPod>,
    ids: Mutex<IdAllocator>,
}

impl Shared {
    pub(crate) fn ids(&self) -> MutexGuard<'_, IdAllocator> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pod of this name if it stands for a part of this process.
    pub(crate) fn own_pod(&self, namespace: &str, name: &str) -> Option<&OwnPod> {
        self.own_pods.iter().find(|own| own.namespace == namespace && own.name == name)
    }

    /// Returns when the node knows its pods.
    pub(crate) async fn wait_until_listed(&self) {
        let mut listed = self.listed.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = listed.wait_for(|listed| *listed).await;
    }
}

/// A running node. Dropping it stops its tasks soon and leaves its pods running; [`Node::shutdown`]
/// waits for them to stop.
pub struct Node {
    shared: Arc<Shared>,
    registration: Arc<Registration>,
    stopping: watch::Sender<bool>,
    registering: AbortHandle,
    /// The task that serves volume claims and publishes the runtime classes, if that is the node's
    /// job.
    serving: Option<AbortHandle>,
    watching: AbortHandle,
}

/// The error of a node that could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error("open {path}")]
    Directory {
        /// Its path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The built-in image could not be made.
    #[error(transparent)]
    Image(#[from] PrepareError),
    /// The store of images could not be opened.
    #[error(transparent)]
    Images(#[from] warren_image::store::StoreError),
}

/// Returns the mark of all of a home's objects on the machine: FNV-1a of its data directory's
/// canonical path.
pub fn home_id(data_dir: &Path) -> io::Result<String> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = data_dir.canonicalize()?;
    let hash = path
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    Ok(format!("{hash:08x}"))
}

impl Node {
    /// Starts a node: finds the pods that still run from before, registers, and starts to work.
    /// Returns at once; the work goes on in tasks of the current runtime.
    pub fn start(config: NodeConfig) -> Result<Node, StartError> {
        let pods = config.data_dir.join("pods");
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| StartError::Directory { path, source }
        };
        make_private(&pods).map_err(at(&pods))?;
        spread_apart(&pods);
        let home_id = home_id(&config.data_dir).map_err(at(&config.data_dir))?;
        let shared_ids = config.privileges.shared_ids();
        let ids = match shared_ids {
            Some(range) => IdAllocator::shared(&pods, range),
            None => IdAllocator::load(&pods, &home_id).map_err(at(&pods))?,
        };
        let builder = Builder {
            image: HostImage::prepare(&config.data_dir)?,
            node_name: config.name.clone(),
            host_ip: config.host_ip.to_string(),
            home_id: home_id.clone(),
            claims: config.data_dir.join("volumes"),
            runtimes: config.runtimes.clone(),
            host_paths: config.host_paths.clone(),
            guest: guest_program::install(&config.data_dir).map_err(at(&config.data_dir))?,
        };
        let reach = match config.privileges {
            Privileges::Machine => Reach::Devices,
            Privileges::Namespace(_) | Privileges::Ordinary => Reach::Sockets,
        };
        let network = network::open(&home_id, &config.data_dir, &pods, config.pod_range, reach);
        let shared = Arc::new(Shared {
            client: config.client.clone(),
            facts: NodeFacts {
                name: config.name.clone(),
                host_ip: config.host_ip,
                bind_unassigned: config.bind_unassigned,
                runtimes: runtime_classes::facts(&config.runtimes),
                network: match (&network, reach) {
                    (None, _) => Networks::None,
                    (Some(_), Reach::Sockets) => Networks::Proxy,
                    (Some(_), Reach::Devices) => Networks::All,
                },
                limits_are_enforced: config.privileges.limits_are_enforced(),
                ids: shared_ids.map_or(IdRange::LENGTH, |range| range.length),
                ids_are_own: shared_ids.is_none(),
                host_paths: config.host_paths.clone(),
            },
            home_id,
            zygote: config.zygote.clone(),
            builder,
            images: Arc::new(Images::open(&config.data_dir, &pods, config.registries.clone())?),
            events: Events::start(config.client.clone(), config.name.clone()),
            objects: Objects::default(),
            registry: Registry::default(),
            listed: watch::Sender::new(false),
            network,
            usage: Usage::default(),
            pods,
            own_pods: config.own_pods.clone(),
            ids: Mutex::new(ids),
        });
        let serving = config.serve_claims.then(|| {
            let directory = shared.builder.claims.clone();
            // A control plane that places pods also binds volumes and defines runtime classes.
            let claims = volume_claims::serve(
                config.client.clone(),
                config.name.clone(),
                directory,
                config.bind_unassigned,
            );
            let classes = config
                .bind_unassigned
                .then(|| runtime_classes::publish(config.client.clone(), config.runtimes.clone()));
            let classes = futures::future::OptionFuture::from(classes);
            tokio::spawn(async move { tokio::join!(claims, classes) }).abort_handle()
        });
        let facts = MachineFacts::read(&shared.pods);
        let registration = Arc::new(Registration::new(config.client.clone(), config, facts));
        let registered = tokio::spawn(Arc::clone(&registration).keep());
        let (stopping, stop) = watch::channel(false);
        let watched = tokio::spawn(watch_pods(shared.clone(), stop));
        Ok(Node {
            shared,
            registration,
            stopping,
            registering: registered.abort_handle(),
            serving,
            watching: watched.abort_handle(),
        })
    }

    /// Serves kubelet's HTTP API on a connection until it closes.
    pub async fn serve_kubelet<S>(&self, stream: S) -> Result<(), hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        kubelet::serve(self.shared.clone(), stream).await
    }

    /// Serves kubelet's HTTP API as [`Node::serve_kubelet`] does, in a future that does not borrow
    /// the node: for a task of its own.
    pub fn kubelet<S>(&self, stream: S) -> impl Future<Output = Result<(), hyper::Error>> + Send + 'static
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        kubelet::serve(self.shared.clone(), stream)
    }

    /// Connects to a port on the pod's own loopback, as port-forward does.
    pub async fn connect_to_pod(&self, namespace: &str, name: &str, port: u16) -> io::Result<TcpStream> {
        self.shared.wait_until_listed().await;
        kubelet::connect_to_pod(&self.shared, namespace, name, port).await
    }

    /// Serves kubelet's HTTP API on a port, with TLS, to clients that the API server authorises.
    /// The future runs for ever unless the certificates cannot be used; dropping it closes the
    /// port. Sessions that have begun go on.
    pub fn listen(
        &self,
        listener: TcpListener,
        access: &KubeletAccess,
    ) -> Result<impl Future<Output = Result<Infallible, AccessError>> + Send + 'static, AccessError> {
        let facts = &self.shared.facts;
        let identity = Identity::open(access, vec![facts.name.clone(), facts.host_ip.to_string()])?;
        Ok(kubelet::serve_port(self.shared.clone(), listener, identity))
    }

    /// Returns when the API server knows the node, and pods may come.
    pub async fn wait_until_registered(&self) {
        self.registration.wait_until_announced().await;
    }

    /// Drains the node: keeps new pods away, evicts its pods and waits until they are gone, all
    /// within `patience`. Pods of a DaemonSet would come back at once, so they stay. Returns the
    /// number of pods that are left; they go on running.
    pub async fn drain(&self, patience: Duration) -> usize {
        drain::drain(&self.shared, &self.registration, patience).await
    }

    /// Stops the node's tasks at any point and leaves its pods running. When it returns, another
    /// node may be started on the same data directory.
    pub async fn shutdown(&self) {
        self.registering.abort();
        self.serving.iter().for_each(AbortHandle::abort);
        self.stopping.send_replace(true);
        // The watching task holds the receiver until it and all workers are gone.
        self.stopping.closed().await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.registering.abort();
        self.serving.iter().for_each(AbortHandle::abort);
        self.watching.abort();
    }
}

/// Closes a directory to other users of the host: pods' files are private. Containers reach them by
/// mounts, not by this path.
fn make_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(directory)?;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))
}

/// Tells the file system that the directories in this one are unrelated, so that each is placed in
/// a block group of its own. ext4 reuses the number of a removed file only after minutes, and skips
/// all of those in the same group for every new file: after a thousand pods had been removed, that
/// was a third of the cost of starting others. File systems without block groups refuse, and need
/// none.
fn spread_apart(directory: &Path) {
    let spread = || -> io::Result<()> {
        let directory = std::fs::File::open(directory)?;
        let flags = ioctl_getflags(&directory)?;
        Ok(ioctl_setflags(&directory, flags | IFlags::TOPDIR)?)
    };
    if let Err(error) = spread() {
        debug!(%error, directory = %directory.display(), "not spread apart");
    }
}

/// Watches pods until told to stop, then ends the workers.
async fn watch_pods(shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let config = if shared.facts.bind_unassigned {
        watcher::Config::default()
    } else {
        watcher::Config::default().fields(&format!("spec.nodeName={}", shared.facts.name))
    };
    let pods: Api<Pod> = Api::all(shared.client.clone());
    let mut events = watch_objects(pods, config).default_backoff().boxed();
    let mut workers = JoinSet::<String>::new();
    let mut network = network::serve(&shared);
    let mut disk = JoinSet::new();
    disk.spawn(disk::watch(shared.clone()));
    let mut listed = HashSet::new();
    let mut first = true;
    loop {
        let event = tokio::select! {
            event = events.try_next() => event,
            () = told_to_stop(&mut stop) => {
                workers.shutdown().await;
                network.shutdown().await;
                disk.shutdown().await;
                network::close(&shared);
                remove_empty_cgroup(&shared);
                return;
            }
            Some(finished) = workers.join_next() => {
                match finished {
                    Ok(uid) => shared.registry.remove(&uid),
                    Err(error) => error!(%error, "worker of a pod ended"),
                }
                continue;
            }
        };
        match event {
            Ok(Some(Event::Init)) => listed.clear(),
            Ok(Some(Event::InitApply(pod))) => {
                listed.extend(pod.metadata.uid.clone());
                show(&shared, &mut workers, pod);
            }
            Ok(Some(Event::InitDone)) => {
                for (uid, entry) in shared.registry.all().into_iter().filter(|(uid, _)| !listed.contains(uid))
                {
                    tell(&shared, &uid, &entry, Seen::Gone);
                }
                if std::mem::take(&mut first) {
                    remove_orphans(&shared, &mut workers, &listed);
                }
                shared.listed.send_replace(true);
            }
            Ok(Some(Event::Apply(pod))) => show(&shared, &mut workers, pod),
            Ok(Some(Event::Delete(pod))) => {
                if let Some(uid) = pod.metadata.uid.as_deref()
                    && let Some(entry) = shared.registry.get(uid)
                {
                    tell(&shared, uid, &entry, Seen::Gone);
                }
            }
            Ok(None) => return,
            Err(error) => warn!(error = %root_cause(&error), "pod watch interrupted"),
        }
    }
}

/// Removes the home's cgroup if there are no pods. A starting pod has a directory already.
fn remove_empty_cgroup(shared: &Shared) {
    let mut pods = match std::fs::read_dir(&shared.pods) {
        Ok(pods) => pods,
        Err(error) => {
            warn!(%error, "pods not listed; the home's cgroup stays");
            return;
        }
    };
    if pods.next().is_none()
        && let Err(error) = cleanup::remove_home_cgroup(&shared.home_id)
    {
        warn!(%error, "the home's cgroup not removed");
    }
}

/// Returns when told to stop, or when the node is gone.
async fn told_to_stop(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Passes a pod to its worker, or starts one.
fn show(shared: &Arc<Shared>, workers: &mut JoinSet<String>, pod: Pod) {
    let Some(uid) = pod.metadata.uid.clone() else { return };
    let bound_to =
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|name| !name.is_empty());
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    if shared.own_pod(&name(&pod.metadata.namespace), &name(&pod.metadata.name)).is_some() {
        return;
    }
    let known = shared.registry.get(&uid);
    if known.is_none() && bound_to.is_some_and(|name| name != shared.facts.name) {
        return;
    }
    if !is_directory_name(&uid) {
        warn!(uid = %uid.chars().take(64).collect::<String>(), "pod with an impossible uid passed over");
        return;
    }
    let seen = Seen::Pod(Arc::new(pod));
    match known {
        Some(entry) => tell(shared, &uid, &entry, seen),
        None => {
            start_worker(shared, workers, uid.clone(), seen.clone());
            if let Some(network) = &shared.network {
                network.shown(&uid, None, &seen);
            }
        }
    }
}

/// Passes a pod's new state to its worker and to the parts that follow all pods.
fn tell(shared: &Shared, uid: &str, entry: &Entry, seen: Seen) {
    let before = entry.seen.send_replace(seen.clone());
    if let Some(network) = &shared.network {
        network.shown(uid, Some(&before), &seen);
    }
}

fn start_worker(shared: &Arc<Shared>, workers: &mut JoinSet<String>, uid: String, seen: Seen) {
    let (namespace, name) = match &seen {
        Seen::Pod(pod) => (
            pod.metadata.namespace.clone().unwrap_or_default(),
            pod.metadata.name.clone().unwrap_or_default(),
        ),
        Seen::Gone => (String::new(), String::new()),
    };
    let directory = PodDirectory(shared.pods.join(&uid));
    let (seen, seen_by_worker) = watch::channel(seen);
    let (state_of_worker, state) = watch::channel(None);
    let (eviction, told_to_go) = watch::channel(None);
    let worker = Worker::new(
        shared.clone(),
        uid.clone(),
        directory.clone(),
        seen_by_worker,
        state_of_worker,
        told_to_go,
    );
    let entry = Entry { namespace, name, directory, seen, state, eviction };
    shared.registry.insert(uid.clone(), Arc::new(entry));
    workers.spawn(async move {
        worker.run().await;
        uid
    });
}

/// Starts the removal of pods whose objects are gone, found by their directories and cgroups.
fn remove_orphans(shared: &Arc<Shared>, workers: &mut JoinSet<String>, listed: &HashSet<String>) {
    let directories = std::fs::read_dir(&shared.pods).into_iter().flatten().flatten();
    let mut uids: HashSet<String> =
        directories.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    match cleanup::pods_with_cgroups(&shared.home_id) {
        Ok(with_cgroups) => uids.extend(with_cgroups),
        Err(error) => warn!(%error, "cgroups of earlier pods not found"),
    }
    for uid in uids.into_iter().filter(|uid| !listed.contains(uid) && is_directory_name(uid)) {
        if shared.registry.get(&uid).is_none() {
            info!(%uid, "removing what is left of a pod that is gone");
            start_worker(shared, workers, uid, Seen::Gone);
        }
    }
}

/// Returns true if a uid is safe as a directory name.
fn is_directory_name(uid: &str) -> bool {
    !uid.is_empty()
        && uid.len() <= 128
        && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}
