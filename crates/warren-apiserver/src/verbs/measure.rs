//! `metrics.k8s.io`: asks the nodes for their usage and answers like the metrics server.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use warren_store::{ListRequest, Object};

use crate::call::Call;
use crate::respond::{self, Representation, ResponseBody};
use crate::server::Inner;
use crate::status::{ApiError, Subject};
use crate::{kubelet_proxy, table};

/// The time limit of a node's answer. A slower node is left out, as by the metrics server.
const PATIENCE: Duration = Duration::from_secs(10);

/// The parts of kubelet's `/stats/summary` that are used.
#[derive(Debug, Deserialize)]
struct Summary {
    /// The period of its rates in seconds. Only Warren's own nodes report it.
    #[serde(default)]
    window: f64,
    node: NodeStats,
    #[serde(default)]
    pods: Vec<PodStats>,
}

#[derive(Debug, Deserialize)]
struct NodeStats {
    cpu: Cpu,
    memory: Memory,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStats {
    pod_ref: PodReference,
    #[serde(default)]
    containers: Vec<ContainerStats>,
}

#[derive(Debug, Deserialize)]
struct PodReference {
    uid: String,
}

#[derive(Debug, Deserialize)]
struct ContainerStats {
    name: String,
    cpu: Cpu,
    memory: Memory,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    time: jiff::Timestamp,
    #[serde(default)]
    usage_nano_cores: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    #[serde(default)]
    working_set_bytes: u64,
}

/// Answers with one object or a list of them.
pub(super) async fn measure(server: &Inner, call: &Call<'_>) -> Result<Response<ResponseBody>, ApiError> {
    let of_pods = call.target.definition.namespaced;
    let resource = Arc::from(if of_pods { "pods" } else { "nodes" });
    let filter = call.filter()?;
    let request = ListRequest { resource: &resource, filter: &filter, limit: None, after: None, at: None };
    let list = server.store.list(&request).map_err(ApiError::internal)?;
    let named = list.items.iter().map(|object| (Arc::clone(object), object.value()));
    let objects: Vec<(Arc<Object>, Value)> = named.collect();
    let nodes: BTreeSet<String> = objects
        .iter()
        .filter_map(|(object, value)| match of_pods {
            true => value["spec"]["nodeName"].as_str().map(str::to_owned),
            false => Some(object.key.name.to_string()),
        })
        .collect();
    let summaries = join_all(nodes.into_iter().map(|node| async move {
        let summary = ask(server, &node).await;
        (node, summary)
    }));
    let summaries: HashMap<String, Summary> =
        summaries.await.into_iter().filter_map(|(node, summary)| Some((node, summary?))).collect();
    let items: Vec<Value> = objects
        .iter()
        .filter_map(|(object, value)| match of_pods {
            true => pod_metrics(&summaries, object, value),
            false => Some(node_metrics(summaries.get(&*object.key.name)?, value)),
        })
        .collect();
    match call.name {
        Some(name) => one(call, name, items),
        None => Ok(many(call, &items)),
    }
}

async fn ask(server: &Inner, node: &str) -> Option<Summary> {
    let asked = tokio::time::timeout(PATIENCE, kubelet_proxy::read(server, node, "/stats/summary")).await;
    let body = match asked {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            tracing::debug!(node, error = %error.message, "node does not say what it uses");
            return None;
        }
        Err(_) => {
            tracing::debug!(node, "node does not say in time what it uses");
            return None;
        }
    };
    serde_json::from_slice(&body)
        .inspect_err(|error| tracing::debug!(node, %error, "summary not understood"))
        .ok()
}

fn metadata(value: &Value) -> Value {
    let mut metadata = json!({"name": value["metadata"]["name"]});
    for field in ["namespace", "labels"] {
        if let Some(there) = value["metadata"].get(field) {
            metadata[field] = there.clone();
        }
    }
    metadata
}

fn usage(cpu: &Cpu, memory: &Memory) -> Value {
    json!({"cpu": nanocores(cpu.usage_nano_cores), "memory": bytes(memory.working_set_bytes)})
}

