//! Serves usage as kubelet does: `/stats/summary` in JSON, `/metrics/resource` and `/metrics` for
//! Prometheus.

use std::fmt::Write as _;

use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Body, json_text, text};
use crate::node::Shared;
use crate::usage::{Measured, PodSample, Sample};

/// Serves `/stats/summary`. The field `window` is ours: the seconds over which the rates are
/// measured.
pub(super) async fn summary(shared: &Shared) -> Response<Body> {
    match shared.usage.measure(&shared.home_id, &shared.registry).await {
        Ok(measured) => json_text(&summary_of(&measured, &shared.facts.name)),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("read the cgroups: {error}\n")),
    }
}

fn summary_of(measured: &Measured, node: &str) -> Value {
    let time = measured.sample.time;
    let pods: Vec<Value> = measured.sample.pods.iter().map(|pod| pod_summary(measured, pod)).collect();
    let machine = measured.sample.machine;
    json!({
        "window": measured.window.as_secs_f64(),
        "node": {
            "nodeName": node,
            "cpu": {
                "time": time,
                "usageNanoCores": measured.machine_nanocores,
                "usageCoreNanoSeconds": machine.cpu_nanoseconds,
            },
            "memory": {
                "time": time,
                "availableBytes": machine.memory_available_bytes,
                "usageBytes": machine.memory_used_bytes,
                "workingSetBytes": machine.memory_used_bytes,
            },
        },
        "pods": pods,
    })
}

fn pod_summary(measured: &Measured, pod: &PodSample) -> Value {
    let time = measured.sample.time;
    let metadata = &pod.pod.metadata;
    let numbers = |rate: u64, cpu: u64, memory: u64, working_set: u64| {
        json!({
            "cpu": {"time": time, "usageNanoCores": rate, "usageCoreNanoSeconds": cpu},
            "memory": {"time": time, "usageBytes": memory, "workingSetBytes": working_set},
        })
    };
    let containers: Vec<Value> = pod
        .containers
        .iter()
        .map(|container| {
            let stats = container.stats;
            let rate = measured.nanocores(&pod.uid, &container.name);
            let mut entry =
                numbers(rate, stats.cpu_nanoseconds, stats.memory_bytes, stats.memory_working_set_bytes);
            entry["name"] = container.name.as_str().into();
            entry["startTime"] = json!(container.started_at);
            entry
        })
        .collect();
    let sum = |number: fn(&crate::usage::ContainerSample) -> u64| pod.containers.iter().map(number).sum();
    let rate = pod.containers.iter().map(|container| measured.nanocores(&pod.uid, &container.name)).sum();
    let mut entry = numbers(
        rate,
        sum(|container| container.stats.cpu_nanoseconds),
        sum(|container| container.stats.memory_bytes),
        sum(|container| container.stats.memory_working_set_bytes),
    );
    entry["podRef"] = json!({"name": metadata.name, "namespace": metadata.namespace, "uid": pod.uid});
    entry["startTime"] = json!(pod.pod.status.as_ref().and_then(|status| status.start_time.as_ref()));
    entry["containers"] = containers.into();
    entry["process_stats"] = json!({"process_count": sum(|container| container.stats.pids)});
    entry
}

/// Serves `/metrics/resource`: cumulative counters, so one sample is enough.
pub(super) async fn resources(shared: &Shared) -> Response<Body> {
    match shared.usage.sample(&shared.home_id, &shared.registry).await {
        Ok(sample) => page(resource_metrics(&sample)),
        Err(_) => page(
            "# HELP scrape_error 1 if there was an error while getting container metrics, 0 otherwise\n\
             # TYPE scrape_error gauge\nscrape_error 1\n"
                .to_owned(),
        ),
    }
}

