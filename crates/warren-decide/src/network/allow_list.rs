//! Reads and checks the allow list of a pod's egress: hosts by name or address, and ports.

use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::api::core::v1::Pod;
use warren_api::annotations;

use super::address::{Block, Kind, kind};

/// The largest number of entries that is read from an annotation.
const MOST_ENTRIES: usize = 1000;

/// A range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// The lowest port.
    pub first: u16,
    /// The highest port.
    pub last: u16,
}

impl PortRange {
    /// Returns true if the range contains the port.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

/// The hosts and ports that a pod may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowList {
    names: Vec<NamePattern>,
    blocks: Vec<Block>,
    ports: Vec<PortRange>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum NamePattern {
    Exact(String),
    /// `*.example.com`: every name below it, but not the name itself.
    Below(String),
    /// `*`.
    Any,
}

/// The error of an annotation that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation}: `{entry}` is not {wanted}")]
pub struct AllowListError {
    annotation: &'static str,
    entry: String,
    wanted: &'static str,
}

/// A reason why a connection is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The host is on no list.
    #[error("the host is not among the allowed ones")]
    Host,
    /// The port is on no list.
    #[error("the port is not among the allowed ones")]
    Port,
    /// The address is in a private network, and not named.
    #[error("the address is a private one and not named among the allowed hosts")]
    PrivateAddress,
    /// The address is this machine, its link or its pods.
    #[error("the address belongs to this machine or its link")]
    LocalAddress,
    /// A NetworkPolicy denies it.
    #[error("no egress rule of the pod's network policies allows it")]
    Policy,
    /// The client is not a pod of this home.
    #[error("the sender is not a pod")]
    Stranger,
}

impl Denial {
    /// Returns one word, for metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Denial::Host => "host",
            Denial::Port => "port",
            Denial::PrivateAddress => "private_address",
            Denial::LocalAddress => "local_address",
            Denial::Policy => "policy",
            Denial::Stranger => "stranger",
        }
    }
}

impl Default for AllowList {
    fn default() -> Self {
        Self {
            names: annotations::DEFAULT_ALLOWED_HOSTS
                .iter()
                .map(|name| NamePattern::Exact((*name).to_owned()))
                .collect(),
            blocks: Vec::new(),
            ports: annotations::DEFAULT_ALLOWED_PORTS
                .iter()
                .map(|port| PortRange { first: *port, last: *port })
                .collect(),
        }
    }
}

impl AllowList {
    /// Returns a pod's list from its annotations, with defaults for missing ones.
    pub fn of(pod: &Pod) -> Result<AllowList, AllowListError> {
        let annotation =
            |key: &str| pod.metadata.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        let mut list = AllowList::default();
        if let Some(hosts) = annotation(annotations::NETWORK_ALLOWED_HOSTS) {
            (list.names, list.blocks) = parse_hosts(hosts)?;
        }
        if let Some(ports) = annotation(annotations::NETWORK_ALLOWED_PORTS) {
            list.ports = parse_ports(ports)?;
        }
        Ok(list)
    }

    /// Returns true if the name server may resolve a name.
    pub fn allows_name(&self, name: &str) -> bool {
        let name = normal(name);
        self.names.iter().any(|pattern| match pattern {
            NamePattern::Exact(exact) => *exact == name,
            NamePattern::Below(suffix) => name
                .strip_suffix(suffix.as_str())
                .is_some_and(|front| front.len() > 1 && front.ends_with('.')),
            NamePattern::Any => true,
        })
    }

    /// Checks a connection to a host, as the client spells it, before the name is resolved.
    pub fn check_host(&self, host: &str, port: u16) -> Result<(), Denial> {
        if !self.ports.iter().any(|range| range.contains(port)) {
            return Err(Denial::Port);
        }
        match host.parse::<IpAddr>() {
            Ok(address) => self.check_address(address, true),
            Err(_) if self.allows_name(host) => Ok(()),
            Err(_) => Err(Denial::Host),
        }
    }

    /// Checks an address: one that a name resolved to, or (`literal`) one that the client itself
    /// named.
    pub fn check_address(&self, address: IpAddr, literal: bool) -> Result<(), Denial> {
        let named = match address {
            IpAddr::V4(address) => self.blocks.iter().any(|block| block.contains(address)),
            IpAddr::V6(_) => false,
        };
        match kind(address) {
            Kind::Local => Err(Denial::LocalAddress),
            Kind::Private if !named => Err(Denial::PrivateAddress),
            Kind::Private => Ok(()),
            Kind::Public if literal && !named && !self.names.contains(&NamePattern::Any) => Err(Denial::Host),
            Kind::Public => Ok(()),
        }
    }
}

/// Normalises a name: lower case, without the root's dot.
fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ' ', '\n', '\t']).map(str::trim).filter(|entry| !entry.is_empty()).take(MOST_ENTRIES)
}

