//! Simulated nodes. They register, take pods, report them as running and ready with an address, and
//! remove them when they are deleted. Tests of scale and races use them instead of containers.
//!
//! There is one watch, and two writes for a pod that becomes ready. All decisions are from state:
//! whatever a pod's object lacks is written ([`plan`]), so the nodes can be stopped and started
//! again at any time. Annotations on a pod give it another fate than becoming ready. They may be
//! changed while it runs.
//!
//! | annotation | value |
//! |---|---|
//! | [`FATE`] | see [`Fate`] |
//! | [`READY_AFTER`] | milliseconds from placed to running; default: set by the builder |
//! | [`TERMINATE_AFTER`] | milliseconds from deletion to gone; default: set by the builder |
//!
//! These nodes take a pod if it names [`SCHEDULER`], or if it names no scheduler and the builder
//! allows that. If there is also a real scheduler, the first one wins, and only the real one
//! reports pods that fit nowhere.

mod machines;
mod plan;
mod volumes;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use plan::{Action, World};

/// The annotation for the fate of a pod.
pub const FATE: &str = "nodes.warren.dev/fate";
/// The annotation for the time until a pod runs, in milliseconds.
pub const READY_AFTER: &str = "nodes.warren.dev/ready-after";
/// The annotation for the time until a deleted pod is gone, in milliseconds.
pub const TERMINATE_AFTER: &str = "nodes.warren.dev/terminate-after";
/// The `spec.schedulerName` of pods that only simulated nodes may take.
pub const SCHEDULER: &str = "simulated.warren.dev";

/// The number of concurrent requests: enough to keep a server busy, and few enough for other
/// clients to be served.
const REQUESTS: usize = 64;
/// The interval of heartbeats. A node is lost after 40 s without one.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The time for a control plane to see that a new node is ready: seconds on an idle machine.
const OPENING: Duration = Duration::from_secs(60);
/// The number of attempts of a request without an answer, and the pause between them.
const TRIES: u32 = 150;
const AGAIN: Duration = Duration::from_millis(200);

/// The outcome of a simulated pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// `ready`: running and ready.
    #[default]
    Ready,
    /// `not-ready`: running, with an address, but not ready.
    NotReady,
    /// `no-address`: running, neither ready nor with an address.
    NoAddress,
    /// `succeeded`: ends with success.
    Succeeded,
    /// `failed`: ends with failure.
    Failed,
    /// `unschedulable`: fits on no node. Only for pods that name [`SCHEDULER`].
    Unschedulable,
    /// `ignored`: left alone.
    Ignored,
}

impl Fate {
    /// Returns the annotation's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotReady => "not-ready",
            Self::NoAddress => "no-address",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Unschedulable => "unschedulable",
            Self::Ignored => "ignored",
        }
    }

    /// Parses a value. An unknown one becomes [`Fate::Ignored`], so that a typing error is noticed.
    pub fn parse(value: &str) -> Self {
        let all = [
            Self::Ready,
            Self::NotReady,
            Self::NoAddress,
            Self::Succeeded,
            Self::Failed,
            Self::Unschedulable,
        ];
        all.into_iter().find(|fate| fate.as_str() == value).unwrap_or(Self::Ignored)
    }
}

/// An error of starting nodes.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The server refused a node.
    #[error("register a node")]
    Register(#[from] kube::Error),
    /// Waiting for a node failed.
    #[error("wait until node `{name}` may be used")]
    Wait {
        /// The name of the node.
        name: String,
        /// The cause.
        #[source]
        source: kube::runtime::wait::Error,
    },
    /// The taints of a new node were not removed, which kube-controller-manager does.
    #[error("node `{0}` is still tainted as not ready")]
    Closed(String),
}

/// The settings of a simulation.
#[derive(Clone)]
pub struct Builder {
    client: Client,
    count: usize,
    only_asked_for: bool,
    bind_volumes: bool,
    ready_after: Duration,
    terminate_after: Duration,
}

impl Builder {
    /// Sets the number of nodes. The default is one. They are named `simulated-0` and so on.
    pub fn nodes(self, count: usize) -> Self {
        Self { count, ..self }
    }

    /// Ignores pods that do not name [`SCHEDULER`], and all volume claims, because there is a real
    /// node too. The nodes get a taint, so that a real scheduler ignores them.
    pub fn only_asked_for(self) -> Self {
        Self { only_asked_for: true, bind_volumes: false, ..self }
    }

    /// Sets the time from placed to ready. The default is zero.
    pub fn ready_after(self, ready_after: Duration) -> Self {
        Self { ready_after, ..self }
    }

    /// Sets the time from deleted to gone. The default is zero.
    pub fn terminate_after(self, terminate_after: Duration) -> Self {
        Self { terminate_after, ..self }
    }

