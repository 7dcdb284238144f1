//! The request for a sandbox: fields, ranges and defaults, checked before anything is created.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::{Code, ProviderError};

/// Ranges of the configuration, both ends included.
const MEMORY_MB: std::ops::RangeInclusive<u32> = 512..=32_768;
const CPUS: std::ops::RangeInclusive<f64> = 0.5..=16.0;
const PIDS: std::ops::RangeInclusive<u32> = 32..=4096;
const DISK_MB: std::ops::RangeInclusive<u32> = 1024..=102_400;

/// Variables that are never passed into a sandbox.
pub const BLOCKED_VARIABLES: [&str; 18] = [
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "DATABASE_URL",
    "DB_PASSWORD",
    "POSTGRES_PASSWORD",
    "MYSQL_PASSWORD",
    "REDIS_PASSWORD",
    "PRIVATE_KEY",
    "SSH_PRIVATE_KEY",
    "ENCRYPTION_KEY",
    "JWT_SECRET",
    "SECRET_KEY",
    "SIGNING_KEY",
    "STRIPE_SECRET_KEY",
    "SENDGRID_API_KEY",
    "TWILIO_AUTH_TOKEN",
    // Not secrets: with these a caller would decide what every program in the sandbox loads.
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
];

/// The network that a sandbox reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Nothing.
    None,
    /// Named hosts, through the egress proxy.
    #[default]
    Restricted,
    /// Everything but this machine and other sandboxes.
    Full,
}

impl Network {
    /// Returns the mode's name.
    pub fn name(self) -> &'static str {
        match self {
            Network::None => "none",
            Network::Restricted => "restricted",
            Network::Full => "full",
        }
    }
}

/// A sandbox to create, as a client describes it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Wanted {
    /// The project it belongs to. A project has one sandbox at a time.
    pub project_id: Option<String>,
    /// The image.
    pub image: Option<String>,
    /// A warm pool to take it from.
    pub pool: Option<String>,
    /// A template to make it from.
    pub template: Option<String>,
    /// Its memory, in MiB.
    pub memory_mb: Option<u32>,
    /// Its processors.
    pub cpu_cores: Option<f64>,
    /// The most processes and threads that it may have.
    pub pids_limit: Option<u32>,
    /// The most that it may write, in MiB.
    pub disk_mb: Option<u32>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// The network that it reaches.
    pub network: Option<Network>,
    /// The hosts that it reaches if its network is restricted.
    pub allowed_hosts: Option<Vec<String>>,
    /// And on which ports.
    pub allowed_ports: Option<Vec<u16>>,
}

impl Wanted {
    /// Checks each field and that they go together.
    pub fn check(&self) -> Result<(), ProviderError> {
        if let Some(project) = &self.project_id {
            check_identifier("projectId", project)?;
        }
        let sources = [("image", &self.image), ("pool", &self.pool), ("template", &self.template)];
        let named: Vec<&str> =
            sources.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| *name).collect();
        if let [_, second, ..] = named[..] {
            return Err(ProviderError::invalid(
                second,
                "excludes the others of `image`, `pool` and `template`",
            ));
        }
        if let Some(image) = &self.image {
            check_image(image)?;
        }
        for (field, name) in [("pool", &self.pool), ("template", &self.template)] {
            if let Some(name) = name {
                check_object_name(field, name)?;
            }
        }
        let of_image = [
            ("memoryMb", self.memory_mb.is_some()),
            ("cpuCores", self.cpu_cores.is_some()),
            ("pidsLimit", self.pids_limit.is_some()),
            ("diskMb", self.disk_mb.is_some()),
        ];
        let own_limits = self.pool.is_some() || self.template.is_some();
        if let Some((field, _)) = of_image.iter().find(|(_, given)| *given && own_limits) {
            return Err(ProviderError::invalid(field, "goes with `image`; a template has limits of its own"));
        }
        in_range("memoryMb", self.memory_mb, MEMORY_MB)?;
        in_range("pidsLimit", self.pids_limit, PIDS)?;
        in_range("diskMb", self.disk_mb, DISK_MB)?;
        in_range("cpuCores", self.cpu_cores, CPUS)?;
        check_environment("env", &self.env)?;
        check_hosts(self)
    }
}

