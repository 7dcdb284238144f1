//! Reports the hosts that the egress proxy refused to a sandbox, after a command failed.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Event;
use warren_client::kube::Client;
use warren_client::kube::api::{Api, ListParams};
use warren_client::sync::Place;
use warren_client::sync::back::printable;

use crate::cli;

/// The reason of the node's events about refused hosts.
const REASON: &str = "EgressRefused";

/// Prints the hosts that were refused to a pod, and how to allow them. Prints nothing if there were
/// none, or if the events cannot be read.
pub async fn say(client: &Client, place: &Place, arguments: &cli::Run) {
    let events: Api<Event> = Api::namespaced(client.clone(), &place.namespace);
    let fields = format!("involvedObject.name={},reason={REASON}", place.pod);
    let Ok(events) = events.list(&ListParams::default().fields(&fields)).await else { return };
    let hosts = hosts(events.items.iter().filter_map(|event| event.message.as_deref()));
    if let Some(text) = text(&hosts, arguments) {
        eprintln!("{text}");
    }
}

/// Returns the hosts at the beginning of messages: `HOST:PORT: reason`.
fn hosts<'a>(messages: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let host = |message: &str| {
        let (target, _) = message.split_once(": ")?;
        let (host, _) = target.rsplit_once(':')?;
        Some(printable(host.as_ref()))
    };
    messages.filter_map(host).collect()
}

fn text(hosts: &BTreeSet<String>, arguments: &cli::Run) -> Option<String> {
    if hosts.is_empty() {
        return None;
    }
    let named = hosts.iter().map(|host| format!("`{host}`")).collect::<Vec<_>>().join(", ");
    let mut text = format!("note: the network of the sandbox refused {named}");
    if arguments.pool.is_none() && arguments.template.is_none() {
        let all: BTreeSet<&String> = arguments.allow_host.iter().chain(hosts).collect();
        let all = all.into_iter().map(String::as_str).collect::<Vec<_>>().join(",");
        text += &format!("\nhint: allow what the command needs with `--allow-host {all}`");
    } else {
        text +=
            "\nhint: the annotation `warren.dev/network-allowed-hosts` of the template names what is allowed";
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn said(words: &[&str], messages: &[&str]) -> Option<String> {
        let cli = cli::Cli::parse_from([&["warren", "run"], words, &["true"]].concat());
        let cli::Command::Run(run) = cli.command else { panic!("not a run") };
        text(&hosts(messages.iter().copied()), &run)
    }

    #[test]
    fn refused_hosts_are_named_once_with_the_flag_that_allows_them() {
        let messages =
            ["b.example:443: the host is not among the allowed ones", "b.example:80: x", "::1:1: y"];
        assert_eq!(
            said(&["--allow-host", "a.example"], &messages).as_deref(),
            Some(
                "note: the network of the sandbox refused `::1`, `b.example`\n\
                 hint: allow what the command needs with `--allow-host ::1,a.example,b.example`"
            )
        );
        assert_eq!(said(&[], &["garbage"]), None);
        assert!(said(&["--pool", "p"], &messages).expect("a text").contains("annotation"));
    }
}
