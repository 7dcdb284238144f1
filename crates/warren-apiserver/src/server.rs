use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use jiff::Timestamp;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use warren_store::{Action, Expect, Filter, Key, ListRequest, Object, Storage, Store, Write, WriteError};

use crate::audit::{AuditConfig, AuditError, AuditLog};
use crate::access::{self, Access, Accounts, SigningKeyError};
use crate::definition::Definition;
use crate::identity::Identity;
use crate::limits::{Gate, Limits};
use crate::node::NodeDialer;
use crate::registry::Registry;
use crate::service::InProcess;
use crate::status::ApiError;
use crate::{admit, collect, crd, metadata};

/// The namespaces that exist from the start.
const FIRST_NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];
/// On a definition that the program brought along: which text of it is stored, so that an unchanged one is
/// recognised without comparing half a megabyte of schema.
const EMBEDDED_HASH: &str = "apiserver.warren.dev/definition-hash";
/// The config map that every namespace has, and what it says about itself.
const ROOT_CERTIFICATE: &str = "kube-root-ca.crt";
const ROOT_CERTIFICATE_NOTE: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";
/// Cluster addresses: Kubernetes' usual service range.
const SERVICE_RANGE: (Ipv4Addr, u32) = (Ipv4Addr::new(10, 96, 0, 0), 12);

/// What an API server needs to start.
pub struct Config {
    /// Where the objects are kept.
    pub storage: Storage,
    /// CustomResourceDefinitions to serve from the start; brought up to date if the store has older ones.
    pub crds: Vec<Value>,
    /// How to reach nodes, for logs and exec.
    pub nodes: Arc<dyn NodeDialer>,
    /// What service accounts' tokens are made with; without, with a key that lasts as long as the server.
    pub accounts: Option<Accounts>,
    /// The clock.
    pub now: fn() -> Timestamp,
    /// What one client may take, at the listeners.
    pub limits: Limits,
    /// Where writes are logged, if anywhere.
    pub audit: Option<AuditConfig>,
}

/// Why the server could not start.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] warren_store::OpenError),
    /// No key for service accounts' tokens.
    #[error(transparent)]
    Key(#[from] SigningKeyError),
    /// The audit log could not be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The first objects could not be written.
    #[error("write the first objects")]
    FirstObjects(#[source] WriteError),
    /// A definition that cannot be served.
    #[error("serve the definition {name}: {message}")]
    Definition {
        /// The definition's name.
        name: String,
        /// What is wrong with it.
        message: String,
    },
}

/// The API server. Clones share it.
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
    cluster_ips: Mutex<HashSet<Ipv4Addr>>,
    pub gate: Arc<Gate>,
    pub audit: Option<AuditLog>,
    pub metrics: OnceLock<MetricsPage>,
}

/// What `/metrics` answers: the media type, and the page whenever it is asked for.
pub(crate) struct MetricsPage {
    pub media_type: &'static str,
    pub text: Box<dyn Fn() -> String + Send + Sync>,
}

impl ApiServer {
    /// Opens the store, makes the first objects, registers the definitions and starts the garbage collector. Needs a
    /// tokio runtime.
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
            cluster_ips: Mutex::new(used_cluster_ips(&store)),
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

    /// The server as a tower service, for `kube::Client::new`: every request is this user's.
    pub fn as_user(&self, identity: Identity) -> InProcess {
        InProcess::new(self.clone(), identity)
    }

    /// Serves a page of metrics at `/metrics`, from whoever counts in this process; the first one to come stays. Without
    /// one there is no such page.
    pub fn serve_metrics(
        &self,
        media_type: &'static str,
        text: impl Fn() -> String + Send + Sync + 'static,
    ) {
        let _ = self.inner.metrics.set(MetricsPage { media_type, text: Box::new(text) });
    }

    /// Ends watches and background work, and writes what is queued. Requests that come later are refused.
    pub async fn shutdown(self) {
        self.inner.shutdown.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            // A task that panicked has said so already.
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

    /// What follows at once from a write: definitions begin or cease to be served, addresses become free.
    pub fn written(&self, object: &Object, previous: Option<&Object>) {
        match &*object.key.resource {
            crd::RESOURCE => match self.store.newest(&object.key) {
                None => self.change_registry(|registry| registry.remove(&object.key.name)),
                Some(newest) => self.register(&newest),
            },
            "services" if previous.is_some() && self.store.newest(&object.key).is_none() => {
                let address = object.value()["spec"]["clusterIP"].as_str().and_then(|text| text.parse().ok());
                self.release_cluster_ip(address);
            }
            resource if resource.ends_with(access::GROUP) => self.access.changed(),
            _ => {}
        }
    }

    fn register(&self, object: &Object) {
        match crd::definition(&object.body) {
            Ok(definition) => self.change_registry(|registry| {
                registry.remove(&object.key.name);
                registry.insert(Arc::new(definition));
            }),
            Err(error) => {
                tracing::error!(definition = %object.key.name, %error, "definition cannot be served")
            }
        }
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

    /// Makes what must exist, in one write.
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
                writes.push(Write { key, expect: Expect::Absent, action: Action::Put(namespace) });
            }
        }
        // Also those of a store that was written before namespaces came with accounts.
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

