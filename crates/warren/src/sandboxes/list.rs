//! Runs `warren list`, and formats tables.

use anyhow::Context as _;
use jiff::Timestamp;
use serde_json::{Value, json};
use warren_api::Sandbox;
use warren_client::kube::ResourceExt as _;
use warren_client::kube::api::{Api, ListParams};
use warren_client::lease::{Kind, Lease};
use warren_client::sandbox::{self, Progress};

use crate::cli::{self, Format};

/// Prints the sandboxes, and the leases without one.
pub async fn list(arguments: &cli::List) -> anyhow::Result<()> {
    let reached = super::reach(&arguments.place).await?;
    let api: Api<Sandbox> = match arguments.all_namespaces {
        true => Api::all(reached.client.clone()),
        false => Api::namespaced(reached.client.clone(), &reached.namespace),
    };
    let sandboxes = api.list(&ListParams::default()).await.context("list sandboxes")?;
    let mut leases = match super::leases(&reached) {
        Some(leases) => leases.list()?,
        None => Vec::new(),
    };
    let mut rows: Vec<Value> = Vec::new();
    for sandbox in &sandboxes.items {
        let claim = super::claim_of(sandbox);
        let name = sandbox.name_any();
        let at = leases.iter().position(|lease| {
            let known = claim.unwrap_or(&name);
            lease.name == known && sandbox.namespace().as_deref() == Some(lease.namespace.as_str())
        });
        let lease = at.map(|at| leases.remove(at));
        rows.push(row(sandbox, claim, lease.as_ref()));
    }
    let now = Timestamp::now();
    rows.extend(leases.iter().map(|lease| without_sandbox(lease, now)));
    match arguments.output.output {
        Format::Json => println!("{}", json!({ "sandboxes": rows })),
        Format::Text => print!("{}", text(&rows, now)),
    }
    Ok(())
}

fn row(sandbox: &Sandbox, claim: Option<&str>, lease: Option<&Lease>) -> Value {
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
        "claim": claim,
        "lease": lease.map(|lease| &lease.slug),
        "pod": sandbox::pod_name(sandbox),
        "created": sandbox.metadata.creation_timestamp,
        "ends": lease.map_or(json!(sandbox.spec.shutdown_time), |lease| json!(lease.expires)),
    })
}

/// Returns the row of a lease whose object has no sandbox, or does not exist.
fn without_sandbox(lease: &Lease, now: Timestamp) -> Value {
    let status = if now >= lease.expires { "Expired" } else { "NoSandbox" };
    json!({
        "namespace": lease.namespace, "name": Value::Null, "status": status, "reason": Value::Null,
        "claim": (lease.kind == Kind::Claim).then_some(&lease.name), "lease": lease.slug, "pod": Value::Null,
        "created": lease.created, "ends": lease.expires,
    })
}

fn text(rows: &[Value], now: Timestamp) -> String {
    let rows: Vec<[String; 6]> = rows
        .iter()
        .map(|row| {
            let created = row["created"].as_str().and_then(|time| time.parse().ok());
            let age = created.map(|created| age(now, created)).unwrap_or_default();
            let [name, status, reason, claim, lease] =
                ["name", "status", "reason", "claim", "lease"].map(|key| cell(&row[key]));
            [name, status, reason, claim, lease, age]
        })
        .collect();
    table(&["NAME", "STATUS", "REASON", "CLAIM", "LEASE", "AGE"], &rows)
}

/// Returns the time since then, in one unit.
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
            json!({"name": "run-abc", "lease": "mine", "status": "Ready", "created": "2026-01-01T00:00:00Z"}),
            json!({"name": "pool-1", "status": "Waiting", "reason": "DependenciesNotReady", "claim": "mine",
                   "created": "2025-12-31T00:00:00Z"}),
        ];
        let now = "2026-01-01T00:01:05Z".parse().expect("a time");
        expect![[r#"
            NAME     STATUS   REASON                CLAIM  LEASE  AGE
            run-abc  Ready                                 mine   65s
            pool-1   Waiting  DependenciesNotReady  mine          24h
        "#]]
        .assert_eq(&text(&rows, now));
    }
}
