//! The network of a sandbox: the hosts that the egress proxy refused to it, its lists of hosts and
//! ports, and changes of them.
//!
//! The lists are annotations in the pod template of the Sandbox. The sandbox controller copies them
//! to the running pod, whose connections the node checks against them. The pod template's metadata
//! of a sandbox from a pool or template follow its SandboxTemplate, so they are changed there.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use http::{Response, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations};
use warren_client::files::chain;
use warren_client::kube::api::{Api, Patch, PatchParams};
use warren_client::kube::{Client, Error, Resource, ResourceExt as _};
use warren_client::launch::{self, Launched};
use warren_client::sandbox::SandboxKey;
use warren_providers::{Network as Mode, ProviderError};

use super::Service;
use super::answer::{Body, Failure, data};
use super::changes::Topic;
use super::cluster::{self, unavailable};
use super::request::Request;

type Answer = Result<Response<Body>, Failure>;

/// The reason of the events by which a node tells what its proxy refused.
pub const REFUSED: &str = "EgressRefused";

/// The most entries in a list.
const MOST_ENTRIES: usize = 256;

/// The number of times that a change is tried while others change the same object.
const TRIES: usize = 5;

/// A sandbox with the object that says what it may reach.
struct Place {
    client: Client,
    namespace: String,
    sandbox: Sandbox,
    /// The template whose metadata the sandbox follows, if it does not have its own.
    template: Option<SandboxTemplate>,
}

impl Place {
    async fn find(service: &Service, id: &str) -> Result<Self, Failure> {
        let no_network = || {
            let message = "this provider does not limit what sandboxes reach";
            Failure::new(StatusCode::NOT_IMPLEMENTED, "NETWORK_NOT_LIMITED", message)
        };
        let (client, namespace) = cluster::reach(service).await?.ok_or_else(no_network)?;
        // Checks the id, which becomes a part of a path.
        service.provider.get_by_id(id).await?.ok_or_else(|| ProviderError::not_found(id))?;
        let key = SandboxKey { namespace: namespace.clone(), name: id.to_owned() };
        let launched = launch::find(&client, &key).await.map_err(|error| unavailable(chain(&error)))?;
        let launched = launched.ok_or_else(|| ProviderError::not_found(id))?;
        let behind = launch::behind(&client, &launched).await.map_err(|error| unavailable(chain(&error)))?;
        let sandbox = behind.ok_or_else(|| ProviderError::invalid_state("creating"))?;
        let template = template_of(&client, &namespace, &launched, &sandbox).await?;
        Ok(Self { client, namespace, sandbox, template })
    }

    /// Returns the annotations that count.
    fn annotations(&self) -> &BTreeMap<String, String> {
        match &self.template {
            Some(template) => &template.spec.blueprint.pod_template.metadata.annotations,
            None => &self.sandbox.spec.blueprint.pod_template.metadata.annotations,
        }
    }

    /// Changes annotations where they count. The change is made to what was read, or not at all.
    async fn change(&self, changed: &BTreeMap<&str, String>) -> Result<(), Error> {
        let (client, namespace) = (self.client.clone(), &self.namespace);
        match &self.template {
            Some(template) => {
                patch(&Api::<SandboxTemplate>::namespaced(client.clone(), namespace), template, changed)
                    .await?;
                // A claim looks at its template when its sandbox changes, so the sandbox gets the
                // same values now.
                match patch(&Api::<Sandbox>::namespaced(client, namespace), &self.sandbox, changed).await {
                    Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
                    patched => patched,
                }
            }
            None => patch(&Api::<Sandbox>::namespaced(client, namespace), &self.sandbox, changed).await,
        }
    }
}

async fn patch<K>(api: &Api<K>, object: &K, changed: &BTreeMap<&str, String>) -> Result<(), Error>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let body = json!({
        "metadata": { "resourceVersion": object.resource_version() },
        "spec": { "podTemplate": { "metadata": { "annotations": changed } } },
    });
    api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(body)).await.map(drop)
}

