//! Writes the files of `/etc` that belong to the pod and not to its images: its host name, its
//! hosts, and its name servers.

use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use warren_decide::network::CLUSTER_DOMAIN;

use crate::network::Lease;

const FILES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

/// Writes them into a layer, a directory that becomes the topmost of the containers' root file
/// systems. Each container can change them for itself, and sees no host path as it would with
/// mounted files.
pub(crate) fn write(layer: &Path, hostname: &str, pod: &Pod, lease: Option<&Lease>) -> io::Result<()> {
    let directory = layer.join("etc");
    std::fs::create_dir_all(&directory)?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let spec = pod.spec.as_ref();
    let texts = [format!("{hostname}\n"), hosts(hostname, spec, lease), resolver(namespace, spec, lease)];
    for (name, text) in FILES.into_iter().zip(texts) {
        std::fs::write(directory.join(name), text)?;
    }
    // Independent of the umask.
    let open = std::fs::Permissions::from_mode;
    std::fs::set_permissions(layer, open(0o755))?;
    std::fs::set_permissions(&directory, open(0o755))?;
    FILES.into_iter().try_for_each(|name| std::fs::set_permissions(directory.join(name), open(0o644)))
}

/// Adds a program of the node's to a layer, at a path of the container, by a hard link: layers are
/// only read.
pub(crate) fn add_program(layer: &Path, path: &str, program: &Path) -> io::Result<()> {
    let open = || std::fs::Permissions::from_mode(0o755);
    if !layer.is_dir() {
        std::fs::create_dir_all(layer)?;
        std::fs::set_permissions(layer, open())?;
    }
    let path = layer.join(path.trim_start_matches('/'));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
        std::fs::set_permissions(parent, open())?;
    }
    match std::fs::hard_link(program, &path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn hosts(hostname: &str, spec: Option<&PodSpec>, lease: Option<&Lease>) -> String {
    let own = lease.map_or_else(|| "127.0.0.1".to_owned(), |lease| lease.address.to_string());
    let mut text =
        format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{own}\t{hostname}\n");
    for alias in spec.and_then(|spec| spec.host_aliases.as_deref()).unwrap_or_default() {
        let names = alias.hostnames.iter().flatten().filter(|name| is_word(name));
        let names: Vec<&str> = names.map(String::as_str).collect();
        if is_word(&alias.ip) && !names.is_empty() {
            let _ = writeln!(text, "{}\t{}", alias.ip, names.join("\t"));
        }
    }
    text
}

/// Returns the text of `resolv.conf` as kubelet writes it, except for the name server: it is always
/// the node's own, whatever `dnsConfig` names, since pods reach no other unless their network is
/// full. Empty for a pod without a network.
fn resolver(namespace: &str, spec: Option<&PodSpec>, lease: Option<&Lease>) -> String {
    let Some(lease) = lease else { return String::new() };
    let (mut searches, mut options) = match spec.and_then(|spec| spec.dns_policy.as_deref()) {
        Some("None" | "Default") => (Vec::new(), Vec::new()),
        _ => (
            vec![
                format!("{namespace}.svc.{CLUSTER_DOMAIN}"),
                format!("svc.{CLUSTER_DOMAIN}"),
                CLUSTER_DOMAIN.to_owned(),
            ],
            vec![("ndots".to_owned(), Some("5".to_owned()))],
        ),
    };
    if let Some(config) = spec.and_then(|spec| spec.dns_config.as_ref()) {
        for search in config.searches.iter().flatten().filter(|search| is_word(search)) {
            if !searches.contains(search) {
                searches.push(search.clone());
            }
        }
        for option in config.options.iter().flatten() {
            let Some(name) = option.name.clone().filter(|name| is_word(name)) else { continue };
            let value = option.value.clone().filter(|value| is_word(value));
            options.retain(|(known, _)| *known != name);
            options.push((name, value));
        }
    }
    let mut text = String::new();
    if !searches.is_empty() {
        let _ = writeln!(text, "search {}", searches.join(" "));
    }
    let _ = writeln!(text, "nameserver {}", lease.gateway);
    if !options.is_empty() {
        let options: Vec<String> = options
            .into_iter()
            .map(|(name, value)| value.map_or_else(|| name.clone(), |value| format!("{name}:{value}")))
            .collect();
        let _ = writeln!(text, "options {}", options.join(" "));
    }
    text
}

/// Returns true if a text is a single word without spaces or line breaks.
fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|character: char| character.is_whitespace() || character.is_control())
}
