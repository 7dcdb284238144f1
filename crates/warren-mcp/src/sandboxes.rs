//! The sandboxes of one client: made, found, kept alive and deleted.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::RwLock;
use warren_api::blueprint::PodMetadata;
use warren_api::labels;
use warren_client::files::{Place, chain};
use warren_client::kube::Client;
use warren_client::launch::{self, Launch, Launched, Source};
use warren_client::sandbox::{self, SandboxError, SandboxKey};

use crate::arguments;
use crate::tools::{CreateSandbox, OpenedPort};
use crate::{Config, Connect};

/// The longest time for which a client may ask a sandbox to live.
const LONGEST_LIFE: u64 = 30 * 24 * 3600;

/// The longest part of a host name between two dots.
const LONGEST_LABEL: usize = 63;

/// The sandboxes of one client.
pub struct Sandboxes {
    config: Config,
    connect: Box<dyn Connect>,
    held: Mutex<BTreeMap<String, Held>>,
    /// True while sandboxes may still be made. A read lock is held while one is made: cleaning up
    /// waits for it.
    open: RwLock<bool>,
}

/// A sandbox that this client made.
#[derive(Clone)]
struct Held {
    /// None until the server has answered.
    launched: Option<Launched>,
    /// When it ends, however long its client stays.
    deadline: Option<Timestamp>,
}