/// Serves `/metrics`: the node's own metrics.
pub(super) fn node(shared: &Shared) -> Response<Body> {
    let mut running = 0;
    let mut pods = 0;
    let mut exited = 0;
    for (_, entry) in shared.registry.all() {
        let state = entry.state.borrow();
        let containers = state.iter().flat_map(|state| state.containers.values());
        let (mut here, mut ended) = (0, 0);
        for container in containers {
            match container.status {
                warren_oci::protocol::ContainerStatus::Running { .. } => here += 1,
                warren_oci::protocol::ContainerStatus::Exited { .. } => ended += 1,
                _ => {}
            }
        }
        running += here;
        exited += ended;
        pods += u64::from(here > 0);
    }
    let mut metrics = format!(
        "# HELP kubelet_node_name The node's name. The count is always 1.\n\
         # TYPE kubelet_node_name gauge\n\
         kubelet_node_name{{node=\"{}\"}} 1\n\
         # HELP kubelet_running_containers Number of containers currently running\n\
         # TYPE kubelet_running_containers gauge\n\
         kubelet_running_containers{{container_state=\"exited\"}} {exited}\n\
         kubelet_running_containers{{container_state=\"running\"}} {running}\n\
         # HELP kubelet_running_pods Number of pods that have a running container\n\
         # TYPE kubelet_running_pods gauge\n\
         kubelet_running_pods {pods}\n",
        shared.facts.name
    );
    if let Some(network) = &shared.network {
        metrics.push_str(&network.decisions.metrics());
    }
    page(metrics)
}

fn page(page: String) -> Response<Body> {
    let mut response = text(StatusCode::OK, page);
    let kind = http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

/// Formats metrics under kubelet's names and help texts.
fn resource_metrics(sample: &Sample) -> String {
    let at = sample.time.as_millisecond();
    let mut page = String::new();
    let mut family = |name: &str, kind: &str, help: &str, rows: &[(String, f64)]| {
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in rows {
            let _ = match labels.is_empty() {
                true => writeln!(page, "{name} {value} {at}"),
                false => writeln!(page, "{name}{{{labels}}} {value} {at}"),
            };
        }
    };
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let machine = sample.machine;
    let (mut cpu, mut memory, mut starts, mut pod_cpu, mut pod_memory) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for pod in &sample.pods {
        let metadata = &pod.pod.metadata;
        // Names of objects contain nothing that needs escaping.
        let of_pod = format!(
            "namespace=\"{}\",pod=\"{}\"",
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default()
        );
        let (mut cpu_sum, mut memory_sum) = (0, 0);
        for container in &pod.containers {
            let labels = format!("container=\"{}\",{of_pod}", container.name);
            let stats = container.stats;
            cpu.push((labels.clone(), seconds(stats.cpu_nanoseconds)));
            memory.push((labels.clone(), stats.memory_working_set_bytes as f64));
            starts.push((labels, started(container.started_at)));
            cpu_sum += stats.cpu_nanoseconds;
            memory_sum += stats.memory_working_set_bytes;
        }
        pod_cpu.push((of_pod.clone(), seconds(cpu_sum)));
        pod_memory.push((of_pod, memory_sum as f64));
    }
    let one = |value: f64| vec![(String::new(), value)];
    family(
        "container_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the container in core-seconds",
        &cpu,
    );
    family(
        "container_memory_working_set_bytes",
        "gauge",
        "Current working set of the container in bytes",
        &memory,
    );
    family(
        "container_start_time_seconds",
        "gauge",
        "Start time of the container since unix epoch in seconds",
        &starts,
    );
    family(
        "node_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the node in core-seconds",
        &one(seconds(machine.cpu_nanoseconds)),
    );
    family(
        "node_memory_working_set_bytes",
        "gauge",
        "Current working set of the node in bytes",
        &one(machine.memory_used_bytes as f64),
    );
    family(
        "pod_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the pod in core-seconds",
        &pod_cpu,
    );
    family("pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes", &pod_memory);
    page.push_str(
        "# HELP scrape_error 1 if there was an error while getting container metrics, 0 otherwise\n\
         # TYPE scrape_error gauge\nscrape_error 0\n",
    );
    page
}

fn started(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1e3
}
