//! Names of cgroups.
//!
//! A home has one cgroup, and each container has one below it. Pods have none: they have no limits
//! of their own. The kernel also keeps an account in every memory cgroup for every mounted file
//! system, of which each sandbox has several. The cost of a thousand sandboxes grows with the
//! product of the two.

/// Returns the cgroup of a home.
pub fn home(home_id: &str) -> String {
    format!("warren-{home_id}")
}

/// Returns the common prefix of the names of a pod's cgroups.
pub fn pod(home_id: &str, pod_uid: &str) -> String {
    format!("{}/{pod_uid}", home(home_id))
}

/// Returns the cgroup of a container, given the prefix of its pod.
pub fn container(pod: &str, container: &str) -> String {
    format!("{pod}{SEPARATOR}{container}")
}

/// UIDs do not contain this character. Names of containers may.
const SEPARATOR: char = '.';

/// Returns the UID of the pod that a cgroup directly below the home's belongs to.
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