impl Sandboxes {
    /// Makes a client's empty set.
    pub fn new(config: Config, connect: Box<dyn Connect>) -> Self {
        Self { config, connect, held: Mutex::default(), open: RwLock::new(true) }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a sandbox and waits until it is Ready.
    pub async fn create(&self, wanted: &CreateSandbox) -> Result<SandboxKey, String> {
        let within =
            arguments::seconds("sandbox_ready_timeout", wanted.sandbox_ready_timeout, 180, 1..=3600)?;
        let life = match wanted.shutdown_after_seconds {
            None => None,
            given => Some(arguments::seconds("shutdown_after_seconds", given, 0, 1..=LONGEST_LIFE)?),
        };
        for (argument, keys) in [
            ("labels", &wanted.labels),
            ("pod_labels", &wanted.pod_labels),
            ("pod_annotations", &wanted.pod_annotations),
        ] {
            arguments::free_keys(argument, keys)?;
        }
        let source = source(wanted, &self.config)?;
        let name = random_name();
        let deadline = life.map(|life| Timestamp::now() + life);
        self.reserve(&name, deadline)?;
        let result = self.launch(wanted, source, &name, deadline, within).await;
        if result.is_err() {
            self.held().remove(&name);
        }
        result
    }

    /// Counts a sandbox against the client's limit before it is made.
    fn reserve(&self, name: &str, deadline: Option<Timestamp>) -> Result<(), String> {
        let mut held = self.held();
        // Those that ended by themselves are not the client's any more.
        held.retain(|_, held| held.deadline.is_none_or(|deadline| deadline > Timestamp::now()));
        if held.len() >= self.config.most_sandboxes {
            return Err(format!(
                "there are {} sandboxes of yours, which is the limit; delete one with `delete_sandbox`",
                held.len()
            ));
        }
        held.insert(name.to_owned(), Held { launched: None, deadline });
        Ok(())
    }

    async fn launch(
        &self,
        wanted: &CreateSandbox,
        source: Source,
        name: &str,
        deadline: Option<Timestamp>,
        within: Duration,
    ) -> Result<SandboxKey, String> {
        let (client, namespace) = self.reach(wanted.namespace.as_deref()).await?;
        let key = SandboxKey { namespace, name: name.to_owned() };
        let mut labels = wanted.labels.clone();
        labels.insert(labels::MCP_SESSION.to_owned(), self.config.session.clone());
        let limits = [("memory", &wanted.memory), ("cpu", &wanted.cpus), ("ephemeral-storage", &wanted.disk)];
        let launch = Launch {
            key: key.clone(),
            source,
            labels,
            annotations: BTreeMap::new(),
            kept_directory: None,
            pod_metadata: PodMetadata {
                labels: wanted.pod_labels.clone(),
                annotations: wanted.pod_annotations.clone(),
            },
            env: wanted.env.clone(),
            limits: limits
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)))
                .collect(),
            until: self.lease_end(deadline),
        };
        let launched = {
            let open = self.open.read().await;
            if !*open {
                return Err("the server is shutting down".to_owned());
            }
            launch::launch(&client, &launch).await.map_err(|error| chain(&error))?
        };
        if let Some(held) = self.held().get_mut(name) {
            held.launched = Some(launched.clone());
        }
        match launch::wait_ready(&client, launched.clone(), within).await {
            Ok(_) => Ok(key),
            Err(error) => {
                if let Err(error) = launch::delete(&client, &launched).await {
                    tracing::warn!(sandbox = %key, error = chain(&error), "sandbox left to its lease");
                }
                Err(chain(&error))
            }
        }
    }

    /// Lists the client's sandboxes.
    pub async fn list(&self, namespace: Option<&str>) -> Result<Vec<Launched>, String> {
        let (client, namespace) = self.reach(namespace).await?;
        let selector = if self.config.all { String::new() } else { self.selector() };
        launch::list(&client, &namespace, &selector).await.map_err(|error| chain(&error))
    }

    /// Deletes a sandbox of the client.
    pub async fn delete(&self, name: &str, namespace: Option<&str>) -> Result<(), String> {
        let (client, launched) = self.find(name, namespace).await?;
        launch::delete(&client, &launched).await.map_err(|error| chain(&error))?;
        self.held().remove(name);
        Ok(())
    }

    /// Finds the pod in which commands of a sandbox run.
    pub async fn place(&self, name: &str, namespace: Option<&str>) -> Result<Place, String> {
        let (client, launched) = self.find(name, namespace).await?;
        let sandbox = launch::behind(&client, &launched).await.map_err(|error| chain(&error))?;
        let sandbox = sandbox.ok_or_else(|| format!("sandbox `{name}` has no pod yet; try again"))?;
        Ok(Place { client, namespace: launched.key().namespace, pod: sandbox::pod_name(&sandbox) })
    }

    /// Finds the ways to a port of a sandbox through the router.
    pub async fn port(&self, name: &str, namespace: Option<&str>, port: u16) -> Result<OpenedPort, String> {
        let (client, launched) = self.find(name, namespace).await?;
        let sandbox = launch::behind(&client, &launched).await.map_err(|error| chain(&error))?;
        let sandbox = sandbox.and_then(|sandbox| sandbox.metadata.name);
        let sandbox = sandbox.ok_or_else(|| format!("sandbox `{name}` has no pod yet; try again"))?;
        way(&self.connect.router()?, &sandbox, &launched.key().namespace, port)
    }

    /// Finds a sandbox that the client may see. One that it may not see is not there.
    async fn find(&self, name: &str, namespace: Option<&str>) -> Result<(Client, Launched), String> {
        arguments::object_name("sandbox_claim_name", name)?;
        let (client, namespace) = self.reach(namespace).await?;
        let key = SandboxKey { namespace, name: name.to_owned() };
        let found = launch::find(&client, &key).await.map_err(|error| chain(&error))?;
        let visible = |launched: &Launched| {
            self.config.all || launched.labels().get(labels::MCP_SESSION) == Some(&self.config.session)
        };
        match found.filter(visible) {
            Some(launched) => Ok((client, launched)),
            None => Err(format!(
                "`sandbox_claim_name`: you have no sandbox `{name}`; `list_sandboxes` lists yours, and \
                 `create_sandbox` makes one"
            )),
        }
    }

    /// Connects, and checks that a named namespace is the one that this server works in.
    async fn reach(&self, namespace: Option<&str>) -> Result<(Client, String), String> {
        let client = self.connect.connect().await?;
        let own = self.config.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        match namespace {
            Some(other) if other != own => Err(format!(
                "`namespace`: this server works in `{own}` only; another is named with `--namespace` where it is started"
            )),
            _ => Ok((client, own)),
        }
    }

    fn selector(&self) -> String {
        format!("{}={}", labels::MCP_SESSION, self.config.session)
    }

    fn lease_end(&self, deadline: Option<Timestamp>) -> Timestamp {
        let end = sandbox::lease_end(Timestamp::now(), self.config.lease);
        deadline.map_or(end, |deadline| deadline.min(end))
    }

    /// Renews the leases of the client's sandboxes for as long as it is polled.
    pub async fn keep(&self) -> Infallible {
        loop {
            tokio::time::sleep(self.config.lease / 3).await;
            let held: Vec<Held> = self.held().values().cloned().collect();
            let held: Vec<(Launched, Timestamp)> = held
                .into_iter()
                .filter_map(|held| Some((held.launched?, self.lease_end(held.deadline))))
                .collect();
            if held.is_empty() {
                continue;
            }
            let client = match self.connect.reconnect().await {
                Ok(client) => client,
                Err(error) => {
                    tracing::warn!(error, "leases not renewed");
                    continue;
                }
            };
            for (launched, until) in held {
                let key = launched.key();
                match launch::renew(&client, &launched, until).await {
                    Ok(()) => {}
                    // Deleted by another client, or by its own deadline.
                    Err(error) if is_not_found(&error) => drop(self.held().remove(&key.name)),
                    Err(error) => {
                        tracing::warn!(sandbox = %key, error = chain(&error), "lease not renewed");
                    }
                }
            }
        }
    }

    /// Deletes everything that the client made and lets it make nothing more.
    pub async fn close(&self) -> Result<(), String> {
        *self.open.write().await = false;
        if self.held().is_empty() {
            return Ok(());
        }
        let client = self.connect.reconnect().await?;
        let own = self.config.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let made = launch::list(&client, &own, &self.selector()).await.map_err(|error| chain(&error))?;
        let mut failures = Vec::new();
        for launched in made {
            if let Err(error) = launch::delete(&client, &launched).await {
                failures.push(chain(&error));
            }
        }
        match failures.is_empty() {
            true => Ok(()),
            false => Err(failures.join("; ")),
        }
    }
}

