//! The bill of materials of the binary: SPDX 2.3 as JSON, from cargo's own resolution.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;

use crate::archive::sha256;
use crate::workspace;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

/// Returns the packages in `warren`: its normal dependencies, without those of builds and tests.
pub fn spdx(epoch: u64) -> Result<Vec<u8>> {
    let text = workspace::output(workspace::cargo().args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        &format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
    ]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("read the answer of `cargo metadata`")?;
    let packages: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let nodes: BTreeMap<&str, &Node> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let root = metadata
        .packages
        .iter()
        .find(|package| package.name == "warren")
        .context("find `warren` in the workspace")?;
    let mut found = BTreeSet::new();
    let mut open = vec![root.id.as_str()];
    while let Some(id) = open.pop() {
        if found.insert(id)
            && let Some(node) = nodes.get(id)
        {
            let normal =
                |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
            open.extend(node.deps.iter().filter(normal).map(|dependency| dependency.pkg.as_str()));
        }
    }
    let mut listed: Vec<&Package> = found.iter().filter_map(|id| packages.get(id).copied()).collect();
    listed.sort_by(|left, right| (&left.name, &left.version).cmp(&(&right.name, &right.version)));
    let reference = |package: &Package| {
        format!("SPDXRef-{}-{}", package.name.replace('_', "-"), package.version.replace('+', "-"))
    };
    let names: Vec<String> =
        listed.iter().map(|package| format!("{} {}", package.name, package.version)).collect();
    let entries: Vec<_> = listed
        .iter()
        .map(|package| {
            json!({
                "SPDXID": reference(package),
                "name": package.name,
                "versionInfo": package.version,
                "downloadLocation": "NOASSERTION",
                "filesAnalyzed": false,
                "licenseDeclared": package.license.as_deref().map_or_else(|| "NOASSERTION".to_owned(), |license| license.replace('/', " OR ")),
                "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                    "referenceLocator": format!("pkg:cargo/{}@{}", package.name, package.version)}],
            })
        })
        .collect();
    let document = json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("warren-{}", root.version),
        "documentNamespace": format!("https://warren.dev/spdx/{}", sha256(names.join("\n").as_bytes())),
        "creationInfo": {"created": workspace::rfc3339(epoch)?, "creators": ["Tool: cargo-xtask-dist"]},
        "documentDescribes": [reference(root)],
        "packages": entries,
    });
    Ok(format!("{document:#}\n").into_bytes())
}
