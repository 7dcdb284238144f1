//! Builds the nftables rules.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;

use warren_decide::network::Block;
use warren_decide::network::policy::{Addresses, Allow, Rules};
use warren_sys::network::nftables::{self, Chain, Hook, Match, Rule, Set, Table, Verdict};

use super::{NAME_PORT, PROXY_PORT, host};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Destinations that no pod reaches through the host, in any mode: "this" network, loopback, the
/// link (with the metadata services of clouds), multicast, and reserved blocks.
const NEVER: [&str; 5] = ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"];

pub(super) fn put_in_force(
    name: &str,
    devices: &str,
    range: Block,
    gateway: Ipv4Addr,
    rules: &Rules,
) -> io::Result<()> {
    if !rules.full.is_empty() {
        host::forward_everywhere()?;
    }
    nftables::replace(&table(name, devices, range, gateway, rules))
}

/// Named sets, one per distinct content.
#[derive(Default)]
struct Sets {
    names: BTreeMap<Addresses, String>,
}

impl Sets {
    fn named(&mut self, addresses: &Addresses) -> String {
        let next = format!("addresses-{}", self.names.len());
        self.names.entry(addresses.clone()).or_insert(next).clone()
    }

    fn into_sets(self) -> Vec<Set> {
        let set =
            |(addresses, name): (Addresses, String)| Set { name, intervals: addresses.intervals().collect() };
        self.names.into_iter().map(set).collect()
    }
}

fn table(name: &str, devices: &str, range: Block, gateway: Ipv4Addr, rules: &Rules) -> Table {
    let mut sets = Sets::default();
    let mut chains = chains_from_pods(devices, gateway, rules, &mut sets);
    let from_pods = || Match::FromDevices(devices.to_owned());
    let to_pods = || Match::ToDevices(devices.to_owned());
    let chain =
        |name: &str, hook: Hook, rules: Vec<Rule>| Chain { name: name.to_owned(), hook: Some(hook), rules };
    chains.extend([
        chain(
            "arrival",
            Hook::Arrival,
            vec![
                rule([from_pods(), Match::NotVersion4], Verdict::Drop),
                rule([from_pods(), Match::WrongSource], Verdict::Drop),
            ],
        ),
        chain("input", Hook::Input, vec![rule([from_pods()], jump("pod-to-host"))]),
        chain(
            "forward",
            Hook::Forward,
            vec![
                rule([from_pods()], jump("pod-onwards")),
                rule([to_pods(), Match::Established], Verdict::Accept),
                // Only this machine itself and other pods reach pods.
                rule([to_pods()], Verdict::Drop),
            ],
        ),
        chain(
            "leave",
            Hook::SourceNat,
            vec![rule(
                [
                    Match::Version4,
                    Match::SourceIn(sets.named(&Addresses::block(range))),
                    Match::NotToDevices(devices.to_owned()),
                ],
                Verdict::Masquerade,
            )],
        ),
    ]);
    Table { name: name.to_owned(), sets: sets.into_sets(), chains }
}

/// Builds the chains for packets from pods. Every chain ends in a verdict.
fn chains_from_pods(devices: &str, gateway: Ipv4Addr, rules: &Rules, sets: &mut Sets) -> Vec<Chain> {
    let service = |protocol, port| {
        let matches = [Match::Destination(gateway), Match::Protocol(protocol), Match::Ports(port, port)];
        rule(matches, Verdict::Accept)
    };
    let never = NEVER.iter().filter_map(|block| block.parse::<Block>().ok());
    let never = Addresses::union(never.map(Addresses::block));
    let egress =
        rules.egress.iter().flat_map(|allow| passes(allow, Verdict::Return, sets)).collect::<Vec<_>>();
    let ingress =
        rules.ingress.iter().flat_map(|allow| passes(allow, Verdict::Accept, sets)).collect::<Vec<_>>();
    let last = || rule([], Verdict::Reject);
    let chain = |name: &str, rules: Vec<Rule>| Chain { name: name.to_owned(), hook: None, rules };
    vec![
        chain(
            "pod-to-host",
            vec![
                rule([Match::Established], Verdict::Accept),
                service(UDP, NAME_PORT),
                service(TCP, PROXY_PORT),
                last(),
            ],
        ),
        chain("let-out", egress.into_iter().chain([last()]).collect()),
        chain("let-in", ingress.into_iter().chain([last()]).collect()),
        chain(
            "pod-onwards",
            vec![
                rule([Match::Established], Verdict::Accept),
                rule([Match::DestinationIn(sets.named(&never))], Verdict::Reject),
                rule([Match::SourceIn(sets.named(&rules.egress_isolated))], jump("let-out")),
                rule([Match::ToDevices(devices.to_owned())], jump("let-in")),
                rule([Match::SourceIn(sets.named(&rules.full))], Verdict::Accept),
                last(),
            ],
        ),
    ]
}

fn passes(allow: &Allow, verdict: Verdict, sets: &mut Sets) -> Vec<Rule> {
    let between = vec![Match::SourceIn(sets.named(&allow.from)), Match::DestinationIn(sets.named(&allow.to))];
    if allow.ports.is_empty() {
        return vec![rule(between, verdict)];
    }
    let with_ports = allow.ports.iter().map(|ports| {
        let ports = [Match::Protocol(ports.protocol.number()), Match::Ports(ports.first, ports.last)];
        rule(between.iter().cloned().chain(ports), verdict.clone())
    });
    with_ports.collect()
}

fn rule(matches: impl IntoIterator<Item = Match>, verdict: Verdict) -> Rule {
    Rule { matches: matches.into_iter().collect(), verdict }
}

fn jump(chain: &str) -> Verdict {
    Verdict::Jump(chain.to_owned())
}