fn in_range<T: PartialOrd + std::fmt::Display + Copy + Serialize>(
    field: &str,
    value: Option<T>,
    range: std::ops::RangeInclusive<T>,
) -> Result<(), ProviderError> {
    match value {
        Some(value) if !range.contains(&value) => {
            let problem = format!("is {value}; it can be {} to {}", range.start(), range.end());
            Err(ProviderError::invalid(field, problem)
                .with(json!({ "field": field, "minimum": range.start(), "maximum": range.end() })))
        }
        _ => Ok(()),
    }
}

fn check_hosts(wanted: &Wanted) -> Result<(), ProviderError> {
    let restricted = wanted.network.unwrap_or_default() == Network::Restricted;
    if !restricted && (wanted.allowed_hosts.is_some() || wanted.allowed_ports.is_some()) {
        return Err(ProviderError::invalid(
            "allowedHosts",
            "and `allowedPorts` go with the network `restricted`",
        ));
    }
    let hosts = wanted.allowed_hosts.as_deref().unwrap_or_default();
    if hosts.len() > 256 || wanted.allowed_ports.as_ref().is_some_and(|ports| ports.len() > 256) {
        return Err(ProviderError::invalid("allowedHosts", "or `allowedPorts` has more than 256 entries"));
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-*:/_".contains(&byte);
    match hosts.iter().find(|host| host.is_empty() || host.len() > 253 || !host.bytes().all(fits)) {
        Some(host) => {
            let host: String = host.chars().take(64).filter(|letter| !letter.is_control()).collect();
            Err(ProviderError::invalid("allowedHosts", format!("has `{host}`, which is not a host")))
        }
        None => Ok(()),
    }
}

/// Checks an identifier that a client chose, such as a project's: what fits into a label's value.
pub fn check_identifier(field: &str, value: &str) -> Result<(), ProviderError> {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    match bytes.len() <= 63 && bytes.iter().all(fits) && ends(bytes.first()) && ends(bytes.last()) {
        true => Ok(()),
        false => Err(ProviderError::invalid(
            field,
            "has to be at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
        )),
    }
}

fn check_object_name(field: &str, value: &str) -> Result<(), ProviderError> {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    let fits = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(byte);
    match bytes.len() <= 253 && bytes.iter().all(fits) && ends(bytes.first()) && ends(bytes.last()) {
        true => Ok(()),
        false => Err(ProviderError::invalid(field, "is not a name of a Kubernetes object")),
    }
}

/// Checks the name of an image.
pub fn check_image(image: &str) -> Result<(), ProviderError> {
    let fits = |byte: u8| byte.is_ascii_graphic();
    match !image.is_empty() && image.len() <= 512 && image.bytes().all(fits) {
        true => Ok(()),
        false => Err(ProviderError::invalid("image", "is not the name of an image")),
    }
}

/// Checks environment variables: their names, their size, and that none is on the list of those that are never passed.
pub fn check_environment(field: &str, env: &BTreeMap<String, String>) -> Result<(), ProviderError> {
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let size: usize = env.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size > 64 << 10 {
        return Err(ProviderError::invalid(field, "has more than 64 KiB"));
    }
    for (name, value) in env {
        if !is_name(name) || name.len() > 256 {
            let name: String = name.chars().take(64).filter(|letter| !letter.is_control()).collect();
            return Err(ProviderError::invalid(
                field,
                format!("has `{name}`, which is not a variable's name"),
            ));
        }
        if value.contains('\0') {
            return Err(ProviderError::invalid(field, format!("has a zero byte in the value of `{name}`")));
        }
        if BLOCKED_VARIABLES.contains(&name.as_str()) {
            return Err(ProviderError::invalid(
                field,
                format!("has `{name}`, which is never passed into a sandbox"),
            ));
        }
    }
    Ok(())
}

/// Checks a path in a sandbox: absolute, and not leading upwards. Returns it without empty parts and `.`.
pub fn check_path(path: &str) -> Result<String, ProviderError> {
    let refused = |problem: &str| Err(ProviderError::invalid("path", problem));
    if !path.starts_with('/') {
        return refused("has to be absolute");
    }
    if path.len() > 4096 {
        return refused("has more than 4096 bytes");
    }
    if path.contains('\0') {
        return refused("has a zero byte");
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return refused("must not contain `..`");
    }
    Ok(format!("/{}", parts.join("/")))
}

/// Says that there are as many sandboxes as there may be.
pub(crate) fn too_many(most: usize) -> ProviderError {
    let message = format!("Resource limit exceeded: sandboxes (limit: {most})");
    ProviderError::new(Code::SandboxResourceLimitExceeded, message)
        .with(json!({ "resource": "sandboxes", "limit": most }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(wanted: serde_json::Value) -> Result<(), String> {
        let wanted: Wanted = serde_json::from_value(wanted).map_err(|error| error.to_string())?;
        wanted.check().map_err(|error| error.message)
    }

    #[test]
    fn fields_out_of_range_are_named() {
        for (wanted, word) in [
            (json!({ "memoryMb": 511 }), "`memoryMb` is 511; it can be 512 to 32768"),
            (json!({ "memoryMb": 32_769 }), "memoryMb"),
            (json!({ "cpuCores": 0.25 }), "cpuCores"),
            (json!({ "cpuCores": 17 }), "cpuCores"),
            (json!({ "pidsLimit": 31 }), "pidsLimit"),
            (json!({ "diskMb": 1023 }), "diskMb"),
            (json!({ "image": "a", "pool": "b" }), "`pool` excludes"),
            (json!({ "pool": "b", "memoryMb": 1024 }), "`memoryMb` goes with `image`"),
            (json!({ "pool": "B_" }), "`pool` is not a name"),
            (json!({ "image": "a b" }), "`image`"),
            (json!({ "projectId": "-a" }), "`projectId`"),
            (json!({ "projectId": "x".repeat(64) }), "`projectId`"),
            (json!({ "env": { "A=B": "c" } }), "`A=B`"),
            (json!({ "env": { "DATABASE_URL": "c" } }), "never passed"),
            (json!({ "env": { "A": "c\0" } }), "zero byte"),
            (json!({ "env": { "A": "c".repeat(65 << 10) } }), "64 KiB"),
            (json!({ "network": "full", "allowedHosts": [] }), "`restricted`"),
            (json!({ "allowedHosts": ["a b"] }), "`a b`"),
            (json!({ "network": "bridge" }), "unknown variant"),
            (json!({ "hostPath": "/" }), "unknown field"),
        ] {
            let error = check(wanted.clone()).expect_err("refused");
            assert!(error.contains(word), "{wanted}: {error}");
        }
        check(json!({ "memoryMb": 512, "cpuCores": 0.5, "pidsLimit": 4096, "diskMb": 1024, "projectId": "a.b_c-1",
            "env": { "_A1": "" }, "network": "restricted", "allowedHosts": ["*.example.com", "10.0.0.0/8"] }))
        .expect("all in range");
    }

    #[test]
    fn paths_that_lead_upwards_are_refused_and_others_are_normalised() {
        for path in ["/../etc", "/a/../../b", "a", "", "..", "/a\0", &format!("/{}", "x".repeat(5000))] {
            assert!(check_path(path).is_err(), "{path:?}");
        }
        assert_eq!(check_path("//a/./b/").expect("fine"), "/a/b");
        assert_eq!(check_path("/").expect("fine"), "/");
        assert_eq!(check_path("/..a/b..").expect("fine"), "/..a/b..");
    }
}
