//! `warren list`, and tables.

use anyhow::Context as _;
use jiff::Timestamp;
use serde_json::{Value, json};
use warren_api::Sandbox;
use warren_client::kube::ResourceExt as _;
use warren_client::kube::api::{Api, ListParams};
use warren_client::sandbox::{self, Progress};

use crate::cli::{self, Format};
use crate::home;

/// Prints the sandboxes.
pub async fn list(arguments: &cli::List) -> anyhow::Result<()> {
    let client = home::connect_to(&arguments.place).await?;
    let api: Api<Sandbox> = match arguments.all_namespaces {
        true => Api::all(client),
        false => Api::namespaced(client, &arguments.place.namespace),
    };
    let sandboxes = api.list(&ListParams::default()).await.context("list sandboxes")?;
    let rows: Vec<Value> = sandboxes.items.iter().map(row).collect();
    match arguments.output.output {
        Format::Json => println!("{}", json!({ "sandboxes": rows })),
        Format::Text => print!("{}", text(&rows, Timestamp::now())),
    }
    Ok(())
}

fn row(sandbox: &Sandbox) -> Value {
    let (status, reason) = match sandbox::progress(sandbox) {
        Progress::Ready => ("Ready", None),
        Progress::Waiting(standing) => ("Waiting", Some(standing.reason)),
        Progress::Ended(standing) => ("Ended", Some(standing.reason)),
    };
    json!({
        "namespace": sandbox.namespace(),
        "name": sandbox.name_any(),
        "status": status,
        "reason": reason,
        "claim": super::claim_of(sandbox),
        "pod": sandbox::pod_name(sandbox),
        "created": sandbox.metadata.creation_timestamp,
        "ends": sandbox.spec.shutdown_time,
    })
}

fn text(rows: &[Value], now: Timestamp) -> String {
    let rows: Vec<[String; 5]> = rows
        .iter()
        .map(|row| {
            let created = row["created"].as_str().and_then(|time| time.parse().ok());
            let age = created.map(|created| age(now, created)).unwrap_or_default();
            [cell(&row["name"]), cell(&row["status"]), cell(&row["reason"]), cell(&row["claim"]), age]
        })
        .collect();
    table(&["NAME", "STATUS", "REASON", "CLAIM", "AGE"], &rows)
}

/// Returns the time that has passed, in one unit.
pub fn age(now: Timestamp, then: Timestamp) -> String {
    let seconds = (now.as_second() - then.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns a value as a cell of a table, without control characters.
pub fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.replace(char::is_control, " ")
}

/// Returns a table with columns as wide as their cells.
pub fn table<const N: usize>(heads: &[&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or_default().max(heads[column].len())
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(heads.to_vec());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn sandboxes_are_shown_in_columns() {
        let rows = [
            json!({"name": "run-abc", "status": "Ready", "created": "2026-01-01T00:00:00Z"}),
            json!({"name": "pool-1", "status": "Waiting", "reason": "DependenciesNotReady", "claim": "mine",
                   "created": "2025-12-31T00:00:00Z"}),
        ];
        let now = "2026-01-01T00:01:05Z".parse().expect("a time");
        expect![[r#"
            NAME     STATUS   REASON                CLAIM  AGE
            run-abc  Ready                                 65s
            pool-1   Waiting  DependenciesNotReady  mine   24h
        "#]]
        .assert_eq(&text(&rows, now));
    }
}
