//! A Kubernetes API server over `warren-store`. It is a tower service that `kube::Client` uses in
//! process; other clients reach it through a unix socket or a TLS listener.
//!
//! It serves the built-in kinds of the table in `kinds` and any CustomResourceDefinition, with the
//! same messages as kube-apiserver. It runs no controllers, contains no CRDs (they come in as data)
//! and never starts a process: logs and exec are forwarded to a node's kubelet API through a
//! [`NodeDialer`].
//!
//! Users are authenticated by certificates, tokens or the credentials of the unix socket. Roles and
//! bindings authorize them, in `access`.
//!
//! Start reading at [`ApiServer`]. Then read `service.rs` for the path of a request and `verbs` for
//! its effect.

mod access;
mod admission;
mod admit_pods;
mod allocation;
mod audit;
mod call;
mod collect;
mod crd;
mod definition;
mod discovery;
mod disruption;
mod go_json;
mod identity;
mod json_body;
mod json_path;
mod kinds;
mod kubelet_proxy;
mod label_selector;
mod limits;
mod listen;
mod managed_fields;
mod metadata;
mod openapi;
mod patch;
pub mod pki;
mod protection;
mod protobuf;
mod query;
mod resource_registry;
mod respond;
mod route;
mod schema;
mod seldom;
mod server;
mod service;
mod status;
mod table;
mod tree;
mod verbs;
mod yaml;

pub use access::{Accounts, SigningKey, SigningKeyError};
pub use audit::{AuditConfig, AuditError};
pub use identity::Identity;
pub use kubelet_proxy::{ByteStream, NoNodes, NodeDialer};
pub use limits::Limits;
pub use listen::{TlsAccess, serve_tls, serve_unix};
pub use respond::ResponseBody;
pub use server::{ApiServer, Config, OpenError, ThreadEnded};
pub use service::{InProcess, Lost};
pub use warren_store::Storage;
