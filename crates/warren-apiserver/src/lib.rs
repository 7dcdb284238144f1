//! A Kubernetes API server over `warren-store`: the HTTP surface as a tower service, used in process by
//! `kube::Client` and behind a unix socket or a TLS listener by everyone else.
//!
//! It serves the built-in kinds of the table in `kinds` and any CustomResourceDefinition, and answers in the words
//! of the real server. It runs no controllers, knows no CRD of ours (they come in as data) and never starts a
//! process: logs and exec are passed to a node's kubelet API through a [`NodeDialer`].
//!
//! Users are told apart by certificates, tokens and the unix socket's credentials; what they may do is said by roles and
//! bindings, in `access`.
//!
//! Start reading at [`ApiServer`], then `service.rs` for the way of a request and `verbs` for what it does.

mod access;
mod admission;
mod admit;
mod allocation;
mod audit;
mod call;
mod collect;
mod crd;
mod definition;
mod discovery;
mod go_json;
mod identity;
mod json_body;
mod json_path;
mod kinds;
mod label_selector;
mod limits;
mod listen;
mod managed_fields;
mod metadata;
mod node;
mod openapi;
mod patch;
pub mod pki;
mod protection;
mod protobuf;
mod query;
mod registry;
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
pub use limits::Limits;
pub use listen::{TlsAccess, serve_tls, serve_unix};
pub use node::{ByteStream, NoNodes, NodeDialer};
pub use respond::ResponseBody;
pub use server::{ApiServer, Config, OpenError, ThreadEnded};
pub use service::{InProcess, Lost};
pub use warren_store::Storage;
