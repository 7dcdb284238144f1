//! `cargo xtask check-edges`: a table of the allowed dependencies between our crates, and of
//! forbidden foreign ones.
//!
//! A new edge is a design decision. It is made here and in ARCHITECTURE.md's table before it is
//! added to a `Cargo.toml`.

use std::process::ExitCode;

use anyhow::Result;

use crate::workspace::{self, Package};

/// The allowed and forbidden dependencies of one crate. Tests (dev-dependencies) may use anything.
struct Row {
    name: &'static str,
    /// Our crates that it may use.
    uses: Uses,
    /// Foreign crates that it must not use, directly or indirectly.
    never: &'static [Never],
}

enum Uses {
    Only(&'static [&'static str]),
    /// For tests and benchmarks: no released program depends on them.
    Anything,
}

/// Foreign crates that would break a promise of one of our crates.
struct Never {
    /// Completes "must not have ...".
    what: &'static str,
    packages: &'static [&'static str],
}

const ASYNC: Never =
    Never { what: "async", packages: &["tokio", "mio", "async-std", "smol", "futures-executor"] };
const CLIENT: Never =
    Never { what: "a client", packages: &["kube-client", "kube-runtime", "hyper", "reqwest", "ureq"] };
const HTTP: Never = Never { what: "HTTP", packages: &["http", "hyper", "axum", "tower", "reqwest", "ureq"] };
const KUBERNETES: Never = Never { what: "Kubernetes types", packages: &["k8s-openapi", "kube", "kube-core"] };
const RANDOMNESS: Never = Never { what: "randomness", packages: &["rand", "fastrand", "getrandom", "uuid"] };
const DATABASE: Never = Never { what: "the store", packages: &["rusqlite", "libsqlite3-sys", "sqlx"] };
const ARGUMENTS: Never = Never { what: "a command line", packages: &["clap"] };

const TABLE: &[Row] = &[
    row("warren-api", &[], &[ASYNC, CLIENT]),
    row("warren-proto", &[], &[KUBERNETES]),
    row("warren-decide", &["warren-api"], &[ASYNC, CLIENT, RANDOMNESS]),
    row("warren-store", &[], &[HTTP, CLIENT]),
    row("warren-sys", &[], &[ASYNC, KUBERNETES]),
    row("warren-oci", &["warren-sys"], &[ASYNC, KUBERNETES]),
    row("warren-shim", &["warren-oci"], &[ASYNC, KUBERNETES]),
    row("warren-image", &[], &[HTTP]),
    row("warren-apiserver", &["warren-store"], &[ARGUMENTS]),
    row("warren-controllers", &["warren-api", "warren-decide"], &[DATABASE, ARGUMENTS]),
    row(
        "warren-node",
        &["warren-api", "warren-proto", "warren-decide", "warren-oci", "warren-image", "warren-sys"],
        &[DATABASE, ARGUMENTS],
    ),
    row("warren-router", &["warren-api", "warren-proto", "warren-decide"], &[DATABASE, ARGUMENTS]),
    row("warren-guest", &["warren-proto", "warren-sys"], &[KUBERNETES]),
    row("warren-client", &["warren-api", "warren-proto"], &[DATABASE, ARGUMENTS]),
    row("warren-e2b", &["warren-api", "warren-client", "warren-proto"], &[DATABASE, ARGUMENTS]),
    row("warren-mcp", &["warren-api", "warren-client"], &[DATABASE, ARGUMENTS]),
    row("warren-sessions", &[], &[KUBERNETES, HTTP, ARGUMENTS]),
    row("warren-providers", &["warren-api", "warren-client"], &[DATABASE, ARGUMENTS]),
    // The second program. It reaches sandboxes only through providers and the client.
    row(
        "warren-service",
        &["warren-api", "warren-client", "warren-e2b", "warren-mcp", "warren-providers", "warren-sessions"],
        &[],
    ),
    row(
        "warren-local",
        // The engine too, because it forks the zygote before it starts threads. And sys, for
        // releasing its own memory when idle.
        &[
            "warren-apiserver",
            "warren-controllers",
            "warren-node",
            "warren-router",
            "warren-api",
            "warren-oci",
            "warren-sys",
        ],
        &[ARGUMENTS],
    ),
    row(
        "warren",
        &[
            "warren-client",
            "warren-local",
            "warren-controllers",
            "warren-router",
            "warren-node",
            "warren-api",
            // For `warren guest`, the same daemon in another program.
            "warren-guest",
            // For `warren oci`, which has no daemon.
            "warren-oci",
        ],
        &[],
    ),
    Row { name: "warren-testkit", uses: Uses::Anything, never: &[] },
    row("warren-sim", &["warren-api", "warren-controllers", "warren-decide"], &[DATABASE]),
    Row { name: "warren-e2e", uses: Uses::Anything, never: &[] },
    Row { name: "warren-bench", uses: Uses::Anything, never: &[] },
    row("xtask", &["warren-api", "warren-testkit"], &[]),
];

