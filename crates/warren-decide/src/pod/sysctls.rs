//! Reads kernel parameters of a pod's own namespaces (`securityContext.sysctls`).

use k8s_openapi::api::core::v1::Pod;

use super::refusal::{Refusal, shorten};

/// Kubelet's list of safe parameters: each belongs to the pod's own namespaces, and none affects
/// another pod.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];
/// Longer than any valid value of these parameters.
const LONGEST_VALUE: usize = 1024;

/// Returns the parameters that a pod sets: names with dots, and values.
pub fn sysctls(pod: &Pod) -> Vec<(String, String)> {
    let security = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let wanted = security.and_then(|security| security.sysctls.as_deref()).unwrap_or_default();
    wanted.iter().map(|wanted| (with_dots(&wanted.name), wanted.value.clone())).collect()
}

/// Returns a name with dots as separators. Names come with dots or with slashes, and the first
/// separator says which of the two it is.
fn with_dots(name: &str) -> String {
    match name.find(['.', '/']).map(|at| name.as_bytes()[at]) {
        Some(b'/') => name
            .chars()
            .map(|character| match character {
                '/' => '.',
                '.' => '/',
                other => other,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

/// Refuses parameters that are not on the list of safe ones, in kubelet's words.
pub(super) fn refused(pod: &Pod) -> Option<Refusal> {
    let (name, value) = sysctls(pod)
        .into_iter()
        .find(|(name, value)| !SAFE.contains(&name.as_str()) || value.len() > LONGEST_VALUE)?;
    let why = match value.len() > LONGEST_VALUE {
        true => format!("the value of \"{}\" is longer than {LONGEST_VALUE} bytes", shorten(&name)),
        false => format!("\"{}\" not allowlisted; these are: {}", shorten(&name), SAFE.join(", ")),
    };
    Some(Refusal {
        reason: "SysctlForbidden",
        message: format!("spec.securityContext.sysctls: forbidden sysctl: {why}"),
    })
}

#[cfg(test)]
mod tests {
    use super::with_dots;

    #[test]
    fn names_are_written_with_dots() {
        assert_eq!(with_dots("net.ipv4.tcp_rmem"), "net.ipv4.tcp_rmem");
        assert_eq!(with_dots("net/ipv4/tcp_rmem"), "net.ipv4.tcp_rmem");
        assert_eq!(with_dots("net/ipv4/conf/eth0.1/forwarding"), "net.ipv4.conf.eth0/1.forwarding");
        assert_eq!(with_dots("net.ipv4.conf.eth0/1.forwarding"), "net.ipv4.conf.eth0/1.forwarding");
    }
}
