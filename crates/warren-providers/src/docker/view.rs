//! A sandbox as the engine shows it: its state, its usage and its history.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{ContainerInspectResponse, ContainerStatsResponse, ContainerSummary, EventMessage};
use jiff::Timestamp;
use warren_api::labels;

use super::container::{CREATED, IMAGE, NETWORK, OWNER, SANDBOX, container_name};
use crate::limits::Network;
use crate::provider::{Happening, Info, Metrics, Status};

/// Returns the state for one of the engine's.
pub(super) fn status(state: &str) -> Status {
    match state {
        "running" => Status::Running,
        "created" | "restarting" => Status::Creating,
        "paused" | "exited" => Status::Stopped,
        "stopping" | "removing" => Status::Stopping,
        _ => Status::Error,
    }
}

/// Makes a description from labels. `None` if they are not those of a sandbox of this owner.
fn labelled(labels: &HashMap<String, String>, owner: &str, status: Status) -> Option<Info> {
    let id = labels.get(SANDBOX).filter(|_| labels.get(OWNER).is_some_and(|found| found == owner))?;
    let created = labels.get(CREATED).and_then(|time| time.parse().ok());
    Some(Info {
        id: id.clone(),
        name: container_name(id),
        namespace: String::new(),
        project_id: labels.get(labels::PROJECT).filter(|project| !project.is_empty()).cloned(),
        status,
        message: None,
        image: labels.get(IMAGE).cloned(),
        created_at: created,
        last_activity_at: created,
        ports: Vec::new(),
        labels: labels.clone().into_iter().collect::<BTreeMap<_, _>>(),
        network: match labels.get(NETWORK).map(String::as_str) {
            Some("full") => Network::Full,
            Some("none") => Network::None,
            _ => Network::Restricted,
        },
    })
}

/// Returns a sandbox of the engine's list.
pub(super) fn listed(summary: &ContainerSummary, owner: &str) -> Option<Info> {
    let state = summary.state.map(|state| state.to_string()).unwrap_or_default();
    let mut info = labelled(summary.labels.as_ref()?, owner, status(&state))?;
    if info.status == Status::Error {
        info.message = summary.status.clone();
    }
    Some(info)
}

/// Returns a sandbox of which the engine shows everything.
pub(super) fn inspected(container: &ContainerInspectResponse, owner: &str) -> Option<Info> {
    let state = container.state.as_ref();
    let name = state.and_then(|state| state.status).map(|status| status.to_string()).unwrap_or_default();
    let labels = container.config.as_ref()?.labels.as_ref()?;
    let mut info = labelled(labels, owner, status(&name))?;
    let said = state.and_then(|state| state.error.clone()).filter(|said| !said.is_empty());
    info.message = match info.status {
        Status::Running => None,
        _ if state.and_then(|state| state.oom_killed) == Some(true) => {
            Some("its memory was used up (OOMKilled)".to_owned())
        }
        _ => said,
    };
    Some(info)
}

/// Returns what a container uses, from two measurements. The engine leaves out those of a container
/// that does not run.
pub(super) fn metrics(
    before: Option<&ContainerStatsResponse>,
    after: &ContainerStatsResponse,
    created: Option<Timestamp>,
    now: Timestamp,
) -> Metrics {
    let used = |stats: &ContainerStatsResponse| {
        let cpu = stats.cpu_stats.as_ref()?;
        Some((cpu.cpu_usage.as_ref()?.total_usage? as f64, cpu.system_cpu_usage? as f64))
    };
    let processors = after.cpu_stats.as_ref().and_then(|cpu| cpu.online_cpus).unwrap_or(1).max(1);
    let share = before.and_then(|before| {
        let ((own_before, all_before), (own, all)) = (used(before)?, used(after)?);
        (all > all_before)
            .then(|| (own - own_before).max(0.0) / (all - all_before) * f64::from(processors) * 100.0)
    });
    let memory = after.memory_stats.as_ref().and_then(|memory| {
        // Pages that the kernel can drop are not in use; their counter depends on the version of
        // cgroups.
        let names = ["inactive_file", "total_inactive_file"];
        let cached =
            memory.stats.as_ref().and_then(|stats| names.iter().rev().find_map(|name| stats.get(*name)));
        Some(memory.usage?.saturating_sub(cached.copied().unwrap_or(0)) as f64 / f64::from(1 << 20))
    });
    let uptime = created.map_or(0, |created| now.as_millisecond() - created.as_millisecond());
    Metrics { cpu_usage_percent: share, memory_usage_mb: memory, uptime: u64::try_from(uptime).unwrap_or(0) }
}

/// Returns an event as clients are shown it. Commands are left out: they are most of the events,
/// and say nothing about the sandbox.
pub(super) fn happening(event: &EventMessage) -> Option<Happening> {
    let action = event.action.as_deref()?;
    if action.starts_with("exec_") {
        return None;
    }
    let code = event.actor.as_ref().and_then(|actor| actor.attributes.as_ref()?.get("exitCode").cloned());
    let (kind, message) = match action {
        "oom" => ("Warning", "A process was killed because the sandbox's memory is used up.".to_owned()),
        "die" => ("Normal", format!("The container has ended with code {}.", code.unwrap_or_default())),
        "create" => ("Normal", "The container was created.".to_owned()),
        "start" => ("Normal", "The container was started.".to_owned()),
        "kill" => ("Normal", "The container was sent a signal.".to_owned()),
        "stop" => ("Normal", "The container was stopped.".to_owned()),
        other => ("Normal", format!("The engine reports `{other}`.")),
    };
    let at = event.time_nano.and_then(|time| Timestamp::from_nanosecond(time.into()).ok());
    Some(Happening { kind: kind.to_owned(), reason: action.to_owned(), message, count: 1, at })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_of_others_are_not_sandboxes() {
        let labels = |owner: &str| {
            [(OWNER.to_owned(), owner.to_owned()), (SANDBOX.to_owned(), "docker-1".to_owned())].into()
        };
        assert_eq!(labelled(&labels("other"), "mine", Status::Running), None);
        assert_eq!(labelled(&HashMap::new(), "mine", Status::Running), None);
        assert_eq!(labelled(&labels("mine"), "mine", Status::Running).expect("mine").id, "docker-1");
    }

    #[test]
    fn usage_is_what_was_used_between_two_measurements() {
        let stats = |own: u64, all: u64| -> ContainerStatsResponse {
            serde_json::from_value(json!({
                "cpu_stats": { "cpu_usage": { "total_usage": own }, "system_cpu_usage": all, "online_cpus": 2 },
                "memory_stats": { "usage": 3 << 20, "stats": { "inactive_file": 1 << 20 } },
            }))
            .expect("stats")
        };
        let now = Timestamp::from_second(10).expect("a time");
        let used = metrics(Some(&stats(100, 1000)), &stats(200, 2000), Some(Timestamp::UNIX_EPOCH), now);
        assert_eq!(
            (used.cpu_usage_percent, used.memory_usage_mb, used.uptime),
            (Some(20.0), Some(2.0), 10_000)
        );
        assert_eq!(metrics(None, &stats(1, 1), None, now).cpu_usage_percent, None);
    }
}
