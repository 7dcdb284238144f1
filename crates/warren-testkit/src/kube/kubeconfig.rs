//! Kubeconfig files, and kubectl isolated from the user's own setup.

use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::kube::pki::Identity;

/// Returns a kubeconfig that needs no other file.
pub(crate) fn kubeconfig(server: &str, authority: &str, identity: &Identity) -> String {
    format!(
        "apiVersion: v1
kind: Config
current-context: warren-kube
clusters:
- name: warren-kube
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: warren-kube
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: warren-kube
  context:
    cluster: warren-kube
    user: warren-kube
",
        authority = STANDARD.encode(authority),
        certificate = STANDARD.encode(&identity.certificate),
        key = STANDARD.encode(&identity.key),
    )
}

/// Returns a command for kubectl and the control plane in `directory`, without the user's
/// kubeconfig, preferences or cache.
pub(crate) fn kubectl(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_remove("KUBECONFIG")
        .env("KUBERC", "off")
        .arg("--kubeconfig")
        .arg(directory.join("kubeconfig"))
        .arg("--cache-dir")
        .arg(directory.join("kubectl-cache"));
    command
}
