//! The server: start, shutdown, and the writes that follow from other writes.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use jiff::Timestamp;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use warren_store::{
    Action, Ahead, Expect, Filter, Key, ListRequest, Object, Storage, Store, Urgency, Write, WriteError,
};

use crate::access::{self, Access, Accounts, SigningKeyError};
use crate::allocation::Allocation;
use crate::audit::{self, AuditConfig, AuditError, AuditLog};
use crate::definition::Definition;
use crate::identity::Identity;
use crate::kubelet_proxy::NodeDialer;
use crate::limits::{Gate, Limits};
use crate::resource_registry::Registry;
use crate::service::InProcess;
use crate::{admit_pods, collect, crd, metadata};

/// The namespaces that exist from the start.
const FIRST_NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];
/// An annotation of embedded definitions with a hash of their text. It shows that a stored
/// definition is current without comparing half a megabyte of schema.
const EMBEDDED_HASH: &str = "apiserver.warren.dev/definition-hash";
/// The name of the config map that every namespace has, and the text that describes it.
const ROOT_CERTIFICATE: &str = "kube-root-ca.crt";
const ROOT_CERTIFICATE_NOTE: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// The configuration of an API server.
pub struct Config {
    /// The storage of the objects.
    pub storage: Storage,
    /// CustomResourceDefinitions to serve from the start. Older versions in the store are updated.
    pub crds: Vec<Value>,
    /// Connects to nodes, for logs and exec.
    pub nodes: Arc<dyn NodeDialer>,
    /// Signs service-account tokens. If `None`, a temporary key is used.
    pub accounts: Option<Accounts>,
    /// The clock.
    pub now: fn() -> Timestamp,
    /// The limits of clients at the listeners.
    pub limits: Limits,
    /// The audit log, if any.
    pub audit: Option<AuditConfig>,
}

