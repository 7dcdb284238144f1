//! The images of a pod's containers: what has to be fetched before a container can start, and what to say meanwhile.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::refusal::{BuiltInImage, ContainerProblem};
use super::restart_delay;

/// What the node has found out about images for one pod, by the name in the container's spec. One that it has not been asked
/// for yet is not here.
pub type Images = BTreeMap<String, ImageState>;

/// What the node knows of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageState {
    /// It is here.
    Present(ImageFacts),
    /// It is on its way.
    Fetching,
    /// It could not be had.
    Failed {
        /// As kubelet spells it.
        reason: &'static str,
        /// For people.
        message: String,
        /// How often it was tried.
        attempts: u32,
        /// When it was tried last.
        at: Timestamp,
    },
}

/// What a decision needs to know of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFacts {
    /// The image by its digest: what the status shows as `imageID`.
    pub id: String,
    /// The user that the image names, as written; empty for root.
    pub user: String,
}

/// When to fetch an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// For every pod, to learn whether the name means another image by now.
    Always,
    /// When it is not here.
    IfNotPresent,
    /// Not at all.
    Never,
}

impl PullPolicy {
    /// What the container says. The API server fills it in; if it did not, what is here is taken.
    pub fn of(container: &Container) -> Self {
        match container.image_pull_policy.as_deref() {
            Some("Always") => PullPolicy::Always,
            Some("Never") => PullPolicy::Never,
            _ => PullPolicy::IfNotPresent,
        }
    }
}

/// How a container's image stands.
pub(super) enum Readiness<'a> {
    /// The container can start on it; built-in images have no facts.
    Ready(Option<&'a ImageFacts>),
    /// It must be asked for.
    Wanted,
    /// It is on its way.
    Coming,
    /// It failed, and is asked for again then.
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

/// An image could not be pulled, in kubelet's word.
const PULL_FAILED: &str = "ErrImagePull";
/// Kubelet shows a failure until it looks at the pod again, and from then on that it waits.
const FRESH: SignedDuration = SignedDuration::from_secs(2);

/// Whether an image that names its own user may run in a pod that must not be root.
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
