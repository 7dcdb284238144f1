//! The name server of a home's pods, at the gateway. It answers the home's own names itself and
//! asks the host's resolver for names that a pod may reach. To the pod, other names do not exist.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::runtime::reflector::ObjectRef;
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::warn;
use warren_decide::network::policy::{Labels, selects};
use warren_decide::network::{AllowList, Denial, Kind, Mode, Name, kind, parse_name};

use super::decisions::Service as Decider;
use super::dns::{Answer, Query};
use super::{Lease, NAME_PORT, Network, resolver};
use crate::node::Shared;

/// The most concurrent queries. More are dropped, as a network would; clients repeat them.
const UNDER_WAY: usize = 512;
const LONGEST_QUESTION: usize = 1500;
/// The delay after the address could not be bound: another daemon may be about to end.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);

pub(super) fn listen(shared: &Arc<Shared>, network: &Arc<Network>, tasks: &mut JoinSet<()>) {
    let (shared, network) = (shared.clone(), network.clone());
    tasks.spawn(async move {
        let socket = loop {
            match UdpSocket::bind((network.gateway, NAME_PORT)).await {
                Ok(socket) => break Arc::new(socket),
                Err(error) => {
                    warn!(%error, gateway = %network.gateway, "no name server for pods; trying again")
                }
            }
            tokio::time::sleep(AFTER_REFUSAL).await;
        };
        let turns = Arc::new(Semaphore::new(UNDER_WAY));
        let mut questions = JoinSet::new();
        let mut buffer = [0; LONGEST_QUESTION];
        loop {
            while questions.try_join_next().is_some() {}
            let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
            let (Some(query), Ok(turn)) =
                (Query::parse(&buffer[..length]), turns.clone().try_acquire_owned())
            else {
                continue;
            };
            let (socket, shared, network) = (socket.clone(), shared.clone(), network.clone());
            questions.spawn(async move {
                let answer = answer(&shared, &network, from, &query).await;
                // A client that no longer waits asks again.
                let _ = socket.send_to(&query.answer(&answer), from).await;
                drop(turn);
            });
        }
    });
}

async fn answer(shared: &Shared, network: &Network, from: SocketAddr, query: &Query) -> Answer {
    let asker = match from.ip() {
        IpAddr::V4(address) => network.pod_at(&shared.registry, address),
        IpAddr::V6(_) => None,
    };
    let note = |pod: Option<&Pod>, outcome| {
        network.decisions.note(Decider::Names, pod, &query.name, NAME_PORT, outcome);
    };
    let Some((pod, lease)) = asker else {
        note(None, Err(Denial::Stranger));
        return Answer::Refused;
    };
    if let Some(name) = parse_name(&query.name) {
        return match pods_named(shared, network, &name, lease.address) {
            found if found.is_empty() => Answer::NoSuchName,
            found if query.wants_addresses() => Answer::Addresses(found),
            _ => Answer::Addresses(Vec::new()),
        };
    }
    // An invalid list allows nothing.
    let list = AllowList::of(&pod).ok();
    let allowed = match lease.mode {
        Mode::Full => true,
        Mode::Restricted | Mode::None => list.as_ref().is_some_and(|list| list.allows_name(&query.name)),
    };
    if !allowed {
        note(Some(&pod), Err(Denial::Host));
        return Answer::NoSuchName;
    }
    note(Some(&pod), Ok(()));
    if !query.wants_addresses() {
        return Answer::Addresses(Vec::new());
    }
    match resolver::resolve(&query.name).await {
        Ok(found) => usable(found, &lease, list.as_ref()),
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Answer::Failed,
        Err(_) => Answer::NoSuchName,
    }
}

/// Returns the addresses that the pod may connect to: a name must not lead to an address that the
/// pod could not reach directly.
fn usable(found: Vec<IpAddr>, lease: &Lease, list: Option<&AllowList>) -> Answer {
    let may = |address: Ipv4Addr| match lease.mode {
        Mode::Full => kind(address.into()) != Kind::Local,
        _ => list.is_some_and(|list| list.check_address(address.into(), false).is_ok()),
    };
    let addresses: Vec<Ipv4Addr> = found
        .into_iter()
        .filter_map(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        })
        .filter(|address| may(*address))
        .collect();
    if addresses.is_empty() { Answer::NoSuchName } else { Answer::Addresses(addresses) }
}

/// Returns the addresses of a name's pods that the client may reach. To other clients the name does
/// not exist.
fn pods_named(shared: &Shared, network: &Network, name: &Name, asker: Ipv4Addr) -> Vec<Ipv4Addr> {
    let (host, service, namespace) = match name {
        Name::Service { service, namespace } => (None, service, namespace),
        Name::Host { host, service, namespace } => (Some(host), service, namespace),
        Name::Unknown => return Vec::new(),
    };
    let found = network.keeper.services.store.get(&ObjectRef::<Service>::new(service).within(namespace));
    let Some(spec) = found.as_ref().and_then(|service| service.spec.as_ref()) else { return Vec::new() };
    let Some(selector) = spec.selector.as_ref().filter(|selector| !selector.is_empty()) else {
        return Vec::new();
    };
    let unready_too = spec.publish_not_ready_addresses == Some(true);
    let rules = network.rules();
    let pods = shared.registry.shown(network.leases().all());
    let addresses = pods.iter().filter_map(|(lease, pod)| {
        let is_meant = pod.metadata.namespace.as_ref() == Some(namespace)
            && pod.metadata.labels.as_ref().is_some_and(|labels| selected_by(selector, labels))
            && host.is_none_or(|host| has_name(pod, host, service))
            && (unready_too || is_ready(pod))
            && rules.connects(asker, lease.address);
        is_meant.then_some(lease.address)
    });
    addresses.collect()
}

fn selected_by(selector: &Labels, labels: &Labels) -> bool {
    let selector = k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector {
        match_labels: Some(selector.clone()),
        match_expressions: None,
    };
    selects(Some(&selector), labels)
}

fn has_name(pod: &Pod, host: &str, service: &str) -> bool {
    let spec = pod.spec.as_ref();
    let is = |field: Option<&String>, wanted: &str| field.is_some_and(|found| found == wanted);
    is(spec.and_then(|spec| spec.hostname.as_ref()), host)
        && is(spec.and_then(|spec| spec.subdomain.as_ref()), service)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
