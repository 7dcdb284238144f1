//! Keeps one pod's references to other objects up to date: config maps, secrets, claims, and tokens
//! of its service account, which are renewed before they expire.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use warren_decide::pod::{Reference, Sources, TokenWish, references};

use crate::node::Shared;
use crate::objects::{Known, Watched};

/// The delay after a failed token request.
const BEFORE_ASKING_AGAIN: Duration = Duration::from_secs(10);
/// The longest time after which a token is renewed. It is also renewed when a fifth of its life is
/// left: kubelet's numbers.
const OLDEST_TOKEN: SignedDuration = SignedDuration::from_hours(24);

type Tokens = Arc<Mutex<BTreeMap<TokenWish, Result<String, String>>>>;

/// The objects that one pod refers to.
#[derive(Default)]
pub(crate) struct PodSources {
    found: Sources,
    begun: bool,
    config_maps: BTreeMap<String, Arc<Watched<ConfigMap>>>,
    secrets: BTreeMap<String, Arc<Watched<Secret>>>,
    claims: BTreeMap<String, Arc<Watched<PersistentVolumeClaim>>>,
    tokens: Tokens,
    changes: Arc<Notify>,
    tasks: JoinSet<()>,
}

impl PodSources {
    /// Returns the results that decisions depend on.
    pub(crate) fn found(&self) -> &Sources {
        &self.found
    }

    /// Starts to follow the pod's references. They never change in its spec, so once is enough.
    pub(crate) fn follow(&mut self, shared: &Arc<Shared>, pod: &Arc<Pod>) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        for reference in references(pod) {
            match reference {
                Reference::ConfigMap(name) => {
                    let watched = shared.objects.config_map(&shared.client, namespace, &name);
                    self.wake_on(&watched);
                    self.config_maps.insert(name, watched);
                }
                Reference::Secret(name) => {
                    let watched = shared.objects.secret(&shared.client, namespace, &name);
                    self.wake_on(&watched);
                    self.secrets.insert(name, watched);
                }
                Reference::Claim(name) => {
                    let watched = shared.objects.claim(&shared.client, namespace, &name);
                    self.wake_on(&watched);
                    self.claims.insert(name, watched);
                }
                Reference::Token(wish) => {
                    let (tokens, changes) = (self.tokens.clone(), self.changes.clone());
                    self.tasks.spawn(renew(shared.clone(), pod.clone(), wish, tokens, changes));
                }
            }
        }
        self.read();
    }

    fn wake_on<K: Send + Sync + 'static>(&mut self, watched: &Arc<Watched<K>>) {
        let (mut news, changes) = (watched.news.clone(), self.changes.clone());
        self.tasks.spawn(async move {
            while news.changed().await.is_ok() {
                changes.notify_one();
            }
        });
    }

    /// Waits for a change. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        self.changes.notified().await;
        self.read();
    }

    fn read(&mut self) {
        self.found = Sources {
            config_maps: known(&self.config_maps),
            secrets: known(&self.secrets),
            claims: known(&self.claims),
            tokens: self.tokens.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
    }
}

/// Returns the objects that have been looked up.
fn known<K>(watched: &BTreeMap<String, Arc<Watched<K>>>) -> BTreeMap<String, Option<Arc<K>>> {
    let known = watched.iter().filter_map(|(name, watched)| {
        let found = match &*watched.news.borrow() {
            Known::NotYet => return None,
            Known::Absent => None,
            Known::Here(object) => Some(object.clone()),
        };
        Some((name.clone(), found))
    });
    known.collect()
}

/// Requests a token, and a new one before it expires, for ever.
async fn renew(shared: Arc<Shared>, pod: Arc<Pod>, wish: TokenWish, tokens: Tokens, changes: Arc<Notify>) {
    loop {
        let asked_at = Timestamp::now();
        let pause = match ask(&shared, &pod, &wish).await {
            Ok((token, expires)) => {
                keep(&tokens, &wish, Ok(token));
                let life = expires.duration_since(asked_at).min(OLDEST_TOKEN);
                Duration::try_from(life * 4 / 5).unwrap_or(BEFORE_ASKING_AGAIN)
            }
            Err(problem) => {
                let message = format!("failed to fetch token: {problem}");
                let has_one = tokens
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get(&wish)
                    .is_some_and(|known| known.is_ok());
                if !has_one {
                    keep(&tokens, &wish, Err(message));
                }
                BEFORE_ASKING_AGAIN
            }
        };
        changes.notify_one();
        tokio::time::sleep(pause).await;
    }
}

fn keep(tokens: &Tokens, wish: &TokenWish, token: Result<String, String>) {
    tokens.lock().unwrap_or_else(PoisonError::into_inner).insert(wish.clone(), token);
}

async fn ask(shared: &Shared, pod: &Pod, wish: &TokenWish) -> kube::Result<(String, Timestamp)> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    let account = account.filter(|name| !name.is_empty()).unwrap_or("default");
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: (!wish.audience.is_empty()).then(|| vec![wish.audience.clone()]),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
            expiration_seconds: Some(wish.seconds),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(shared.client.clone(), namespace);
    let given: TokenRequest =
        accounts.create_subresource("token", account, &PostParams::default(), &request).await?;
    let status = given.status.unwrap_or_default();
    let expires = status.expiration_timestamp.map_or_else(Timestamp::now, |time| time.0);
    Ok((status.token.unwrap_or_default(), expires))
}
