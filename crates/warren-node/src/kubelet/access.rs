//! Authenticates and authorises requests to kubelet's API on a network port, as kubelet does. A
//! client identifies itself by a certificate of the cluster's authority or by a token that the API
//! server knows. The API server decides on its access.
//!
//! Anonymous access is refused. Answers of the API server are cached for a while, so that frequent
//! requests do not cost it as many. A revoked right ends that much later.

mod subject;

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;
use tracing::warn;

pub(super) use subject::user;

/// The time for which an accepted token is cached: kubelet's number.
const TOKEN_BELIEVED: Duration = Duration::from_secs(2 * 60);
/// The time for which a permission is cached: kubelet's number.
const YES_BELIEVED: Duration = Duration::from_secs(5 * 60);
/// The time for which a refusal is cached: kubelet's number.
const NO_BELIEVED: Duration = Duration::from_secs(30);
/// The size of each cache. There are few clients; made-up tokens fill this and no more.
const MOST_KEPT: usize = 1024;
/// The longest token. A longer one is refused without asking.
const LONGEST_TOKEN: usize = 16 << 10;
/// The group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: Option<String>,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl User {
    fn new(name: String, mut groups: Vec<String>) -> User {
        groups.push(AUTHENTICATED.to_owned());
        User { name, uid: None, groups, extra: BTreeMap::new() }
    }
}

/// A reason to refuse a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Denied {
    #[error("Unauthorized")]
    Nobody,
    #[error("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{}])", subresources.join(" "))]
    NotAllowed { user: String, verb: &'static str, subresources: Vec<&'static str> },
    /// The API server did not answer, so access is refused.
    #[error("the API server could not be asked whether this is allowed")]
    Unasked(#[source] kube::Error),
}

impl Denied {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Denied::Nobody => StatusCode::UNAUTHORIZED,
            Denied::NotAllowed { .. } => StatusCode::FORBIDDEN,
            Denied::Unasked(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// The cache key of an access review.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    user: Arc<User>,
    verb: &'static str,
    subresource: &'static str,
}

/// Asks the API server about every request.
pub(super) struct Gate {
    client: Client,
    node_name: String,
    tokens: Mutex<Kept<String, Option<Arc<User>>>>,
    verdicts: Mutex<Kept<Question, bool>>,
}

impl Gate {
    pub(super) fn new(client: Client, node_name: String) -> Gate {
        Gate { client, node_name, tokens: Mutex::default(), verdicts: Mutex::default() }
    }

    /// Checks a request. `peer` is the user of the connection's certificate; without one, a token
    /// is needed.
    pub(super) async fn admit(
        &self,
        peer: Option<&Arc<User>>,
        headers: &HeaderMap,
        method: &Method,
        path: &str,
    ) -> Result<(), Denied> {
        let user = match peer {
            Some(user) => Arc::clone(user),
            None => self.user_of(bearer(headers).ok_or(Denied::Nobody)?).await?.ok_or(Denied::Nobody)?,
        };
        let (verb, subresources) = (verb(method), subresources(path));
        for &subresource in &subresources {
            if self.may(&user, verb, subresource).await? {
                return Ok(());
            }
        }
        Err(Denied::NotAllowed { user: user.name.clone(), verb, subresources })
    }

    async fn user_of(&self, token: &str) -> Result<Option<Arc<User>>, Denied> {
        if let Some(known) = lock(&self.tokens).get(token, Instant::now()) {
            return Ok(known);
        }
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await.map_err(unasked)?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).and_then(|user| {
            let name = user.username.filter(|name| !name.is_empty())?;
            let (groups, extra) = (user.groups.unwrap_or_default(), user.extra.unwrap_or_default());
            Some(Arc::new(User { name, uid: user.uid, groups, extra }))
        });
        let until = Instant::now() + if user.is_some() { TOKEN_BELIEVED } else { NO_BELIEVED };
        lock(&self.tokens).keep(token.to_owned(), user.clone(), until);
        Ok(user)
    }

