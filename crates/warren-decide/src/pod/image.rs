//! Decides about the images of a pod's containers: which to fetch before a container can start, and
//! its waiting reason meanwhile.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::refusal::{BuiltInImage, ContainerProblem};
use super::restart_delay;

/// The known images of one pod, by the name in the container's spec. An image that was not asked
/// for yet is absent.
pub type Images = BTreeMap<String, ImageState>;

/// An image's state on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageState {
    /// It is present.
    Present(ImageFacts),
    /// It is being fetched.
    Fetching,
    /// It could not be fetched.
    Failed {
        /// The reason, spelled as in kubelet.
        reason: &'static str,
        /// A readable message.
        message: String,
        /// The number of attempts.
        attempts: u32,
        /// The time of the last attempt.
        at: Timestamp,
    },
}

/// The properties of an image that decisions need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFacts {
    /// The image by its digest: what the status shows as `imageID`.
    pub id: String,
    /// The user that the image names, as written; empty for root.
    pub user: String,
}

/// A pull policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Resolve the name for every pod: it may mean another image by now.
    Always,
    /// Fetch it if it is not present.
    IfNotPresent,
    /// Never fetch it.
    Never,
}

impl PullPolicy {
    /// Returns the container's policy. The API server fills it in. If it did not, a present image
    /// is used.
    pub fn of(container: &Container) -> Self {
        match container.image_pull_policy.as_deref() {
            Some("Always") => PullPolicy::Always,
            Some("Never") => PullPolicy::Never,
            _ => PullPolicy::IfNotPresent,
        }
    }
}

/// The state of a container's image.
pub(super) enum Readiness<'a> {
    /// The container can start; built-in images have no facts.
    Ready(Option<&'a ImageFacts>),
    /// The image must be asked for.
    Wanted,
    /// It is being fetched.
    Coming,
    /// It failed, and is asked for again at this time.
    Failing(ContainerProblem, Timestamp),
}

pub(super) fn readiness<'a>(images: &'a Images, container: &Container, now: Timestamp) -> Readiness<'a> {
    let name = container.image.as_deref().unwrap_or_default();
    if BuiltInImage::named(name).is_some() {
        return Readiness::Ready(None);
    }
    match images.get(name) {
        None => Readiness::Wanted,
        Some(ImageState::Present(facts)) => Readiness::Ready(Some(facts)),
        Some(ImageState::Fetching) => Readiness::Coming,
        Some(ImageState::Failed { reason, message, attempts, at }) => {
            let due = *at + restart_delay(*attempts);
            let fresh_until = *at + FRESH;
            if now >= due {
                Readiness::Wanted
            } else if *reason == PULL_FAILED && now >= fresh_until {
                let message = format!("Back-off pulling image \"{name}\": {reason}: {message}");
                Readiness::Failing(ContainerProblem { reason: "ImagePullBackOff", message }, due)
            } else {
                let look_again = if *reason == PULL_FAILED { fresh_until } else { due };
                Readiness::Failing(ContainerProblem { reason, message: message.clone() }, look_again)
            }
        }
    }
}

/// Kubelet's reason for an image that could not be pulled.
const PULL_FAILED: &str = "ErrImagePull";
/// The time for which a failure is shown as such. After it kubelet shows that the container waits.
const FRESH: SignedDuration = SignedDuration::from_secs(2);

/// Returns the problem of an image whose user may not run in a pod that must not be root.
pub(super) fn user_problem(pod: &Pod, container: &Container, facts: &ImageFacts) -> Option<ContainerProblem> {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let own = container.security_context.as_ref();
    let must_not_be_root =
        own.and_then(|own| own.run_as_non_root).or_else(|| of_pod.and_then(|pod| pod.run_as_non_root))
            == Some(true);
    let given = own.and_then(|own| own.run_as_user).or_else(|| of_pod.and_then(|pod| pod.run_as_user));
    if !must_not_be_root || given.is_some() {
        return None;
    }
    let user = facts.user.split(':').next().unwrap_or_default();
    let message = match user.parse::<u32>() {
        Ok(0) => "container has runAsNonRoot and image will run as root".to_owned(),
        Ok(_) => return None,
        Err(_) if user.is_empty() => "container has runAsNonRoot and image will run as root".to_owned(),
        Err(_) => format!(
            "container has runAsNonRoot and image has non-numeric user ({}), cannot verify user is non-root",
            user.chars().take(64).collect::<String>()
        ),
    };
    Some(ContainerProblem { reason: "CreateContainerConfigError", message })
}