fn measured(summary: &Summary, cpu: &Cpu, value: &Value) -> Value {
    let mut metadata = metadata(value);
    let time = format!("{:.0}", cpu.time);
    metadata["creationTimestamp"] = time.as_str().into();
    json!({"metadata": metadata, "timestamp": time, "window": format!("{:.3}s", summary.window)})
}

fn node_metrics(summary: &Summary, value: &Value) -> Value {
    let NodeStats { cpu, memory } = &summary.node;
    let mut metrics = measured(summary, cpu, value);
    metrics["usage"] = usage(cpu, memory);
    metrics
}

fn pod_metrics(summaries: &HashMap<String, Summary>, object: &Object, value: &Value) -> Option<Value> {
    let summary = summaries.get(value["spec"]["nodeName"].as_str()?)?;
    let pod = summary.pods.iter().find(|pod| *pod.pod_ref.uid == *object.meta.uid)?;
    let containers: Vec<Value> = pod
        .containers
        .iter()
        .map(|container| json!({"name": container.name, "usage": usage(&container.cpu, &container.memory)}))
        .collect();
    let mut metrics = measured(summary, &pod.containers.first()?.cpu, value);
    metrics["containers"] = containers.into();
    Some(metrics)
}

fn one(call: &Call<'_>, name: &str, items: Vec<Value>) -> Result<Response<ResponseBody>, ApiError> {
    let Some(mut item) = items.into_iter().next() else {
        // This is the wording of the metrics server.
        let (kind, name) = match call.namespace {
            Some(namespace) => ("podmetrics", format!("{namespace}/{name}")),
            None => ("nodemetrics", name.to_owned()),
        };
        return Err(ApiError::not_found(Subject { group: &call.target.definition.group, kind, name: &name }));
    };
    say_what_it_is(call, &mut item);
    Ok(respond::value(StatusCode::OK, &call.target, &item, call.representation, call.now))
}

fn say_what_it_is(call: &Call<'_>, item: &mut Value) {
    item["kind"] = (*call.target.definition.kind).into();
    item["apiVersion"] = (*call.target.version().api_version).into();
}

fn many(call: &Call<'_>, items: &[Value]) -> Response<ResponseBody> {
    let (kind, api_version, items) = match call.representation {
        Representation::Object | Representation::Unmanaged => {
            let kind = call.target.definition.list_kind.to_string();
            (kind, call.target.version().api_version.to_string(), items.to_vec())
        }
        Representation::Metadata => {
            let items = items.iter().map(table::partial_metadata).collect();
            ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned(), items)
        }
        Representation::Table(row) => {
            let table = table::table(&call.target, items, "", row, true, call.now);
            return respond::json(StatusCode::OK, &table);
        }
    };
    let list = json!({"kind": kind, "apiVersion": api_version, "metadata": {}, "items": items});
    respond::json(StatusCode::OK, &list)
}

/// Formats with the largest unit that loses nothing, as Kubernetes does.
fn nanocores(mut number: u64) -> String {
    let mut units = ["n", "u", "m"].into_iter();
    while number > 0 && number.is_multiple_of(1000) && units.len() > 0 {
        number /= 1000;
        units.next();
    }
    format!("{number}{}", if number == 0 { "" } else { units.next().unwrap_or_default() })
}

fn bytes(mut number: u64) -> String {
    let mut units = ["", "Ki", "Mi", "Gi", "Ti"].into_iter();
    while number > 0 && number.is_multiple_of(1024) && units.len() > 1 {
        number /= 1024;
        units.next();
    }
    format!("{number}{}", units.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_as_kubernetes_does() {
        for (number, text) in
            [(0, "0"), (1, "1n"), (1500, "1500n"), (250_000_000, "250m"), (2_000_000_000, "2")]
        {
            assert_eq!(nanocores(number), text);
        }
        for (number, text) in
            [(0, "0"), (1000, "1000"), (4096, "4Ki"), (3 << 20, "3Mi"), ((1 << 30) + 4096, "1048580Ki")]
        {
            assert_eq!(bytes(number), text);
        }
    }
}
