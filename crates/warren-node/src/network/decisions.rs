//! Counts and logs the egress decisions, by kind and reason.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use tracing::info;
use warren_decide::network::Denial;

/// A service that makes decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    /// The egress proxy.
    Proxy,
    /// The name server.
    Names,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Service::Proxy => "proxy",
            Service::Names => "dns",
        }
    }
}

/// Counters by service and outcome. Bounded: there are only a few reasons.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    counts: Mutex<BTreeMap<(Service, &'static str), u64>>,
    /// The present second of the log, and its number of lines.
    lines: Mutex<Option<(Instant, u32)>>,
    /// The hosts that were refused to each pod, by its uid.
    refused: Mutex<HashMap<String, BTreeSet<String>>>,
}

/// The most refused hosts per pod that get an event; a pod that asks for more cannot fill the
/// store.
const TOLD_PER_POD: usize = 16;

/// The number of pods above which the older ones are forgotten. Most of them are gone by then.
const PODS_REMEMBERED: usize = 1024;

/// The most lines logged per second. Further decisions are counted but cannot fill the disk.
const LINES_PER_SECOND: u32 = 50;

/// The longest part of a host name that is logged.
const LONGEST_HOST: usize = 253;

impl Decisions {
    /// Records a decision about a pod's request.
    pub(super) fn note(
        &self,
        service: Service,
        pod: Option<&Pod>,
        host: &str,
        port: u16,
        outcome: Result<(), Denial>,
    ) {
        let reason = outcome.err().map_or("allowed", Denial::reason);
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry((service, reason)).or_default() +=
            1;
        if !self.may_log() {
            return;
        }
        let name = |part: fn(&Pod) -> Option<&String>| pod.and_then(part).map_or("", String::as_str);
        let host: String = host.chars().take(LONGEST_HOST).filter(|letter| !letter.is_control()).collect();
        info!(
            service = service.name(),
            namespace = name(|pod| pod.metadata.namespace.as_ref()),
            pod = name(|pod| pod.metadata.name.as_ref()),
            host,
            port,
            outcome = reason,
            "egress"
        );
    }

    /// Records that a host was refused to a pod. Returns true if it is to get an event: the first
    /// time, for a limited number of hosts.
    pub(super) fn tell(&self, pod_uid: &str, host: &str) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() >= PODS_REMEMBERED && !refused.contains_key(pod_uid) {
            refused.clear();
        }
        let hosts = refused.entry(pod_uid.to_owned()).or_default();
        hosts.len() < TOLD_PER_POD && hosts.insert(host.chars().take(LONGEST_HOST).collect())
    }

    fn may_log(&self) -> bool {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (since, count) =
            lines.filter(|(since, _)| now.duration_since(*since).as_secs() == 0).unwrap_or((now, 0));
        *lines = Some((since, count.saturating_add(1)));
        count < LINES_PER_SECOND
    }

    /// Formats the counters for Prometheus.
    pub(crate) fn metrics(&self) -> String {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text =
            "# HELP warren_egress_decisions_total Wishes of pods to reach something, by what came of them.\n\
                        # TYPE warren_egress_decisions_total counter\n"
                .to_owned();
        for ((service, outcome), count) in &*counts {
            let labels = format!("service=\"{}\",outcome=\"{outcome}\"", service.name());
            // Writing to a string cannot fail.
            let _ = writeln!(text, "warren_egress_decisions_total{{{labels}}} {count}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_is_told_once_and_only_so_many_of_a_pod() {
        let decisions = Decisions::default();
        assert!(decisions.tell("a", "host"));
        assert!(!decisions.tell("a", "host"));
        assert!(decisions.tell("b", "host"));
        let told = (0..100).filter(|number| decisions.tell("a", &number.to_string())).count();
        assert_eq!(told, TOLD_PER_POD - 1);
    }
}