    async fn may(
        &self,
        user: &Arc<User>,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, Denied> {
        let question = Question { user: Arc::clone(user), verb, subresource };
        if let Some(known) = lock(&self.verdicts).get(&question, Instant::now()) {
            return Ok(known);
        }
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("nodes".to_owned()),
            subresource: Some(subresource.to_owned()),
            name: Some(self.node_name.clone()),
            ..ResourceAttributes::default()
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: user.uid.clone(),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await.map_err(unasked)?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        let until = Instant::now() + if allowed { YES_BELIEVED } else { NO_BELIEVED };
        lock(&self.verdicts).keep(question, allowed, until);
        Ok(allowed)
    }
}

fn unasked(error: kube::Error) -> Denied {
    warn!(%error, "a client of the node's API could not be asked about");
    Denied::Unasked(error)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    let usable = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= LONGEST_TOKEN;
    usable.then_some(token)
}

/// Returns the API verb of an HTTP method.
fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// Returns the subresources of `nodes` that a path belongs to: access to any of them is enough.
/// Kubelet's own list; most of its API is `proxy`.
fn subresources(path: &str) -> Vec<&'static str> {
    match path.trim_start_matches('/').split('/').next().unwrap_or_default() {
        "pods" | "runningpods" => vec!["pods", "proxy"],
        "healthz" => vec!["healthz", "proxy"],
        "configz" => vec!["configz", "proxy"],
        "stats" => vec!["stats"],
        "metrics" => vec!["metrics"],
        "logs" => vec!["log"],
        _ => vec!["proxy"],
    }
}

/// A cache whose entries expire.
struct Kept<K, V> {
    entries: HashMap<K, (V, Instant)>,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new() }
    }
}

impl<K: Eq + Hash, V: Clone> Kept<K, V> {
    fn get<Q>(&self, key: &Q, now: Instant) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.entries.get(key).filter(|(_, until)| *until > now).map(|(value, _)| value.clone())
    }

    fn keep(&mut self, key: K, value: V, until: Instant) {
        if self.entries.len() >= MOST_KEPT {
            let now = Instant::now();
            self.entries.retain(|_, (_, until)| *until > now);
        }
        if self.entries.len() >= MOST_KEPT {
            // A client is making them up. The few real ones are asked about once more.
            self.entries.clear();
        }
        self.entries.insert(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_need_the_rights_that_kubelet_asks_for() {
        assert_eq!(subresources("/exec/ns/pod/main"), ["proxy"]);
        assert_eq!(subresources("/containerLogs/ns/pod/main"), ["proxy"]);
        assert_eq!(subresources("/pods"), ["pods", "proxy"]);
        assert_eq!(subresources("/metrics/resource"), ["metrics"]);
        assert_eq!(subresources("/stats/summary"), ["stats"]);
        assert_eq!(subresources("//stats/summary"), ["stats"], "as it is routed");
        assert_eq!(subresources("/metricsx"), ["proxy"]);
        assert_eq!(subresources("/"), ["proxy"]);
    }

    #[test]
    fn tokens_are_read_from_their_header_alone() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(with("Bearer abc"), Some("abc".to_owned()));
        assert_eq!(with("bearer  abc "), Some("abc".to_owned()));
        assert_eq!(with("Basic abc"), None);
        assert_eq!(with("Bearer "), None);
        assert_eq!(with(&format!("Bearer {}", "a".repeat(LONGEST_TOKEN + 1))), None);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    #[test]
    fn answers_are_believed_for_a_while_and_never_too_many() {
        let now = Instant::now();
        let mut kept = Kept::<String, bool>::default();
        kept.keep("a".to_owned(), true, now + NO_BELIEVED);
        assert_eq!(kept.get("a", now), Some(true));
        assert_eq!(kept.get("a", now + NO_BELIEVED), None);
        for number in 0..3 * MOST_KEPT {
            kept.keep(number.to_string(), false, now + NO_BELIEVED);
            assert!(kept.entries.len() <= MOST_KEPT);
        }
    }
}
