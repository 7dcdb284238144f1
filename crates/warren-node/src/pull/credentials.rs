//! Reads credentials for registries from the files that `docker login` and `podman login` write,
//! and from pods' pull secrets, which have the same form.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use warren_image::reference::Reference;

/// A credential for a registry.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credential {
    /// A name and its password.
    Password { user: String, password: String },
    /// A token that the registry's token service exchanges for an access token.
    IdentityToken(String),
    /// A token, ready for use.
    RegistryToken(String),
}

impl fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never print the secret: this may be logged.
        formatter.write_str(match self {
            Credential::Password { .. } => "Password",
            Credential::IdentityToken(_) => "IdentityToken",
            Credential::RegistryToken(_) => "RegistryToken",
        })
    }
}

/// The error of a file or secret without credentials.
#[derive(Debug, thiserror::Error)]
#[error("not of the form that `docker login` writes")]
pub(crate) struct FormError(#[from] serde_json::Error);

/// The largest credential file that is read.
pub(crate) const LARGEST_FILE: u64 = 1 << 20;

/// The file's `auths`, by registry or part of one. Helpers (`credsStore`, `credHelpers`) are
/// programs, and a node runs none.
#[derive(Default, Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

impl Entry {
    fn credential(self) -> Option<Credential> {
        if !self.registrytoken.is_empty() {
            return Some(Credential::RegistryToken(self.registrytoken));
        }
        if !self.identitytoken.is_empty() {
            return Some(Credential::IdentityToken(self.identitytoken));
        }
        let decoded = STANDARD.decode(self.auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
        let (user, password) = match pair {
            // Docker pads passwords with zeros.
            Some((user, password)) => (user.to_owned(), password.trim_end_matches('\0').to_owned()),
            None => (self.username, self.password),
        };
        (!user.is_empty()).then_some(Credential::Password { user, password })
    }
}

/// Returns the credentials of a file (`config.json`, `auth.json`, `.dockerconfigjson`) for an
/// image, the most specific first.
pub(crate) fn in_config(text: &[u8], image: &Reference) -> Result<Vec<Credential>, FormError> {
    let file: File = serde_json::from_slice(text)?;
    Ok(fitting(file.auths, image))
}

/// Does the same for the older form (`.dockercfg`), which is only the list.
pub(crate) fn in_old_config(text: &[u8], image: &Reference) -> Result<Vec<Credential>, FormError> {
    Ok(fitting(serde_json::from_slice(text)?, image))
}

fn fitting(auths: BTreeMap<String, Entry>, image: &Reference) -> Vec<Credential> {
    let wanted = format!("{}/{}", image.registry(), image.repository());
    let mut fitting: Vec<(usize, Credential)> = auths
        .into_iter()
        .filter_map(|(key, entry)| {
            let place = place(&key);
            fits(&place, &wanted).then_some((place.len(), entry.credential()?))
        })
        .collect();
    fitting.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    fitting.into_iter().map(|(_, credential)| credential).collect()
}

/// Normalises a key: with or without a scheme, with the path of an API's version behind it, under
/// one of Docker Hub's names.
fn place(key: &str) -> String {
    let key = key.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let key = key.strip_suffix("/v1").or_else(|| key.strip_suffix("/v2")).unwrap_or(key);
    match key {
        "index.docker.io" | "registry-1.docker.io" | "hub.docker.com" => "docker.io".to_owned(),
        key => key.to_owned(),
    }
}

/// Returns true if a place is the image's repository or a parent of it. A `*` stands for one label
/// of the host or a part of it.
fn fits(place: &str, wanted: &str) -> bool {
    let (host, path) = place.split_once('/').unwrap_or((place, ""));
    let (wanted_host, wanted_path) = wanted.split_once('/').unwrap_or((wanted, ""));
    let below = path.is_empty()
        || wanted_path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let (labels, wanted_labels): (Vec<&str>, Vec<&str>) =
        (host.split('.').collect(), wanted_host.split('.').collect());
    below
        && labels.len() == wanted_labels.len()
        && labels.iter().zip(&wanted_labels).all(|(pattern, label)| matches(pattern, label))
}

fn matches(pattern: &str, label: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == label,
        Some((start, end)) => {
            label.len() >= start.len() + end.len() && label.starts_with(start) && label.ends_with(end)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn password(user: &str, password: &str) -> Credential {
        Credential::Password { user: user.to_owned(), password: password.to_owned() }
    }

    #[test]
    fn the_most_particular_place_comes_first() {
        let file = json!({"auths": {
            "registry.example": {"auth": STANDARD.encode("all:one")},
            "registry.example/owner": {"username": "owner", "password": "two"},
            "https://registry.example/v2/": {"identitytoken": "three"},
            "registry.example/own": {"auth": STANDARD.encode("not:this")},
            "*.example": {"auth": STANDARD.encode("star:four")},
            "other.example": {"auth": STANDARD.encode("not:this")},
        }})
        .to_string();
        let found = in_config(file.as_bytes(), &"registry.example/owner/image".parse().unwrap()).unwrap();
        assert_eq!(found[0], password("owner", "two"));
        assert!(found.contains(&password("all", "one")) && found.contains(&password("star", "four")));
        assert_eq!(found.len(), 4, "{found:?}");
    }

    #[test]
    fn docker_hub_has_many_names() {
        let file = json!({"https://index.docker.io/v1/": {"auth": STANDARD.encode("user:pass:word")}});
        let found = in_old_config(file.to_string().as_bytes(), &"busybox".parse().unwrap()).unwrap();
        assert_eq!(found, [password("user", "pass:word")]);
    }

    #[test]
    fn what_is_no_credential_is_none() {
        let image = "busybox".parse().unwrap();
        let file = json!({"auths": {"docker.io": {"auth": "%%%"}}, "credsStore": "desktop"}).to_string();
        assert_eq!(in_config(file.as_bytes(), &image).unwrap(), []);
        assert!(in_config(b"[", &image).is_err());
        assert_eq!(format!("{:?}", password("a", "secret")), "Password");
    }
}