/// An error at start.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] warren_store::OpenError),
    /// A key for service-account tokens could not be made.
    #[error(transparent)]
    Key(#[from] SigningKeyError),
    /// The audit log could not be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The first objects could not be written.
    #[error("write the first objects")]
    FirstObjects(#[source] WriteError),
    /// A definition cannot be served.
    #[error("serve the definition {name}: {message}")]
    Definition {
        /// The name of the definition.
        name: String,
        /// The cause.
        message: String,
    },
}

/// The error for a dead thread that the server needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the thread `{thread}` died, and the server cannot go on without it")]
pub struct ThreadEnded {
    /// The name of the thread.
    pub thread: &'static str,
}

/// The API server. Clones share its state.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
    tasks: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

pub(crate) struct Inner {
    pub store: Store,
    registry: RwLock<Arc<Registry>>,
    pub nodes: Arc<dyn NodeDialer>,
    pub clock: fn() -> Timestamp,
    pub shutdown: CancellationToken,
    pub accounts: Accounts,
    pub access: Access,
    pub allocation: Allocation,
    /// Held while an eviction counts pods and marks one of them as deleted.
    pub evictions: tokio::sync::Mutex<()>,
    pub gate: Arc<Gate>,
    pub audit: Option<AuditLog>,
    pub metrics: OnceLock<MetricsPage>,
}

/// The answer of `/metrics`: its media type, and a function that renders it for each request.
pub(crate) struct MetricsPage {
    pub media_type: &'static str,
    pub text: Box<dyn Fn() -> String + Send + Sync>,
}

impl ApiServer {
    /// Opens the store, creates the initial objects, registers the definitions and starts the
    /// garbage collector. Needs a tokio runtime.
    pub async fn open(config: Config) -> Result<ApiServer, OpenError> {
        let store = Store::open(&config.storage)?;
        let accounts = match config.accounts {
            Some(accounts) => accounts,
            None => Accounts::temporary()?,
        };
        let inner = Arc::new(Inner {
            accounts,
            access: Access::default(),
            registry: RwLock::new(Arc::new(Registry::with_builtins())),
            nodes: config.nodes,
            clock: config.now,
            shutdown: CancellationToken::new(),
            allocation: Allocation::of(&store),
            evictions: tokio::sync::Mutex::default(),
            gate: Gate::new(config.limits),
            audit: config.audit.as_ref().map(AuditLog::open).transpose()?,
            metrics: OnceLock::new(),
            store,
        });
        inner.make_first_objects(config.crds).await?;
        inner.register_stored_definitions();
        let tasks = collect::start(&inner);
        Ok(ApiServer { inner, tasks: Arc::new(Mutex::new(tasks)) })
    }

    /// Returns the server as a tower service for `kube::Client::new`. Every request is made by this
    /// user.
    pub fn as_user(&self, identity: Identity) -> InProcess {
        InProcess::new(self.clone(), identity)
    }

    /// Serves the metrics of this process at `/metrics`. Only the first call has an effect. Without
    /// a call the page does not exist.
    pub fn serve_metrics(&self, media_type: &'static str, text: impl Fn() -> String + Send + Sync + 'static) {
        let _ = self.inner.metrics.set(MetricsPage { media_type, text: Box::new(text) });
    }

    /// Returns when a thread that the server needs has died, so that writes are no longer stored or
    /// audited. The process must then end. The next one continues from the disk.
    pub async fn failed(&self) -> ThreadEnded {
        let audit = async {
            match &self.inner.audit {
                Some(audit) => audit.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.inner.store.failed() => ThreadEnded { thread: warren_store::WRITER_THREAD },
            () = audit => ThreadEnded { thread: audit::THREAD },
        }
    }

    /// Ends watches and background work, and writes everything that is queued. Later requests are
    /// refused.
    pub async fn shutdown(self) {
        self.inner.shutdown.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            // A panic of a task has already been logged.
            let _ = task.await;
        }
        let inner = Arc::clone(&self.inner);
        let close = move || {
            inner.store.close();
            if let Some(audit) = &inner.audit {
                audit.close();
            }
        };
        let _ = tokio::task::spawn_blocking(close).await;
    }
}

impl Inner {
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change_registry(&self, change: impl FnOnce(&mut Registry)) {
        let mut current = self.registry.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = Registry::clone(&current);
        change(&mut next);
        *current = Arc::new(next);
    }

    /// Writes changes for a client. Returns once they are on disk, or earlier if the client writes
    /// ahead of the disk.
    pub async fn write(
        &self,
        ahead: Option<&Ahead>,
        writes: Vec<Write>,
        urgency: Urgency,
    ) -> Result<Vec<Arc<Object>>, WriteError> {
        match ahead {
            Some(ahead) => ahead.write(writes, urgency).await,
            None => self.store.write(writes).await,
        }
    }

    /// Writes a single change, like [`Inner::write`].
    pub async fn write_one(
        &self,
        ahead: Option<&Ahead>,
        write: Write,
        urgency: Urgency,
    ) -> Result<Arc<Object>, WriteError> {
        let key = write.key.clone();
        self.write(ahead, vec![write], urgency).await?.pop().ok_or(WriteError::Missing(key))
    }

    /// Applies the immediate consequences of a write: serves or removes definitions, releases
    /// addresses.
    pub fn written(&self, object: &Object, previous: Option<&Object>) {
        match &*object.key.resource {
            crd::RESOURCE => self.register(&object.key),
            "services" => {
                if let Some(previous) = previous {
                    let current = self.store.newest(&object.key).map(|current| current.value());
                    self.allocation.written(&previous.value(), current.as_ref());
                }
            }
            resource if resource.ends_with(access::GROUP) => self.access.changed(),
            _ => {}
        }
    }

    /// Serves the current version of a definition, or stops serving it. The version is looked up
    /// under the registry's lock, because notifications of two writes may arrive out of order.
    fn register(&self, key: &Key) {
        self.change_registry(|registry| {
            registry.remove(&key.name);
            let Some(newest) = self.store.newest(key) else { return };
            match crd::definition(&newest.body) {
                Ok(definition) => registry.insert(Arc::new(definition)),
                Err(error) => {
                    tracing::error!(definition = %key.name, %error, "definition cannot be served");
                }
            }
        });
    }

    fn register_stored_definitions(&self) {
        let resource = crd::RESOURCE.into();
        let filter = Filter::default();
        let request =
            ListRequest { resource: &resource, filter: &filter, limit: None, after: None, at: None };
        let stored = self.store.list(&request).map(|list| list.items).unwrap_or_default();
        let mut definitions: Vec<Arc<Definition>> = Vec::with_capacity(stored.len());
        for object in &stored {
            match crd::definition(&object.body) {
                Ok(definition) => definitions.push(Arc::new(definition)),
                Err(error) => {
                    tracing::error!(definition = %object.key.name, %error, "definition cannot be served");
                }
            }
        }
        self.change_registry(|registry| {
            definitions.into_iter().for_each(|definition| registry.insert(definition))
        });
    }

    /// Creates the initial objects in one write.
    async fn make_first_objects(&self, definitions: Vec<Value>) -> Result<(), OpenError> {
        let now = warren_store::deletion::timestamp(self.now());
        let mut writes = Vec::new();
        for name in FIRST_NAMESPACES {
            let key = Key::new("namespaces", "", name);
            if self.store.get(&key).is_none() {
                let namespace = json!({
                    "kind": "Namespace",
                    "apiVersion": "v1",
                    "metadata": {
                        "name": name,
                        "uid": uuid::Uuid::new_v4().to_string(),
                        "creationTimestamp": now,
                        "labels": {"kubernetes.io/metadata.name": name},
                    },
                    "spec": {"finalizers": ["kubernetes"]},
                    "status": {"phase": "Active"},
                });
                writes.push(Write { key, expect: Expect::Absent, action: Action::Put(namespace.into()) });
            }
        }
        // Include existing namespaces: older stores have no accounts in them.
        let resource = "namespaces".into();
        let filter = Filter::default();
        let request =
            ListRequest { resource: &resource, filter: &filter, limit: None, after: None, at: None };
        let stored = self.store.list(&request).map(|list| list.items).unwrap_or_default();
        let kept =
            stored.iter().filter(|namespace| !namespace.meta.deleting).map(|namespace| &*namespace.key.name);
        let mut names: Vec<&str> = FIRST_NAMESPACES.into_iter().chain(kept).collect();
        names.sort_unstable();
        names.dedup();
        writes.extend(names.into_iter().flat_map(|name| self.namespace_writes(name, &now)));
        writes.extend(self.role_writes(&now));
        for definition in definitions {
            writes.extend(self.definition_write(definition, &now)?);
        }
        if !writes.is_empty() {
            self.store.write(writes).await.map_err(OpenError::FirstObjects)?;
        }
        Ok(())
    }

    /// Returns the writes that create a namespace's missing companions: the default service
    /// account, and the certificate that programs in its pods trust. On a real cluster controllers
    /// create them.
    pub fn namespace_writes(&self, namespace: &str, created: &str) -> Vec<Write> {
        let metadata = |name: &str| {
            json!({
                "name": name,
                "namespace": namespace,
                "uid": uuid::Uuid::new_v4().to_string(),
                "creationTimestamp": created,
            })
        };
        let mut writes = Vec::new();
        let mut make = |resource: &str, name: &str, object: Value| {
            let key = Key::new(resource, namespace, name);
            if self.store.newest(&key).is_none() {
                writes.push(Write { key, expect: Expect::Absent, action: Action::Put(object.into()) });
            }
        };
        let account = json!({
            "kind": "ServiceAccount", "apiVersion": "v1", "metadata": metadata(admit_pods::DEFAULT_ACCOUNT),
        });
        make("serviceaccounts", admit_pods::DEFAULT_ACCOUNT, account);
        let mut certificate = json!({
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "metadata": metadata(ROOT_CERTIFICATE),
            "data": {"ca.crt": self.accounts.root_certificate()},
        });
        certificate["metadata"]["annotations"] = json!({"kubernetes.io/description": ROOT_CERTIFICATE_NOTE});
        make("configmaps", ROOT_CERTIFICATE, certificate);
        writes
    }

    /// Returns the writes that create missing default roles and bindings.
    fn role_writes(&self, created: &str) -> Vec<Write> {
        let mut writes = Vec::new();
        for (resource, mut object) in access::first_objects() {
            let key = Key::new(resource, "", metadata::text(&object, "name"));
            if self.store.newest(&key).is_none() {
                let meta = metadata::metadata_mut(&mut object);
                meta.insert("uid".to_owned(), uuid::Uuid::new_v4().to_string().into());
                meta.insert("creationTimestamp".to_owned(), created.into());
                writes.push(Write { key, expect: Expect::Absent, action: Action::Put(object.into()) });
            }
        }
        writes
    }

    /// Returns the write that updates a definition, if it is out of date.
    fn definition_write(&self, mut definition: Value, now: &str) -> Result<Option<Write>, OpenError> {
        let name = metadata::text(&definition, "name").to_owned();
        if let Some(definition) = definition.as_object_mut() {
            definition.shift_remove("status");
        }
        let hash = fingerprint(&definition.to_string());
        let key = Key::new(crd::RESOURCE, "", name.as_str());
        let current = self.store.get(&key);
        let (expect, generation, uid, created) = match &current {
            None => (Expect::Absent, 1, uuid::Uuid::new_v4().to_string(), now.to_owned()),
            Some(current) => {
                if stored_hash(&current.body).is_some_and(|stored| stored == hash) {
                    return Ok(None);
                }
                let stored = current.value();
                let generation = stored["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
                let created = metadata::text(&stored, "creationTimestamp").to_owned();
                definition["status"] = stored["status"].clone();
                (Expect::Version(current.version), generation, current.meta.uid.to_string(), created)
            }
        };
        let meta = metadata::metadata_mut(&mut definition);
        meta.insert("uid".to_owned(), uid.into());
        meta.insert("creationTimestamp".to_owned(), created.into());
        meta.insert("generation".to_owned(), generation.into());
        if let Some(annotations) = crate::kinds::child(meta, "annotations") {
            annotations.insert(EMBEDDED_HASH.to_owned(), hash.into());
        }
        crd::default_definition(&mut definition);
        crd::prepare_definition(&mut definition);
        Ok(Some(Write { key, expect, action: Action::Put(definition.into()) }))
    }
}

/// Hashes a text with FNV-1a, which is stable between builds. It is only compared with its own
/// results.
fn fingerprint(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Reads the annotation without parsing the whole definition.
fn stored_hash(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Envelope {
        metadata: Annotated,
    }
    #[derive(serde::Deserialize)]
    struct Annotated {
        #[serde(default)]
        annotations: std::collections::HashMap<String, String>,
    }
    serde_json::from_slice::<Envelope>(body).ok()?.metadata.annotations.remove(EMBEDDED_HASH)
}
