//! Turns NetworkPolicy objects into rules about addresses.
//!
//! Policies mean what they mean in Kubernetes, with one difference: a pod that no policy selects is
//! closed to other pods, not open. A connection from one pod to another needs an ingress rule that
//! allows it. If egress policies select the sender, it also needs an egress rule.

mod addresses;
mod selector;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::address::Block;
use super::mode::Mode;

pub use addresses::Addresses;
pub use selector::selects;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// The properties of a pod with an address that rules depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts<'a> {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its labels.
    pub labels: &'a Labels,
    /// Its network mode.
    pub mode: Mode,
    /// The named ports of its containers.
    pub ports: Vec<NamedPort<'a>>,
}

/// A port that has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPort<'a> {
    /// The name.
    pub name: &'a str,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub number: u16,
}

/// A transport protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP, the default.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Returns the protocol of an API name.
    pub fn named(name: Option<&str>) -> Option<Protocol> {
        match name {
            None | Some("TCP") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(_) => None,
        }
    }

    /// Returns its number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

/// The inputs of the rules.
#[derive(Debug, Clone)]
pub struct World<'a> {
    /// Pods with an address on this node.
    pub pods: &'a [PodFacts<'a>],
    /// Labels of namespaces, by name.
    pub namespaces: &'a BTreeMap<&'a str, &'a Labels>,
    /// All policies.
    pub policies: &'a [&'a NetworkPolicy],
}

/// The traffic that is allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Pods that have a route out of their own.
    pub full: Addresses,
    /// Pods that reach only the destinations in `egress`.
    pub egress_isolated: Addresses,
    /// The destinations of those pods.
    pub egress: Vec<Allow>,
    /// The allowed connections between pods.
    pub ingress: Vec<Allow>,
}

/// A set of allowed connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allow {
    /// Their sources.
    pub from: Addresses,
    /// Their destinations.
    pub to: Addresses,
    /// Their ports. If empty: all ports of any protocol.
    pub ports: Vec<Ports>,
}

/// A range of ports of a protocol, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// The protocol.
    pub protocol: Protocol,
    /// The lowest.
    pub first: u16,
    /// The highest.
    pub last: u16,
}

impl Allow {
    fn covers(&self, from: Ipv4Addr, to: Ipv4Addr) -> bool {
        self.from.contains(from) && self.to.contains(to)
    }

    fn covers_port(&self, protocol: Protocol, port: u16) -> bool {
        self.ports.is_empty()
            || self
                .ports
                .iter()
                .any(|ports| ports.protocol == protocol && (ports.first..=ports.last).contains(&port))
    }
}

impl Rules {
    /// Returns true if the policies allow a pod this connection to an address that is not a pod.
    pub fn allows_egress(&self, from: Ipv4Addr, to: Ipv4Addr, protocol: Protocol, port: u16) -> bool {
        !self.egress_isolated.contains(from)
            || self.egress.iter().any(|allow| allow.covers(from, to) && allow.covers_port(protocol, port))
    }

    /// Returns true if one pod reaches another on any port.
    pub fn connects(&self, from: Ipv4Addr, to: Ipv4Addr) -> bool {
        let goes_out =
            !self.egress_isolated.contains(from) || self.egress.iter().any(|allow| allow.covers(from, to));
        from == to || goes_out && self.ingress.iter().any(|allow| allow.covers(from, to))
    }
}

/// Computes the rules for the present pods and policies.
pub fn rules(world: &World<'_>) -> Rules {
    let full = world.pods.iter().filter(|pod| pod.mode == Mode::Full).map(|pod| pod.address);
    let mut rules = Rules { full: Addresses::of(full), ..Rules::default() };
    let mut isolated = Vec::new();
    for policy in world.policies {
        let Some(spec) = &policy.spec else { continue };
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        let selected: Vec<&PodFacts<'_>> = world
            .pods
            .iter()
            .filter(|pod| pod.namespace == namespace && selects(spec.pod_selector.as_ref(), pod.labels))
            .collect();
        if selected.is_empty() {
            continue;
        }
        let own = Addresses::of(selected.iter().map(|pod| pod.address));
        if concerns(spec, "Ingress") {
            for rule in spec.ingress.iter().flatten() {
                let from = peers(world, namespace, rule.from.as_deref());
                for (to, ports) in expand(rule.ports.as_deref(), &own, &selected) {
                    push(&mut rules.ingress, Allow { from: from.clone(), to, ports });
                }
            }
        }
        if concerns(spec, "Egress") {
            isolated.extend(selected.iter().map(|pod| pod.address));
            for rule in spec.egress.iter().flatten() {
                let to = peers(world, namespace, rule.to.as_deref());
                let reached: Vec<&PodFacts<'_>> =
                    world.pods.iter().filter(|pod| to.contains(pod.address)).collect();
                for (to, ports) in expand(rule.ports.as_deref(), &to, &reached) {
                    push(&mut rules.egress, Allow { from: own.clone(), to, ports });
                }
            }
        }
    }
    rules.egress_isolated = Addresses::of(isolated);
    rules
}

