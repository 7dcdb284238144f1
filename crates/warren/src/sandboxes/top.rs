//! Runs `warren top`: prints the usage of sandboxes.

use anyhow::Context as _;
use serde_json::{Value, json};
use warren_api::Sandbox;
use warren_client::kube::ResourceExt as _;
use warren_client::kube::api::{Api, ListParams};
use warren_client::sandbox;

use super::list::{cell, table};
use crate::cli::{self, Format};
use crate::progress::bytes;

/// Prints the processor time and memory of each sandbox that has a pod.
pub async fn top(arguments: &cli::List) -> anyhow::Result<()> {
    let reached = super::reach(&arguments.place).await?;
    let (path, api): (String, Api<Sandbox>) = match arguments.all_namespaces {
        true => ("/apis/metrics.k8s.io/v1beta1/pods".to_owned(), Api::all(reached.client.clone())),
        false => (
            format!("/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods", reached.namespace),
            Api::namespaced(reached.client.clone(), &reached.namespace),
        ),
    };
    let request = http::Request::get(path).body(Vec::new()).context("make the request")?;
    let usage: Value = reached.client.request(request).await.context("ask for usage (`metrics.k8s.io`)")?;
    let sandboxes = api.list(&ListParams::default()).await.context("list sandboxes")?;
    let rows = sandboxes.items.iter().filter_map(|sandbox| row(sandbox, &usage));
    let rows: Vec<Value> = rows.collect();
    match arguments.output.output {
        Format::Json => println!("{}", json!({ "sandboxes": rows })),
        Format::Text => print!("{}", text(&rows)),
    }
    Ok(())
}

fn row(sandbox: &Sandbox, usage: &Value) -> Option<Value> {
    let pod = sandbox::pod_name(sandbox);
    let namespace = sandbox.namespace();
    let mut items = usage["items"].as_array().into_iter().flatten();
    let used = items.find(|item| {
        item["metadata"]["name"] == pod.as_str()
            && item["metadata"]["namespace"].as_str() == namespace.as_deref()
    })?;
    let sum = |resource: &str| -> f64 {
        let containers = used["containers"].as_array().into_iter().flatten();
        containers.filter_map(|container| number(container["usage"][resource].as_str()?)).sum()
    };
    Some(json!({
        "namespace": namespace, "name": sandbox.name_any(), "claim": super::claim_of(sandbox),
        "cpuMillicores": (sum("cpu") * 1e3).round() as u64, "memoryBytes": sum("memory") as u64,
    }))
}

/// Parses a quantity of the metrics API.
fn number(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * factor)
}

fn text(rows: &[Value]) -> String {
    let rows = rows.iter().map(|row| {
        let memory = bytes(row["memoryBytes"].as_u64().unwrap_or_default());
        [cell(&row["name"]), cell(&row["claim"]), format!("{}m", row["cpuMillicores"]), memory]
    });
    table(&["NAME", "CLAIM", "CPU", "MEMORY"], &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn quantities_are_read_in_every_form_that_metrics_have() {
        for (text, expected) in [("250m", 0.25), ("1500000n", 0.0015), ("2", 2.0), ("3Ki", 3072.0)] {
            let read = number(text).expect("a quantity");
            assert!((read - expected).abs() < 1e-12, "{text}: {read}");
        }
        assert_eq!((number("1Zx"), number("m"), number("")), (None, None, None));
    }

    #[test]
    fn usage_is_shown_in_columns() {
        let rows = [
            json!({"name": "run-abc", "cpuMillicores": 1250, "memoryBytes": 12_345_678}),
            json!({"name": "pool-1", "claim": "mine", "cpuMillicores": 0, "memoryBytes": 900}),
        ];
        expect![[r#"
            NAME     CLAIM  CPU    MEMORY
            run-abc         1250m  12.3 MB
            pool-1   mine   0m     900 B
        "#]]
        .assert_eq(&text(&rows));
    }
}
