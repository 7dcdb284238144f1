//! Tells viewers which lists have changed, so that they fetch them again.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde::Serialize;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use warren_api::{AgentTask, Sandbox, SandboxClaim, SandboxWarmPool};
use warren_client::kube::Client;
use warren_client::kube::api::Api;
use warren_client::kube::runtime::{WatchStreamExt as _, watcher};

use super::fills::Fills;
use super::network::REFUSED;

/// Changes within this time are told once.
const DEBOUNCE: Duration = Duration::from_millis(150);

/// A list that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// The sandboxes.
    Sandboxes,
    /// The pools.
    Pools,
    /// The claims.
    Claims,
    /// The sessions.
    Sessions,
    /// The tasks.
    Tasks,
    /// The hosts that sandboxes may reach, or that were refused to them.
    Network,
}

const ALL: [Topic; 6] =
    [Topic::Sandboxes, Topic::Pools, Topic::Claims, Topic::Sessions, Topic::Tasks, Topic::Network];

/// The channel on which changes are announced. Clones share it.
#[derive(Clone, Debug)]
pub struct Changes(broadcast::Sender<Topic>);

impl Changes {
    /// Makes one without viewers.
    pub fn new() -> Self {
        Self(broadcast::channel(256).0)
    }

    /// Tells viewers that a list has changed.
    pub fn tell(&self, topic: Topic) {
        // No viewers: the next one fetches the lists anyway.
        let _ = self.0.send(topic);
    }

    /// Subscribes to changes from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Topic> {
        self.0.subscribe()
    }

    /// Watches a home's objects until the shutdown, and notes how full pools are.
    pub async fn watch(self, client: Client, namespace: String, fills: Fills, shutdown: CancellationToken) {
        macro_rules! watch {
            ($kind:ty, $config:expr, $($topic:expr),+) => {{
                let api: Api<$kind> = Api::namespaced(client.clone(), &namespace);
                let changes = self.clone();
                watcher(api, $config.any_semantic())
                    .default_backoff()
                    .touched_objects()
                    .for_each(move |_| {
                        $(changes.tell($topic);)+
                        std::future::ready(())
                    })
            }};
        }
        let all = watcher::Config::default;
        let refusals = format!("reason={REFUSED}");
        let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), &namespace);
        let pools =
            watcher(pools, all().any_semantic()).default_backoff().touched_objects().for_each(|pool| {
                if let Ok(pool) = &pool {
                    fills.note(pool, Timestamp::now());
                }
                self.tell(Topic::Pools);
                std::future::ready(())
            });
        let watching = async {
            tokio::join!(
                watch!(Sandbox, all(), Topic::Sandboxes),
                // The state of a claim is that of its sandbox, too.
                watch!(SandboxClaim, all(), Topic::Claims, Topic::Sandboxes),
                pools,
                // A cluster that does not serve tasks answers with errors, further and further
                // apart.
                watch!(AgentTask, all(), Topic::Tasks),
                watch!(Event, all().fields(&refusals), Topic::Network),
            )
        };
        tokio::select! {
            _ = watching => {}
            () = shutdown.cancelled() => {}
        }
    }
}

/// Waits for changes, and returns them together with those that follow at once. `None` at the end.
pub async fn next(changes: &mut broadcast::Receiver<Topic>) -> Option<BTreeSet<Topic>> {
    let mut topics = BTreeSet::new();
    take(&mut topics, changes.recv().await)?;
    let more = async {
        loop {
            let received = changes.recv().await;
            if take(&mut topics, received).is_none() {
                std::future::pending::<()>().await;
            }
        }
    };
    let _ = tokio::time::timeout(DEBOUNCE, more).await;
    Some(topics)
}

fn take(topics: &mut BTreeSet<Topic>, received: Result<Topic, broadcast::error::RecvError>) -> Option<()> {
    match received {
        Ok(topic) => drop(topics.insert(topic)),
        // Which ones were missed is not known.
        Err(broadcast::error::RecvError::Lagged(_)) => topics.extend(ALL),
        Err(broadcast::error::RecvError::Closed) => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_that_follow_at_once_are_told_together() {
        let changes = Changes::new();
        let mut viewer = changes.subscribe();
        for _ in 0..3 {
            changes.tell(Topic::Pools);
        }
        changes.tell(Topic::Sandboxes);
        assert_eq!(next(&mut viewer).await, Some(BTreeSet::from([Topic::Sandboxes, Topic::Pools])));
        changes.tell(Topic::Sessions);
        assert_eq!(next(&mut viewer).await, Some(BTreeSet::from([Topic::Sessions])));
        for _ in 0..1000 {
            changes.tell(Topic::Claims);
        }
        assert_eq!(next(&mut viewer).await, Some(BTreeSet::from(ALL)), "what was missed may be anything");
    }
}
