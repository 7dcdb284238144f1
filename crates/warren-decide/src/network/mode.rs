//! Defines how much network a pod has.

use std::net::SocketAddrV4;

use k8s_openapi::api::core::v1::Pod;
use warren_api::annotations;

use super::names::CLUSTER_DOMAIN;

/// A pod's network mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Only its own loopback.
    None,
    /// An address, the egress proxy and the name server. The default.
    Restricted,
    /// A route of its own to everything except this machine and its other pods.
    Full,
}

/// The error of an annotation with another value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation}: `{0}` is not one of none, restricted, full", annotation = annotations::NETWORK)]
pub struct UnknownMode(String);

impl Mode {
    /// Returns the mode that a pod asks for; `None` if it has no annotation.
    pub fn asked(pod: &Pod) -> Result<Option<Mode>, UnknownMode> {
        let asked = pod.metadata.annotations.as_ref().and_then(|all| all.get(annotations::NETWORK));
        match asked.map(String::as_str) {
            None => Ok(None),
            Some("none") => Ok(Some(Mode::None)),
            Some("restricted") => Ok(Some(Mode::Restricted)),
            Some("full") => Ok(Some(Mode::Full)),
            Some(other) => Err(UnknownMode(other.chars().take(64).collect())),
        }
    }

    /// Returns the annotation's value for this mode.
    pub fn name(self) -> &'static str {
        match self {
            Mode::None => "none",
            Mode::Restricted => "restricted",
            Mode::Full => "full",
        }
    }
}

/// Returns the variables that point programs to the proxy, in both spellings: programs differ.
pub fn proxy_environment(proxy: SocketAddrV4) -> Vec<(String, String)> {
    let address = format!("http://{proxy}");
    let without = format!("localhost,127.0.0.1,::1,.{CLUSTER_DOMAIN}");
    let values = [("HTTP_PROXY", &address), ("HTTPS_PROXY", &address), ("NO_PROXY", &without)];
    let both = |(name, value): (&str, &String)| {
        [(name.to_owned(), value.clone()), (name.to_ascii_lowercase(), value.clone())]
    };
    values.into_iter().flat_map(both).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_annotation_says_how_much() {
        let asked = |value: Option<&str>| {
            let marks = value.map(|value| json!({"warren.dev/network": value}));
            Mode::asked(&serde_json::from_value(json!({"metadata": {"annotations": marks}})).unwrap())
        };
        assert_eq!(asked(None), Ok(None));
        for mode in [Mode::None, Mode::Restricted, Mode::Full] {
            assert_eq!(asked(Some(mode.name())), Ok(Some(mode)));
        }
        let message = "annotation warren.dev/network: `open` is not one of none, restricted, full";
        assert_eq!(asked(Some("open")).unwrap_err().to_string(), message);
    }
}
