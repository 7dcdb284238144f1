//! Nodes that only pretend: they register, take pods, call them running and ready with an address, and let them go when
//! they are deleted. What scale and races need, without a container.
//!
//! One watch, and two writes for a pod that becomes ready. Everything is from state: whatever a pod's object lacks is
//! written ([`plan`]), so the nodes can be stopped and started again at any time. What a pod shall do instead of becoming
//! ready is said by annotations on it, which may be changed while it runs.
//!
//! | annotation | value |
//! |---|---|
//! | [`FATE`] | see [`Fate`] |
//! | [`READY_AFTER`] | milliseconds from placed to running; default: what the builder says |
//! | [`TERMINATE_AFTER`] | milliseconds from deletion to gone; default: what the builder says |
//!
//! A pod is placed by these nodes if it names [`SCHEDULER`], or no scheduler of its own and the builder does not forbid
//! it. Where a real scheduler works too, whoever is first wins, and pods that fit nowhere are the real one's to tell.

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

/// What happens to a pod, by annotation.
pub const FATE: &str = "nodes.warren.dev/fate";
/// How long a pod takes to run, in milliseconds.
pub const READY_AFTER: &str = "nodes.warren.dev/ready-after";
/// How long a deleted pod takes to go, in milliseconds.
pub const TERMINATE_AFTER: &str = "nodes.warren.dev/terminate-after";
/// `spec.schedulerName` of pods that only simulated nodes may take.
pub const SCHEDULER: &str = "simulated.warren.dev";

/// Requests at the same time: enough to keep a server busy, few enough that everybody else is served.
const REQUESTS: usize = 64;
/// A node is lost when it has not been heard of for 40 s.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long a control plane may take to see that a new node is ready: seconds, on a machine that does nothing else.
const OPENING: Duration = Duration::from_secs(60);
/// How often a request that got no answer is made again, and how long after.
const TRIES: u32 = 150;
const AGAIN: Duration = Duration::from_millis(200);

/// What a simulated pod comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// `ready`: running and ready.
    #[default]
    Ready,
    /// `not-ready`: running, with an address, not ready.
    NotReady,
    /// `no-address`: running, neither ready nor with an address.
    NoAddress,
    /// `succeeded`: ends with success.
    Succeeded,
    /// `failed`: ends with failure.
    Failed,
    /// `unschedulable`: fits on no node; only for pods that name [`SCHEDULER`].
    Unschedulable,
    /// `ignored`: not even looked at.
    Ignored,
}

impl Fate {
    /// The annotation's value.
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

    /// What a value means. One that is not known is [`Fate::Ignored`], so that a slip of the pen is seen.
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

/// Nodes could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The server refused a node.
    #[error("register a node")]
    Register(#[from] kube::Error),
    /// A node could not be waited for.
    #[error("wait until node `{name}` may be used")]
    Wait {
        /// Which one.
        name: String,
        /// Why not.
        #[source]
        source: kube::runtime::wait::Error,
    },
    /// Nobody takes the taints of a new node away; that is the work of kube-controller-manager.
    #[error("node `{0}` is still tainted as not ready")]
    Closed(String),
}

/// How to simulate.
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
    /// How many nodes; one, if nothing is said. They are called `simulated-0` and so on.
    pub fn nodes(self, count: usize) -> Self {
        Self { count, ..self }
    }

    /// Leaves pods alone that do not name [`SCHEDULER`], and all volume claims: there is a real node too. The nodes have a taint,
    /// so that a real scheduler leaves them alone as well.
    pub fn only_asked_for(self) -> Self {
        Self { only_asked_for: true, bind_volumes: false, ..self }
    }

    /// How long pods take from placed to ready; no time, if nothing is said.
    pub fn ready_after(self, ready_after: Duration) -> Self {
        Self { ready_after, ..self }
    }

    /// How long pods take from deleted to gone; no time, if nothing is said.
    pub fn terminate_after(self, terminate_after: Duration) -> Self {
        Self { terminate_after, ..self }
    }

    /// Registers the nodes, waits until they may be used, and starts to serve.
    ///
    /// # Errors
    /// When a node cannot be registered.
    pub async fn start(self) -> Result<SimulatedNodes, StartError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let names: Vec<String> = (0..self.count).map(|number| format!("simulated-{number}")).collect();
        for name in &names {
            machines::register(&nodes, name, self.only_asked_for).await?;
        }
        for name in &names {
            machines::wait_until_open(&nodes, name).await?;
        }
        // Known before the first pod is looked at: one on a node that is not known is not looked at again.
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

/// Running nodes. They stop when dropped; their objects and pods stay as they are.
pub struct SimulatedNodes {
    _tasks: JoinSet<()>,
}

impl SimulatedNodes {
    /// Begins to say how.
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
    /// Whose turn it is among the nodes: pods are spread evenly.
    turn: AtomicUsize,
    machines: Mutex<Vec<Node>>,
}

impl Shared {
    fn machines(&self) -> Vec<Node> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Watches pods and does what each of them lacks.
async fn serve(shared: Arc<Shared>) {
    let pods: Api<Pod> = Api::all(shared.client.clone());
    let mut events = std::pin::pin!(watcher(pods, watcher::Config::default()).default_backoff());
    // The last thing that was begun for each pod: its own echo must not begin it again.
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
                // After an error the watch begins again by itself.
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
                // Somebody else was quicker, or it is gone: the watch tells what there is to do now.
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
            // The uid keeps the status of one pod from reaching another of the same name.
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
