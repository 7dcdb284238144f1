//! Decides whether a client may send a request to a sandbox: everybody, users of the cluster by `TokenReview` and
//! `SubjectAccessReview`, or holders of scoped tokens.

mod remembered;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;
use tracing::warn;

use self::remembered::Remembered;
use crate::answer::Failure;
use crate::token::{KeySet, Refused, Target};

/// The longest time that the API server may take to answer a review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest token that is looked at.
const LONGEST_TOKEN: usize = 16 << 10;

const NO_TOKEN: &str = "A bearer token is required.";
const WRONG_TOKEN: &str = "The token is not valid.";

/// The authorization method for clients.
#[derive(Debug, Clone, Default)]
pub enum Authorization {
    /// Everybody may send requests to every sandbox.
    #[default]
    AllowAll,
    /// The API server says who the client is, and whether it may use the subresource `proxy` of the Sandbox.
    TokenReview(TokenReviews),
    /// The client's token names one sandbox.
    ScopedToken(KeySet),
}

/// The settings of [`Authorization::TokenReview`].
#[derive(Debug, Clone)]
pub struct TokenReviews {
    /// The time that answers of the API server are trusted.
    pub ttl: Duration,
    /// The most answers that are remembered.
    pub cache_size: usize,
    /// Requests without a token are refused.
    pub require_token: bool,
    /// The audiences that tokens must be for; empty for the API server's own.
    pub audiences: Vec<String>,
}

impl Default for TokenReviews {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(30), cache_size: 2048, require_token: true, audiences: Vec::new() }
    }
}

/// A request that a client wants to send to a sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) port: u16,
    pub(crate) method: &'a Method,
    pub(crate) is_upgrade: bool,
    /// The path that the sandbox gets, without the query.
    pub(crate) path: &'a str,
}

/// A permission.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// The UID of the only Sandbox that it is for.
    pub(crate) sandbox_uid: Option<String>,
}

/// The SHA-256 of a token: tokens are kept no longer than their request.
type Digest = [u8; 32];

/// The right that the API server is asked about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Right {
    token: Digest,
    verb: &'static str,
    namespace: String,
    name: String,
}

/// Checks requests.
pub(crate) struct Gate {
    client: Client,
    mode: Authorization,
    users: Mutex<Remembered<Digest, Option<UserInfo>>>,
    rights: Mutex<Remembered<Right, bool>>,
}

impl Gate {
    pub(crate) fn new(client: Client, mode: Authorization) -> Gate {
        let most = match &mode {
            Authorization::TokenReview(settings) => settings.cache_size,
            _ => 0,
        };
        let (users, rights) = (Mutex::new(Remembered::new(most)), Mutex::new(Remembered::new(most)));
        Gate { client, mode, users, rights }
    }

    /// Returns whether tokens can admit a client that is not admitted otherwise.
    pub(crate) fn takes_tokens(&self) -> bool {
        !matches!(self.mode, Authorization::AllowAll)
    }

    /// Checks a request.
    pub(crate) async fn admit(&self, token: Option<&str>, ask: &Ask<'_>) -> Result<Admitted, Failure> {
        let token = token.filter(|token| token.len() <= LONGEST_TOKEN);
        match &self.mode {
            Authorization::AllowAll => Ok(Admitted::default()),
            Authorization::ScopedToken(keys) => {
                let token = token.ok_or(Failure::Unauthorized(NO_TOKEN))?;
                let Ask { namespace, name, port, path, .. } = *ask;
                let target = Target { namespace, name, port, method: ask.method.as_str(), path };
                let claims = keys.verify(token, &target, jiff::Timestamp::now().as_second());
                let claims = claims.map_err(|refused| match refused {
                    Refused::Invalid => Failure::Unauthorized(WRONG_TOKEN),
                    Refused::AnotherTarget => Failure::NOT_FOR_THIS,
                })?;
                Ok(Admitted { sandbox_uid: Some(claims.uid) })
            }
            Authorization::TokenReview(settings) => {
                match token {
                    Some(token) => self.review(settings, token, ask).await?,
                    None if settings.require_token => return Err(Failure::Unauthorized(NO_TOKEN)),
                    None => {}
                }
                Ok(Admitted::default())
            }
        }
    }