    /// Registers the nodes, waits until they are usable, and starts to serve.
    ///
    /// # Errors
    ///
    /// Fails if a node cannot be registered.
    pub async fn start(self) -> Result<SimulatedNodes, StartError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let names: Vec<String> = (0..self.count).map(|number| format!("simulated-{number}")).collect();
        for name in &names {
            machines::register(&nodes, name, self.only_asked_for).await?;
        }
        for name in &names {
            machines::wait_until_open(&nodes, name).await?;
        }
        // List the nodes before the first pod: a pod on an unknown node would not be handled again.
        let machines = machines::list(&nodes).await?;
        let shared = Arc::new(Shared {
            client: self.client.clone(),
            permits: Semaphore::new(REQUESTS),
            addresses: AtomicU32::new(1),
            turn: AtomicUsize::new(0),
            machines: Mutex::new(machines),
            config: self.clone(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(machines::beat(nodes.clone(), names));
        tasks.spawn(machines::watch(nodes, shared.clone()));
        tasks.spawn(serve(shared.clone()));
        if self.bind_volumes {
            tasks.spawn(volumes::bind(self.client));
        }
        Ok(SimulatedNodes { _tasks: tasks })
    }
}

/// Running nodes. They stop when dropped. Their objects and pods stay.
pub struct SimulatedNodes {
    _tasks: JoinSet<()>,
}

impl SimulatedNodes {
    /// Starts to build a simulation.
    pub fn builder(client: Client) -> Builder {
        Builder {
            client,
            count: 1,
            only_asked_for: false,
            bind_volumes: true,
            ready_after: Duration::ZERO,
            terminate_after: Duration::ZERO,
        }
    }
}

struct Shared {
    client: Client,
    config: Builder,
    permits: Semaphore,
    addresses: AtomicU32,
    /// The counter that spreads pods evenly over the nodes.
    turn: AtomicUsize,
    machines: Mutex<Vec<Node>>,
}

impl Shared {
    fn machines(&self) -> Vec<Node> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Watches pods and writes what each of them lacks.
async fn serve(shared: Arc<Shared>) {
    let pods: Api<Pod> = Api::all(shared.client.clone());
    let mut events = std::pin::pin!(watcher(pods, watcher::Config::default()).default_backoff());
    // The last action for each pod: the event that it causes must not start it again.
    let mut begun: HashMap<String, Action> = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod))) => {
                    consider(&shared, pod, &mut begun, &mut tasks);
                }
                Some(Ok(watcher::Event::Delete(pod))) => {
                    begun.remove(pod.metadata.uid.as_deref().unwrap_or_default());
                }
                // After an error the watch restarts by itself.
                Some(Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_)) => {}
                None => return,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

fn consider(shared: &Arc<Shared>, pod: Pod, begun: &mut HashMap<String, Action>, tasks: &mut JoinSet<()>) {
    let Some(uid) = pod.uid() else { return };
    let machines = shared.machines();
    let turn = shared.turn.load(Ordering::Relaxed);
    let world = World { pod: &pod, machines: &machines, turn, only_asked_for: shared.config.only_asked_for };
    let Some(action) = plan::next(&world) else {
        begun.remove(&uid);
        return;
    };
    if begun.get(&uid).is_some_and(|last| last.repeats(&action)) {
        return;
    }
    if matches!(action, Action::Bind(_)) {
        shared.turn.fetch_add(1, Ordering::Relaxed);
    }
    let delay = plan::delay(&pod, &action, shared.config.ready_after, shared.config.terminate_after);
    begun.insert(uid, action.clone());
    let shared = Arc::clone(shared);
    tasks.spawn(async move {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        for _ in 0..TRIES {
            let permit = shared.permits.acquire().await;
            match act(&shared, &pod, &action).await {
                // Another client was faster, or the pod is gone: the watch shows what to do next.
                Ok(()) => return,
                Err(kube::Error::Api(status)) if matches!(status.code, 400..=428) => return,
                Err(_) => {}
            }
            drop(permit);
            tokio::time::sleep(AGAIN).await;
        }
    });
}

async fn act(shared: &Shared, pod: &Pod, action: &Action) -> Result<(), kube::Error> {
    let pods: Api<Pod> =
        Api::namespaced(shared.client.clone(), pod.namespace().as_deref().unwrap_or("default"));
    let name = pod.name_any();
    match action {
        Action::Bind(node) => {
            let binding = json!({"apiVersion": "v1", "kind": "Binding",
                "metadata": {"name": name, "uid": pod.uid()},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
            pods.create_subresource::<Value, Value>("binding", &name, &PostParams::default(), &binding)
                .await
                .map(drop)
        }
        Action::Publish(_) => {
            let number = shared.addresses.fetch_add(1, Ordering::Relaxed);
            let address = format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255);
            let status = plan::status(pod, action, &address, jiff::Timestamp::now());
            // With the UID, the status cannot reach another pod of the same name.
            let body = json!({"metadata": {"uid": pod.uid()}, "status": status});
            pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(body)).await.map(drop)
        }
        Action::Remove => {
            let parameters = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
                ..DeleteParams::default()
            };
            pods.delete(&name, &parameters).await.map(drop)
        }
    }
}
