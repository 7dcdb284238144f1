//! `warren diff` and `warren apply`: what a sandbox has changed in a directory that it sees by
//! `--mount DIR`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use warren_client::kube::api::Api;
use warren_client::sync::back::printable;
use warren_client::sync::manifest::{Manifest, ManifestError, checkout_root};
use warren_client::views::{self, Change, Changes, View};

use crate::cli::{self, Format};
use crate::glob::Glob;
use crate::{progress, run};

/// Says which files are not as they are here.
pub async fn diff(arguments: &cli::Diff) -> anyhow::Result<()> {
    let changes = changes(&arguments.of).await?;
    print(&changes, arguments.of.output.output);
    Ok(())
}

/// Takes the changed files over, one view after the other. What stops one leaves that directory and
/// those after it as they were.
pub async fn apply(arguments: &cli::Apply) -> anyhow::Result<()> {
    let changes = changes(&arguments.of).await?;
    let told =
        changes.iter().map(|(view, changes)| (view.clone(), changes.files.clone())).collect::<Vec<_>>();
    for (view, changes) in changes {
        let overwrite = arguments.overwrite;
        let applying = tokio::task::spawn_blocking(move || changes.apply(&view.directory, overwrite));
        applying.await??;
    }
    show(told.iter().map(|(view, files)| (view, files)), arguments.of.output.output);
    Ok(())
}

/// Fetches what the sandbox has changed in each view, without what is not asked for.
async fn changes(arguments: &cli::Changed) -> anyhow::Result<Vec<(View, Changes)>> {
    let reached = super::reach(&arguments.place).await?;
    anyhow::ensure!(
        reached.destination.is_local(),
        "only sandboxes of the local home see directories of this machine"
    );
    let name = &arguments.sandbox;
    let entered = super::enter(&reached, name, None).await?;
    let place = &entered.place;
    let pods: Api<Pod> = Api::namespaced(reached.client.clone(), &place.namespace);
    let pod = pods.get(&place.pod).await.with_context(|| format!("read the pod of sandbox `{name}`"))?;
    let views = views::of_container(&pod, &place.container);
    anyhow::ensure!(
        !views.is_empty(),
        "sandbox `{name}` has no view of a directory; `warren run --mount DIR --keep` makes one"
    );
    let mut found = Vec::new();
    for view in views {
        let spool = run::temporary_file().context("make a temporary file")?;
        let handle = spool.try_clone().context("make a temporary file")?;
        let shown = view.directory.display().to_string();
        let fetching = views::fetch(&reached.client, place, &view, handle);
        progress::show_if_slow(|| format!("fetching what changed in `{shown}`"), fetching).await?;
        let (directory, all) = (view.directory.clone(), arguments.all);
        let glob = arguments.pattern.as_deref().map(Glob::new);
        let reading = tokio::task::spawn_blocking(move || {
            let mut changes = Changes::read(&directory, spool)?;
            choose(&directory, &mut changes, all, glob.as_ref())?;
            anyhow::Ok(changes)
        });
        let changes = reading.await?.with_context(|| format!("compare with `{shown}`"))?;
        if changes.has_git {
            eprintln!(
                "note: what the sandbox changed in `.git` of `{shown}` stays there: git would execute some of it"
            );
        }
        found.push((view, changes));
    }
    entered.leave();
    Ok(found)
}

/// Leaves out what a pattern does not match, and without `all` what git ignores here.
fn choose(
    directory: &Path,
    changes: &mut Changes,
    all: bool,
    glob: Option<&Glob>,
) -> Result<(), ManifestError> {
    changes.files.retain(|path, _| glob.is_none_or(|glob| glob.matches(path)));
    if all || changes.files.is_empty() || checkout_root(directory).is_none() {
        return Ok(());
    }
    let here = Manifest::read(directory, &[])?;
    // A file that git tracks is wanted, also if a pattern would ignore it.
    let unknown = changes.files.keys().filter(|path| !here.entries.contains_key(*path));
    let ignored = here.ignored(unknown.map(PathBuf::as_path))?;
    changes.files.retain(|path, _| !ignored.contains(path));
    Ok(())
}

fn print(changes: &[(View, Changes)], format: Format) {
    show(changes.iter().map(|(view, changes)| (view, &changes.files)), format);
}

fn show<'a>(changes: impl Iterator<Item = (&'a View, &'a BTreeMap<PathBuf, Change>)>, format: Format) {
    let mut rows: Vec<Value> = Vec::new();
    for (view, files) in changes {
        for (path, change) in files {
            let (letter, word) = match change {
                Change::Added => ('A', "added"),
                Change::Modified => ('M', "modified"),
                Change::Deleted => ('D', "deleted"),
            };
            let path = printable(&view.directory.join(path));
            match format {
                Format::Text => println!("{letter} {path}"),
                Format::Json => rows.push(json!({"change": word, "path": path})),
            }
        }
    }
    if format == Format::Json {
        println!("{}", json!({ "changes": rows }));
    }
}