    /// The writes that give a namespace what comes with it, as far as it is missing: the default service account, and
    /// the certificate that programs in its pods trust. On a real cluster controllers make them soon after.
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
                writes.push(Write { key, expect: Expect::Absent, action: Action::Put(object) });
            }
        };
        let account = json!({
            "kind": "ServiceAccount", "apiVersion": "v1", "metadata": metadata(admit::DEFAULT_ACCOUNT),
        });
        make("serviceaccounts", admit::DEFAULT_ACCOUNT, account);
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

    /// The roles and bindings that every cluster has, as far as they are missing.
    fn role_writes(&self, created: &str) -> Vec<Write> {
        let mut writes = Vec::new();
        for (resource, mut object) in access::first_objects() {
            let key = Key::new(resource, "", metadata::text(&object, "name"));
            if self.store.newest(&key).is_none() {
                let meta = metadata::metadata_mut(&mut object);
                meta.insert("uid".to_owned(), uuid::Uuid::new_v4().to_string().into());
                meta.insert("creationTimestamp".to_owned(), created.into());
                writes.push(Write { key, expect: Expect::Absent, action: Action::Put(object) });
            }
        }
        writes
    }

    /// The write that brings a definition up to date, if it is not.
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
        Ok(Some(Write { key, expect, action: Action::Put(definition) }))
    }

    /// Gives a service its address, where it needs one. Returns what was taken, to be released if the write fails.
    pub fn allocate_cluster_ip(
        &self,
        resource: &str,
        object: &mut Value,
    ) -> Result<Option<Ipv4Addr>, ApiError> {
        let spec = &object["spec"];
        if resource != "services" || spec["type"] == "ExternalName" || spec["clusterIP"] == "None" {
            if resource == "services" && spec["clusterIP"] == "None" {
                object["spec"]["clusterIPs"] = json!(["None"]);
            }
            return Ok(None);
        }
        let mut used = self.cluster_ips.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = spec["clusterIP"].as_str().filter(|text| !text.is_empty());
        let address = match wanted {
            Some(text) => text.parse().ok().filter(|address| !used.contains(address)).ok_or_else(|| {
                let detail = format!("failed to allocate IP {text}: provided IP is already allocated");
                let value = json!([text]);
                let error = crate::status::FieldError::invalid("spec.clusterIPs", value, detail);
                let name = metadata::text(object, "name");
                ApiError::invalid(crate::status::Subject { group: "", kind: "Service", name }, vec![error])
            })?,
            None => free_cluster_ip(&used).ok_or_else(|| ApiError::internal("no service address is left"))?,
        };
        used.insert(address);
        object["spec"]["clusterIP"] = address.to_string().into();
        object["spec"]["clusterIPs"] = json!([address.to_string()]);
        Ok(Some(address))
    }

    pub fn release_cluster_ip(&self, address: Option<Ipv4Addr>) {
        if let Some(address) = address {
            self.cluster_ips.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        }
    }
}

fn used_cluster_ips(store: &Store) -> HashSet<Ipv4Addr> {
    let resource = "services".into();
    let filter = Filter::default();
    let request = ListRequest { resource: &resource, filter: &filter, limit: None, after: None, at: None };
    let services = store.list(&request).map(|list| list.items).unwrap_or_default();
    services
        .iter()
        .filter_map(|service| service.value()["spec"]["clusterIP"].as_str()?.parse().ok())
        .collect()
}

/// A free address, searched from a random place so that a freed one is not reused at once.
fn free_cluster_ip(used: &HashSet<Ipv4Addr>) -> Option<Ipv4Addr> {
    let (base, prefix) = SERVICE_RANGE;
    let size = 1u32 << (32 - prefix);
    let start = fastrand::u32(1..size - 1);
    // The first and last address of the range are never handed out.
    (0..size - 2)
        .map(|offset| Ipv4Addr::from(u32::from(base) + 1 + (start + offset) % (size - 2)))
        .find(|address| !used.contains(address))
}

/// FNV-1a: stable between builds, and only ever compared with itself.
fn fingerprint(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// The annotation alone, without building a tree of the whole definition.
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