    async fn review(&self, settings: &TokenReviews, token: &str, ask: &Ask<'_>) -> Result<(), Failure> {
        let mut digest = Digest::default();
        digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, token.as_bytes()).as_ref());
        let user = self.user(settings, token, digest).await?.ok_or(Failure::Unauthorized(WRONG_TOKEN))?;
        let right = Right {
            token: digest,
            verb: verb(ask.method, ask.is_upgrade),
            namespace: ask.namespace.to_owned(),
            name: ask.name.to_owned(),
        };
        let known = lock(&self.rights).get(&right, Instant::now());
        let allowed = match known {
            Some(allowed) => allowed,
            None => {
                let allowed = self.may(user, &right).await?;
                lock(&self.rights).keep(right, allowed, Instant::now() + settings.ttl);
                allowed
            }
        };
        let forbidden = Failure::Forbidden("The token's user may not use `sandboxes/proxy` of this sandbox.");
        if allowed { Ok(()) } else { Err(forbidden) }
    }

    async fn user(
        &self,
        settings: &TokenReviews,
        token: &str,
        digest: Digest,
    ) -> Result<Option<UserInfo>, Failure> {
        let known = lock(&self.users).get(&digest, Instant::now());
        if let Some(known) = known {
            return Ok(known);
        }
        let audiences = (!settings.audiences.is_empty()).then(|| settings.audiences.clone());
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let status = asked(reviews.create(&PostParams::default(), &review)).await?.status.unwrap_or_default();
        // An API server that does not know audiences names none in its answer.
        let is_for_us = settings.audiences.is_empty()
            || status.audiences.iter().flatten().any(|audience| settings.audiences.contains(audience));
        let user = status.user.filter(|_| status.authenticated == Some(true) && is_for_us);
        let user = user.filter(|user| user.username.as_ref().is_some_and(|name| !name.is_empty()));
        lock(&self.users).keep(digest, user.clone(), Instant::now() + settings.ttl);
        Ok(user)
    }

    async fn may(&self, user: UserInfo, right: &Right) -> Result<bool, Failure> {
        let attributes = ResourceAttributes {
            verb: Some(right.verb.to_owned()),
            group: Some("agents.x-k8s.io".to_owned()),
            version: Some("v1beta1".to_owned()),
            resource: Some("sandboxes".to_owned()),
            subresource: Some("proxy".to_owned()),
            namespace: Some(right.namespace.clone()),
            name: Some(right.name.clone()),
            ..ResourceAttributes::default()
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = asked(reviews.create(&PostParams::default(), &review)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

/// Waits for an answer of the API server. Without one the request is refused.
async fn asked<T>(review: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let failed = Failure::Internal("The API server could not be asked whether this is allowed.");
    match tokio::time::timeout(REVIEW_TIMEOUT, review).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => {
            warn!(%error, "client not reviewed");
            Err(failed)
        }
        Err(_) => {
            warn!("client not reviewed: the API server does not answer");
            Err(failed)
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the API's verb for a request, as for other `proxy` subresources. A connection that changes its protocol
/// can carry anything, so `get` is not enough for it.
fn verb(method: &Method, is_upgrade: bool) -> &'static str {
    match *method {
        _ if is_upgrade => "create",
        Method::GET | Method::HEAD | Method::OPTIONS => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "create",
    }
}

/// Returns the bearer token of a request.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_need_the_verbs_of_proxy_subresources() {
        assert_eq!(verb(&Method::GET, false), "get");
        assert_eq!(verb(&Method::GET, true), "create");
        assert_eq!(verb(&Method::POST, false), "create");
        assert_eq!(verb(&Method::DELETE, false), "delete");
        assert_eq!(verb(&Method::from_bytes(b"PROPFIND").expect("a method"), false), "create");
    }

    #[test]
    fn tokens_are_bearer_tokens() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, http::HeaderValue::from_static(value));
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(with("bearer  abc "), Some("abc".to_owned()));
        assert_eq!(with("Basic abc"), None);
        assert_eq!(with("Bearer "), None);
    }
}