fn is_not_found(error: &SandboxError) -> bool {
    matches!(error.source.as_ref(), warren_client::kube::Error::Api(status) if status.code == 404)
}

/// Returns what a sandbox is made from.
fn source(wanted: &CreateSandbox, config: &Config) -> Result<Source, String> {
    let from_image = |image: &str| Source::Image {
        image: image.to_owned(),
        command: Some(launch::idle_command(config.local_home)),
    };
    match (&wanted.image, &wanted.warmpool, &wanted.template) {
        (Some(image), None, None) if image.trim().is_empty() => Err("`image` is empty".to_owned()),
        (Some(image), None, None) => Ok(from_image(image)),
        (None, Some(pool), None) => {
            no_limits(wanted)?;
            Ok(Source::Pool(arguments::object_name("warmpool", pool)?.to_owned()))
        }
        (None, None, Some(template)) => {
            no_limits(wanted)?;
            Ok(Source::Template(arguments::object_name("template", template)?.to_owned()))
        }
        (None, None, None) => match &config.image {
            Some(image) => Ok(from_image(image)),
            None => Err("name an `image`, a `warmpool` or a `template`; this home has no default".to_owned()),
        },
        _ => Err("`image`, `warmpool` and `template` exclude each other; name one".to_owned()),
    }
}

fn no_limits(wanted: &CreateSandbox) -> Result<(), String> {
    match wanted.memory.is_some() || wanted.cpus.is_some() || wanted.disk.is_some() {
        true => {
            Err("`memory`, `cpus` and `disk` go with `image`; a template has limits of its own".to_owned())
        }
        false => Ok(()),
    }
}

