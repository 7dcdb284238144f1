//! Reads the limits that a container runs under: its own, or the defaults of this file.

use k8s_openapi::api::core::v1::{Container, Pod};
use warren_api::annotations;

use super::{Quantity, QuantityError};

/// The default memory limit: 4 GiB, the project's sandbox specification for a sandbox that asks for
/// nothing.
pub const DEFAULT_MEMORY_BYTES: u64 = 4 << 30;
/// The default CPU limit: two cores, from the same specification.
pub const DEFAULT_CPU_MILLIS: u64 = 2000;
/// The default process limit: 256, from the same specification. Kubernetes has no field for it; see
/// [`pids_limit`].
pub const DEFAULT_PIDS: u64 = 256;
/// The largest process id of a 64-bit Linux (`PID_MAX_LIMIT`): more processes cannot exist at once.
const MOST_PIDS: u64 = 4 << 20;
/// The default disk limit: 10 GiB for files over the image and logs, from the same specification.
pub const DEFAULT_DISK_BYTES: u64 = 10 << 30;

/// The smallest memory limit: a runtime needs some memory to set a container up, and below this the
/// start itself would be killed.
const LEAST_MEMORY_BYTES: u64 = 4 << 20;
/// The smallest CPU limit: the kernel refuses a quota below one millisecond in its period of 100
/// ms.
const LEAST_CPU_MILLIS: u64 = 10;

/// A container's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory, swap included.
    pub memory_bytes: u64,
    /// Thousandths of a core.
    pub cpu_millis: u64,
    /// Bytes on the node's disk.
    pub disk_bytes: u64,
}

/// The error of limits that cannot be met.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// The amount cannot be parsed.
    #[error("resources.limits.{resource}: {source}")]
    Unreadable {
        /// Its name, such as `memory`.
        resource: &'static str,
        /// The parse error.
        source: QuantityError,
    },
    /// A resource that this node cannot limit.
    #[error("resources.limits.{0} is not supported by this node yet")]
    Unsupported(String),
    /// The amount is too small to enforce.
    #[error("resources.limits.{resource}: {given} is below the least that can be enforced, {least}")]
    TooSmall {
        /// Its name, such as `memory`.
        resource: &'static str,
        /// The amount as written in the pod.
        given: String,
        /// The smallest valid amount.
        least: &'static str,
    },
}

impl Limits {
    /// Returns the limits of a container.
    pub fn of(container: &Container) -> Result<Limits, LimitsError> {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        let known = ["cpu", "memory", "ephemeral-storage"];
        let other = limits.and_then(|limits| limits.keys().find(|name| !known.contains(&name.as_str())));
        if let Some(other) = other {
            return Err(LimitsError::Unsupported(other.chars().take(64).collect()));
        }
        let limit = |resource: &'static str| -> Result<Option<(Quantity, String)>, LimitsError> {
            match limits.and_then(|limits| limits.get(resource)) {
                None => Ok(None),
                Some(text) => match text.0.parse() {
                    Ok(quantity) => Ok(Some((quantity, text.0.clone()))),
                    Err(source) => Err(LimitsError::Unreadable { resource, source }),
                },
            }
        };
        let memory_bytes = match limit("memory")? {
            None => DEFAULT_MEMORY_BYTES,
            Some((quantity, given)) => match u64::try_from(quantity.units()) {
                Ok(bytes) if bytes >= LEAST_MEMORY_BYTES => bytes,
                _ => return Err(LimitsError::TooSmall { resource: "memory", given, least: "4Mi" }),
            },
        };
        let cpu_millis = match limit("cpu")? {
            None => DEFAULT_CPU_MILLIS,
            Some((quantity, given)) => match u64::try_from(quantity.thousandths()) {
                Ok(millis) if millis >= LEAST_CPU_MILLIS => millis,
                _ => return Err(LimitsError::TooSmall { resource: "cpu", given, least: "10m" }),
            },
        };
        let disk_bytes = match limit("ephemeral-storage")? {
            None => DEFAULT_DISK_BYTES,
            Some((quantity, given)) => match u64::try_from(quantity.units()) {
                Ok(bytes) if bytes > 0 => bytes,
                _ => return Err(LimitsError::TooSmall { resource: "ephemeral-storage", given, least: "1" }),
            },
        };
        Ok(Limits { memory_bytes, cpu_millis, disk_bytes })
    }
}

/// The annotation [`annotations::PIDS_LIMIT`] of a pod has a value that is not a limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "annotation {annotation}: `{0}` is not a whole number from 1 to {MOST_PIDS}",
    annotation = annotations::PIDS_LIMIT
)]
pub struct PidsLimitError(String);

/// Returns how many processes and threads each container of the pod may have at once: the
/// annotation's value, or [`DEFAULT_PIDS`].
pub fn pids_limit(pod: &Pod) -> Result<u64, PidsLimitError> {
    let given = pod.metadata.annotations.as_ref().and_then(|all| all.get(annotations::PIDS_LIMIT));
    let Some(text) = given else { return Ok(DEFAULT_PIDS) };
    // `parse` accepts a leading `+`, which is not a plain number.
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|text| text.parse().ok());
    number
        .filter(|number| (1..=MOST_PIDS).contains(number))
        .ok_or_else(|| PidsLimitError(text.chars().take(64).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_number_of_processes_is_the_annotations_or_the_default() {
        let limit = |value: Option<&str>| {
            let annotations = value.map(|value| json!({annotations::PIDS_LIMIT: value}));
            let pod = serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
            pids_limit(&pod).map_err(|error| error.to_string())
        };
        assert_eq!(limit(None), Ok(256));
        assert_eq!(limit(Some("1")), Ok(1));
        assert_eq!(limit(Some("4194304")), Ok(4_194_304));
        for value in ["", "0", "4194305", "-1", "+5", "1k", " 5", "99999999999999999999999"] {
            let message = limit(Some(value)).unwrap_err();
            let expected = format!(
                "annotation warren.dev/pids-limit: `{value}` is not a whole number from 1 to 4194304"
            );
            assert_eq!(message, expected);
        }
    }
}
