//! Lists a pod's references to other objects of its namespace: configuration, secrets, volume
//! claims, and tokens of its service account.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};

use super::all_containers;

/// An object that the pod needs before it starts. For an optional one it must at least be known
/// that it is missing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// A ConfigMap, by name.
    ConfigMap(String),
    /// A Secret, by name.
    Secret(String),
    /// A PersistentVolumeClaim, by name.
    Claim(String),
    /// A token of the pod's service account.
    Token(TokenWish),
}

/// A request for a token.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenWish {
    /// The token's audience; empty for the API server.
    pub audience: String,
    /// The token's lifetime.
    pub seconds: i64,
}

/// The default lifetime of a projected token: an hour.
const DEFAULT_TOKEN_SECONDS: i64 = 3600;

/// The results of looking up references. `None`: the object is missing. A reference that is not in
/// its map has not been looked up yet.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// ConfigMaps by name.
    pub config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    /// Secrets by name.
    pub secrets: BTreeMap<String, Option<Arc<Secret>>>,
    /// PersistentVolumeClaims by name.
    pub claims: BTreeMap<String, Option<Arc<PersistentVolumeClaim>>>,
    /// Each token, or the reason why there is none.
    pub tokens: BTreeMap<TokenWish, Result<String, String>>,
}

/// The reason why a reference cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// It has not been looked up yet.
    #[error("not looked up yet")]
    NotYet,
    /// It is missing, or not as the pod needs it; in kubelet's words.
    #[error("{0}")]
    Missing(String),
}

impl Sources {
    pub(super) fn config_map(&self, name: &str, optional: bool) -> Result<Option<&ConfigMap>, SourceError> {
        match self.config_maps.get(name) {
            None => Err(SourceError::NotYet),
            Some(Some(found)) => Ok(Some(found)),
            Some(None) if optional => Ok(None),
            Some(None) => Err(SourceError::Missing(format!("configmap \"{name}\" not found"))),
        }
    }

    pub(super) fn secret(&self, name: &str, optional: bool) -> Result<Option<&Secret>, SourceError> {
        match self.secrets.get(name) {
            None => Err(SourceError::NotYet),
            Some(Some(found)) => Ok(Some(found)),
            Some(None) if optional => Ok(None),
            Some(None) => Err(SourceError::Missing(format!("secret \"{name}\" not found"))),
        }
    }

    /// Returns the name of the volume that a claim is bound to.
    pub fn bound_volume(&self, claim: &str) -> Result<&str, SourceError> {
        let found = match self.claims.get(claim) {
            None => return Err(SourceError::NotYet),
            Some(None) => {
                let message = format!("persistentvolumeclaim \"{claim}\" not found");
                return Err(SourceError::Missing(message));
            }
            Some(Some(found)) => found,
        };
        if found.metadata.deletion_timestamp.is_some() {
            let message = format!("persistentvolumeclaim \"{claim}\" is being deleted");
            return Err(SourceError::Missing(message));
        }
        let bound = found
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            .is_some_and(|phase| phase == "Bound");
        let volume = found.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        volume
            .filter(|_| bound)
            .ok_or_else(|| SourceError::Missing(format!("persistentvolumeclaim \"{claim}\" is not bound")))
    }
}

/// Returns everything that a pod refers to.
pub fn references(pod: &Pod) -> BTreeSet<Reference> {
    let mut found = BTreeSet::new();
    let config_map = |name: &str| Reference::ConfigMap(name.to_owned());
    for (_, container) in all_containers(pod) {
        for variable in container.env.iter().flatten() {
            let Some(source) = &variable.value_from else { continue };
            found.extend(source.config_map_key_ref.iter().map(|key| config_map(&key.name)));
            found.extend(source.secret_key_ref.iter().map(|key| Reference::Secret(key.name.clone())));
        }
        for source in container.env_from.iter().flatten() {
            found.extend(source.config_map_ref.iter().map(|source| config_map(&source.name)));
            found.extend(source.secret_ref.iter().map(|source| Reference::Secret(source.name.clone())));
        }
    }
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        found.extend(volume.config_map.iter().map(|source| config_map(&source.name)));
        let secret = volume.secret.iter().filter_map(|source| source.secret_name.clone());
        found.extend(secret.map(Reference::Secret));
        let claim = volume.persistent_volume_claim.iter().map(|source| source.claim_name.clone());
        found.extend(claim.map(Reference::Claim));
        let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        for source in projected {
            found.extend(source.config_map.iter().map(|source| config_map(&source.name)));
            found.extend(source.secret.iter().map(|source| Reference::Secret(source.name.clone())));
            let token = source.service_account_token.iter().map(|token| {
                Reference::Token(token_wish(token.audience.as_deref(), token.expiration_seconds))
            });
            found.extend(token);
        }
    }
    found
}

pub(super) fn token_wish(audience: Option<&str>, seconds: Option<i64>) -> TokenWish {
    TokenWish {
        audience: audience.unwrap_or_default().to_owned(),
        seconds: seconds.unwrap_or(DEFAULT_TOKEN_SECONDS),
    }
}
