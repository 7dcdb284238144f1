//! What cgroups are called.
//!
//! A home has one, and below it is one for each container. Pods have none: they have no limits of their own, and the kernel keeps an account in every
//! cgroup with memory of every file system that there is, of which each sandbox has several. What a thousand sandboxes cost grows with the
//! product of the two.

/// The cgroup that holds everything of one home.
pub fn home(home_id: &str) -> String {
    format!("warren-{home_id}")
}

/// What the names of a pod's cgroups begin with.
pub fn pod(home_id: &str, pod_uid: &str) -> String {
    format!("{}/{pod_uid}", home(home_id))
}

/// The cgroup of a container, given what those of its pod begin with.
pub fn container(pod: &str, container: &str) -> String {
    format!("{pod}{SEPARATOR}{container}")
}

/// Uids have none of these; names of containers may.
const SEPARATOR: char = '.';

/// The uid of the pod that a cgroup directly below the home's belongs to.
pub(crate) fn uid_of(name: &str) -> &str {
    name.split(SEPARATOR).next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_tells_its_pod() {
        let name = container(&pod("0a1b", "9f-1"), "side.car");
        assert_eq!(name, "warren-0a1b/9f-1.side.car");
        let below = name.strip_prefix("warren-0a1b/").unwrap();
        assert_eq!(uid_of(below), "9f-1");
        assert_eq!(uid_of("9f-1"), "9f-1");
    }
}