/// Returns the template of a sandbox that belongs to a claim or a pool.
async fn template_of(
    client: &Client,
    namespace: &str,
    launched: &Launched,
    sandbox: &Sandbox,
) -> Result<Option<SandboxTemplate>, Failure> {
    let failed = |error: Error| unavailable(chain(&error));
    let owner = |kind: &str| {
        let found = sandbox.owner_references().iter().find(|owner| owner.kind == kind);
        found.map(|owner| owner.name.clone())
    };
    let claim = match launched {
        Launched::Claim(claim) => Some(claim.name_any()),
        Launched::Sandbox(_) => owner("SandboxClaim"),
    };
    let pool = match claim {
        Some(claim) => {
            let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
            claims.get_opt(&claim).await.map_err(failed)?.map(|claim| claim.spec.warm_pool_ref.name)
        }
        None => owner("SandboxWarmPool"),
    };
    let Some(pool) = pool else { return Ok(None) };
    let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), namespace);
    let Some(pool) = pools.get_opt(&pool).await.map_err(failed)? else { return Ok(None) };
    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), namespace);
    templates.get_opt(&pool.spec.sandbox_template_ref.name).await.map_err(failed)
}

/// Shows what a sandbox may reach, and what it was refused.
pub async fn show(service: &Service, id: &str) -> Answer {
    let place = Place::find(service, id).await?;
    shown(service, id, &place).await
}

async fn shown(service: &Service, id: &str, place: &Place) -> Answer {
    let lists = Lists::of(place.annotations());
    let mut seen = HashSet::new();
    let mut refused = Vec::new();
    for event in service.provider.history(id).await?.into_iter().filter(|event| event.reason == REFUSED) {
        let Some(refusal) = Refusal::parse(&event.message) else { continue };
        // The newest comes first.
        if seen.insert((refusal.host.clone(), refusal.port)) {
            refused.push(refusal.shown(&lists, event.at));
        }
    }
    let annotation = |key: &str| place.annotations().get(key);
    data(&json!({
        "mode": annotation(annotations::NETWORK).map_or("restricted", String::as_str),
        "allowedHosts": lists.hosts,
        "allowedPorts": lists.ports,
        "defaultHosts": annotation(annotations::NETWORK_ALLOWED_HOSTS).is_none(),
        "defaultPorts": annotation(annotations::NETWORK_ALLOWED_PORTS).is_none(),
        "template": place.template.as_ref().map(|template| template.name_any()),
        "refused": refused,
    }))
}

/// The object that a change is made to. A sandbox that follows a template cannot be changed alone,
/// so a client has to say that it means all of the template's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scope {
    #[default]
    Sandbox,
    Template,
}