/// Returns the ways to a port of a sandbox, by the URL of the router.
fn way(router: &str, sandbox: &str, namespace: &str, port: u16) -> Result<OpenedPort, String> {
    let (_, router_port) = router
        .rsplit_once(':')
        .ok_or_else(|| format!("the home's router has no port in its URL `{router}`"))?;
    let label = format!("{port}-{sandbox}");
    let fits = label.len() <= LONGEST_LABEL && !label.contains('.');
    Ok(OpenedPort {
        url: fits.then(|| format!("http://{label}.{namespace}.localhost:{router_port}/")),
        router_url: router.to_owned(),
        headers: [
            ("X-Sandbox-ID", sandbox.to_owned()),
            ("X-Sandbox-Namespace", namespace.to_owned()),
            ("X-Sandbox-Port", port.to_string()),
        ]
        .into(),
    })
}

/// Chosen here and not by the server, so that it is counted before the request is sent.
fn random_name() -> String {
    let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(10).collect();
    format!("mcp-{}", random.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config() -> Config {
        Config {
            session: "s".to_owned(),
            all: false,
            namespace: None,
            image: Some("warren.dev/host".to_owned()),
            local_home: true,
            lease: Duration::from_secs(60),
            most_sandboxes: 1,
        }
    }

    fn chosen(arguments: Value, config: &Config) -> Result<Source, String> {
        source(&serde_json::from_value(arguments).expect("arguments"), config)
    }

    #[test]
    fn one_source_is_chosen_and_the_default_is_the_homes_image() {
        let config = config();
        let command = Some(vec![launch::INIT.to_owned()]);
        let image = "warren.dev/host".to_owned();
        assert_eq!(chosen(json!({}), &config), Ok(Source::Image { image, command }));
        assert_eq!(chosen(json!({ "warmpool": "p" }), &config), Ok(Source::Pool("p".to_owned())));
        let two = chosen(json!({ "warmpool": "p", "image": "i" }), &config).expect_err("two");
        assert!(two.contains("name one"), "{two}");
        let limits = chosen(json!({ "template": "t", "memory": "1Gi" }), &config).expect_err("limits");
        assert!(limits.contains("`memory`"), "{limits}");
        let nothing = chosen(json!({}), &Config { image: None, ..config }).expect_err("no default");
        assert!(nothing.contains("name an `image`"), "{nothing}");
    }

    #[test]
    fn ports_have_a_host_name_where_the_sandbox_fits_into_one() {
        let way = |sandbox| way("http://127.0.0.1:4567", sandbox, "default", 3000).expect("a way");
        let short = way("box");
        assert_eq!(short.url.as_deref(), Some("http://3000-box.default.localhost:4567/"));
        assert_eq!(short.headers["X-Sandbox-Port"], "3000");
        for sandbox in ["a.b", &"x".repeat(60)] {
            assert_eq!(way(sandbox).url, None);
            assert_eq!(way(sandbox).headers["X-Sandbox-ID"], sandbox);
        }
    }

    #[test]
    fn client_cannot_have_more_sandboxes_than_its_limit() {
        struct Nowhere;
        impl Connect for Nowhere {
            fn connect(&self) -> crate::Connecting<'_> {
                Box::pin(async { Err("no home".to_owned()) })
            }
            fn reconnect(&self) -> crate::Connecting<'_> {
                self.connect()
            }
            fn router(&self) -> Result<String, String> {
                Err("no home".to_owned())
            }
        }
        let sandboxes = Sandboxes::new(config(), Box::new(Nowhere));
        sandboxes.reserve("a", None).expect("room for one");
        let error = sandboxes.reserve("b", None).expect_err("no room for two");
        assert!(error.contains("`delete_sandbox`"), "{error}");
        sandboxes.held().clear();
        let past = Timestamp::now() - Duration::from_secs(1);
        sandboxes.reserve("a", Some(past)).expect("room");
        sandboxes.reserve("b", None).expect("the first has ended by itself");
    }
}
