//! Runs `warren doctor`.

mod cluster;

use std::fmt::Write as _;

use anyhow::Context as _;
use serde_json::json;
use warren_client::home::{DataDir, Surroundings};
use warren_local::doctor::{Facts, Finding, Verdict, examine};

use crate::cli::{self, Format};
use crate::destination::{Destination, Target};

/// Prints the problems of this machine and their remedies. The exit code is 1 if sandboxes cannot
/// run.
pub fn doctor(arguments: &cli::Doctor) -> anyhow::Result<i32> {
    let pool = arguments.pool.clone().map(|pool| ("pool", pool));
    let destination = Destination::choose(&arguments.place, pool.into_iter().collect())?;
    let findings = match &destination.target {
        Target::Local(home) => {
            // Located, not created: the doctor changes nothing.
            let directory = DataDir::locate(home.data_dir.as_deref(), &Surroundings::of_this_process())?;
            examine(&Facts::read(&directory, std::env::var_os("PATH").as_deref())?)
        }
        Target::Cluster { .. } => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.context("start")?.block_on(cluster::examine(&destination))
        }
    };
    let problems = findings.iter().filter(|finding| finding.verdict == Verdict::Problem).count();
    match arguments.output.output {
        Format::Text => print!("{}", text(&findings, destination.is_local())),
        Format::Json => println!("{}", json!({"ok": problems == 0, "findings": findings})),
    }
    Ok(i32::from(problems > 0))
}

fn text(findings: &[Finding], here: bool) -> String {
    let place = if here { "here" } else { "there" };
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let _ = writeln!(text, "{:7}  {:width$}  {}", finding.verdict, finding.check, finding.found);
        if !finding.meaning.is_empty() {
            let _ = writeln!(text, "{:7}  {:width$}  {}", "", "", finding.meaning);
        }
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(text, "{:7}  {:width$}  mend: {remedy}", "", "");
        }
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let last = match (count(Verdict::Problem), count(Verdict::Warning)) {
        (0, 0) => format!("All is well: sandboxes can run {place}."),
        (0, warnings) => format!("Sandboxes can run {place}; {}.", counted(warnings, "warning")),
        (problems, 0) => format!("Sandboxes cannot run {place}: {}.", counted(problems, "problem")),
        (problems, warnings) => format!(
            "Sandboxes cannot run {place}: {}, {}.",
            counted(problems, "problem"),
            counted(warnings, "warning")
        ),
    };
    let _ = writeln!(text, "{last}");
    text
}

fn counted(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn findings_are_told_in_columns() {
        let findings = [
            Finding {
                check: "kernel",
                verdict: Verdict::Ok,
                found: "Linux 6.1".to_owned(),
                meaning: String::new(),
                remedy: None,
            },
            Finding {
                check: "privileges",
                verdict: Verdict::Problem,
                found: "an ordinary user".to_owned(),
                meaning: "It means something.".to_owned(),
                remedy: Some("`sudo warren up`".to_owned()),
            },
        ];
        expect![[r#"
            ok       kernel      Linux 6.1
            problem  privileges  an ordinary user
                                 It means something.
                                 mend: `sudo warren up`
            Sandboxes cannot run here: 1 problem.
        "#]]
        .assert_eq(&text(&findings, true));
        assert!(text(&findings[..1], false).ends_with("All is well: sandboxes can run there.\n"));
    }
}