impl Scope {
    fn check(self, place: &Place) -> Result<(), Failure> {
        match (self, &place.template) {
            (Scope::Sandbox, Some(template)) => {
                let name = template.name_any();
                let message = format!(
                    "the network of this sandbox is that of SandboxTemplate `{name}`; send the scope `template` to \
                     change it for all sandboxes of the template"
                );
                let details = Box::new(json!({ "template": name }));
                let failure = Failure::new(StatusCode::CONFLICT, "NETWORK_OF_TEMPLATE", message);
                Err(Failure { details, ..failure })
            }
            (Scope::Template, None) => {
                Err(Failure::invalid("scope", "is `template`, but this sandbox follows none"))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Change {
    mode: Option<Mode>,
    allowed_hosts: Option<Vec<String>>,
    allowed_ports: Option<Vec<String>>,
    #[serde(default)]
    scope: Scope,
}

impl Change {
    fn annotations(&self) -> Result<BTreeMap<&'static str, String>, Failure> {
        let mut changed = BTreeMap::new();
        if let Some(mode) = self.mode {
            changed.insert(annotations::NETWORK, mode.name().to_owned());
        }
        if let Some(hosts) = &self.allowed_hosts {
            check_all("allowedHosts", hosts, is_host_pattern, HOST_WANTED)?;
            changed.insert(annotations::NETWORK_ALLOWED_HOSTS, hosts.join(","));
        }
        if let Some(ports) = &self.allowed_ports {
            check_all("allowedPorts", ports, |port| port_range(port).is_some(), PORT_WANTED)?;
            changed.insert(annotations::NETWORK_ALLOWED_PORTS, ports.join(","));
        }
        match changed.is_empty() {
            true => {
                Err(Failure::invalid("body", "changes none of `mode`, `allowedHosts` and `allowedPorts`"))
            }
            false => Ok(changed),
        }
    }
}

/// Replaces the mode and the lists that the request names.
pub async fn set(service: &Service, id: &str, request: Request) -> Answer {
    let change: Change = request.json().await?;
    let changed = change.annotations()?;
    apply(service, id, change.scope, |_| Ok(changed.clone())).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allow {
    host: String,
    port: Option<u16>,
    #[serde(default)]
    scope: Scope,
}

/// Adds a host to the allowed ones, and its port.
pub async fn allow(service: &Service, id: &str, request: Request) -> Answer {
    let allow: Allow = request.json().await?;
    if !is_host_pattern(&allow.host) {
        return Err(not_fitting("host", &allow.host, HOST_WANTED));
    }
    if allow.port == Some(0) {
        return Err(not_fitting("port", "0", PORT_WANTED));
    }
    apply(service, id, allow.scope, |annotations| {
        let changed = Lists::of(annotations).with(&allow.host, allow.port);
        match changed.values().any(|list| list.split(',').count() > MOST_ENTRIES) {
            true => Err(Failure::invalid("host", format!("is one more than the {MOST_ENTRIES} that fit"))),
            false => Ok(changed),
        }
    })
    .await
}

/// Changes annotations, again if another client changed the object in between.
async fn apply(
    service: &Service,
    id: &str,
    scope: Scope,
    change: impl Fn(&BTreeMap<String, String>) -> Result<BTreeMap<&'static str, String>, Failure>,
) -> Answer {
    for _ in 0..TRIES {
        let place = Place::find(service, id).await?;
        scope.check(&place)?;
        let changed = change(place.annotations())?;
        match place.change(&changed).await {
            Ok(()) => {
                service.changes.tell(Topic::Network);
                return show(service, id).await;
            }
            Err(Error::Api(status)) if status.code == 409 => {}
            Err(Error::Api(status)) if matches!(status.code, 400 | 422) => {
                let message = status.message.clone();
                return Err(Failure::new(StatusCode::BAD_REQUEST, "VALIDATION_ERROR", message));
            }
            Err(error) => return Err(unavailable(chain(&error))),
        }
    }
    let message = "others change this sandbox at the same time; try again";
    Err(Failure::new(StatusCode::CONFLICT, "SANDBOX_CHANGED", message))
}

/// The lists of a sandbox, with the defaults for those that it does not have.
#[derive(Debug, PartialEq)]
struct Lists {
    hosts: Vec<String>,
    ports: Vec<String>,
}

impl Lists {
    fn of(annotations: &BTreeMap<String, String>) -> Self {
        let entries = |key: &str| {
            let entries = annotations.get(key)?.split([',', ' ', '\n', '\t']);
            Some(entries.filter(|entry| !entry.is_empty()).map(str::to_owned).collect::<Vec<_>>())
        };
        let default_hosts = || annotations::DEFAULT_ALLOWED_HOSTS.map(str::to_owned).to_vec();
        let default_ports = || annotations::DEFAULT_ALLOWED_PORTS.map(|port| port.to_string()).to_vec();
        Self {
            hosts: entries(annotations::NETWORK_ALLOWED_HOSTS).unwrap_or_else(default_hosts),
            ports: entries(annotations::NETWORK_ALLOWED_PORTS).unwrap_or_else(default_ports),
        }
    }

    /// Returns the annotations with one more host and port.
    fn with(&self, host: &str, port: Option<u16>) -> BTreeMap<&'static str, String> {
        let mut changed = BTreeMap::new();
        let mut hosts = self.hosts.clone();
        if !self.allows_host(host) {
            hosts.push(normal(host));
        }
        changed.insert(annotations::NETWORK_ALLOWED_HOSTS, hosts.join(","));
        if let Some(port) = port.filter(|port| !self.allows_port(*port)) {
            let mut ports = self.ports.clone();
            ports.push(port.to_string());
            changed.insert(annotations::NETWORK_ALLOWED_PORTS, ports.join(","));
        }
        changed
    }

    /// Returns true if an entry names the host. Blocks of addresses are compared as text: an
    /// address is named twice rather than not at all.
    fn allows_host(&self, host: &str) -> bool {
        let host = normal(host);
        let is_address = host.parse::<IpAddr>().is_ok();
        self.hosts.iter().map(|entry| normal(entry)).any(|entry| match entry.strip_prefix("*.") {
            Some(suffix) => {
                let front = host.strip_suffix(suffix);
                !is_address && front.is_some_and(|front| front.len() > 1 && front.ends_with('.'))
            }
            None => entry == host || (entry == "*" && !is_address),
        })
    }

    fn allows_port(&self, port: u16) -> bool {
        let mut ranges = self.ports.iter().filter_map(|entry| port_range(entry));
        ranges.any(|(first, last)| (first..=last).contains(&port))
    }
}

/// Something that the proxy refused.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    host: String,
    port: u16,
    why: String,
}

impl Refusal {
    /// Reads the message of an event: `HOST:PORT: REASON`. The host is whatever a program in the
    /// sandbox asked for.
    fn parse(message: &str) -> Option<Self> {
        let (target, why) = message.split_once(": ")?;
        let (host, port) = target.rsplit_once(':')?;
        let port = port.parse().ok()?;
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port, why: why.to_owned() })
    }

