//! Service-account tokens: JSON web tokens signed with a key of the data directory. A token is
//! valid until it expires, as long as its account and the object that it is bound to still exist
//! with the same UIDs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;
use warren_store::{Key, Store};

use crate::identity::Identity;

/// The issuer, and the default audience, of the tokens. It is the same as on a real cluster.
pub(crate) const AUDIENCE: &str = "https://kubernetes.default.svc.cluster.local";
/// The message for a client with an invalid token.
pub(crate) const REFUSED: &str = "invalid bearer token";
/// The number of verified tokens that are cached. A cached token's signature is not verified again.
const REMEMBERED: usize = 1024;

/// The private key that signs tokens.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    id: String,
}

/// The error for an unusable key.
#[derive(Debug, Error)]
#[error("use a signing key: {0}")]
pub struct SigningKeyError(String);

impl SigningKey {
    /// Generates a key that is not stored anywhere.
    pub fn generate() -> Result<SigningKey, SigningKeyError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|error| SigningKeyError(error.to_string()))?;
        SigningKey::from_pkcs8(document.as_ref())
    }

    /// Reads a P-256 key in PKCS#8 form.
    pub fn from_pkcs8(key: &[u8]) -> Result<SigningKey, SigningKeyError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key, &SystemRandom::new())
            .map_err(|error| SigningKeyError(error.to_string()))?;
        let digest = ring::digest::digest(&ring::digest::SHA256, pair.public_key().as_ref());
        Ok(SigningKey { id: URL_SAFE_NO_PAD.encode(digest), pair })
    }

    fn sign(&self, claims: &Claims) -> Result<String, SigningKeyError> {
        let part = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let claims = serde_json::to_value(claims).map_err(|error| SigningKeyError(error.to_string()))?;
        let signed = format!("{}.{}", part(&json!({"alg": "ES256", "kid": self.id})), part(&claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = signature.map_err(|error| SigningKeyError(error.to_string()))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    fn verify(&self, token: &str) -> Option<Claims> {
        let (signed, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key().as_ref());
        public.verify(signed.as_bytes(), &signature).ok()?;
        let (_, claims) = signed.split_once('.')?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SigningKey({})", self.id)
    }
}

/// The claims of a token, named as in kube-apiserver's tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub aud: Vec<String>,
    pub exp: i64,
    pub iat: i64,
    pub iss: String,
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Bound,
    pub nbf: i64,
    pub sub: String,
}

/// The account and the object that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bound {
    pub namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<BoundObject>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<BoundObject>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<BoundObject>,
    pub serviceaccount: BoundObject,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BoundObject {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl Claims {
    /// Creates the claims of a token that is valid from now on.
    pub fn new(
        namespace: &str,
        account: BoundObject,
        audiences: Vec<String>,
        now: jiff::Timestamp,
        seconds: i64,
    ) -> Claims {
        let now = now.as_second();
        Claims {
            aud: audiences,
            exp: now.saturating_add(seconds),
            iat: now,
            iss: AUDIENCE.to_owned(),
            jti: uuid::Uuid::new_v4().to_string(),
            nbf: now,
            sub: account_user(namespace, &account.name),
            kubernetes: Bound {
                namespace: namespace.to_owned(),
                node: None,
                pod: None,
                secret: None,
                serviceaccount: account,
            },
        }
    }

    fn is_current(&self, store: &Store, now: jiff::Timestamp) -> bool {
        let bound = &self.kubernetes;
        let exists = |resource: &str, namespace: &str, object: &BoundObject| {
            let current = store.newest(&Key::new(resource, namespace, object.name.as_str()));
            current.is_some_and(|current| *current.meta.uid == *object.uid)
        };
        let namespace = bound.namespace.as_str();
        let (expires, now) = (self.exp, now.as_second());
        now < expires
            && now >= self.nbf
            && self.iss == AUDIENCE
            && exists("serviceaccounts", namespace, &bound.serviceaccount)
            && bound.pod.as_ref().is_none_or(|pod| exists("pods", namespace, pod))
            && bound.secret.as_ref().is_none_or(|secret| exists("secrets", namespace, secret))
            // If the token is bound to a pod, its node is informational and is not checked.
            && (bound.pod.is_some() || bound.node.as_ref().is_none_or(|node| exists("nodes", "", node)))
    }

    fn identity(&self) -> Identity {
        let bound = &self.kubernetes;
        let mut extra = vec![(
            "authentication.kubernetes.io/credential-id".to_owned(),
            vec![format!("JTI={}", self.jti)],
        )];
        for (kind, object) in [("node", &bound.node), ("pod", &bound.pod)] {
            if let Some(object) = object {
                let prefix = format!("authentication.kubernetes.io/{kind}");
                extra.push((format!("{prefix}-name"), vec![object.name.clone()]));
                if !object.uid.is_empty() {
                    extra.push((format!("{prefix}-uid"), vec![object.uid.clone()]));
                }
            }
        }
        let mut groups = account_groups(&bound.namespace);
        groups.push(crate::identity::EVERYONE.to_owned());
        Identity { user: self.sub.clone(), groups, uid: Some(bound.serviceaccount.uid.clone()), extra }
    }
}

/// Returns the user name of a service account.
pub(crate) fn account_user(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// Returns the groups of every service account in a namespace.
pub(crate) fn account_groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

/// The claims and the user of a verified token.
type Verified = (Arc<Claims>, Arc<Identity>);

/// The settings and state of service-account tokens.
pub struct Accounts {
    key: SigningKey,
    root_certificate: String,
    /// The default of `automountServiceAccountToken`, for pods that do not set it and whose account
    /// does not either. True adds a volume with the account's token.
    pub token_volumes: bool,
    remembered: Mutex<HashMap<String, Verified>>,
}

impl Accounts {
    /// Creates tokens with the given key. `root_certificate` is the PEM certificate of the
    /// authority that clients in pods trust.
    pub fn new(key: SigningKey, root_certificate: String) -> Accounts {
        Accounts { key, root_certificate, token_volumes: false, remembered: Mutex::default() }
    }

    /// Uses a new key and no authority. For servers whose data does not outlast the process.
    pub fn temporary() -> Result<Accounts, SigningKeyError> {
        Ok(Accounts::new(SigningKey::generate()?, String::new()))
    }

    pub(crate) fn root_certificate(&self) -> &str {
        &self.root_certificate
    }

    pub(crate) fn issue(&self, claims: &Claims) -> Result<String, SigningKeyError> {
        self.key.sign(claims)
    }

    /// Verifies a token. Returns its user, and those of `audiences` that the token is valid for.
    pub(crate) fn authenticate(
        &self,
        token: &str,
        audiences: &[&str],
        store: &Store,
        now: jiff::Timestamp,
    ) -> Option<(Arc<Identity>, Vec<String>)> {
        let remembered = || self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let known = remembered().get(token).cloned();
        let (claims, identity) = match known {
            Some(known) => known,
            None => {
                let claims = Arc::new(self.key.verify(token)?);
                let verified = (Arc::clone(&claims), Arc::new(claims.identity()));
                let mut remembered = remembered();
                if remembered.len() >= REMEMBERED {
                    remembered.clear();
                }
                remembered.insert(token.to_owned(), verified.clone());
                verified
            }
        };
        let meant = claims.aud.iter().filter(|audience| audiences.contains(&audience.as_str()));
        let meant: Vec<String> = meant.cloned().collect();
        (!meant.is_empty() && claims.is_current(store, now)).then_some((identity, meant))
    }
}

#[cfg(test)]
mod tests {
    use super::{AUDIENCE, BoundObject, Claims, SigningKey};

    #[test]
    fn a_token_is_read_with_its_own_key_only() {
        let account = BoundObject { name: "robot".to_owned(), uid: "u".to_owned() };
        let now = jiff::Timestamp::UNIX_EPOCH;
        let claims = Claims::new("n", account, vec![AUDIENCE.to_owned()], now, 3600);
        let key = SigningKey::generate().unwrap();
        let token = key.sign(&claims).unwrap();
        assert_eq!(key.verify(&token), Some(claims));
        assert_eq!(SigningKey::generate().unwrap().verify(&token), None);
        for bad in ["", "a", "a.b", "a.b.c", &token[..token.len() - 2], &format!("x{token}")] {
            assert_eq!(key.verify(bad), None, "{bad}");
        }
    }
}
