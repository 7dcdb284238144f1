//! The command lines of the four components: kubeadm's choices, without those for nodes and
//! replicas.

use std::path::Path;

use crate::kube::pki::Pki;

/// The parameters of the command lines.
pub(crate) struct Layout<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) pki: &'a Pki,
    pub(crate) etcd_port: u16,
    pub(crate) apiserver_port: u16,
    /// True if etcd syncs each write to disk.
    pub(crate) fsync: bool,
}

impl Layout<'_> {
    pub(crate) fn etcd(&self) -> Vec<String> {
        let url = format!("https://127.0.0.1:{}", self.etcd_port);
        let mut arguments = vec![
            flag("name", "warren"),
            flag("data-dir", self.directory.join("etcd").display()),
            flag("listen-client-urls", &url),
            flag("advertise-client-urls", &url),
            // A cluster of one has no peers, but etcd requires an address for them.
            flag("listen-peer-urls", "http://127.0.0.1:0"),
            flag("cert-file", self.pki("etcd.crt")),
            flag("key-file", self.pki("etcd.key")),
            flag("trusted-ca-file", self.pki("ca.crt")),
            "--client-cert-auth".to_owned(),
            flag("log-level", "warn"),
        ];
        if !self.fsync {
            arguments.push("--unsafe-no-fsync".to_owned());
        }
        arguments
    }

    pub(crate) fn kube_apiserver(&self) -> Vec<String> {
        vec![
            flag("bind-address", "127.0.0.1"),
            flag("secure-port", self.apiserver_port),
            flag("tls-cert-file", self.pki("apiserver.crt")),
            flag("tls-private-key-file", self.pki("apiserver.key")),
            flag("client-ca-file", self.pki("ca.crt")),
            flag("etcd-servers", format!("https://127.0.0.1:{}", self.etcd_port)),
            flag("etcd-cafile", self.pki("ca.crt")),
            flag("etcd-certfile", self.pki("etcd-client.crt")),
            flag("etcd-keyfile", self.pki("etcd-client.key")),
            flag("authorization-mode", "Node,RBAC"),
            // kubeadm does not enable the second plugin, but clusters with strict rights over owner
            // references do.
            flag("enable-admission-plugins", "NodeRestriction,OwnerReferencesPermissionEnforcement"),
            flag("allow-privileged", true),
            flag("service-cluster-ip-range", "10.0.0.0/16"),
            flag("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
            flag("service-account-signing-key-file", self.pki("service-accounts.key")),
            flag("service-account-key-file", self.pki("service-accounts.pub")),
            // Endpoints on loopback addresses are invalid, so the service `kubernetes` has none
            // here.
            flag("advertise-address", "127.0.0.1"),
            flag("endpoint-reconciler-type", "none"),
            // Reach real nodes by address, because their names do not resolve.
            flag("kubelet-client-certificate", self.pki("kubelet-client.crt")),
            flag("kubelet-client-key", self.pki("kubelet-client.key")),
            flag("kubelet-preferred-address-types", "InternalIP,ExternalIP,Hostname"),
        ]
    }

    pub(crate) fn kube_controller_manager(&self) -> Vec<String> {
        vec![
            flag("kubeconfig", self.directory.join("controller-manager.kubeconfig").display()),
            // A single replica needs no lease, and its port is not scraped.
            flag("leader-elect", false),
            flag("secure-port", 0),
            flag("use-service-account-credentials", true),
            // Each of its controllers first creates a service account. At the default of 20
            // requests per second this takes 4 of the 10 seconds of a start.
            flag("kube-api-qps", 200),
            flag("kube-api-burst", 400),
            flag("service-account-private-key-file", self.pki("service-accounts.key")),
            flag("root-ca-file", self.pki("ca.crt")),
            flag("cluster-signing-cert-file", self.pki("ca.crt")),
            flag("cluster-signing-key-file", self.pki("ca.key")),
        ]
    }

    pub(crate) fn kube_scheduler(&self) -> Vec<String> {
        vec![
            flag("kubeconfig", self.directory.join("scheduler.kubeconfig").display()),
            flag("leader-elect", false),
            flag("secure-port", 0),
        ]
    }

    fn pki(&self, file: &str) -> String {
        self.pki.path(file).display().to_string()
    }
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}