    /// Returns what can be done about it: `allow` the host and port, name the host's private
    /// `address`, change a network `policy`, or `none`.
    fn remedy(&self) -> &'static str {
        let says = |words: &str| self.why.contains(words);
        let is_literal = self.host.parse::<Ipv4Addr>().is_ok();
        match () {
            () if says("network policies") => "policy",
            () if says("belongs to this machine") => "none",
            () if says("private one") && !is_literal => "address",
            () if is_host_pattern(&self.host) => "allow",
            () => "none",
        }
    }

    fn shown(&self, lists: &Lists, at: Option<Timestamp>) -> Value {
        let remedy = self.remedy();
        let allowed = remedy == "allow" && lists.allows_host(&self.host) && lists.allows_port(self.port);
        let fields = [
            ("host", json!(self.host)),
            ("port", json!(self.port)),
            ("reason", json!(self.why)),
            ("at", json!(at)),
            ("remedy", json!(remedy)),
            ("allowed", json!(allowed)),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>().into()
    }
}

const HOST_WANTED: &str = "a host name, `*.` and a name, `*`, or a block of IPv4 addresses";
const PORT_WANTED: &str = "a port or a range of ports, such as 8000-8100";

fn check_all(
    field: &str,
    entries: &[String],
    fits: impl Fn(&str) -> bool,
    wanted: &str,
) -> Result<(), Failure> {
    if entries.len() > MOST_ENTRIES {
        return Err(Failure::invalid(field, format!("has more than {MOST_ENTRIES} entries")));
    }
    match entries.iter().find(|entry| !fits(entry)) {
        Some(entry) => Err(not_fitting(field, entry, wanted)),
        None => Ok(()),
    }
}

fn not_fitting(field: &str, entry: &str, wanted: &str) -> Failure {
    let entry: String = entry.chars().take(64).filter(|letter| !letter.is_control()).collect();
    Failure::invalid(field, format!("has `{entry}`, which is not {wanted}"))
}

/// Normalises a name: lower case, without the root's dot.
fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Returns true for what the node accepts as an entry. A pod with any other entry would fail.
fn is_host_pattern(entry: &str) -> bool {
    let (address, prefix) = entry.split_once('/').unwrap_or((entry, "32"));
    if address.parse::<Ipv4Addr>().is_ok() {
        return prefix.bytes().all(|byte| byte.is_ascii_digit())
            && prefix.parse::<u8>().is_ok_and(|prefix| prefix <= 32);
    }
    let name = entry.strip_prefix("*.").unwrap_or(entry);
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    entry == "*" || (name.len() <= 253 && name.parse::<Ipv4Addr>().is_err() && name.split('.').all(is_label))
}