fn parse_hosts(text: &str) -> Result<(Vec<NamePattern>, Vec<Block>), AllowListError> {
    let (mut names, mut blocks) = (Vec::new(), Vec::new());
    for entry in entries(text) {
        if let Ok(block) = entry.parse::<Block>() {
            blocks.push(block);
        } else if entry == "*" {
            names.push(NamePattern::Any);
        } else {
            let (is_below, name) = match entry.strip_prefix("*.") {
                Some(name) => (true, name),
                None => (false, entry),
            };
            if !is_name(name) {
                return Err(AllowListError {
                    annotation: annotations::NETWORK_ALLOWED_HOSTS,
                    entry: entry.chars().take(64).collect(),
                    wanted: "a host name, `*.` and a name, or a block of IPv4 addresses",
                });
            }
            let name = normal(name);
            names.push(if is_below { NamePattern::Below(name) } else { NamePattern::Exact(name) });
        }
    }
    Ok((names, blocks))
}

/// Returns true for a DNS or machine name: no scheme, no port, no path.
fn is_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    name.len() <= 253 && name.parse::<Ipv4Addr>().is_err() && name.split('.').all(label)
}

fn parse_ports(text: &str) -> Result<Vec<PortRange>, AllowListError> {
    let parse = |entry: &str| {
        let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (1..=last).contains(&first).then_some(PortRange { first, last })
    };
    let ports = entries(text).map(|entry| {
        parse(entry).ok_or_else(|| AllowListError {
            annotation: annotations::NETWORK_ALLOWED_PORTS,
            entry: entry.chars().take(64).collect(),
            wanted: "a port or a range of ports, such as 8000-8100",
        })
    });
    ports.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(hosts: Option<&str>, ports: Option<&str>) -> Result<AllowList, AllowListError> {
        let mut marks = serde_json::Map::new();
        marks.extend(hosts.map(|hosts| (annotations::NETWORK_ALLOWED_HOSTS.to_owned(), json!(hosts))));
        marks.extend(ports.map(|ports| (annotations::NETWORK_ALLOWED_PORTS.to_owned(), json!(ports))));
        AllowList::of(&serde_json::from_value(json!({"metadata": {"annotations": marks}})).unwrap())
    }

    #[test]
    fn without_annotations_the_defaults_hold() {
        let list = list(None, None).unwrap();
        assert_eq!(list.check_host("github.com", 443), Ok(()));
        assert_eq!(list.check_host("GitHub.com.", 80), Ok(()));
        assert_eq!(list.check_host("github.com", 22), Err(Denial::Port));
        assert_eq!(list.check_host("github.com.evil.test", 443), Err(Denial::Host));
        assert_eq!(list.check_host("notgithub.com", 443), Err(Denial::Host));
        assert_eq!(list.check_host("140.82.121.3", 443), Err(Denial::Host));
        assert_eq!(list.check_host("10.0.0.1", 443), Err(Denial::PrivateAddress));
        assert_eq!(list.check_host("169.254.169.254", 80), Err(Denial::LocalAddress));
        assert_eq!(list.check_host("[::1]", 80), Err(Denial::Host));
        assert_eq!(list.check_host("::1", 80), Err(Denial::LocalAddress));
    }

    #[test]
    fn patterns_blocks_and_ranges_are_read() {
        let list = list(Some("*.example.com, 10.1.0.0/16\n one"), Some("443 8000-8100")).unwrap();
        assert_eq!(list.check_host("a.b.example.com", 8050), Ok(()));
        assert_eq!(list.check_host("example.com", 443), Err(Denial::Host));
        assert_eq!(list.check_host("one", 443), Ok(()));
        assert_eq!(list.check_host("10.1.2.3", 443), Ok(()));
        assert_eq!(list.check_host("10.2.2.3", 443), Err(Denial::PrivateAddress));
        assert_eq!(list.check_host("github.com", 443), Err(Denial::Host));
        // An allowed name may lead to the internet or to a named address, never to the machine
        // itself.
        assert_eq!(list.check_address("8.8.8.8".parse().unwrap(), false), Ok(()));
        assert_eq!(list.check_address("10.1.0.9".parse().unwrap(), false), Ok(()));
        assert_eq!(list.check_address("192.168.1.1".parse().unwrap(), false), Err(Denial::PrivateAddress));
        assert_eq!(list.check_address("127.0.0.1".parse().unwrap(), false), Err(Denial::LocalAddress));
    }

    #[test]
    fn naming_the_machine_itself_allows_nothing() {
        let list = list(Some("*, 127.0.0.0/8, 169.254.0.0/16"), None).unwrap();
        assert_eq!(list.check_host("127.0.0.1", 80), Err(Denial::LocalAddress));
        assert_eq!(list.check_host("169.254.169.254", 80), Err(Denial::LocalAddress));
        assert_eq!(list.check_host("anything.test", 80), Ok(()));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (hosts, ports, message) in [
            (
                Some("https://github.com"),
                None,
                "annotation warren.dev/network-allowed-hosts: `https://github.com` is not a host name, `*.` and a name, \
                 or a block of IPv4 addresses",
            ),
            (
                None,
                Some("0"),
                "annotation warren.dev/network-allowed-ports: `0` is not a port or a range of ports, such as 8000-8100",
            ),
        ] {
            assert_eq!(list(hosts, ports).unwrap_err().to_string(), message);
        }
        list(Some("a..b"), None).unwrap_err();
        list(None, Some("90-80")).unwrap_err();
        list(None, Some("65536")).unwrap_err();
        assert_eq!(list(Some(""), None).unwrap().check_host("github.com", 443), Err(Denial::Host));
    }
}