/// Returns true if a change of a pod's labels may change its rules. Only labels that selectors
/// mention matter.
pub fn are_told_apart(policies: &[&NetworkPolicy], before: &Labels, after: &Labels) -> bool {
    let specs = policies.iter().filter_map(|policy| policy.spec.as_ref());
    let mut selectors = specs.flat_map(|spec| {
        let from = spec.ingress.iter().flatten().filter_map(|rule| rule.from.as_ref());
        let to = spec.egress.iter().flatten().filter_map(|rule| rule.to.as_ref());
        let peers = from.chain(to).flatten().filter_map(|peer| peer.pod_selector.as_ref());
        spec.pod_selector.iter().chain(peers)
    });
    selectors.any(|selector| selects(Some(selector), before) != selects(Some(selector), after))
}

fn push(rules: &mut Vec<Allow>, allow: Allow) {
    if !allow.from.is_empty() && !allow.to.is_empty() {
        rules.push(allow);
    }
}

/// Returns true if a policy concerns a direction. A policy without types concerns ingress, and
/// egress if it has egress rules.
fn concerns(spec: &NetworkPolicySpec, direction: &str) -> bool {
    match spec.policy_types.as_deref() {
        Some(types) if !types.is_empty() => types.iter().any(|found| found == direction),
        _ => direction == "Ingress" || spec.egress.is_some(),
    }
}

/// Returns the addresses of a rule's list of peers. Without a list: all addresses.
fn peers(world: &World<'_>, namespace: &str, peers: Option<&[NetworkPolicyPeer]>) -> Addresses {
    match peers {
        None | Some([]) => Addresses::everything(),
        Some(peers) => Addresses::union(peers.iter().map(|one| peer(world, namespace, one))),
    }
}

fn peer(world: &World<'_>, namespace: &str, peer: &NetworkPolicyPeer) -> Addresses {
    if let Some(block) = &peer.ip_block {
        // An IPv6 block holds none of our addresses.
        let Ok(whole) = block.cidr.parse::<Block>() else { return Addresses::default() };
        let except = block.except.iter().flatten().filter_map(|except| except.parse::<Block>().ok());
        return Addresses::block(whole).without(&Addresses::union(except.map(Addresses::block)));
    }
    let nothing = Labels::new();
    let is_peer = |pod: &PodFacts<'_>| {
        let in_namespace = match &peer.namespace_selector {
            None => pod.namespace == namespace,
            Some(selector) => {
                selects(Some(selector), world.namespaces.get(pod.namespace).copied().unwrap_or(&nothing))
            }
        };
        in_namespace && peer.pod_selector.as_ref().is_none_or(|selector| selects(Some(selector), pod.labels))
    };
    Addresses::of(world.pods.iter().filter(|pod| is_peer(pod)).map(|pod| pod.address))
}

/// Expands a rule's ports, each with the addresses that it applies to. A named port can have a
/// different number in each pod.
fn expand(
    ports: Option<&[NetworkPolicyPort]>,
    to: &Addresses,
    pods: &[&PodFacts<'_>],
) -> Vec<(Addresses, Vec<Ports>)> {
    let ports = match ports {
        None | Some([]) => return vec![(to.clone(), Vec::new())],
        Some(ports) => ports,
    };
    let mut numbered = Vec::new();
    let mut expanded = Vec::new();
    for port in ports {
        let Some(protocol) = Protocol::named(port.protocol.as_deref()) else { continue };
        match &port.port {
            None => numbered.push(Ports { protocol, first: 0, last: u16::MAX }),
            Some(IntOrString::Int(number)) => {
                let Ok(first) = u16::try_from(*number) else { continue };
                let last = port.end_port.map_or(Some(first), |end| u16::try_from(end).ok());
                numbered.extend(last.filter(|last| first <= *last).map(|last| Ports {
                    protocol,
                    first,
                    last,
                }));
            }
            Some(IntOrString::String(name)) => {
                for pod in pods {
                    let same = |found: &&NamedPort<'_>| found.name == name && found.protocol == protocol;
                    if let Some(found) = pod.ports.iter().find(same) {
                        let ports = Ports { protocol, first: found.number, last: found.number };
                        expanded.push((Addresses::of([pod.address]), vec![ports]));
                    }
                }
            }
        }
    }
    if !numbered.is_empty() {
        expanded.insert(0, (to.clone(), numbered));
    }
    expanded
}