const fn row(name: &'static str, uses: &'static [&'static str], never: &'static [Never]) -> Row {
    Row { name, uses: Uses::Only(uses), never }
}

/// A crate and all of its dependencies, each with its path.
struct Reach<'a> {
    package: &'a Package,
    /// The paths as lists of names, without the crate itself.
    foreign: Vec<Vec<String>>,
}

pub fn run() -> Result<ExitCode> {
    let packages = workspace::packages()?;
    let mut reaches = Vec::new();
    for package in &packages {
        let watched = TABLE.iter().any(|row| row.name == package.name && !row.never.is_empty());
        let foreign = if watched { reached_by(&package.name)? } else { Vec::new() };
        reaches.push(Reach { package, foreign });
    }
    let complaints = check(&reaches, TABLE);
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if complaints.is_empty() {
        eprintln!("the edges of {} crates are those of the design", packages.len());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

/// Runs `cargo tree`, which uses the features of this crate alone. `cargo metadata` unites the
/// features of all crates of the workspace, and so would see a client behind every `kube`.
fn reached_by(name: &str) -> Result<Vec<Vec<String>>> {
    let tree = workspace::output(workspace::cargo().args([
        "tree",
        "--package",
        name,
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "depth",
        "--format",
        " {p}",
        "--no-dedupe",
    ]))?;
    Ok(paths(&tree))
}

/// Converts lines of depth and name into the path of each.
fn paths(tree: &str) -> Vec<Vec<String>> {
    let mut here: Vec<String> = Vec::new();
    let mut found = Vec::new();
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        let (Some(depth), Some(name)) =
            (words.next().and_then(|depth| depth.parse::<usize>().ok()), words.next())
        else {
            continue;
        };
        // Depth 0 is the crate itself.
        if depth > 0 {
            here.truncate(depth - 1);
            here.push(name.to_owned());
            found.push(here.clone());
        }
    }
    found
}

/// Returns a sentence for each violation of the table.
fn check(reaches: &[Reach<'_>], table: &[Row]) -> Vec<String> {
    let mut complaints = Vec::new();
    for Reach { package, foreign } in reaches {
        let name = &package.name;
        let Some(row) = table.iter().find(|row| row.name == name) else {
            complaints.push(format!(
                "`{name}` has no row in the table of edges: decide what it may depend on, in xtask/src/edges.rs and \
                 ARCHITECTURE.md"
            ));
            continue;
        };

        let ours = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind.as_deref() != Some("dev"))
            .filter(|dependency| reaches.iter().any(|other| other.package.name == dependency.name));
        for dependency in ours {
            if let Uses::Only(allowed) = row.uses
                && !allowed.contains(&dependency.name.as_str())
            {
                let rule = match allowed {
                    [] => "it may depend on no other crate of ours".to_owned(),
                    _ => format!("of our crates it may depend only on {}", allowed.join(", ")),
                };
                complaints.push(format!("`{name}` depends on `{}`: {rule}", dependency.name));
            }
        }

        for never in row.never {
            let path = foreign
                .iter()
                .filter(|path| path.last().is_some_and(|last| never.packages.contains(&last.as_str())))
                .min_by_key(|path| path.len());
            if let Some(path) = path {
                complaints.push(format!(
                    "`{name}` → `{}`: `{name}` must not have {}",
                    path.join("` → `"),
                    never.what
                ));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::workspace::Dependency;

    /// Checks crates, given their declared dependencies (`dev:` before those for tests) and a
    /// `cargo tree` each.
    fn complaints(crates: &[(&str, &[&str], &str)], expected: Expect) {
        let packages: Vec<Package> = crates
            .iter()
            .map(|(name, dependencies, _)| Package {
                name: (*name).to_owned(),
                targets: Vec::new(),
                dependencies: dependencies
                    .iter()
                    .map(|dependency| match dependency.strip_prefix("dev:") {
                        Some(name) => Dependency { name: name.to_owned(), kind: Some("dev".to_owned()) },
                        None => Dependency { name: (*dependency).to_owned(), kind: None },
                    })
                    .collect(),
            })
            .collect();
        let reaches: Vec<Reach<'_>> = packages
            .iter()
            .zip(crates)
            .map(|(package, (_, _, tree))| Reach { package, foreign: paths(tree) })
            .collect();
        expected.assert_eq(&check(&reaches, TABLE).join("\n"));
    }

    #[test]
    fn the_design_is_allowed() {
        complaints(
            &[
                (
                    "warren-api",
                    &["serde", "dev:warren-testkit"],
                    "0 warren-api v0\n1 kube v5\n2 kube-core v5\n",
                ),
                ("warren-decide", &["warren-api"], "0 warren-decide v0\n1 warren-api v0\n"),
                ("warren-testkit", &["warren-api"], ""),
                ("xtask", &["warren-testkit"], ""),
            ],
            expect![[""]],
        );
    }

    #[test]
    fn a_forbidden_edge_is_named_with_its_rule() {
        complaints(
            &[
                ("warren-api", &["warren-decide"], ""),
                ("warren-decide", &["warren-api"], ""),
                ("warren-router", &["warren-api", "warren-node"], ""),
                ("warren-node", &[], ""),
            ],
            expect![[r#"
                `warren-api` depends on `warren-decide`: it may depend on no other crate of ours
                `warren-router` depends on `warren-node`: of our crates it may depend only on warren-api, warren-proto, warren-decide"#]],
        );
    }

    #[test]
    fn nothing_that_ships_depends_on_what_tests_it() {
        complaints(
            &[("warren-testkit", &[], ""), ("warren-client", &["warren-testkit"], "")],
            expect![
                "`warren-client` depends on `warren-testkit`: of our crates it may depend only on warren-api, warren-proto"
            ],
        );
    }

    #[test]
    fn a_forbidden_foreign_crate_is_found_through_others_by_the_shortest_way() {
        let tree = "0 warren-decide v0.1.0 (/x)\n1 kube v5.0.0\n2 kube-client v5.0.0\n3 tower v0.5\n4 tokio v1\n\
                    3 tokio v1\n1 serde v1\n";
        complaints(
            &[("warren-decide", &["kube"], tree)],
            expect![[r#"
                `warren-decide` → `kube` → `kube-client` → `tokio`: `warren-decide` must not have async
                `warren-decide` → `kube` → `kube-client`: `warren-decide` must not have a client"#]],
        );
    }

    #[test]
    fn a_crate_without_a_row_is_a_decision_not_made() {
        complaints(
            &[("warren-new", &[], "")],
            expect![
                "`warren-new` has no row in the table of edges: decide what it may depend on, in xtask/src/edges.rs and ARCHITECTURE.md"
            ],
        );
    }

    #[test]
    fn the_table_speaks_only_of_crates_that_it_has() {
        for row in TABLE {
            if let Uses::Only(uses) = row.uses {
                for used in uses {
                    assert!(TABLE.iter().any(|row| row.name == *used), "{used}");
                }
            }
        }
    }
}
