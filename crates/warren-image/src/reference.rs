//! Names of images: `[registry[:port]/]repository[:tag][@digest]`.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;

/// A name with all defaults filled in, so that two spellings of one image are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// The error for a text that names no image.
#[derive(Debug, thiserror::Error)]
#[error("couldn't parse image name {name:?}: {why}")]
pub struct ParseError {
    name: String,
    why: &'static str,
}

/// The registry of a name without one, as in all other tools.
const DEFAULT_REGISTRY: &str = "docker.io";
/// The owner of images without one in the default registry.
const DEFAULT_OWNER: &str = "library";
const DEFAULT_TAG: &str = "latest";
/// The maximum length of registry and repository.
const LONGEST_NAME: usize = 255;

impl Reference {
    /// Returns the registry's host, with the port if given.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the repository within the registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the version to request from the registry: the digest if given, else the tag.
    pub fn version(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, tag) => tag.clone().unwrap_or_else(|| DEFAULT_TAG.to_owned()),
        }
    }

    /// Returns the digest in the name.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Returns true for the tag `latest`, which Kubernetes fetches every time by default.
    pub fn is_latest(&self) -> bool {
        self.digest.is_none() && self.tag.as_deref() == Some(DEFAULT_TAG)
    }
}

impl FromStr for Reference {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let refuse = |why| ParseError { name: text.chars().take(256).collect(), why };
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => {
                let digest =
                    digest.parse().map_err(|_| refuse("what follows the `@` is no sha256 digest"))?;
                (name, Some(digest))
            }
            None => (text, None),
        };
        let (name, tag) = match name.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (name, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(refuse("the tag is not of letters, digits, `.`, `_` and `-`"));
        }
        let (registry, path) = match name.split_once('/') {
            Some((first, rest)) if is_registry(first) => (first, rest),
            _ => (DEFAULT_REGISTRY, name),
        };
        if !path.split('/').all(is_path_component) {
            return Err(refuse("the repository is not of lower-case words joined by `/`"));
        }
        let repository = match registry == DEFAULT_REGISTRY && !path.contains('/') {
            true => format!("{DEFAULT_OWNER}/{path}"),
            false => path.to_owned(),
        };
        if registry.len() + repository.len() >= LONGEST_NAME {
            return Err(refuse("it is too long"));
        }
        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, None) => Some(DEFAULT_TAG.to_owned()),
            (None, Some(_)) => None,
        };
        Ok(Self { registry: registry.to_owned(), repository, tag, digest })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(formatter, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(formatter, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// Returns true if the first part of a name is a host and not an owner. Only a host has a dot or a
/// port, or is `localhost`.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let named = !host.is_empty()
        && host.split('.').all(|label| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        });
    let port_ok = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    named && port_ok && (host == "localhost" || host.contains('.') || port.is_some())
}

fn is_tag(tag: &str) -> bool {
    (1..=128).contains(&tag.len())
        && !tag.starts_with(['.', '-'])
        && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Returns true for lower-case words, joined by a dot, one or two underscores, or any number of
/// dashes.
fn is_path_component(component: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends_ok =
        bytes.first().is_some_and(|byte| is_word(*byte)) && bytes.last().is_some_and(|byte| is_word(*byte));
    ends_ok
        && bytes
            .split(|byte| is_word(*byte))
            .all(|joint| matches!(joint, b"" | b"." | b"_" | b"__") || joint.iter().all(|byte| *byte == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_leave_out_is_filled_in() {
        let digest = Digest::of(b"");
        for (written, meant) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("owner/image", "docker.io/owner/image:latest"),
            ("localhost/image", "localhost/image:latest"),
            ("localhost:5000/a/b:v1", "localhost:5000/a/b:v1"),
            ("127.0.0.1:5000/a", "127.0.0.1:5000/a:latest"),
            ("registry.example/a__b/c--d.e:T_1", "registry.example/a__b/c--d.e:T_1"),
            (&format!("a@{digest}"), &format!("docker.io/library/a@{digest}")),
            (&format!("a:b@{digest}"), &format!("docker.io/library/a:b@{digest}")),
        ] {
            let reference: Reference = written.parse().unwrap();
            assert_eq!(reference.to_string(), meant);
            assert_eq!(meant.parse::<Reference>().unwrap(), reference);
        }
    }

    #[test]
    fn what_names_no_image_is_refused() {
        for wrong in [
            "",
            ":",
            "a:",
            "A",
            "a/",
            "/a",
            "a//b",
            "a..b",
            "a___b",
            "-a",
            "a b",
            "a:b:c",
            "a@sha256:1",
            "a:-x",
            "host.x:0/a",
            "../a",
            "http://a",
        ] {
            assert!(wrong.parse::<Reference>().is_err(), "{wrong}");
        }
        assert!("a/".repeat(200).parse::<Reference>().is_err());
    }
}