/// Reads a port or a range of ports.
fn port_range(entry: &str) -> Option<(u16, u16)> {
    let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
    let number = |text: &str| -> Option<u16> {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    };
    let (first, last) = (number(first)?, number(last)?);
    (1..=last).contains(&first).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(hosts: Option<&str>, ports: Option<&str>) -> Lists {
        let keys = [(annotations::NETWORK_ALLOWED_HOSTS, hosts), (annotations::NETWORK_ALLOWED_PORTS, ports)];
        let given = keys.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
        Lists::of(&given.collect())
    }

    #[test]
    fn allowing_a_host_keeps_the_others_and_adds_its_port() {
        let changed = lists(None, None).with("Example.com.", Some(8443));
        let hosts = &changed[annotations::NETWORK_ALLOWED_HOSTS];
        assert!(hosts.starts_with("github.com,") && hosts.ends_with(",example.com"), "{hosts}");
        assert_eq!(changed[annotations::NETWORK_ALLOWED_PORTS], "443,80,8443");
        let again = lists(Some("*.example.com 10.0.0.1"), Some("8000-9000"));
        let changed = again.with("a.example.com", Some(8443));
        assert_eq!(changed[annotations::NETWORK_ALLOWED_HOSTS], "*.example.com,10.0.0.1");
        assert!(!changed.contains_key(annotations::NETWORK_ALLOWED_PORTS));
        assert_eq!(lists(Some(""), None).hosts, Vec::<String>::new(), "an empty list is not the default");
    }

    #[test]
    fn refusals_are_read_with_what_helps() {
        let remedy = |message: &str| {
            let refusal = Refusal::parse(message)?;
            Some((refusal.host.clone(), refusal.port, refusal.remedy()))
        };
        let host = "the host is not among the allowed ones";
        let private = "the address is a private one and not named among the allowed hosts";
        for (message, expected) in [
            (format!("example.com:443: {host}"), Some(("example.com", 443, "allow"))),
            (format!("8.8.8.8:53: {host}"), Some(("8.8.8.8", 53, "allow"))),
            (format!("::1:80: {host}"), Some(("::1", 80, "none"))),
            (format!("<img src=x>:80: {host}"), Some(("<img src=x>", 80, "none"))),
            (format!("intranet:443: {private}"), Some(("intranet", 443, "address"))),
            (format!("10.0.0.1:443: {private}"), Some(("10.0.0.1", 443, "allow"))),
            ("a:80: the address belongs to this machine or its link".to_owned(), Some(("a", 80, "none"))),
            (
                "a:80: no egress rule of the pod's network policies allows it".to_owned(),
                Some(("a", 80, "policy")),
            ),
            (format!("a:99999: {host}"), None),
            (format!(":80: {host}"), None),
            ("nothing".to_owned(), None),
        ] {
            let found = remedy(&message);
            let found = found.as_ref().map(|(host, port, remedy)| (host.as_str(), *port, *remedy));
            assert_eq!(found, expected, "{message}");
        }
    }

    #[test]
    fn allowed_is_told_as_the_node_decides() {
        let named = lists(Some("*.Example.com,one,10.1.0.0/16"), Some("443,8000-8100"));
        for (host, port, allowed) in [
            ("a.example.com", 443, true),
            ("example.com", 443, false),
            ("ONE.", 8050, true),
            ("one", 22, false),
            ("notone", 443, false),
        ] {
            assert_eq!(named.allows_host(host) && named.allows_port(port), allowed, "{host}:{port}");
        }
        assert!(!lists(Some("*"), None).allows_host("8.8.8.8"));
        assert!(lists(Some("*"), None).allows_host("anything"));
    }

    #[test]
    fn entries_that_would_end_a_pod_are_refused_by_their_field() {
        let change = |body: Value| -> Result<BTreeMap<&'static str, String>, String> {
            let change: Change = serde_json::from_value(body).map_err(|error| error.to_string())?;
            change.annotations().map_err(|failure| failure.message)
        };
        for (body, word) in [
            (json!({}), "changes none"),
            (json!({ "allowedHosts": ["https://a"] }), "`allowedHosts` has `https://a`"),
            (json!({ "allowedHosts": ["a,b"] }), "`a,b`"),
            (json!({ "allowedHosts": ["a..b"] }), "`a..b`"),
            (json!({ "allowedHosts": ["10.0.0.0/33"] }), "`10.0.0.0/33`"),
            (json!({ "allowedHosts": ["10.0.0.0/+8"] }), "`10.0.0.0/+8`"),
            (json!({ "allowedHosts": vec!["a"; 257] }), "more than 256"),
            (json!({ "allowedPorts": ["0"] }), "`allowedPorts` has `0`"),
            (json!({ "allowedPorts": ["90-80"] }), "`90-80`"),
            (json!({ "allowedPorts": ["+80"] }), "`+80`"),
            (json!({ "allowedPorts": ["65536"] }), "`65536`"),
            (json!({ "mode": "bridge" }), "unknown variant"),
            (json!({ "mode": "full", "scope": "cluster" }), "unknown variant"),
        ] {
            let refused = change(body.clone()).expect_err("refused");
            assert!(refused.contains(word), "{body}: {refused}");
        }
        let body = json!({ "mode": "restricted", "allowedHosts": ["*", "*.a.b", "10.0.0.0/8"],
            "allowedPorts": ["443", "8000-8100"] });
        let changed = change(body).expect("fits");
        assert_eq!(changed[annotations::NETWORK_ALLOWED_HOSTS], "*,*.a.b,10.0.0.0/8");
        assert_eq!(changed[annotations::NETWORK_ALLOWED_PORTS], "443,8000-8100");
        assert_eq!(changed[annotations::NETWORK], "restricted");
    }
}
